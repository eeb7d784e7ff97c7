"""Files beside the tensors: which are known, what is read of them, and that no damage in them is silent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ckptctl.errors import MalformedData
from ckptctl.formats.companions import (
    LARGEST,
    LEGACY,
    Rule,
    companions_of,
    digests_in,
    misfits,
    read_json,
)
from ckptctl.formats.items.scan import scan_items
from ckptctl.formats.pickles.values import decode_item
from ckptctl.formats.registry import LAYOUTS
from ckptctl.model.checkpoint import FaultKind, File, Item
from ckptctl.model.companion import Companion, Form
from ckptctl.model.observation import ItemSeen
from ckptctl.storage import open_store

VALUE = {"global_step": 12, "lr": [0.1, 0.2], "rng": torch.arange(64, dtype=torch.uint8)}


def look(path: Path) -> ItemSeen:
    """Look at a whole file as verify does."""
    item = Item("", None, path.name, 0, path.stat().st_size)
    with open_store(str(path.parent)).open(path.name) as reader:
        (seen,) = scan_items(
            reader, [item], content=True, is_tensor=lambda _: False, expected_bytes=lambda _: None
        )
    return seen


def test_each_flipped_bit_is_found_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "meta.pt"
    torch.save(VALUE, path)
    data = path.read_bytes()
    whole, found = decode_item(data), 0
    assert not look(path).damage
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        if look(path).damage:
            found += 1
        else:
            assert decode_item(bytes(changed)) == whole, position
    assert found > len(data) // 3


def test_each_cut_is_found(tmp_path: Path) -> None:
    path = tmp_path / "meta.pt"
    torch.save(VALUE, path)
    data = path.read_bytes()
    for size in (1, 2, 97, 98, len(data) // 2, len(data) - 98, len(data) - 1):
        path.write_bytes(data[:size])
        assert look(path).faults, size


def test_the_name_of_the_file_is_inside(tmp_path: Path) -> None:
    torch.save(VALUE, tmp_path / "rank1.pt")
    assert look(tmp_path / "rank1.pt").root == "rank1"
    with (tmp_path / "stream.pt").open("wb") as file:
        torch.save(VALUE, file)
    assert look(tmp_path / "stream.pt").root == "archive"


def test_the_form_of_before_begins_as_it_is_known(tmp_path: Path) -> None:
    torch.save(VALUE, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert (tmp_path / "old.pt").read_bytes().startswith(LEGACY)


def named(*paths: str, rules: tuple[Rule, ...] = ()) -> dict[str, Companion]:
    return companions_of({path: File(path, 1) for path in paths}, rules)


def test_what_is_named_like_a_file_of_torch_is_one_that_nothing_is_known_of() -> None:
    found = named("a.pt", "b.txt", "c/d.bin", "ckptctl.receipts/rank-0.pt", "wandb/x.pt")
    assert set(found) == {"a.pt", "c/d.bin"}
    assert not any(one.known for one in found.values())
    behind = {"data/x.bin": File("data/x.bin", 1, behind="data")}
    assert companions_of(behind) == {}


def test_the_first_rule_that_fits_tells() -> None:
    rules = (
        Rule(r"x\.pt", Form.TORCH, "this"),
        Rule(r".*\.pt", Form.TORCH, "that", state=False),
    )
    found = named("x.pt", "y.pt", rules=rules)
    assert [(one.holds, one.state, one.known) for one in found.values()] == [
        ("this", True, True),
        ("that", False, True),
    ]


def test_rules_say_what_is_lost() -> None:
    rules = [rule for one in LAYOUTS for rule in getattr(one, "rules", ())]
    assert len(rules) > 10
    assert all(rule.holds and (rule.state or not rule.told) for rule in rules)
    assert not any(rule.needs for rule in rules if rule.form is Form.TORCH)


def test_what_is_no_file_or_empty_does_not_fit() -> None:
    rules = (Rule(r".*\.json", Form.JSON, "it"),)
    files = {"a.json": File("a.json", 0), "b.json": File("b.json", 5, is_file=False)}
    files["c.pt"] = File("c.pt", 0)  # of which nothing is known
    found = misfits(companions_of(files, rules), files)
    assert [(one.kind, one.where.file, one.loss) for one in found] == [
        (FaultKind.MALFORMED_COMPANION, "a.json", "it"),
        (FaultKind.NOT_A_FILE, "b.json", "it"),
    ]


NEEDY = Companion("x.json", Form.JSON, needs={"global_step": (int,)})


def read(tmp_path: Path, text: str | bytes) -> dict[str, object]:
    (tmp_path / "x.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with open_store(str(tmp_path)).open("x.json") as reader:
        return read_json(reader, NEEDY)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "6", '"x"', "{}", '{"global_step": "6"}', '{"global_step": true}',
     '{"global_step": null}', '{"global_step": 6.5}', "[" * 100_000, '{"global_step": 6} x',
     b"\xff\xfe", '{"a": ' + "1" * 5000 + "}", b'{"global_step": 6, "\x00": 1}'],
)  # fmt: skip
def test_text_that_is_not_what_it_should_be(text: str | bytes, tmp_path: Path) -> None:
    with pytest.raises(MalformedData):
        read(tmp_path, text)


@pytest.mark.parametrize("text", ['{"global_step": 6}', '{"global_step": 0, "loss": NaN}'])
def test_text_that_is(text: str, tmp_path: Path) -> None:
    assert read(tmp_path, text)["global_step"] == json.loads(text)["global_step"]


def test_text_without_end_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(LARGEST + 1)
    with (
        open_store(str(tmp_path)).open("x.json") as reader,
        pytest.raises(MalformedData, match="more than is read"),
    ):
        read_json(reader, NEEDY)


@pytest.mark.parametrize(
    "value",
    [{}, {"algorithm": "sha256"}, {"algorithm": "sha256", "files": []}, {"files": {}},
     {"algorithm": "md5", "files": {}}, {"algorithm": "sha256", "files": {"a": "0" * 63}},
     {"algorithm": "sha256", "files": {"a": 5}}, {"algorithm": "sha256", "files": {"a": "G" * 64}}],
)  # fmt: skip
def test_digests_that_are_none(value: dict[str, object]) -> None:
    with pytest.raises(MalformedData):
        digests_in(value)


def test_digests_have_the_name_of_their_algorithm() -> None:
    value: dict[str, object] = {"algorithm": "sha256", "files": {"a": "0" * 64}}
    assert digests_in(value) == {"a": f"sha256:{'0' * 64}"}
