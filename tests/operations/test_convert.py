"""Converting between formats: what the formats' own libraries read is what was saved."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptctl.formats.items.casting import CASTABLE, Loss, cast
from ckptctl.operations.content.digest import digest_content
from ckptctl.operations.content.open import open_tensors
from conftest import FIXTURES
from support.cli import run
from support.damage import fingerprint, flip_field, load_with_torch, remove, save_with_torch

torch = pytest.importorskip("torch")

CASES = ["fsdp2/step-12", "tp_fsdp/step-12", "ddp/step-12", "hsdp/step-12", "zstd/step-12"]


def convert(source: object, to: str, out: Path, *options: str, code: int = 0) -> str:
    ended = run("convert", str(source), "--to", to, "--out", out, *options)
    assert ended.code == code, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr if code else ended.stdout


def tensors_of(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Flatten a nested state as torch names its keys."""
    if isinstance(value, dict) and value:
        found = {}
        for key, inner in value.items():
            found.update(leaves(inner, (*path, str(key))))
        return found
    if isinstance(value, list) and any(isinstance(v, dict | torch.Tensor) for v in value):
        return leaves(dict(enumerate(value)), path)
    return {".".join(path): value}


# --- safetensors -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_safetensors_hold_what_torch_loads(tmp_path: Path, case: str) -> None:
    from safetensors.torch import load_file

    convert(FIXTURES / case, "safetensors", tmp_path / "out")
    loaded = tensors_of(load_with_torch(FIXTURES / case))
    assert fingerprint(load_file(tmp_path / "out/model.safetensors")) == fingerprint(loaded)


def test_many_files_and_their_index(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    convert(FIXTURES / "fsdp2/step-12", "safetensors", tmp_path / "out", "--max-shard-size", "400")
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    held = {name: set(load_file(tmp_path / "out" / name)) for name in files}
    assert index["weight_map"] == {key: name for name, keys in held.items() for key in keys}
    loaded = tensors_of(load_with_torch(FIXTURES / "fsdp2/step-12"))
    assert index["metadata"]["total_size"] == sum(t.numel() * t.itemsize for t in loaded.values())
    whole = open_tensors(str(FIXTURES / "fsdp2/step-12"))
    parts = open_tensors(str(tmp_path / "out"))
    assert digest_content(parts).tensors_digest == digest_content(whole).tensors_digest


def test_dtypes_that_safetensors_has_no_name_for_are_named(tmp_path: Path) -> None:
    from safetensors import safe_open

    text = convert(FIXTURES / "dtype_zoo/step-1", "safetensors", tmp_path / "out")
    assert "left out: dtype.complex128: the format has no dtype complex128" in text
    with safe_open(tmp_path / "out/model.safetensors", "pt") as file:
        keys = set(file.keys())
    assert "dtype.bfloat16" in keys
    assert "dtype.float8_e4m3fn" in keys
    assert not any("complex128" in key or "float4" in key for key in keys)


@pytest.mark.slow
def test_transformers_loads_a_converted_model(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
        torch.manual_seed(3)
        model = LlamaForCausalLM(config).eval()
        state = {f"_orig_mod.{key}": value for key, value in model.state_dict().items()}
        save_with_torch(tmp_path / "step-5", {"app": state, "step": 5})
        convert(
            tmp_path / "step-5",
            "safetensors",
            tmp_path / "hf",
            *("--only", "app.*", "--strip-prefix", "app._orig_mod.", "--max-shard-size", "20KB"),
        )
        config.save_pretrained(tmp_path / "hf")
        again, info = LlamaForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    tokens = torch.arange(10).reshape(1, 10)
    assert torch.equal(model(tokens).logits, again.eval()(tokens).logits)


def test_tied_tensors_are_kept_once_and_named(tmp_path: Path) -> None:
    from safetensors import safe_open

    weight = torch.randn(6, 4)
    # a view of the same storage with another shape is no tie, and equal zeros are none either
    state = {
        "embed": weight,
        "head": weight,
        "part": weight[2:4],
        "zeros": torch.zeros(3),
        "more_zeros": torch.zeros(3),
    }
    torch.save(state, tmp_path / "model.pt")
    text = convert(tmp_path / "model.pt", "safetensors", tmp_path / "out")
    assert "kept once: head is embed" in text
    with safe_open(tmp_path / "out/model.safetensors", "pt") as file:
        assert set(file.keys()) == {"embed", "part", "zeros", "more_zeros"}
        assert file.metadata() == {"format": "pt", "head": "embed"}
        assert torch.equal(file.get_tensor("part"), weight[2:4])
    convert(tmp_path / "model.pt", "torch", tmp_path / "again.pt")
    again = torch.load(tmp_path / "again.pt")
    assert again["head"].data_ptr() == again["embed"].data_ptr()
    assert fingerprint(again) == fingerprint(state)


# --- torch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*CASES, "no_dist/step-12", "async_save/step-12"])
def test_a_torch_file_holds_what_torch_itself_would_convert(tmp_path: Path, case: str) -> None:
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    convert(FIXTURES / case, "torch", tmp_path / "ours.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_to_torch_save(FIXTURES / case, tmp_path / "theirs.pt")
    ours = torch.load(tmp_path / "ours.pt", weights_only=False)
    theirs = torch.load(tmp_path / "theirs.pt", weights_only=False)
    assert fingerprint(leaves(ours)) == fingerprint(leaves(theirs))
    assert ours.keys() == theirs.keys()


def test_it_is_loadable_with_weights_only_where_the_content_permits(tmp_path: Path) -> None:
    text = convert(FIXTURES / "fsdp2/step-12", "torch", tmp_path / "all.pt")
    assert "weights_only=False is needed to load it, for rng.rank_0.numpy" in text
    text = convert(
        FIXTURES / "fsdp2/step-12", "torch", tmp_path / "most.pt", "--exclude", "rng.*.numpy"
    )
    assert "weights_only" not in text
    state = torch.load(tmp_path / "most.pt", weights_only=True)
    assert state["train_state"]["step"] == 12
    assert state["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)


def test_strided_and_lazily_conjugated_tensors_come_out_plain(tmp_path: Path) -> None:
    base = torch.randn(6, 5, dtype=torch.complex64)
    state = {
        "transposed": torch.randn(4, 7).t(),
        "conjugated": base.conj(),
        "strided": torch.arange(40).reshape(5, 8)[::2, 1::3],
        "negated": base.clone().conj().imag,
    }
    torch.save(state, tmp_path / "a.pt")
    convert(tmp_path / "a.pt", "torch", tmp_path / "b.pt")
    again = torch.load(tmp_path / "b.pt")
    for key, value in state.items():
        assert torch.equal(again[key], value.resolve_conj().resolve_neg()), key
        assert again[key].is_contiguous()


def test_nested_states_of_all_kinds_come_back(tmp_path: Path) -> None:
    state = {
        "list": [torch.ones(2), {"a": 1}, [torch.zeros(1)]],
        "plain": [1, 2.5, None, "text", (1, (2, 3)), b"bytes", {"k": [1, 2]}],
        "empty": [],
        "module": torch.nn.Linear(3, 2).state_dict(),
        "by_number": {0: torch.ones(1), 7: "seven"},
    }
    torch.save(state, tmp_path / "a.pt")
    convert(tmp_path / "a.pt", "torch", tmp_path / "b.pt")
    again = torch.load(tmp_path / "b.pt", weights_only=False)
    assert fingerprint(leaves(again)) == fingerprint(leaves(state))
    assert type(again["list"]) is list


# --- casts -------------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, 1.0, -1.5, 1e-8, 6e-8, 65504.0, 65519.9, 65520.0, 1e30, 3.4e38, -3.39e38]
SPECIAL += [float("inf"), -float("inf"), float("nan"), 1e-40, 5e-324, 0.1, 1 / 3, 256.5, 257.5]


@pytest.mark.parametrize("target", CASTABLE)
@pytest.mark.parametrize("dtype", CASTABLE)
def test_casts_are_those_of_torch(dtype: str, target: str) -> None:
    generator = torch.Generator().manual_seed(1)
    spread = torch.randn(4096, generator=generator, dtype=torch.float64)
    spread *= 10.0 ** torch.randint(-45, 39, (4096,), generator=generator)
    before = torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), spread])
    before = before.to(getattr(torch, dtype))
    after = before.to(getattr(torch, target))
    raw = memoryview(bytearray(before.view(torch.uint8).numpy().tobytes()))
    loss = Loss()
    half = len(raw) // 16 * 8
    blocks = iter([raw[:half], raw[half:]])
    out = b"".join(bytes(block) for block in cast(blocks, dtype, target, loss))
    found = torch.frombuffer(bytearray(out), dtype=getattr(torch, target))
    assert torch.equal(found.nan_to_num(nan=3.0), after.nan_to_num(nan=3.0))
    assert torch.equal(found.isnan(), after.isnan())
    overflowed = before.isfinite() & ~after.isfinite()
    assert loss.overflowed == int(overflowed.sum())
    kept = before.isfinite() & ~overflowed
    exact = (after.double() - before.double()).abs()[kept].max()
    assert loss.error == pytest.approx(float(exact), rel=1e-6)


def test_a_cast_says_what_it_loses(tmp_path: Path) -> None:
    state = {
        "w": torch.tensor([1.0, 70000.0, 1 / 3]),
        "i": torch.arange(3),
        "h": torch.ones(2).half(),
    }
    torch.save(state, tmp_path / "a.pt")
    text = convert(tmp_path / "a.pt", "safetensors", tmp_path / "out", "--dtype", "float16")
    assert "cast: 1 tensor to float16" in text
    assert "overflow: 1 value of w became infinite" in text
    from safetensors.torch import load_file

    found = load_file(tmp_path / "out/model.safetensors")
    assert found["w"].dtype == torch.float16
    assert torch.equal(found["w"], state["w"].half())
    assert torch.equal(found["i"], state["i"])


# --- refusals ----------------------------------------------------------------------------------


def test_a_damaged_source_is_refused_and_force_takes_the_rest(
    copy: Callable[..., Path], tmp_path: Path
) -> None:
    checkpoint = copy("fsdp2/step-12")
    flip_field(checkpoint, fqn="model.embed.weight", origin=(3, 0), at=9)
    said = convert(checkpoint, "safetensors", tmp_path / "out", code=10)
    assert "model.embed.weight" in said
    assert list((tmp_path / "out").glob("*.safetensors")) == []
    text = convert(checkpoint, "safetensors", tmp_path / "forced", "--force")
    assert "left out: model.embed.weight: damaged:" in text
    found = open_tensors(str(tmp_path / "forced"))
    whole = load_with_torch(FIXTURES / "fsdp2/step-12")
    assert set(found.checkpoint.entries) == set(tensors_of(whole)) - {"model.embed.weight"}


def test_a_missing_shard_is_refused(copy: Callable[..., Path], tmp_path: Path) -> None:
    checkpoint = copy("fsdp2/step-12")
    remove(checkpoint, file="__2_0.distcp")
    said = convert(checkpoint, "torch", tmp_path / "out.pt", code=10)
    assert "missing-file: __2_0.distcp" in said
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.parametrize("to", ["safetensors", "torch"])
def test_an_occupied_destination_is_refused(tmp_path: Path, to: str) -> None:
    out = tmp_path / "out"
    if to == "torch":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "mine").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert "exists already" in convert(FIXTURES / "fsdp2/step-12", to, out, code=5)
    assert sorted(tmp_path.rglob("*")) == before


def test_no_room_is_said_before_anything_is_written(tmp_path: Path) -> None:
    size = 1 << 43  # of a file without blocks, and more than any disk of a test has free
    header = {"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)
    said = convert(path, "safetensors", tmp_path / "out", code=5)
    assert "are free; nothing was written" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "nothing.*"], "no key matches"),
        (["--rename", "model.up=model.down"], "would both be called"),
        (["--rename", "model"], "OLD=NEW"),
        (["--dtype", "int8"], "--dtype takes"),
        (["--max-shard-size", "five"], "a size such as"),
    ],
)
def test_wrong_options_are_explained(tmp_path: Path, options: list[str], said: str) -> None:
    source = FIXTURES / "fsdp2/step-12"
    assert said in convert(source, "safetensors", tmp_path / "out", *options, code=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["safetensors", "torch"])
def test_a_dry_run_writes_nothing(tmp_path: Path, to: str) -> None:
    text = convert(FIXTURES / "fsdp2/step-12", to, tmp_path / "out", "--dry-run")
    assert text.startswith("would write")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").write_text("mine")
    convert(FIXTURES / "fsdp2/step-12", to, tmp_path / "out", "--dry-run", code=5)


def test_a_hostile_value_is_not_taken_over(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            import os

            return os.system, ("touch hacked",)

    torch.save({"w": torch.ones(2), "evil": Evil()}, tmp_path / "a.pt")
    assert "asks its reader to run" in convert(
        tmp_path / "a.pt", "torch", tmp_path / "b.pt", code=10
    )
    text = convert(tmp_path / "a.pt", "torch", tmp_path / "b.pt", "--force")
    assert "left out: evil" in text
    assert list(torch.load(tmp_path / "b.pt", weights_only=True)) == ["w"]
    save_with_torch(tmp_path / "step-1", {"w": torch.ones(2), "evil": Evil()})
    assert "unsafe-item" in convert(tmp_path / "step-1", "torch", tmp_path / "c.pt", code=10)
    text = convert(tmp_path / "step-1", "torch", tmp_path / "c.pt", "--force")
    assert "left out: evil" in text
    assert not Path("hacked").exists()


# --- DCP ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3, 5])
@pytest.mark.parametrize("shape", ["one file", "sharded", "without index"])
def test_dcp_from_safetensors_is_content_equal(tmp_path: Path, ranks: int, shape: str) -> None:
    size = "5GB" if shape == "one file" else "500"
    source = FIXTURES / "tp_fsdp/step-12"
    convert(source, "safetensors", tmp_path / "st", "--max-shard-size", size)
    if shape == "without index":
        (tmp_path / "st/model.safetensors.index.json").unlink()
    convert(tmp_path / "st", "dcp", tmp_path / "step-12", "--world-size", str(ranks))
    before, after = tensors_of(load_with_torch(source)), load_with_torch(tmp_path / "step-12")
    assert fingerprint(before) == fingerprint(after)
    assert len(list((tmp_path / "step-12").glob("*.distcp"))) == ranks
    assert sorted(p.name for p in (tmp_path / "step-12").iterdir())[0] == ".metadata"
    assert run("verify", tmp_path / "step-12").code == 0


def test_dcp_from_a_torch_file_keeps_values_and_their_places(tmp_path: Path) -> None:
    source = FIXTURES / "ddp/step-12"
    convert(source, "torch", tmp_path / "a.pt", "--exclude", "rng.*.numpy")
    convert(tmp_path / "a.pt", "dcp", tmp_path / "step-12", "--world-size", "2")
    before, after = load_with_torch(source), load_with_torch(tmp_path / "step-12")
    kept = {key: value for key, value in before.items() if not key.endswith("numpy")}
    assert fingerprint(kept) == fingerprint(after)
    old, new = (
        open_tensors(str(path)).checkpoint.paths_in_state for path in (source, tmp_path / "step-12")
    )
    assert {key: old[key] for key in new} == dict(new)
    convert(tmp_path / "step-12", "torch", tmp_path / "b.pt")
    first, second = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in "ab")
    assert fingerprint(leaves(first)) == fingerprint(leaves(second))
    # generators are not cut up among ranks
    boxes = open_tensors(str(tmp_path / "step-12")).checkpoint.entries["rng.rank_0.torch"]
    assert len(boxes.boxes) == 1


def test_dcp_of_every_kind_of_tensor(tmp_path: Path) -> None:
    base = torch.randn(8, 6, dtype=torch.complex64)
    state = {
        "strided": torch.arange(60).reshape(6, 10)[:, ::3],
        "conjugated": base.conj(),
        "shared": base,
        "scalar": torch.tensor(2.5, dtype=torch.bfloat16),
        "empty": torch.empty(0, 3),
        "long": torch.arange(1001, dtype=torch.float16),
        "nested": [{"a": torch.ones(3).to(torch.float8_e5m2)}, "text"],
    }
    torch.save(state, tmp_path / "a.pt")
    convert(tmp_path / "a.pt", "dcp", tmp_path / "out", "--world-size", "4")
    found = load_with_torch(tmp_path / "out")
    for key, value in leaves(state).items():
        whole = value.resolve_conj() if isinstance(value, torch.Tensor) else value
        assert fingerprint({key: found[key]}) == fingerprint({key: whole}), key


def test_dcp_of_dcp_is_what_reshard_is_for(tmp_path: Path) -> None:
    said = convert(FIXTURES / "fsdp2/step-12", "dcp", tmp_path / "out", code=2)
    assert "ckptctl reshard" in said
