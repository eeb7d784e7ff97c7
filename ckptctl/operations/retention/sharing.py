"""Files that several checkpoints share: links from one into another, and names of one file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ckptctl.operations.place import Place
from ckptctl.operations.pointers import Known
from ckptctl.operations.retention.contents import Contents
from ckptctl.storage import Store


class Shared:
    """What the checkpoints of a root share, by their names."""

    def __init__(
        self, store: Store, places: Iterable[Place], contents: Mapping[str, Contents]
    ) -> None:
        """Follow every link in them, through each checkpoint on its way."""
        known = Known(store, places)
        self._leads: dict[str, list[tuple[str, str]]] = {}
        self._owners: dict[tuple[int, int], list[str]] = {}
        for name, found in contents.items():
            for link in found.links:
                for target in known.led_through(link):
                    if target != name:
                        self._leads.setdefault(name, []).append((target, link))
            for identity in found.identities:
                self._owners.setdefault(identity, []).append(name)

    def kept(self, going: Collection[str]) -> dict[str, str]:
        """Return which of those that go share files with one that stays, and how."""
        kept: dict[str, str] = {}
        before = -1
        while len(kept) > before:  # whoever has to stay may share files with others
            before = len(kept)
            left = set(going) - kept.keys()
            for name, targets in self._leads.items():
                for target, link in targets:
                    if name not in left and target in left:
                        kept.setdefault(target, f"{link} is a link into it")
            for names in self._owners.values():
                staying = next((name for name in names if name not in left), None)
                for name in names if staying is not None else ():
                    if name in left:
                        kept.setdefault(name, f"{staying} shares files with it")
        return kept

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Return those that go so that none leads into one that went before it."""
        left = list(names)
        ordered: list[str] = []
        while left:
            targets = {target for name in left for target, _ in self._leads.get(name, ())}
            free = [name for name in left if name not in targets] or left[:1]
            ordered.extend(free)
            left = [name for name in left if name not in free]
        return ordered
