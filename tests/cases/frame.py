"""One row of the table of cases: a state, a command, how it ends, what it says and what it leaves."""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from conftest import FIXTURES
from support.publish import done

Build: TypeAlias = Callable[[Path], object]
"""Makes or changes a root; it gets the root's path, whose directory is there and empty at first."""

SMALL = "thread_count_3/step-12"
"""A checkpoint of two ranks in 16 KB: weights alone, with CRCs and with empty files."""
SHARD = "__1_0.distcp"
STEPS = (100, 200, 300, 1000)
"""By text 1000 comes before 200."""


@dataclass(frozen=True)
class Meanwhile:
    """What somebody else does to the root while a command is busy.

    ``do`` is done right after the function at the dotted name ``after`` was called for the
    ``nth`` time. A name that is not there any more is an error.
    """

    after: str
    do: Build
    nth: int = 1


@dataclass(frozen=True)
class Case:
    """A row; paths are relative to the root, ``{root}`` in words is the root's path.

    ``says`` must be in what is printed, ``silent`` must not. ``facts`` are of the JSON result, by
    dotted paths: ``fates.0.name``; a value that is callable is asked, and it sees None where there
    is nothing. With an error they are of the envelope: ``error.kind``. ``left`` must be as before,
    byte by byte, ``gone`` must not be there any more, ``made`` must be there. With ``untouched``
    nothing at all may change. ``old`` makes everything so many days old first, as far as programs
    can tell.
    """

    name: str
    build: Build
    command: tuple[str, ...]
    code: int = 0
    says: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    untouched: bool = False
    old: float | None = None
    meanwhile: Meanwhile | None = None
    then: Build | None = None

    def words(self, root: Path) -> list[str]:
        """The command as it is typed."""
        return [word.replace("{root}", str(root)) for word in self.command]


# ---------------------------------------------------------------------------------- building


@functools.cache
def shelf() -> Path:
    """A directory for roots that are built once by each process."""
    top = Path(tempfile.mkdtemp(prefix="cases-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    return top


@functools.cache
def _committed(source: str, name: str) -> Path:
    place = shelf() / source.replace("/", "_") / name
    shutil.copytree(FIXTURES / source, place)
    done("commit", place)
    return place


def save(root: Path, name: str, source: str = SMALL) -> Path:
    """Put a whole checkpoint there that is not committed."""
    shutil.copytree(FIXTURES / source, root / name, dirs_exist_ok=True)
    return root / name


def committed(*names: str | int, source: str = SMALL) -> Build:
    """Put checkpoints there that are committed, in this order; a number N is ``step-N``."""

    def build(root: Path) -> None:
        for name in names:
            text = f"step-{name}" if isinstance(name, int) else name
            shutil.copytree(_committed(source, text), root / text, symlinks=True)

    return build


def saved(*names: str | int, source: str = SMALL) -> Build:
    """Put whole checkpoints there that are not committed."""

    def build(root: Path) -> None:
        for name in names:
            save(root, f"step-{name}" if isinstance(name, int) else name, source)

    return build


def nothing(root: Path) -> None:
    """Leave everything as it is."""


def each(*builds: Build) -> Build:
    """Do one after the other."""
    return lambda root: [build(root) for build in builds]


def ran(*words: str) -> Build:
    """Run a command that ends well; ``{root}`` is the root's path."""
    return lambda root: done(*(word.replace("{root}", str(root)) for word in words))


def promoted(step: int, *options: str) -> Build:
    """Move the pointer to what holds weights alone."""
    return ran("promote", f"{{root}}/step-{step}", "--require", "none", *options)


def quarantined(*steps: int) -> Build:
    """Mark checkpoints as not to be used."""
    return each(
        *(ran("quarantine", f"{{root}}/step-{n}", "--reason", "odd", "--yes") for n in steps)
    )


def writes(path: str, text: str | bytes = b"x") -> Build:
    """Leave a file, and the directories above it; ``{root}`` in its text is the root's path."""

    def build(root: Path) -> None:
        data = text if isinstance(text, bytes) else text.replace("{root}", str(root)).encode()
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)

    return build


def links(path: str, target: str) -> Build:
    """Leave a symbolic link, and the directories above it."""

    def build(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target.replace("{root}", str(root)))

    return build


def hard_links(path: str, other: str) -> Build:
    """Make a file another name of another file, in place of what it is now."""

    def build(root: Path) -> None:
        (root / path).unlink(missing_ok=True)
        os.link(root / other, root / path)

    return build


def shares(step: int, older: int, *, hard: bool = False) -> Build:
    """Make the shards of a checkpoint links into an older one."""

    def build(root: Path) -> None:
        for shard in sorted((root / f"step-{step}").glob("*.distcp")):
            shard.unlink()
            if hard:
                os.link(root / f"step-{older}" / shard.name, shard)
            else:
                shard.symlink_to(f"../step-{older}/{shard.name}")

    return build


def flips(path: str, at: int = -3000) -> Build:
    """Turn over one bit of a file and leave its times alone."""
    from support.damage import flip

    return lambda root: flip(root / path, at % (root / path).stat().st_size)


def cuts(path: str, by: int = 10) -> Build:
    """Take bytes off the end of a file."""
    return lambda root: os.truncate(root / path, (root / path).stat().st_size - by)


def removes(*paths: str) -> Build:
    """Delete files and directories."""

    def build(root: Path) -> None:
        for path in paths:
            if (root / path).is_dir() and not (root / path).is_symlink():
                shutil.rmtree(root / path)
            else:
                (root / path).unlink()

    return build


# ---------------------------------------------------------------------------------- comparing


def snapshot(top: Path) -> dict[str, object]:
    """Return what is there: files with their bytes, links with their text, directories."""
    found: dict[str, object] = {}
    for path in sorted(top.rglob("*")):
        name = path.relative_to(top).as_posix()
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        else:
            found[name] = path.read_bytes() if path.is_file() else "directory"
    return found


def below(found: Mapping[str, object], path: str) -> dict[str, object]:
    """Return what a snapshot has at and below a path."""
    return {n: what for n, what in found.items() if n == path or n.startswith(f"{path}/")}


def fact(document: Any, path: str) -> Any:
    """Return what lies at a dotted path of a document; None where nothing does."""
    for part in path.split("."):
        if isinstance(document, list) and part.lstrip("-").isdigit():
            number = int(part)
            document = document[number] if -len(document) <= number < len(document) else None
        elif isinstance(document, dict):
            document = document.get(part)
        else:
            return None
    return document


def named(*names: str, key: str = "name") -> Callable[[Any], bool]:
    """Is asked of a list of objects: are these their names, in any order?"""
    return lambda rows: sorted(row[key] for row in rows or ()) == sorted(names)


def deleted(*names: str) -> Callable[[Any], bool]:
    """Is asked of ``fates``: are exactly these given up?"""
    return lambda rows: sorted(row["name"] for row in rows if row["delete"]) == sorted(names)


def reason(name: str, *words: str, key: str = "reason") -> Callable[[Any], bool]:
    """Is asked of a list of objects: does the one of this name say these words as its reason?"""

    def asked(rows: Any) -> bool:
        found = [str(row[key]) for row in rows or () if row["name"] == name]
        return bool(found) and all(word in found[0] for word in words)

    return asked


def every(*asked: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Are all of these so?"""
    return lambda rows: all(one(rows) for one in asked)


def target(dotted: str) -> tuple[Any, str]:
    """Return the object and the attribute that a dotted name means; an error where it is not there."""
    parts = dotted.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:-1]:
            found = getattr(found, part)
        getattr(found, parts[-1])
        return found, parts[-1]
    raise AttributeError(f"{dotted} is not there any more")


def names_of(cases: Iterable[Case]) -> list[str]:
    """Return the names of rows, which are different from each other."""
    found = [case.name for case in cases]
    assert len(found) == len(set(found)), sorted(n for n in found if found.count(n) > 1)
    return found
