"""What damage took when something was made that nobody had committed yet: by its maker's record."""

from __future__ import annotations

from typing import Any

from ckptctl import protocol
from ckptctl.errors import Findings, MalformedData
from ckptctl.model.acceptance import told
from ckptctl.sharding.record import ConvertedRecord
from ckptctl.storage import Store


def lost_in_conversion(store: Store, base: str) -> dict[str, tuple[str, ...]]:
    """Return the keys that ``convert`` left out because they were damaged, as a manifest has them.

    Raises ``Findings`` where its record cannot be read: then nothing tells what is missing.
    """
    record = _record(store, base)
    return {"converted_from": record.lost} if record is not None and record.lost else {}


def origin_of(store: Store, base: str) -> dict[str, dict[str, Any]]:
    """Return what a manifest says of the conversion that something comes from: losses, acceptances.

    Raises ``Findings`` where its record cannot be read.
    """
    record = _record(store, base)
    if record is None or not (record.lost or record.accepted):
        return {}
    accepted = [told(one) for one in record.accepted]
    return {"converted_from": {"lost": list(record.lost), "accepted": accepted}}


def _record(store: Store, base: str) -> ConvertedRecord | None:
    try:
        return protocol.read_converted(store, base)
    except MalformedData as error:
        raise Findings(
            f"{error}: it would say which keys `force` left out; restore it, or convert again"
        ) from None
