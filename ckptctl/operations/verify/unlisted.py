"""What lies in the bytes of shards that no entry of the metadata speaks of."""

from __future__ import annotations

from ckptctl.checks import Context
from ckptctl.errors import CkptctlError
from ckptctl.formats.items.filled import filled
from ckptctl.operations.located import Located


def unlisted_items(located: Located, context: Context) -> dict[str, int]:
    """Count the items in such bytes, by file; files with anything else in them are left out.

    What cannot be read is left out too: then the bytes count as damage.
    """
    found: dict[str, int] = {}
    for path in context.present:
        gaps = context.structure.unlisted(path)
        if not gaps or context.layouts[path].overlaps:
            continue
        try:
            with located.open(path) as reader:
                counts = [filled(reader, low, high) for low, high in gaps]
        except CkptctlError:
            continue
        if all(counts):
            found[path] = sum(counts)
    return found
