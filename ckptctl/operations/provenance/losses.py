"""What damage took when something was made that nobody had committed yet: by its maker's record."""

from __future__ import annotations

from ckptctl import protocol
from ckptctl.errors import Findings, MalformedData
from ckptctl.storage import Store


def lost_in_conversion(store: Store, base: str) -> dict[str, tuple[str, ...]]:
    """Return the keys that ``convert`` left out because they were damaged, as a manifest has them.

    Raises ``Findings`` where its record cannot be read: then nothing tells what is missing.
    """
    try:
        record = protocol.read_converted(store, base)
    except MalformedData as error:
        raise Findings(
            f"{error}: it would say which keys `force` left out; restore it, or convert again"
        ) from None
    return {"converted_from": record.lost} if record is not None and record.lost else {}
