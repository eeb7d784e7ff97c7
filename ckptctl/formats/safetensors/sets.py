"""Which safetensors files of one directory make up one set of tensors.

An index says so, or numbered names do (``model-00001-of-00003``, ``shard-00001-...``), or names that
differ by a number alone. Any other file is a set by itself: an adapter beside a model, the same
weights consolidated or in half precision. Sets are never merged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from ckptctl.errors import Refused
from ckptctl.pattern import pattern
from ckptctl.words import listed

_OF = pattern(r"(?P<stem>.+)-\d{1,9}-of-(?P<count>\d{1,9})\.safetensors")
_SHARD = pattern(r"shard-\d+.*\.safetensors")
_INDEX = ".safetensors.index.json"


def sets_of(names: Collection[str], indexes: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """Group files of one directory; each set is called after its index or its first file.

    ``indexes`` maps the name of each index to the files that it names. Of an index also those are
    whose name has its stem and a number: it may be older than they are.
    """
    found: dict[str, list[str]] = {}
    taken: dict[str, str] = {}
    for index, members in sorted(indexes.items()):
        stem = index.removesuffix(_INDEX)
        own = [
            name
            for name in sorted(names)
            if name in members or ((match := _OF.fullmatch(name)) and match["stem"] == stem)
        ]
        found[index] = own
        taken.update(dict.fromkeys(own, index))
    groups: dict[tuple[str, str], list[str]] = {}
    for name in sorted(names):
        if name in taken:
            continue
        match = _OF.fullmatch(name)
        if _SHARD.fullmatch(name):
            key = ("shard", "")
        elif match:
            key = (match["stem"], match["count"])
        else:
            key = ("#", re.sub(r"\d+", "#", name))
        groups.setdefault(key, []).append(name)
    found.update({group[0]: group for group in groups.values()})
    return found


def need_one(sets: Mapping[str, Collection[str]], where: str, shared: Collection[str]) -> None:
    """Raise ``Refused`` where there are several sets, naming each and how one is chosen.

    ``shared`` are tensors that files which differ by a number have both: no pieces of one set.
    """
    if len(sets) > 1:
        several = [
            f"{name} ({len(files)} files)" if len(files) > 1 else name
            for name, files in sorted(sets.items())
        ]
        raise Refused(
            f"{where}: {len(sets)} sets of safetensors lie here, which are never taken as one: "
            f"{listed(several, 6)}; name one of them as the path, as in {where}/{min(sets)}, or give it "
            "a directory of its own"
        )
    if shared:
        raise Refused(
            f"{where}: several files hold {listed(sorted(shared))}, so they are no set; name one of "
            "them as the path"
        )
