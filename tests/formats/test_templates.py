"""Items passed by templates: never one that the careful look has anything to say of."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from ckptctl.checks import ITEM_CHECKS
from ckptctl.crc import crc32
from ckptctl.errors import MalformedData
from ckptctl.formats.items import templates as module
from ckptctl.formats.items.storage import locate_tensor
from ckptctl.formats.items.templates import Templates
from ckptctl.model.checkpoint import Item, Stored
from ckptctl.operations.content.tensors import TensorSource
from slow.fuzz import zips
from slow.fuzz.memory import Bytes, MemoryStore
from support.alike import PATH, SHAPE, Tensor, exchanged, mixed, tried, written

CONTENT = pytest.mark.parametrize("content", [True, False], ids=["content", "quick"])


@pytest.fixture
def tensor() -> Tensor:
    """Four pieces of one tensor."""
    return Tensor([written(number) for number in range(4)])


def payload_of(data: bytes) -> tuple[int, int]:
    """Return where the payload of an item of the fixture lies."""
    payload = zips.take_apart(data)[4].data
    return data.index(payload), data.index(payload) + len(payload)


@CONTENT
def test_the_third_of_a_form_is_passed_and_counted(tensor: Tensor, content: bool) -> None:
    lane = tensor.lane(content=content)
    looked = list(tensor.look(tensor.whole, tensor.items, content=content, lane=lane))
    assert [seen.item for seen in looked] == tensor.items[:2]
    assert (lane.items, lane.bytes) == (2, 2 * tensor.items[0].length)
    assert lane.torch_versions == {"2.7 or later"}
    records = [seen.records for seen in tensor.look(tensor.whole, tensor.items, content=content)]
    assert lane.records == sum(map(len, records[2:]))
    assert lane.checked == sum(r.computed is not None for some in records[2:] for r in some)


def test_every_change_of_one_byte_is_refused(tensor: Tensor) -> None:
    lane = tensor.taught()
    good = written(7)
    item = replace(tensor.items[0], length=len(good))
    assert lane.passes(item, good, 0)
    passed = [at for at, data in exchanged(good) if lane.passes(item, data, 0)]
    assert len(good) > 1500
    assert passed == []


def test_a_quick_look_lets_nothing_but_payloads_differ(tensor: Tensor) -> None:
    lane = tensor.taught(content=False)
    good = written(7)
    item = replace(tensor.items[0], length=len(good))
    start, stop = payload_of(good)
    passed = [at for at, data in exchanged(good) if lane.passes(item, data, 0)]
    assert set(passed) == set(range(start, stop))
    assert len(passed) == 255 * (stop - start)
    for at in range(start, stop):
        assert not tensor.refused(good[:at] + b"\xff" + good[at + 1 :], content=False)


def test_of_a_large_item_both_ends_are_compared() -> None:
    shape = (64, 128)
    tensor = Tensor([written(number, shape=shape) for number in range(4)], shape=shape)
    lane = tensor.lane(content=False)
    looked = list(tensor.look(tensor.whole, tensor.items, content=False, lane=lane))
    assert [seen.item for seen in looked] == tensor.items[:2]
    assert lane.bytes == 2 * looked[0].bytes_read < 2 * tensor.items[0].length
    good = written(7, shape=shape)
    item = replace(tensor.items[0], length=len(good))
    head, tail = good[:4096], good[-4096:]
    assert lane.passes_ends(item, head, tail)
    start, stop = payload_of(good)
    for at in (*range(start), *range(stop, len(good))):
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            assert not lane.passes_ends(item, bytes(bad[:4096]), bytes(bad[-4096:])), at
    assert not lane.passes_ends(item, head, tail[:-1])
    assert not lane.passes_ends(item, head[: start - 1], tail)
    assert not lane.passes_ends(item, head, tail[-64:])


def pieces(first: bytes, second: bytes) -> dict[str, bytes]:
    """Put parts of two good items together in ways that no writer does."""
    start, stop = payload_of(first)
    identity = first.index(b".data/serialization_id") + 64
    records = zips.take_apart(first)
    again = zips.put_together(records)
    assert len(again) == len(first)
    return {
        "another payload": first[:start] + second[start:stop] + first[stop:],
        "another end": first[:stop] + second[stop:],
        "another beginning": second[:stop] + first[stop:],
        "another id": first[:identity]
        + second[identity : identity + 200]
        + first[identity + 200 :],
        "another directory": first[:-700] + second[-700:],
        "a storage by another name": first.replace(b"data/0", b"data/1"),
        "a storage by another name in its pickle": zips.put_together(
            zips.with_record(records, b"/data.pkl", records[0].data.replace(b"0q\x03", b"1q\x03"))
        ),
        "shifted by one": b"\0" + first[:-1],
        "shifted back": first[1:] + b"\0",
        "no CRC": first.replace(crc32(first[start:stop]).to_bytes(4, "little"), bytes(4)),
        "cut": first[: len(first) // 2] + bytes(len(first) - len(first) // 2),
        "zeros": bytes(len(first)),
    }


JUST_PAYLOAD = ("another payload", "another end", "another beginning")
"""What only differs in a payload from one of the two, which a quick look does not read."""


@CONTENT
@pytest.mark.parametrize("how", pieces(written(1), written(2)))
def test_parts_of_two_items_are_refused(tensor: Tensor, how: str, content: bool) -> None:
    lane = tensor.taught(content=content)
    data = pieces(written(1), written(2))[how]
    item = replace(tensor.items[0], length=len(data))
    passed = lane.passes(item, data, 0)
    assert not (passed and tensor.refused(data, content=content))
    assert passed == (how in JUST_PAYLOAD and not content)


@CONTENT
def test_the_digits_of_an_id_alone_may_differ(tensor: Tensor, content: bool) -> None:
    lane = tensor.taught(content=content)
    records = zips.take_apart(written(7))
    digits = records[-1].data
    for data in (digits[:20] + b"1" * 20, digits[:20] + b"x" * 20, b"1" * 40, digits[:-1]):
        body = zips.put_together(zips.with_record(records, b"serialization_id", data))
        item = replace(tensor.items[0], length=len(body))
        good = data == digits[:20] + b"1" * 20
        assert lane.passes(item, body, 0) == (good and len(body) == tensor.items[0].length)
        assert not tensor.refused(body)


def test_only_what_the_metadata_said_before_is_passed(tensor: Tensor) -> None:
    lane = tensor.taught()
    good = written(7)
    item = replace(tensor.items[0], length=len(good))
    assert not lane.passes(replace(item, offsets=(1, 0)), good, 0)
    assert not lane.passes(replace(item, offsets=None), good, 0)
    assert not lane.passes(replace(item, fqn="another"), good, 0)
    assert not lane.passes(replace(item, transforms=("stream.zstd/1",)), good, 0)
    assert not lane.passes(replace(item, length=item.length - 1), good, 0)
    assert not tensor.lane(spared=[0]).passes(item, good, 0)


@pytest.mark.parametrize("other", [("int64", SHAPE), ("float32", (2, 4)), ("float32", (4, 4, 1))])
def test_another_form_is_not_passed_for_this_one(other: tuple[str, tuple[int, ...]]) -> None:
    """What the items hold is of one form, and the metadata speaks of another."""
    datas = [written(number) for number in range(4)]
    wrong = Tensor(datas, dtype=other[0], shape=other[1])
    lane = wrong.lane()
    looked = list(wrong.look(wrong.whole, wrong.items, content=True, lane=lane))
    assert [wrong.said(seen) for seen in looked] == [["item-mismatch"]] * 4
    assert lane.items == 0


@CONTENT
def test_nothing_is_learned_of_what_is_accused(content: bool) -> None:
    good = written(1)
    at = good.index(b"data.pkl") + 100
    bad = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
    tensor = Tensor([bad] * 4)
    lane = tensor.lane(content=content)
    assert len(list(tensor.look(tensor.whole, tensor.items, content=content, lane=lane))) == 4
    assert all(not form.templates for form in tensor.templates.forms.values())


def _local_crc(records: tuple[zips.Record, ...]) -> tuple[zips.Record, ...]:
    payload = records[4]
    size = len(payload.data)
    crc = crc32(payload.data)
    local = zips.replace(payload, local={6: crc, 7: size, 8: size})
    return (*records[:4], local, *records[5:])


def _without_crc(records: tuple[zips.Record, ...]) -> tuple[zips.Record, ...]:
    return tuple(zips.replace(one, crc=0) for one in records)


def _id_first(records: tuple[zips.Record, ...]) -> tuple[zips.Record, ...]:
    return (records[-1], *records[:-1])


def _another_storage(records: tuple[zips.Record, ...]) -> tuple[zips.Record, ...]:
    more = zips.replace(records[4], name=records[4].name[:-1] + b"1")
    return (*records[:5], more, *records[5:])


UNUSUAL: dict[str, Callable[[tuple[zips.Record, ...]], tuple[zips.Record, ...]]] = {
    "a CRC in the local header": _local_crc,
    "no CRCs": _without_crc,
    "the id before the payload": _id_first,
    "a second storage": _another_storage,
}


@pytest.mark.parametrize("how", UNUSUAL)
def test_nothing_is_learned_of_what_torch_does_not_write(how: str) -> None:
    datas = [zips.put_together(UNUSUAL[how](zips.take_apart(written(n)))) for n in range(4)]
    tensor = Tensor(datas)
    lane = tensor.lane()
    looked = list(tensor.look(tensor.whole, tensor.items, content=True, lane=lane))
    assert len(looked) == 4
    assert not any(tensor.said(seen) for seen in looked)
    assert all(not form.templates for form in tensor.templates.forms.values())


@CONTENT
def test_an_item_that_is_damaged_behind_its_payload_teaches_nothing(content: bool) -> None:
    """A quick look does not see the bytes right behind a payload, and must not learn from them."""
    datas = [written(number) for number in range(4)]
    _, stop = payload_of(datas[0])
    for size in (0, 4, 8, 12):
        bad = [d[: stop + size] + b"\x55" + d[stop + size + 1 :] for d in datas]
        tensor = Tensor(bad)
        list(tensor.look(tensor.whole, tensor.items, content=content, lane=tensor.lane()))
        assert all(not form.templates for form in tensor.templates.forms.values())


def test_items_without_elements_and_single_numbers_are_passed() -> None:
    for shape in ((0, 4), (1,)):
        tensor = Tensor([written(number, shape=shape) for number in range(4)], shape=shape)
        if not shape[0]:  # all begin at the same place
            tensor.items = [replace(item, offsets=(0, 0)) for item in tensor.items]
        lane = tensor.lane()
        assert len(list(tensor.look(tensor.whole, tensor.items, content=True, lane=lane))) == 2
        assert lane.items == 2


def test_items_of_torch_before_2_1_have_no_id() -> None:
    datas = [
        zips.put_together(tuple(r for r in zips.take_apart(written(n)) if b"/." not in r.name))
        for n in range(4)
    ]
    tensor = Tensor(datas)
    lane = tensor.lane()
    assert len(list(tensor.look(tensor.whole, tensor.items, content=True, lane=lane))) == 2
    item = tensor.items[0]
    assert lane.passes(item, datas[0], 0)
    assert not any(lane.passes(item, data, 0) for _, data in exchanged(datas[0]))


def test_memory_stays_bounded(monkeypatch: pytest.MonkeyPatch, tensor: Tensor) -> None:
    monkeypatch.setattr(module, "_LARGEST", 100)
    tensor.taught()
    assert [form.templates for form in tensor.templates.forms.values()] == [()]
    monkeypatch.undo()
    monkeypatch.setattr(module, "_MOST_FORMS", 0)
    other = Tensor(tensor.datas)
    other.taught()
    assert not other.templates.forms
    monkeypatch.undo()
    monkeypatch.setattr(module, "_MOST_TEMPLATES", 0)
    third = Tensor(tensor.datas)
    third.taught()
    assert [form.templates for form in third.templates.forms.values()] == [()]


def test_what_never_makes_a_template_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(module, "template_of", lambda seen, *_: made.append(seen))
    tensor = Tensor([written(number) for number in range(40)])
    tensor.taught()
    assert len(made) == 16


def test_what_is_passed_is_never_what_the_careful_look_refuses() -> None:
    taught, passed = tried(150, 11)
    assert taught > 60
    assert passed > 20


def located(tensor: Tensor, data: bytes, item: Item, templates: Templates | None) -> Stored | str:
    """Find a storage, or say why it is not found."""
    try:
        return locate_tensor(Bytes(data), item, templates)
    except MalformedData as error:
        return str(error)


@pytest.mark.parametrize("shape", [(4, 4), (64, 128), (0, 4)])
def test_storages_are_found_where_a_careful_look_finds_them(shape: tuple[int, ...]) -> None:
    tensor = Tensor([written(number, shape=shape) for number in range(6)], shape=shape)
    templates = Templates()
    for item in tensor.items:
        found = located(tensor, tensor.whole, item, templates)
        assert found == located(tensor, tensor.whole, item, None)
        assert isinstance(found, Stored)
    assert [len(form.templates) for form in templates.forms.values()] == [1]
    good, rng = written(9, shape=shape), random.Random(3)
    item = replace(tensor.items[0], length=len(good))
    for _ in range(400):
        data = mixed(rng, good)
        one = replace(item, length=len(data))
        assert located(tensor, data, one, templates) == located(tensor, data, one, None)


def test_a_strided_big_endian_storage_is_found_alike() -> None:
    torch = pytest.importorskip("torch")
    datas = []
    for number in range(5):
        out = io.BytesIO()
        torch.save(torch.full((6, 4), float(number)).t(), out)
        records = zips.take_apart(out.getvalue())
        datas.append(zips.put_together(zips.with_record(records, b"byteorder", b"big")))
    tensor = Tensor(datas, shape=(4, 6))
    templates = Templates()
    for item in tensor.items:
        found = located(tensor, tensor.whole, item, templates)
        assert found == located(tensor, tensor.whole, item, None)
        assert isinstance(found, Stored)
        assert (found.stride, found.little) == ((1, 4), False)
    assert any(form.templates for form in templates.forms.values())


def test_items_are_copied_whole_and_the_damaged_one_is_named(tensor: Tensor) -> None:
    class Kept(bytearray):
        def write(self, data: bytes | memoryview) -> None:
            self.extend(data)

    datas = [written(number) for number in range(6)]
    tensor = Tensor(datas)
    start, _ = payload_of(datas[5])
    bad = tensor.whole[: tensor.items[5].offset + start] + b"\xaa"
    bad += tensor.whole[len(bad) :]
    for data, damaged in ((tensor.whole, False), (bad, True)):
        store = MemoryStore({PATH: data})
        with TensorSource(store, "", tensor.context.checkpoint) as source:
            for items in (tensor.items[:5], tensor.items[5:]):
                out = Kept()
                if damaged and items[0] is tensor.items[5]:
                    with pytest.raises(MalformedData, match="CRC-32"):
                        source.copy(items, out)
                    continue
                source.copy(items, out)
                assert bytes(out) == data[items[0].offset : items[-1].end]
            assert not source.unchecked


def test_no_check_of_items_looks_at_more_than_a_template_holds_constant() -> None:
    """A check that is added must judge by dtype, box, records and pickle alone, or items are spared.

    What an item is called, and where it lies, differs among those that are passed alike.
    """
    assert {check.id for check in ITEM_CHECKS} == {
        "item-structure",
        "unsafe-item",
        "too-large-item",
        "too-deep-item",
        "item-mismatch",
        "oversized-storage",
        "unstable-read",
        "misplaced-file",  # of files beside the tensors, which are never passed alike
        "checksum",
        "stored-checksum",
    }
