"""What ranks left of their share of a save: read, compared with each other and with the files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from ckptctl import protocol
from ckptctl.errors import Findings, MalformedData
from ckptctl.model.checkpoint import Checkpoint
from ckptctl.model.manifest import RECEIPTS, Receipt
from ckptctl.operations.located import Located
from ckptctl.operations.place import Place


def receipts_of(located: Located, checkpoint: Checkpoint) -> list[Receipt]:
    """Read the ranks' receipts and refuse those that do not make up one save."""
    place = located.place
    paths = [path for path in checkpoint.files if path.startswith(f"{RECEIPTS}/rank-")]
    if not paths:
        return []
    try:
        receipts = protocol.read_receipts(located.store, located.base, paths)
    except MalformedData as error:
        raise Findings(f"{place.path}: a receipt is damaged: {error}") from None
    for what, values in (
        ("world sizes", {receipt.world_size for receipt in receipts}),
        ("steps", {receipt.step for receipt in receipts}),
        ("save ids", {receipt.save_id for receipt in receipts}),
        ("runs", {receipt.run_id for receipt in receipts}),
    ):
        if len(values) > 1:
            listed = ", ".join(sorted(map(str, values)))
            raise Findings(f"{place.path}: the ranks' receipts are of several {what}: {listed}")
    size, ranks = receipts[0].world_size, {receipt.rank for receipt in receipts}
    if not all(0 <= rank < size for rank in ranks):
        raise Findings(f"{place.path}: a receipt of rank {max(ranks)} in a world of {size} ranks")
    if len(ranks) < size:
        first = itertools.islice((rank for rank in range(size) if rank not in ranks), 8)
        listed = ", ".join(map(str, first))
        raise Findings(
            f"{place.path}: {size - len(ranks)} of {size} ranks have left no receipt: "
            f"{listed}; their save is not finished"
        )
    return receipts


def compare_receipts(
    place: Place, receipts: Iterable[Receipt], digests: Mapping[str, tuple[int, str]]
) -> frozenset[str]:
    """Refuse files that are not what their ranks wrote; return those that were compared byte by byte."""
    same: set[str] = set()
    for receipt in receipts:
        for record in receipt.files:
            size, digest = digests.get(record.path, (-1, ""))
            same_kind = digest.partition(":")[0] == record.digest.partition(":")[0]
            if size != record.size or (same_kind and digest != record.digest):
                raise Findings(
                    f"{place.path}: {record.path} is not what rank {receipt.rank} wrote: "
                    f"{size} bytes, {digest}, and its receipt says {record.size}, {record.digest}"
                )
            if same_kind:
                same.add(record.path)
    return frozenset(same)
