"""What convert and reshard leave beside what they write."""

from __future__ import annotations

import json

from ckptctl.model.manifest import decode
from ckptctl.sharding.record import ConvertedRecord
from support.cli import GOLDEN


def test_a_record_of_the_first_schema_is_read() -> None:
    data = (GOLDEN / "records/converted-1.json").read_bytes()
    found = decode(ConvertedRecord, data)
    assert found.digest == json.loads(data)["digest"]
    assert (found.lost, found.left_out, found.accepted) == (("a",), ("a",), ())
