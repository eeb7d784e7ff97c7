"""Rules that protect checkpoints, each taken out by one replacement; the machine must notice.

A replacement whose target is not there any more is an error: the rule has moved, and so must the
mutant. ``acts`` are those in which it can show, so that few sequences are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ckptctl.errors import NothingThere
from ckptctl.operations.retention.guards import Named
from ckptctl.protocol.series import Series

PRUNE = "ckptctl.operations.retention"
CHOICE = "ckptctl.operations.catalog"
PUBLISH = "ckptctl.operations.publish"


@dataclass(frozen=True)
class Mutant:
    """What is replaced, by what that the original is given to, and which rules may then break."""

    target: str
    instead: Callable[[Any], Any]
    breaks: tuple[str, ...]
    alone: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    asks: bool = False

    @property
    def acts(self) -> dict[str, tuple[str, ...]]:
        """What is done."""
        return {"alone": self.alone, "together": self.together, "waiting": self.waiting}


def answers(value: Any) -> Callable[[Any], Any]:
    """Replace a function by one that always says the same; a class by what makes it anew."""
    return lambda _: lambda *args, **kwargs: value() if isinstance(value, type) else value


def _without_problems(original: Any) -> Any:
    return lambda *args: replace(original(*args), problems=())


def _anything_is_a_keeper(original: Any) -> Any:
    def count(store: Any, subjects: Any, policy: Any) -> Any:
        found = original(store, subjects, policy)
        if not found.newest:
            for one in subjects:
                one.above = ""
                found.newest[one.group] = found.by_folder[one.group[0]] = one
        return found

    return count


def _by_text(original: Any) -> Any:
    return property(lambda place: (True, 0, 0, place.path))


def _newest_by_text(original: Any) -> Any:
    return lambda root: sorted(original(root), key=lambda pair: str(pair[0].path), reverse=True)


def _nothing_there(choice: Any) -> Any:
    raise NothingThere("no checkpoint here")


def _overwrites(original: Any) -> Any:
    def link(self: Any, source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes())

    return link


SAVES = ("publish", "publish", "save")

MUTANTS: dict[str, Mutant] = {
    # -- prune
    "pointers do not count": Mutant(
        f"{PRUNE}.guards._Search.search",
        lambda _: lambda self, *, everywhere: Named(),
        ("what a pointer names stays", "nothing goes while a pointer leads nowhere"),
        ("publish", "hint", "promote", "prune_all"),
    ),
    "pointers are not asked again before each deletion": Mutant(
        f"{PRUNE}.execute.named",
        lambda _: lambda *args, **kwargs: Named(),
        ("what a pointer names stays", "what the pointer names is there"),
        ("publish",),
        waiting=("hint", "promote"),
    ),
    "the keeper is not asked again before each deletion": Mutant(
        f"{PRUNE}.execute.no_keeper",
        answers(""),
        ("one that is proven stays", "the last that are proven stay"),
        ("publish",),
        waiting=("quarantine",),
    ),
    "what was moved is not looked at again": Mutant(
        f"{PRUNE}.execute._regret",
        answers(""),
        ("what the pointer names is there",),
        ("publish",),
        together=("prune_all+promote", "prune_all+roll_back"),
    ),
    "what is not proven counts as kept": Mutant(
        f"{PRUNE}.keepers._problem",
        answers(""),
        ("one that is proven stays", "the last that are proven stay"),
        (*SAVES, "damage", "prune_all"),
    ),
    "it goes on without a keeper": Mutant(
        f"{PRUNE}.plan.count_keepers",
        _anything_is_a_keeper,
        ("one that is proven stays",),
        ("save", "damage", "damage", "damage", "prune_all"),
    ),
    "age does not count": Mutant(
        f"{PRUNE}.plan._age",
        answers(1e9),
        ("what is young stays", "what may be a save in progress stays"),
        (*SAVES, "save", "prune"),
    ),
    "shared files do not count": Mutant(
        f"{PRUNE}.sharing.Shared.kept",
        lambda _: lambda self, going: {},
        ("what stays is as good as it was", "what shares files with one that stays"),
        (*SAVES, "link", "link", "prune_all"),
    ),
    "marks do not count in prune": Mutant(
        "ckptctl.protocol.read.quarantine_series",
        answers(Series),
        ("what is quarantined stays", "the last that are proven stay", "one that is proven stays"),
        ("publish", "quarantine", "prune_all"),
    ),
    "checkpoints are ordered by text": Mutant(
        "ckptctl.operations.place.Place.order",
        _by_text,
        ("the last that are proven stay",),
        (*SAVES, "prune_all"),
    ),
    "the trash is emptied whatever is proven": Mutant(
        f"{PRUNE}.emptying._without_keeper",
        answers(""),
        ("emptying leaves the last copies",),
        (*SAVES, "prune_all", "prune_all", "damage", "wipe", "empty_trash", "empty_trash"),
    ),
    "the trash is emptied whatever pointers say": Mutant(
        f"{PRUNE}.emptying._spoken_for",
        lambda _: lambda *args, **kwargs: {},
        ("emptying leaves what a pointer names",),
        (*SAVES, "prune_all", "prune_all", "hint", "empty_trash", "empty_trash"),
    ),
    # -- resolve
    "marks do not count in resolve": Mutant(
        "ckptctl.protocol.read.quarantine_series",
        answers(Series),
        ("handed out is not quarantined",),
        ("publish", "quarantine"),
        asks=True,
    ),
    "nothing is verified": Mutant(
        "ckptctl.operations.fitness.objection",
        answers(None),
        ("handed out is whole (full)", "handed out is whole (default)"),
        (*SAVES, "damage"),
        asks=True,
    ),
    "the newest is the last by text": Mutant(
        f"{CHOICE}.candidates.Root.newest",
        _newest_by_text,
        ("the newest that is good",),
        SAVES,
        asks=True,
    ),
    "a damaged newest record is skipped": Mutant(
        "ckptctl.protocol.read.read_series",
        _without_problems,
        ("a damaged decision is not undone", "handed out is not quarantined"),
        (*SAVES, "promote", "roll_back", "quarantine", "lose", "lose"),
        asks=True,
    ),
    "nothing is asked again before the answer": Mutant(
        f"{CHOICE}.resolve._Choice.still_so",
        lambda _: lambda self: True,
        ("handed out is not quarantined", "handed out is there"),
        ("publish",),
        together=("resolve+quarantine", "resolve+prune_all"),
    ),
    "what is not usable is nothing": Mutant(
        f"{CHOICE}.resolve._Choice._uncommitted",
        lambda _: _nothing_there,
        ("never 3 while anything is there",),
        ("save", "damage"),
        asks=True,
    ),
    "what else lies there does not count": Mutant(
        "ckptctl.operations.vacancy._Look.below",
        lambda _: lambda self, entries, depth: iter(()),
        ("never 3 while anything is there",),
        (*SAVES, "prune_all", "wipe", "wipe", "wipe"),
        asks=True,
    ),
    # -- commit, promote
    "what is not whole is sealed": Mutant(
        f"{PUBLISH}.commit._refused",
        lambda _: lambda work: work,
        ("only what is whole is sealed",),
        ("save", "save", "damage", "commit", "commit"),
    ),
    "promote verifies nothing": Mutant(
        f"{PUBLISH}.promote.objection",
        answers(None),
        ("the pointer moves to what is good",),
        (*SAVES, "damage", "promote", "promote"),
    ),
    "promote does not ask again before the pointer moves": Mutant(
        f"{PUBLISH}.promote._ask_again",
        answers(None),
        ("marks are read again before the pointer moves",),
        ("publish",),
        together=("promote+quarantine",),
    ),
    "promote does not look afterwards": Mutant(
        f"{PUBLISH}.promote._look_after",
        answers(None),
        ("what the pointer names is there",),
        ("publish",),
        together=("promote+prune_all",),
    ),
    "a rollback passes over nothing": Mutant(
        f"{PUBLISH}.promote._passed_over",
        answers(()),
        ("handed out was not rolled back from",),
        (*SAVES, "promote", "roll_back", "roll_back"),
        asks=True,
    ),
    "records are overwritten": Mutant(
        "ckptctl.storage.system.RealSystem.link",
        _overwrites,
        ("records are only ever created",),
        ("publish",),
        together=("promote+promote", "promote+roll_back", "quarantine+quarantine"),
    ),
}
