"""MosaicML Composer: one ``torch.save`` file per rank, and a link per rank to its newest."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckptctl.formats.base import Claim, Folder, PointerRule, Sure
from ckptctl.formats.claims import matches, missing
from ckptctl.formats.companions import Rule
from ckptctl.formats.composite import Composite
from ckptctl.model.companion import Form
from ckptctl.pattern import pattern

_FILE = pattern(
    r"(?P<stem>(?:ep(?P<epoch>\d{1,9})-)?ba(?P<batch>\d{1,18}))-rank(?P<rank>\d{1,9})\.pt"
)


class Composer(Composite):
    """Files that Composer's ``CheckpointSaver`` writes under its default names."""

    name = "composer"
    title = "Composer"
    rules = (
        Rule(
            r"(?:ep\d{1,9}-)?ba\d{1,18}-rank(?P<rank>\d{1,9})\.pt",
            Form.TORCH,
            "everything of a rank",
            prefix=(),
        ),
    )
    pointers = (PointerRule(r"latest-rank\d+(?:\.pt)?"),)

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim the files of one batch on all ranks as one checkpoint."""
        if "pt" not in folder.suffixes:
            return
        found: dict[str, dict[int, re.Match[str]]] = {}
        for match in matches(folder.own_files, _FILE):
            found.setdefault(match["stem"], {})[int(match["rank"])] = match
        count = max((max(ranks) + 1 for ranks in found.values()), default=0)
        for stem, ranks in found.items():
            first = next(iter(ranks.values()))
            template = f"{stem}-rank{{rank}}.pt"
            lacks = tuple(missing(set(ranks), template.replace("{rank}", "{}"), count))
            yield Claim(
                self.name,
                folder.join(first[0] if count == 1 else stem),
                Sure.PATTERN,
                tuple(match[0] for match in ranks.values()),
                step=int(first["batch"]),
                epoch=int(first["epoch"]) if first["epoch"] else None,
                lacks=lacks,
                resume="" if count == 1 else folder.join(template),
            )
