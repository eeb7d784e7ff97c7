"""Every kind of fault that a reader can emit is reported by the check of that name."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest

from ckptctl.checks import (
    CHECKS,
    COMPANION_CHECKS,
    DIGEST_CHECKS,
    ITEM_CHECKS,
    STRUCTURE_CHECKS,
    Context,
    by_id,
)
from ckptctl.checks.registry import TABLE
from ckptctl.formats.safetensors import reader as safetensors
from ckptctl.model.checkpoint import Checkpoint, Fault, FaultKind, File, Item
from ckptctl.model.finding import Finding, Location
from ckptctl.model.observation import ItemSeen
from ckptctl.storage import open_store

OF_ITEMS = {
    FaultKind.ITEM_STRUCTURE,
    FaultKind.UNSAFE_ITEM,
    FaultKind.TOO_LARGE_ITEM,
    FaultKind.TOO_DEEP_ITEM,
    FaultKind.UNSTABLE_READ,
}
LOST = {FaultKind.ITEM_STRUCTURE, FaultKind.TOO_LARGE_ITEM, FaultKind.TOO_DEEP_ITEM}
OF_FILES = {FaultKind.ALTERED_FILE, FaultKind.REWRITTEN_FILE, FaultKind.UNSTABLE_FILE}


def asked(kind: FaultKind) -> list[Finding]:
    """Put one fault where readers of its kind leave it, and ask every check that may look there."""
    fault = Fault(kind, "it does not fit", Location(file="a"), loss="all of it")
    if kind in OF_ITEMS:
        item = ItemSeen(Item("w", (0,), "a", 0, 8), faults=(fault,))
        context = Context.of(Checkpoint("toy", {"a": File("a", 8)}, sources=("a",)))
        return [f for check in ITEM_CHECKS for f in check.ask(context, item)]
    faults = () if kind in OF_FILES else (fault,)
    checkpoint = Checkpoint("toy", {"a": File("a", 8)}, sources=("a",), faults=faults)
    context = Context.of(checkpoint, content_faults=(fault,) if kind in OF_FILES else ())
    checks = DIGEST_CHECKS if kind in OF_FILES else (*STRUCTURE_CHECKS, *COMPANION_CHECKS)
    return [f for check in checks for f in check.ask(context, None)]


@pytest.mark.parametrize("kind", FaultKind)
def test_each_kind_is_reported_by_the_check_of_its_name(kind: FaultKind) -> None:
    (finding,) = asked(kind)
    assert finding.check == kind.value
    assert finding.message == "it does not fit"
    assert finding.where.file == "a"
    assert finding.loss == ("" if kind in OF_ITEMS - LOST else finding.loss)


def test_no_check_is_there_twice() -> None:
    assert len(by_id()) == len(CHECKS)
    assert {kind.value for kind in FaultKind} <= by_id().keys()


def test_what_safetensors_reports_of_its_index_reaches_a_check(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    body = struct.pack("<Q", len(header)) + header + b"\0"
    (tmp_path / "model-1.safetensors").write_bytes(body)
    index = '{"weight_map": {"gone": "model-1.safetensors", "v": "model-2.safetensors"}}'
    (tmp_path / "model.safetensors.index.json").write_text(index)
    store = open_store(tmp_path)
    files = {entry.name: File(entry.name, entry.size) for entry in store.entries()}
    context = Context.of(safetensors.read(store, "", files))
    found = {f.check: f for check in STRUCTURE_CHECKS for f in check.ask(context, None)}
    assert found["missing-file"].where.file == "model-2.safetensors"
    assert found["missing-entry"].where.fqn == "gone"


def test_each_check_has_one_place_in_the_table() -> None:
    placed = Counter(check.id for row in TABLE.values() for check in row)
    assert placed == dict.fromkeys(by_id(), 1)
