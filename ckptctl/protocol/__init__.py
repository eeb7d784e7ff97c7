"""The commit protocol: stage receipts, assemble and seal a manifest, move pointers.

Every step is one exclusive creation, so that of two who try the same, one wins and the other is
told. Readers go from pointer to manifest to files. A series of records is listed, and its newest
record decides or none does.
"""

from ckptctl.protocol.amendments import amend, amendments, last_amendment, mended
from ckptctl.protocol.read import (
    Pointer,
    quarantine_series,
    quarantines,
    read_converted,
    read_manifest,
    read_pointer,
    read_quarantine,
    read_receipts,
    read_seal,
    read_sealed,
    revisions,
)
from ckptctl.protocol.write import mark, point, refresh_courtesy_copy, seal, stage

__all__ = [
    "Pointer",
    "amend",
    "amendments",
    "last_amendment",
    "mark",
    "mended",
    "point",
    "quarantine_series",
    "quarantines",
    "read_converted",
    "read_manifest",
    "read_pointer",
    "read_quarantine",
    "read_receipts",
    "read_seal",
    "read_sealed",
    "refresh_courtesy_copy",
    "revisions",
    "seal",
    "stage",
]
