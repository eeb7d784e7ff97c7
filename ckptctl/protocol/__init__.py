"""The commit protocol: stage receipts, assemble and seal a manifest, move pointers.

Every step is one exclusive creation, so that of two who try the same, one wins and the other is
told. Readers go from pointer to manifest to files; no listing is trusted.
"""

from ckptctl.protocol.read import (
    Pointer,
    exists,
    newest,
    quarantines,
    read_manifest,
    read_pointer,
    read_quarantine,
    read_receipts,
    read_seal,
    revisions,
)
from ckptctl.protocol.write import mark, point, refresh_courtesy_copy, seal, stage

__all__ = [
    "Pointer",
    "exists",
    "mark",
    "newest",
    "point",
    "quarantines",
    "read_manifest",
    "read_pointer",
    "read_quarantine",
    "read_receipts",
    "read_seal",
    "refresh_courtesy_copy",
    "revisions",
    "seal",
    "stage",
]
