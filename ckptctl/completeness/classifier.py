"""Every key of a checkpoint put into a component, with a view of all keys at once."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator

from ckptctl.dataclass import dataclass
from ckptctl.model.checkpoint import Checkpoint, Entry, TensorEntry
from ckptctl.model.components import (
    COMPONENTS,
    WRAPPERS,
    component_of,
    elements,
    locate_component,
    rank_element,
    settle,
)

NAMES: tuple[str, ...] = ("model", *(name for name in COMPONENTS if name != "model"))
"""All components, in the order in which they are shown."""

_TORCH_CPU_GENERATOR = 5056
"""Bytes of the state of torch's CPU generator; nothing else is a uint8 tensor of this length."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its component, its path, and how many elements of that name the component.

    ``known`` is false where nothing said what the key is, so that it counts as ``other``.
    """

    fqn: str
    component: str
    path: tuple[str | int, ...]
    depth: int
    known: bool = True

    @property
    def inner(self) -> tuple[str | int, ...]:
        """The elements below those that name the component."""
        return self.path[self.depth :]


class Classifier:
    """The keys of one checkpoint by component.

    ``mapping`` holds pairs of a shell pattern over dotted keys and a component; the first that
    matches outranks everything else.
    """

    def __init__(self, checkpoint: Checkpoint, mapping: Iterable[tuple[str, str]] = ()) -> None:
        """Classify all keys."""
        self._mapping = tuple(mapping)
        entries = checkpoint.entries
        paths = {fqn: elements(fqn, checkpoint.paths_in_state.get(fqn)) for fqn in entries}
        skip = _common_wrapper(paths.values())
        self._keys: dict[str, Key] = {}
        unclear: list[str] = []
        tops: set[str | int] = set()
        for fqn, entry in entries.items():
            path = paths[fqn]
            key = self._classify(fqn, entry, path[skip:] if skip else path, path)
            if key is None:
                unclear.append(fqn)
                continue
            self._keys[fqn] = key
            if key.component == "model" and isinstance(entry, TensorEntry):
                tops.update(key.path[:1])
        for fqn in unclear:
            path = paths[fqn][skip:]
            own = "_extra_state" in fqn or path[0] in tops
            self._keys[fqn] = Key(fqn, "model" if own else "other", path, 0, known=own)

    def _classify(
        self, fqn: str, entry: Entry, inside: tuple[str | int, ...], path: tuple[str | int, ...]
    ) -> Key | None:
        """Classify a key by its path inside what wraps everything, and by its whole path."""
        tensor = isinstance(entry, TensorEntry)
        component, depth = locate_component(inside)
        for pattern, wanted in self._mapping:
            if fnmatch.fnmatchcase(fqn, pattern):
                return Key(fqn, wanted, inside, depth if wanted == component else 0)
        if component in (None, "progress", "other") and _is_generator(entry):
            return Key(fqn, "rng", inside, 0)
        if component is None and not tensor:
            return None
        final = settle(component, path, tensor=tensor)
        return Key(fqn, final, inside, depth if final == component else 0)

    def __getitem__(self, fqn: str) -> Key:
        """Return what is known of a key."""
        return self._keys[fqn]

    def __iter__(self) -> Iterator[Key]:
        """Yield all keys in the order of the metadata."""
        return iter(self._keys.values())

    def component(self, fqn: str) -> str:
        """Return the component of a key, also of one that has no entry."""
        key = self._keys.get(fqn)
        return key.component if key is not None else component_of(elements(fqn))


def _is_generator(entry: Entry) -> bool:
    return (
        isinstance(entry, TensorEntry)
        and entry.dtype == "uint8"
        and entry.shape == (_TORCH_CPU_GENERATOR,)
    )


def _common_wrapper(paths: Iterable[tuple[str | int, ...]]) -> int:
    """Return 1 if all keys lie below one element that says nothing and components lie below it."""
    found = list(paths)
    tops = {path[0] for path in found if path}
    if len(tops) != 1 or not all(len(path) > 1 for path in found):
        return 0
    top = str(next(iter(tops)))
    if top.lower() in WRAPPERS or rank_element(top) or locate_component((top,))[0] is not None:
        return 0
    seconds = {path[1] for path in found}
    named = {locate_component((second,))[0] for second in seconds}
    return 1 if "optimizer" in named or "model" in named else 0
