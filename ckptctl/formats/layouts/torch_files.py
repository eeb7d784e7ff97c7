"""Files of ``torch.save`` that no framework's layout knows: each one a checkpoint, or a directory.

A directory with a checkpoint's name that holds such files is one checkpoint. Elsewhere only files
that are named like checkpoints are: by a step or an epoch, as the last or the best, as a model. A
series of numbered files is one where the numbers are no mere counting of parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckptctl.formats.base import Claim, Folder, Layout, Sure
from ckptctl.formats.claims import directory, file, is_checkpoint, missing_of_sets
from ckptctl.formats.torch.layout import SUFFIXES, ReadsTorch
from ckptctl.model.names import CheckpointName

_WORD = re.compile(
    r"(?:.*[^a-z])?(?:model|checkpoint|ckpt|last|latest|best|final|weights|snapshot|state_dict)\d*"
    r"(?:[^a-z].*)?\.(?:pt|pth|ckpt)",
    re.IGNORECASE,
)
_WHOLE_MODEL = re.compile(
    r"(?:pytorch_model|adapter_model|consolidated)(?:[-.]\d+(?:-of-\d+)?)?\.(?:bin|pth)"
)
_SIDE = re.compile(
    r"(?:.*[^a-z])?(?:opt|optim|optimizer|sched|scheduler|rng|random|scaler|tokenizer|vocab|config|args"
    r"|rank|shard|part|chunk|data|dataset|train|val|valid|test|batch|sample|samples|embeddings?"
    r"|cache|features?|labels?|stats|index|meta|metadata|dataloader|sampler)\d*(?:[^a-z].*)?",
    re.IGNORECASE,
)


class TorchFiles(ReadsTorch, Layout):
    """``torch.save`` files, one by one, or those of a directory."""

    name = "torch"
    title = "torch.save"

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a directory named like a checkpoint, or files that are."""
        if folder.asked.endswith(SUFFIXES) and folder.asked in folder.files:
            yield file(self.name, folder, folder.asked, Sure.SUFFIX)
            return
        names = [name for name in sorted(folder.own_files) if _stem(name).endswith(SUFFIXES)]
        if not names or any(name.endswith(".safetensors") for name in folder.files):
            names = [name for name in names if folder.named[name].recognised]
        whole = [name for name in names if _WHOLE_MODEL.fullmatch(name)]
        if names and not folder.checkpoints and (is_checkpoint(folder) or whole):
            yield directory(self.name, folder, Sure.SUFFIX, lacks=tuple(missing_of_sets(names)))
            return
        series = _counting(folder, names)
        for name in names:
            said = folder.named[name]
            stem = _stem(name)
            counts = said.recognised and name not in series
            if not _SIDE.fullmatch(stem) and (_WORD.fullmatch(stem) or counts):
                yield file(self.name, folder, name, Sure.SUFFIX)


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
