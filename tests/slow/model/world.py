"""A root, everybody who works on it, and what must never happen there.

Each action does something for real, through the public functions, and compares what came of it
with what the model knows. Whatever is wrong is raised as ``Broken``, with the rule that it breaks.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import xxhash

import ckptctl
from ckptctl.errors import CkptctlError
from slow.model import disk
from slow.model.disk import BARE, KINDS, TRASH, Memory, Said, Saved, Seen, Sight, everything
from slow.model.turns import Turns, When, watch

SPELLINGS = ("{}", "./{}", "{}/", '"{}"\n', "\ufeff{}\r\n", "{root}/{}", "/elsewhere/run/{}")
STEPS = (1, 2, 3, 8, 9, 10, 11, 20, 100)
"""By text 100 comes before 11, and 20 before 3."""
HINTS = ("latest", "LATEST", "latest.txt")


class Broken(AssertionError):
    """A rule does not hold."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    value: Any = None
    said: str = ""


@dataclass(frozen=True)
class Other:
    """What the second actor does, and when; None is while ``prune`` waits for the answer."""

    act: str
    a: int
    b: int
    when: When | None = None


@dataclass
class Statistics:
    """What a run of the machine has seen."""

    sequences: int = 0
    steps: int = 0
    overlaps: int = 0
    shapes: set[object] = field(default_factory=set)
    codes: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        codes = ", ".join(f"{name} {count}" for name, count in sorted(self.codes.items()))
        return (
            f"{self.sequences} sequences, {self.steps} steps, {self.overlaps} of them with two "
            f"actors at once, {len(self.shapes)} distinct states; {codes}"
        )


COMMANDS = (
    "commit",
    "promote",
    "roll_back",
    "quarantine",
    "release",
    "prune",
    "prune_all",
    "empty_trash",
    "undelete",
    "resolve",
)
"""What the first of two actors may be busy with."""
OTHERS = (*COMMANDS, "save", "publish", "damage", "link", "hint", "lose", "wipe")
"""What the second may do."""
HARMS = ("damage", "link", "lose", "wipe")
"""What no command does: after it a checkpoint may be worse than before."""


class World:
    """One root and the model of it."""

    def __init__(self, top: Path, turns: Turns, statistics: Statistics) -> None:
        self.root, self.turns, self.statistics = top / "run", turns, statistics
        self.root.mkdir(parents=True)
        self.memory = Memory()
        self.true: Said | None = None
        self.broken: Broken | None = None
        self.between: Sight | None = None
        self.overlap, self.asking = False, True
        self.confirming: Callable[[], None] | None = None

    # ------------------------------------------------------------------ looking

    def look(self) -> Sight:
        return disk.look(self.root, self.memory)

    def pick(self, number: int, likely: Callable[[Seen], bool] | None = None) -> str | None:
        """Return one of the checkpoints that are there; mostly one of those that are likely."""
        found = self.look().checkpoints
        names = sorted(found)
        if likely is not None and number % 5:
            names = [name for name in names if likely(found[name])] or names
        return names[number % len(names)] if names else None

    def attempt(self, name: str, act: Callable[[], Any]) -> Outcome:
        """Run a command; whatever it raises that is no error of ours breaks a rule."""
        try:
            value = act()
            found = Outcome(int(getattr(value, "exit_code", 0)), value)
        except CkptctlError as error:
            found = Outcome(int(error.exit_code), None, str(error))
        except Exception as error:
            raise Broken("never exit 1", f"{name} raised {error!r}") from error
        if self.broken is not None:  # by the one who came in between
            raise self.broken
        if found.code == 1:
            raise Broken("never exit 1", f"{name}: {found.said}")
        self.statistics.codes[f"{name}={found.code}"] += 1
        return found

    # ------------------------------------------------------------------ steps

    def step(self, act: str, a: int = 0, b: int = 0, other: Other | None = None) -> None:
        """Do one thing, perhaps with somebody else in the middle of it, and look at what is left."""
        self.statistics.steps += 1
        before = self.look()
        everybody = {act, other.act} if other is not None else {act}
        whole = {name: everything(self.root, name) for name in before.checkpoints}
        saved = dict(self.memory.saved)
        self.turns.begin()
        if other is None:
            getattr(self, act)(a, b)
        elif other.when is None:
            self._waiting(other, b)
        else:
            self._overlapping(act, a, b, other)
        after = self.look()
        self.statistics.shapes.add(hash(after.shape()))
        # a trainer may have saved anew under the name of what was just moved aside
        anew = {name for name, one in self.memory.saved.items() if one is not saved.get(name)}
        if self.between is not None:
            self._series(self.between, after, {act}, set())
            self.between = None
        self._nothing_vanishes(before, after, whole, everybody, anew)
        self._series(before, after, everybody, anew)
        self._pointer_leads_somewhere(before, after, everybody)
        if self.asking:
            self._resolve(after)

    def _overlapping(self, act: str, a: int, b: int, other: Other) -> None:
        def come() -> None:
            try:
                getattr(self, other.act)(other.a, other.b)
                self.between = self.look()
            except Broken as error:
                self.broken = error

        self.overlap = True
        self.statistics.overlaps += 1
        try:
            self.turns.begin(other.when, come)
            getattr(self, act)(a, b)
            self.turns.come()  # it was over before
            if self.broken is not None:
                raise self.broken
        finally:
            self.overlap, self.broken = False, None
            self.turns.begin()

    # ------------------------------------------------------------------ what always holds

    def _nothing_vanishes(
        self,
        before: Sight,
        after: Sight,
        whole: Mapping[str, Mapping[str, bytes]],
        everybody: set[str],
        anew: set[str],
    ) -> None:
        """What was good is where it was, or in the trash, byte by byte."""
        harmed = everybody & {*HARMS, "empty_trash"}
        for name in before.checkpoints:
            if (name in after.checkpoints and name not in anew) or harmed:
                continue
            data = whole[name]
            copies = after.trash.get(name, ())
            if not any(data.items() <= copy.items() for copy in copies):
                raise Broken("what goes is in the trash", f"{name} is not there any more")
            if everybody == {"undelete"} or not everybody & {"prune", "prune_all"}:
                raise Broken("only prune removes", f"{name} went by {sorted(everybody)}")
        if everybody.isdisjoint(HARMS):
            for name, seen in before.checkpoints.items():
                now = after.checkpoints.get(name) if name not in anew else None
                if seen.good(full=True) and now is not None and not now.good(full=True):
                    raise Broken("what stays is as good as it was", name)

    def _series(self, before: Sight, after: Sight, everybody: set[str], anew: set[str]) -> None:
        """No record that is there is ever changed or taken away by a command."""
        if "lose" in everybody:
            return
        for path, data in before.records.items():
            name = path.partition("/")[0]
            gone = name in anew or (name.startswith("step-") and name not in after.checkpoints)
            if not gone and after.records.get(path) != data:
                raise Broken("records are only ever created", path)

    def _pointer_leads_somewhere(self, before: Sight, after: Sight, everybody: set[str]) -> None:
        """What the pointer names is there, unless somebody removed it by other means."""
        said = after.pointer
        if said is None or said.target in after.checkpoints or everybody & set(HARMS):
            return
        if before.pointer == said and said.target not in before.checkpoints:
            return
        raise Broken("what the pointer names is there", said.target)

    def _resolve(self, sight: Sight) -> None:
        for full in (False, True):
            found = self.attempt("resolve", lambda full=full: ckptctl.resolve(self.root, full=full))
            self._judge(sight, found, full=full)

    def _judge(self, sight: Sight, found: Outcome, *, full: bool) -> None:
        """Compare an answer with what is there while nobody else is at work."""
        level = "full" if full else "default"
        usable = sight.usable(full=full)
        if found.code == 3 and not sight.empty:
            raise Broken("never 3 while anything is there", found.said)
        if found.code != 0:
            if usable and not sight.pointer_damaged and not sight.doubtful:
                what = f"{usable[0].name} is good, and it ended with {found.code}: {found.said}"
                raise Broken(f"what is good is handed out ({level})", what)
            return
        if sight.pointer_damaged:
            raise Broken("a damaged decision is not undone", f"{found.value.name} was handed out")
        self._may_be_handed_out(sight, found.value.name, full=full)
        said = sight.pointer
        if said is not None and sight.checkpoints[found.value.name].manifest in said.maybe:
            return
        if not usable or found.value.name != usable[0].name:
            best = usable[0].name if usable else "nothing"
            what = f"{found.value.name}, and {best} is as good"
            raise Broken("the newest that is good", what)

    def _may_be_handed_out(self, sight: Sight, name: str, *, full: bool) -> None:
        seen = sight.checkpoints.get(name)
        passed = sight.pointer.passed if sight.pointer is not None else frozenset()
        level = "full" if full else "default"
        if seen is None:
            raise Broken("handed out is there", name)
        if seen.marked:
            raise Broken("handed out is not quarantined", name)
        if seen.seal is None or seen.staging:
            raise Broken("handed out is committed", name)
        if not seen.good(full=full):
            raise Broken(f"handed out is whole ({level})", name)
        if seen.manifest in passed:
            raise Broken("handed out was not rolled back from", name)

    # ------------------------------------------------------------------ the trainer

    def save(self, a: int, b: int) -> None:
        """Save a step: whole, without one of its files, or under a temporary name."""
        how = b % 6
        name = f"step-{STEPS[a % len(STEPS)]}{'.tmp' if how == 4 else ''}"
        kind = (b // 6) % len(KINDS)
        files = KINDS[kind]
        full = [path for path, data in files.items() if data]
        left_out = full[a % len(full)] if how == 5 else ""
        if (self.root / name).exists():
            return
        (self.root / name).mkdir()
        saved = Saved(kind, left_out)
        self.memory.saved[name] = saved
        for path, data in saved.files.items():
            (self.root / name / path).write_bytes(data)

    def publish(self, a: int, b: int) -> None:
        """Save a whole one and commit it, as a trainer does that calls it after each save."""
        self.save(a, b % len(KINDS) * 6)
        name = f"step-{STEPS[a % len(STEPS)]}"
        before = self.look().checkpoints[name]
        if before.manifest is None:
            self.attempt("commit", lambda: ckptctl.commit(self.root / name))
            after = self.look().checkpoints[name]
            if after.manifest is not None:
                self._sealed(before, after)

    def hint(self, a: int, b: int) -> None:
        """Leave a pointer as trainers do, or take it away."""
        name = HINTS[b % len(HINTS)]
        sight = self.look()
        names = sorted({*sight.checkpoints, *sight.trash})
        place, target = self.root / name, names[a % len(names)] if names else None
        if place.is_symlink() or place.exists():
            place.unlink()
            self.memory.hints.pop(name)
        if target is None or b % 5 == 4:
            return
        target = "step-77" if b % 11 == 10 else target
        if b % 2:
            place.symlink_to(target)
        else:
            text = SPELLINGS[(a + b) % len(SPELLINGS)].format(target, root=self.root)
            place.write_bytes(text.encode())
        self.memory.hints[name] = target

    def link(self, a: int, b: int) -> None:
        """Put links, or other names of the same file, in place of the shards of a checkpoint."""
        name, other = self.pick(a), self.pick(b)
        if name is None or other is None or name == other:
            return
        if self.memory.saved[name].kind != self.memory.saved[other].kind:
            return
        for shard in sorted((self.root / name).glob("*.distcp")):
            source = self.root / other / shard.name
            if shard.is_symlink() or source.is_symlink() or not source.is_file():
                continue
            shard.unlink()
            if a % 2:
                shard.symlink_to(f"../{other}/{shard.name}")
            else:
                os.link(source, shard)

    # ------------------------------------------------------------------ accidents

    def damage(self, a: int, b: int) -> None:
        """Flip a bit, cut, garble or lose a file, and leave all times as they were."""
        name = self.pick(a)
        if name is None:
            return
        full = [path for path, data in self.look().checkpoints[name].files.items() if data]
        shards = [path for path in full if path.endswith(".distcp")]
        how = ("flip", "flip", "cut", "remove", "garble")[b % 5]
        paths = [path for path in full if path == ".metadata"] if how == "garble" else shards
        if not paths:
            return
        place = self.root / name / paths[b % len(paths)]
        status = place.stat()
        data = bytearray(place.read_bytes())
        if how == "remove":
            place.unlink()
            return
        if how == "cut":
            data = data[: len(data) // 2]
        elif how == "flip":
            data[min(disk.DATA, len(data) - 1)] ^= 1
        else:
            data = bytearray(bytes(number * 37 % 251 for number in range(len(data))))
        place.write_bytes(data)
        os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))

    def wipe(self, a: int, b: int) -> None:
        """Delete a checkpoint by other means."""
        name = self.pick(a)
        if name is not None:
            shutil.rmtree(self.root / name)

    def lose(self, a: int, b: int) -> None:
        """Flip a bit of a record, or lose it: a manifest, a mark, a revision of the pointer."""
        paths = sorted(self.look().records)
        if not paths:
            return
        place = self.root / paths[a % len(paths)]
        if b % 3 == 0:
            place.unlink()
        else:
            data = bytearray(place.read_bytes())
            data[b * 7 % len(data)] ^= 1
            place.write_bytes(data)
        if self.look().pointer is not None or not self.look().revisions.last:
            self.true = self.look().pointer

    # ------------------------------------------------------------------ commands

    def commit(self, a: int, b: int) -> None:
        name = self.pick(a, lambda one: one.manifest is None)
        if name is None:
            return
        before = self.look().checkpoints[name]
        found = self.attempt("commit", lambda: ckptctl.commit(self.root / name))
        after = self.look().checkpoints.get(name)
        if after is None or after.manifest in (None, before.manifest):
            return
        if after.manifest not in self.memory.sealed:
            self._sealed(before, after)
        if found.code != 0 and not self.overlap:
            raise Broken("what fails leaves nothing", f"{name} is sealed, and it said {found.said}")

    def _sealed(self, before: Seen, after: Seen) -> None:
        """Find out which bytes a new manifest has sealed: those of before, or of now."""
        assert after.manifest is not None
        saved = self.memory.saved[after.name].files
        sealed = {}
        for row in json.loads(after.manifest)["files"]:
            path = row["path"]
            known = [one.get(path) for one in (saved, before.files, after.files)]
            fitting = [
                data for data in known if data is not None and _digest(data) == row["digest"]
            ]
            if not fitting:
                raise Broken("a manifest is of what was there", f"{after.name}/{path}")
            sealed[path] = fitting[0]
        self.memory.sealed[after.manifest] = sealed
        for path, data in KINDS[after.kind].items():
            bare = after.kind == BARE and len(sealed.get(path, b"")) == len(data)
            if data and sealed.get(path) != data and not bare:
                raise Broken("only what is whole is sealed", f"{after.name}/{path}")

    def promote(self, a: int, b: int, *, rollback: bool = False) -> None:
        name = self.pick(a, lambda one: one.usable(full=True))
        if name is None:
            return
        before, true = self.look(), self.true
        found = self.attempt(
            "promote",
            lambda: ckptctl.promote(self.root / name, require="none", rollback=rollback),
        )
        after = self.look()
        for number, data in after.revisions.records.items():
            if number not in before.revisions.records and data not in self.memory.pointers:
                target = after.checkpoints.get(name) or before.checkpoints[name]
                passed = set(true.passed) if true is not None else set()
                maybe = set(true.maybe) if true is not None else set()
                if rollback or before.pointer_damaged:  # who settles it means this one
                    passed |= _newer(before, target)
                    maybe |= _newer(after, target) - _newer(before, target)
                own = {target.manifest}
                passed, maybe = passed - own, maybe - passed - own
                manifest = target.manifest
                self.true = Said(number, name, manifest, frozenset(passed), frozenset(maybe))
                self.memory.pointers[data] = self.true
                if found.code != 0 and not self.overlap:
                    raise Broken("what fails leaves nothing", f"the pointer moved: {found.said}")
        if self.overlap and not self.turns.nested and found.code == 0:
            late = self._read_since(name)
            marked = after.checkpoints[name].marked if name in after.checkpoints else True
            if late and marked and not before.checkpoints[name].marked:
                raise Broken("marks are read again before the pointer moves", name)
        if found.code != 0 or self.overlap:
            return
        if not before.checkpoints[name].usable(full=True):
            raise Broken("the pointer moves to what is good", name)
        older = true is not None and true.target in before.checkpoints
        if older and not rollback and before.checkpoints[name].step < _step(true):
            raise Broken("the pointer goes back only by rollback", name)

    def roll_back(self, a: int, b: int) -> None:
        self.promote(a, b, rollback=True)

    def quarantine(self, a: int, b: int) -> None:
        self._mark(a, quarantined=True)

    def release(self, a: int, b: int) -> None:
        self._mark(a, quarantined=False)

    def _mark(self, a: int, *, quarantined: bool) -> None:
        name = self.pick(a, lambda one: quarantined or one.marks.last > 0)
        if name is None:
            return
        before = self.look().checkpoints[name]
        command = ckptctl.quarantine if quarantined else ckptctl.release
        word = "quarantine" if quarantined else "release"
        found = self.attempt(word, lambda: command(self.root / name, reason="odd"))
        after = self.look().checkpoints.get(name)
        for number, data in after.marks.records.items() if after is not None else ():
            if number not in before.marks.records:
                self.memory.marks.setdefault(data, quarantined)
        if after is None or found.code != 0 or self.overlap:
            return
        if after.marked is not quarantined:
            raise Broken("a mark says what was asked for", name)

    def empty_trash(self, a: int, b: int) -> None:
        before = self.look()
        self.attempt("empty-trash", lambda: ckptctl.prune(self.root, empty_trash=True))
        if not self.overlap:
            self._judge_emptied(before, self.look())

    def _judge_emptied(self, before: Sight, after: Sight) -> None:
        """What a pointer names is not thrown away, nor the only copies where none is good."""
        gone = {name for name in before.trash if name not in after.trash}
        hints = {target for target in self.memory.hints.values() if target is not None}
        named = {before.pointer.target, *hints} if before.pointer is not None else hints
        if (named & gone) - after.checkpoints.keys():
            raise Broken("emptying leaves what a pointer names", f"{sorted(named & gone)}")
        if gone and not any(one.proven(full=True) for one in after.checkpoints.values()):
            raise Broken("emptying leaves the last copies", ", ".join(sorted(gone)))

    def undelete(self, a: int, b: int) -> None:
        before = self.look()
        names = sorted(before.trash)
        if not names:
            return
        name = names[a % len(names)]
        found = self.attempt("undelete", lambda: ckptctl.undelete(self.root, name))
        if found.code != 0 or self.overlap:
            return
        if everything(self.root, name) != before.trash[name][-1]:
            raise Broken("undelete brings back what was there", name)

    def resolve(self, a: int, b: int) -> None:
        """Ask while somebody else may be at work: what was good before or is good now will do."""
        full = bool(b % 2)
        before = self.look()
        found = self.attempt("resolve", lambda: ckptctl.resolve(self.root, full=full))
        after = self.look()
        if not self.overlap:
            return
        if found.code == 3 and not (before.empty or after.empty):
            raise Broken("never 3 while anything is there", found.said)
        if found.code != 0:
            return
        name = found.value.name
        sights = (after,) if self._read_since(name) else (before, after)
        broken: list[Broken] = []
        for sight in sights:
            try:
                self._may_be_handed_out(sight, name, full=full)
            except Broken as error:
                broken.append(error)
        if len(broken) == len(sights):
            raise broken[0]

    def _read_since(self, name: str) -> bool:
        """Tell whether data of a checkpoint were read after the second actor had been there."""
        return any(
            call == "open" and path.startswith(f"{name}/") and "ckptctl." not in path
            for call, path in self.turns.since
        )

    # ------------------------------------------------------------------ prune

    def prune(self, a: int, b: int) -> None:
        self._prune(a, b, min_age="0m" if a % 4 else "1d")

    def prune_all(self, a: int, b: int) -> None:
        """Give up as much as a policy can: everything but the last."""
        self._prune(1, b * 3, min_age="0m")

    def _prune(self, a: int, b: int, *, min_age: str) -> None:
        policy: dict[str, Any] = {
            "keep_last": (1, 2, None)[b % 3],
            "keep_every": (None, 2)[b // 3 % 2],
            "older_than": (None, "0m")[b // 6 % 2] if b % 3 != 2 else "0m",
            "verify": ("", "quick", "full")[a % 3],
            "include_quarantined": bool(b // 12 % 2),
            "min_age": min_age,
        }
        begun = [self.look()]

        def agreed(plan: Any) -> bool:
            if self.confirming is not None:
                act, self.confirming = self.confirming, None
                act()
                begun[0] = self.look()
            return True

        found = self.attempt("prune", lambda: ckptctl.prune(self.root, confirm=agreed, **policy))
        if not self.overlap:
            self._judge_prune(begun[0], self.look(), found, policy)

    def _waiting(self, other: Other, b: int) -> None:
        """Do something while ``prune`` waits for the answer; it must be respected in full."""
        self.confirming = lambda: getattr(self, other.act)(other.a, other.b)
        try:
            self.prune_all(0, b)
        finally:
            self.confirming = None

    def _judge_prune(
        self, before: Sight, after: Sight, found: Outcome, policy: Mapping[str, Any]
    ) -> None:
        """Compare what went with what may go while nobody else is at work."""
        gone = [seen for name, seen in before.checkpoints.items() if name not in after.checkpoints]
        if not gone:
            return
        left = [seen for name, seen in before.checkpoints.items() if name in after.checkpoints]
        names = {seen.name for seen in gone}
        if found.code != 0:
            raise Broken("what fails leaves nothing", f"{sorted(names)} went: {found.said}")
        if policy["min_age"] != "0m":
            raise Broken("what is young stays", f"{sorted(names)}")
        for seen in gone:
            if seen.marked and not policy["include_quarantined"]:
                raise Broken("what is quarantined stays", seen.name)
            if seen.staging or (
                seen.manifest is None and not seen.marked and not self._looks(seen)
            ):
                raise Broken("what may be a save in progress stays", seen.name)
            shared = [one.name for one in left if one.inodes & seen.inodes]
            if shared:
                raise Broken("what shares files with one that stays", f"{seen.name}, {shared[0]}")
        if before.pointer_damaged:
            raise Broken("nothing goes while the pointer is damaged", f"{sorted(names)}")
        named = {before.pointer.target} if before.pointer is not None else set()
        hints = {target for target in self.memory.hints.values() if target is not None}
        if (named | hints) & names:
            raise Broken("what a pointer names stays", f"{sorted((named | hints) & names)}")
        if hints - before.checkpoints.keys():
            raise Broken("nothing goes while a pointer leads nowhere", f"{sorted(names)}")
        for keeper in self._keepers(before, policy):
            if keeper.name in names:
                raise Broken("the last that are proven stay", keeper.name)
        if not any(one.proven(full=policy["verify"] != "quick") for one in left):
            raise Broken("one that is proven stays", f"{sorted(names)} went")

    @staticmethod
    def _looks(seen: Seen) -> bool:
        """Tell whether one that is not committed has all of its files, each as long as it was."""
        saved = seen.memory.saved[seen.name]
        sizes = {name: len(data) for name, data in KINDS[saved.kind].items() if data}
        return all(len(seen.files.get(name, b"")) == size for name, size in sizes.items())

    @staticmethod
    def _keepers(sight: Sight, policy: Mapping[str, Any]) -> list[Seen]:
        """Return those that count as kept, as the model sees it: the newest in full, others quickly."""
        wanted, found = policy["keep_last"] or 1, []
        for seen in sorted(sight.checkpoints.values(), key=lambda one: -one.step):
            full = policy["verify"] == "full" or (not found and policy["verify"] != "quick")
            if seen.proven(full=full):
                found.append(seen)
            if len(found) == wanted:
                break
        return found


def _newer(sight: Sight, than: Seen) -> set[bytes]:
    found = (one for one in sight.checkpoints.values() if one.step > than.step)
    return {one.manifest for one in found if one.manifest is not None}


def _step(said: Said | None) -> int:
    return int(said.target.removesuffix(".tmp").partition("-")[2]) if said is not None else -1


def _digest(data: bytes) -> str:
    return f"xxh3-128:{xxhash.xxh3_128_hexdigest(data)}"


@contextmanager
def worlds(statistics: Statistics) -> Iterator[Callable[[], World]]:
    """Yield what makes one new world after another, in a process where everything is quick."""
    memory = Path("/dev/shm")  # where it is there, no world waits for a disk
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as scratch,
    ):
        patch.setattr("os.cpu_count", lambda: 1)
        patch.setattr("ckptctl.operations.verify.units.SMALL_FILE", disk.SMALL_FILE)
        patch.setattr("ckptctl.storage.system.RealSystem._sync", lambda *_: None)
        turns = watch(patch)

        def fresh() -> World:
            top = Path(scratch) / "world"
            shutil.rmtree(top, ignore_errors=True)
            statistics.sequences += 1
            return World(top, turns, statistics)

        yield fresh


__all__ = ["COMMANDS", "OTHERS", "TRASH", "Broken", "Other", "Statistics", "World", "worlds"]
