"""Making an audit: keys, files beside them, ranks and optimizer state put together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ckptctl.completeness.audit import Audit, Gap, Lack, Part, Presence
from ckptctl.completeness.classifier import NAMES, Classifier, Key
from ckptctl.completeness.gaps import (
    SHOWN,
    model_gaps,
    optimizer_evidence,
    optimizer_gaps,
    rank_gaps,
)
from ckptctl.completeness.optimizer_state import Moments, moments
from ckptctl.completeness.world_size import (
    RANKED,
    Group,
    Holdings,
    World,
    holdings,
    size_keys,
    world_of,
)
from ckptctl.dataclass import dataclass
from ckptctl.model.checkpoint import Checkpoint, TensorEntry
from ckptctl.pattern import pattern

_SIDE_FILES: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (pattern(r"(?:weights/)?common\.pt"), ("progress", "scheduler", "data")),  # Megatron, NeMo
    (pattern(r"meta\.pt"), ("progress", "scheduler")),  # Lightning
    (pattern(r"train/rank(?P<rank>\d{1,7})\.pt"), ("progress", "rng", "data")),  # OLMo-core
    (pattern(r"(?:rng_state|random_states)(?:_(?P<rank>\d{1,7}))?\.(?:pth|pkl|pt)"), ("rng",)),
    (pattern(r"(?:lr_)?scheduler(?:_\d+)?\.(?:pt|bin|pth)"), ("scheduler",)),
    (pattern(r"(?:grad_)?scaler\.(?:pt|pth)"), ("scaler",)),
    (pattern(r"(?:trainer|train|training)_state\.(?:json|pt|pth)"), ("progress",)),
    (pattern(r"(?:dataloader|sampler)(?:_(?P<rank>\d{1,7}))?\.(?:pt|pth|bin|pkl)"), ("data",)),
)
"""Files beside the tensors, by their names, and the components that their writers keep in them."""

_SIDE_ENDINGS = (".pt", ".pth", ".bin", ".pkl", ".json")
_COMMON = "common_state"


@dataclass(frozen=True, slots=True)
class Auditor:
    """A checkpoint with its keys classified."""

    checkpoint: Checkpoint
    classes: Classifier
    moments: Moments
    held: Mapping[str, Holdings]

    @classmethod
    def of(cls, checkpoint: Checkpoint, mapping: Iterable[tuple[str, str]] = ()) -> Auditor:
        """Classify the keys of a checkpoint."""
        classes = Classifier(checkpoint, mapping)
        held = holdings(classes)
        for name, path, rank in _side_files(checkpoint):
            if rank is not None and name in RANKED:
                groups = held.setdefault(name, Holdings()).groups
                stem = path[: path.rindex(str(rank))] if str(rank) in path else path
                group = groups.setdefault(("", stem), Group("", stem))
                group.parts.setdefault(rank, set())
        return cls(checkpoint, classes, moments(checkpoint, classes), held)

    def questions(self) -> list[str]:
        """Return keys of small values that would tell more: data-parallel sizes, SGD's momentum."""
        found = size_keys(self.classes)
        if self.moments.empty and "momentum" in self.moments.settings:
            found += [
                key.fqn
                for key in self.classes
                if key.component == "optimizer" and str(key.path[-1]).endswith("momentum")
            ]
        return found[:SHOWN]

    def audit(
        self, *, world_size: int | None = None, values: Mapping[str, object] | None = None
    ) -> Audit:
        """Say of each component whether it is there, and for whom.

        ``world_size`` is what a manifest says, ``values`` are the answers to the questions.
        """
        world = world_of(self.checkpoint, self.held, promised=world_size)
        keys: dict[str, list[Key]] = {}
        for key in self.classes:
            keys.setdefault(key.component, []).append(key)
        sources = self._sources(keys)
        unknown = [key.fqn for key in self.classes if not key.known]
        parts = tuple(
            self._part(name, keys.get(name, []), sources.get(name, ()), world, values or {})
            for name in NAMES
        )
        total = len(self.checkpoint.entries)
        return Audit(parts, world, total, len(unknown), tuple(unknown[:SHOWN]))

    def _sources(self, keys: Mapping[str, list[Key]]) -> dict[str, tuple[str, ...]]:
        """Return what holds components unseen: files beside, and Megatron's common state."""
        found: dict[str, list[str]] = {}
        for name, path, _ in _side_files(self.checkpoint):
            found.setdefault(name, []).append(path)
        for key in keys.get("progress", ()):
            if str(key.path[0]).partition("/")[0] == _COMMON:
                for name in ("scheduler", "data"):
                    found.setdefault(name, []).append(key.fqn)
        if not keys.get("optimizer"):  # Megatron and Lightning keep no schedule without one
            for path in ("common.pt", "weights/common.pt", "meta.pt"):
                found["scheduler"] = [p for p in found.get("scheduler", ()) if p != path]
            found["scheduler"] = [p for p in found["scheduler"] if not p.startswith(_COMMON)]
        return {name: tuple(dict.fromkeys(paths)) for name, paths in found.items() if paths}

    def _part(
        self,
        name: str,
        keys: Sequence[Key],
        sources: tuple[str, ...],
        world: World,
        values: Mapping[str, object],
    ) -> Part:
        if not keys and not sources:
            return Part(name, Presence.ABSENT)
        evidence: list[str] = []
        gaps: list[Gap] = []
        if name == "optimizer":
            gaps += optimizer_gaps(self.moments, values)
            evidence += optimizer_evidence(self.moments, empty=bool(gaps))
        elif name == "model":
            gaps += model_gaps(self.moments)
        holding = self.held.get(name)
        if not gaps and not sources and self._hollow(name, keys, holding):
            gaps.append(Gap(Lack.EMPTY, f"its {len(keys)} keys hold nothing", count=len(keys)))
        elif holding is not None:
            gaps += rank_gaps(name, holding, world, values, alone=not sources)
        main = holding.main if holding is not None else None
        return Part(
            name,
            self._presence(keys, gaps),
            len(keys),
            main.ranks if main is not None else (),
            sources,
            tuple(evidence),
            tuple(gaps),
        )

    def _hollow(self, name: str, keys: Sequence[Key], holding: Holdings | None) -> bool:
        if name == "data" and holding is not None and not holding.groups and not holding.shared:
            return not holding.grids
        entries = [self.checkpoint.entries[key.fqn] for key in keys]
        tensors = [entry for entry in entries if isinstance(entry, TensorEntry)]
        if name == "model":
            return not any(entry.numel for entry in tensors)
        return len(tensors) == len(entries) and not any(entry.numel for entry in tensors)

    def _presence(self, keys: Sequence[Key], gaps: Sequence[Gap]) -> Presence:
        lacks = {gap.lack for gap in gaps if not gap.harmless}
        if lacks:
            return Presence.EMPTY if Lack.EMPTY in lacks else Presence.PARTIAL
        if self.checkpoint.replicated and keys and self._copies() >= {key.fqn for key in keys}:
            return Presence.DUPLICATED
        return Presence.PRESENT

    def _copies(self) -> set[str]:
        """Return the keys of which some piece is stored more than once."""
        items = self.checkpoint.items
        seen: set[tuple[str, object]] = set()
        found: set[str] = set()
        for piece in zip(items.fqns, items.origins, strict=True):
            if piece in seen:
                found.add(piece[0])
            seen.add(piece)
        return found


def audit(
    checkpoint: Checkpoint,
    *,
    mapping: Iterable[tuple[str, str]] = (),
    world_size: int | None = None,
    values: Mapping[str, object] | None = None,
) -> Audit:
    """Audit a checkpoint by its metadata alone, or with the answers to an auditor's questions."""
    return Auditor.of(checkpoint, mapping).audit(world_size=world_size, values=values)


def _side_files(checkpoint: Checkpoint) -> Iterable[tuple[str, str, int | None]]:
    for path, file in sorted(checkpoint.files.items()):
        if not file.is_file or not file.size:
            continue
        if not path.endswith(_SIDE_ENDINGS):
            continue
        for rule, names in _SIDE_FILES:
            match = rule.fullmatch(path)
            if match:
                rank = match.groupdict().get("rank")
                for name in names:
                    yield name, path, None if rank is None else int(rank)
