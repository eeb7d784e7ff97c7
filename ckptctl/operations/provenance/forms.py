"""In which form other checkpoints hold objects that are text here: that tells whether they were overwritten."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from ckptctl.errors import CkptctlError, MalformedData
from ckptctl.model.checkpoint import Item
from ckptctl.operations.located import Located
from ckptctl.operations.provenance.compare_items import readable_beside
from ckptctl.operations.provenance.neighbours import MOST_NEIGHBOURS
from ckptctl.operations.provenance.siblings import siblings_of

_ZIP = b"PK\3\4"
_MOST = 32
"""Objects that are looked for; where more are text, a few tell."""


def saved_elsewhere(located: Located, texts: Iterable[Item]) -> Mapping[str, str]:
    """Return which objects that are text here are ``torch.save`` items in other checkpoints, and where.

    One that is no such item in any of them is left out: then a planner writes it so. What cannot be
    read of another checkpoint tells nothing.
    """
    wanted = {item.fqn for item in itertools.islice(texts, _MOST)}
    if not wanted:
        return {}
    saved: dict[str, str] = {}
    others: set[str] = set()
    try:
        for sibling in siblings_of(located).known[:MOST_NEIGHBOURS]:
            for fqn, is_saved in _forms(sibling.located, wanted).items():
                if is_saved:
                    saved.setdefault(fqn, sibling.path)
                else:
                    others.add(fqn)
    except CkptctlError:
        return {}
    return {fqn: name for fqn, name in saved.items() if fqn not in others}


def _forms(beside: Located, wanted: set[str]) -> dict[str, bool]:
    try:
        other = readable_beside(beside)
    except MalformedData:
        return {}
    found: dict[str, bool] = {}
    for index, fqn in enumerate(other.items.fqns):
        if fqn in wanted and fqn not in found and index not in other.items.transforms:
            item = other.items[index]
            file = other.files.get(item.path)
            if file is not None and file.is_file and item.end <= file.size:
                with beside.open(item.path, other.files, ahead=False) as reader:
                    found[fqn] = reader.read(item.offset, min(item.end, item.offset + 4)) == _ZIP
    return found
