"""Files of ``torch.save`` that no framework's layout knows: each one a checkpoint, or a directory.

A directory with a checkpoint's name that holds such files is one checkpoint. Elsewhere only files
that are named like checkpoints are: by a step or an epoch, as the last or the best, as a model. A
series of numbered files is one where the numbers are no mere counting of parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckptctl.formats.base import Claim, Folder, Sure
from ckptctl.formats.claims import directory, file, is_checkpoint, missing_of_sets
from ckptctl.formats.companions import Rule
from ckptctl.formats.composite import Composite
from ckptctl.formats.torch.layout import SUFFIXES
from ckptctl.model.companion import Form
from ckptctl.model.names import CheckpointName, steps_of
from ckptctl.pattern import pattern

_ENDS = frozenset(("pt", "pth", "ckpt", "bin", "pkl", "tmp", "temp", "partial", "incomplete"))
_WORD = pattern(
    r"(?:.*[^a-z])?(?:model|checkpoint|ckpt|last|latest|best|final|weights|snapshot|state_dict)\d*"
    r"(?:[^a-z].*)?\.(?:pt|pth|ckpt)",
    re.IGNORECASE,
)
_WHOLE_MODEL = pattern(
    r"(?:pytorch_model|adapter_model|consolidated)(?:[-.]\d+(?:-of-\d+)?)?\.(?:bin|pth)"
)
_SIDE = pattern(
    r"(?:.*[^a-z])?(?:opt|optim|optimizer|sched|scheduler|rng|random|scaler|tokenizer|vocab|config"
    r"|args|rank|local|shard|part|chunk|index|meta|metadata|dataloader|sampler)\d*(?:[^a-z].*)?",
    re.IGNORECASE,
)
_DATA = pattern(
    r"(?:.*[^a-z])?(?:data|dataset|train|val|valid|test|batch|samples?|embeddings?|cache|features?"
    r"|labels?|stats)\d*(?:[^a-z].*)?",
    re.IGNORECASE,
)


class TorchFiles(Composite):
    """``torch.save`` files, one by one, or those of a directory."""

    name = "torch"
    title = "torch.save"
    rules = (
        Rule(
            r"(?:.*/)?(?P<stem>[^/]*?)[._-]?rank[._-]?(?P<rank>\d{1,7})\.(?:pt|pth|ckpt|bin)",
            Form.TORCH,
            "what one rank keeps",
            prefix=(),
        ),
        Rule(r".*\.(?:pt|pth|ckpt|bin)", Form.TORCH, "what is in it", prefix=()),
    )

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a directory named like a checkpoint, or files that are."""
        if folder.asked.endswith(SUFFIXES) and folder.asked in folder.files:
            yield file(self.name, folder, folder.asked, Sure.SUFFIX)
            return
        if folder.suffixes.isdisjoint(_ENDS):
            return
        names = [name for name in sorted(folder.own_files) if _stem(name).endswith(SUFFIXES)]
        whole = any(_WHOLE_MODEL.fullmatch(name) for name in names)
        if "safetensors" not in folder.suffixes and not folder.checkpoints:
            if names and (is_checkpoint(folder) or whole):
                yield directory(self.name, folder, Sure.SUFFIX, lacks=missing_of_sets(names))
                return
        elif is_checkpoint(folder):
            return
        series = _counting(folder, names)
        for name in names:
            stem = _stem(name)
            if not _SIDE.fullmatch(stem) and (
                _WORD.fullmatch(stem) or _counts(folder, name, series)
            ):
                yield file(self.name, folder, name, Sure.SUFFIX)


def _counts(folder: Folder, name: str, series: set[str]) -> bool:
    """Tell whether a file's number is that of a step or an epoch."""
    if not folder.named[name].recognised or name in series:
        return False
    (alone,) = steps_of([name])
    return alone.recognised or not _DATA.fullmatch(_stem(name))


def _stem(name: str) -> str:
    return re.sub(r"[.-](?:tmp|temp|partial|unfinished|incomplete)$", "", name)


def _counting(folder: Folder, names: list[str]) -> set[str]:
    """Return the files of series that only count: 0, 1, 2 are parts and not steps."""
    alike: dict[str, dict[str, CheckpointName]] = {}
    for name in names:
        alike.setdefault(re.sub(r"\d+", "#", name), {})[name] = folder.named[name]
    found: set[str] = set()
    for group in alike.values():
        steps = {one.step for one in group.values() if one.step is not None}
        if len(steps) > 1 and max(steps) - min(steps) == len(steps) - 1 and min(steps) <= 1:
            found.update(group)
    return found
