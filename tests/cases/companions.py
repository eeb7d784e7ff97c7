"""Companions: files beside the shards that a resume needs too."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch

from cases.frame import Build, Case, cuts, each, flips, nothing, removes, writes
from conftest import FIXTURES
from support import companions

STEPS = (8, 12)
RANKS = 4


def part(path: Path, step: int) -> None:
    """Put a DCP directory there."""
    shutil.copytree(FIXTURES / "fsdp2" / f"step-{step}", path)


def trainer(path: Path, step: int) -> None:
    """Write what the Trainer does with FSDP: two DCP directories, and files beside them."""
    part(path / "pytorch_model_fsdp_0", step)
    part(path / "optimizer_0", step)
    companions.trainer(path, step, ranks=RANKS)


def accelerate(path: Path, step: int) -> None:
    """Write what accelerate does with FSDP; its names count saves."""
    part(path / "pytorch_model_fsdp_0", step)
    part(path / "optimizer_0", step)
    companions.accelerate(path, step, ranks=RANKS)


def olmo(path: Path, step: int) -> None:
    """Write what OLMo-core does."""
    part(path / "model_and_optim", step)
    companions.olmo(path, step, ranks=RANKS)


def lightning(path: Path, step: int) -> None:
    """Write what Lightning does with FSDP."""
    part(path, step)
    companions.lightning(path, step)


def megatron(path: Path, step: int) -> None:
    """Write what Megatron core 0.16 does."""
    part(path, step)
    companions.megatron(path, step)


def measured(path: Path, step: int) -> None:
    """Write what Megatron core 0.19 does with digests."""
    part(path, step)
    companions.megatron(path, step, common=False)
    companions.digests(path)


LAYOUTS: dict[str, tuple[Callable[[Path, int], None], str]] = {
    "trainer": (trainer, "checkpoint-{}"),
    "accelerate": (accelerate, "checkpoint_{}"),
    "olmo": (olmo, "step{}"),
    "lightning": (lightning, "step={}.ckpt"),
    "megatron": (megatron, "iter_{:07d}"),
    "measured": (measured, "iter_{:07d}"),
}


def name_of(layout: str, step: int) -> str:
    """Return the name of a checkpoint's directory."""
    return LAYOUTS[layout][1].format(step)


def both(layout: str) -> Build:
    """Put a run of two checkpoints there."""

    def build(root: Path) -> None:
        for step in STEPS:
            LAYOUTS[layout][0](root / name_of(layout, step), step)

    return build


def older(layout: str, *paths: str) -> Build:
    """Put files or directories of the older checkpoint in place of those of the newer."""

    def build(root: Path) -> None:
        old, new = (root / name_of(layout, step) for step in STEPS)
        for path in paths:
            if (old / path).is_dir():
                shutil.rmtree(new / path)
                shutil.copytree(old / path, new / path)
            else:
                shutil.copy(old / path, new / path)

    return build


def exchanged(path: str, other: str) -> Build:
    """Give two files each other's name."""

    def build(root: Path) -> None:
        os.rename(root / path, root / "aside")
        os.rename(root / other, root / path)
        os.rename(root / "aside", root / other)

    return build


def replaced_by(path: str, make: Callable[[Path], object]) -> Build:
    """Put something else where a file is."""

    def build(root: Path) -> None:
        (root / path).unlink()
        make(root / path)

    return build


def record_flipped(path: str, record: str) -> Build:
    """Turn over a bit in the middle of a record of a zip."""

    def build(root: Path) -> None:
        with zipfile.ZipFile(root / path) as archive:
            info = next(one for one in archive.infolist() if one.filename.endswith(record))
        data = bytearray((root / path).read_bytes())
        start = info.header_offset + 30
        start += int.from_bytes(data[info.header_offset + 26 : info.header_offset + 28], "little")
        start += int.from_bytes(data[info.header_offset + 28 : info.header_offset + 30], "little")
        data[start + info.file_size // 2] ^= 4
        (root / path).write_bytes(data)

    return build


def edited(path: str, **changes: object) -> Build:
    """Write other values into a file of JSON."""

    def build(root: Path) -> None:
        value = json.loads((root / path).read_text())
        (root / path).write_text(json.dumps({**value, **changes}))

    return build


def bad(layout: str, name: str, damage: Build, *says: str) -> list[Case]:
    """Two rows: ``verify`` finds it, and ``resolve`` hands out the checkpoint before."""
    new, old = name_of(layout, STEPS[1]), name_of(layout, STEPS[0])
    build = each(both(layout), damage)
    return [
        Case(f"{layout}: {name}", build, ("verify", f"{{root}}/{new}"), 10, says=says),
        Case(
            f"{layout}: {name}, and what is handed out",
            build,
            ("resolve", "{root}", "--allow-uncommitted", "--full"),
            0,
            facts={"name": old},
        ),
    ]


def good(layout: str, name: str, change: Build = nothing) -> list[Case]:
    """Two rows: nothing is said of it, and it can be committed."""
    new, build = name_of(layout, STEPS[1]), each(both(layout), change)
    silent = ("error ", "warning ")
    return [
        Case(f"{layout}: {name}", build, ("verify", f"{{root}}/{new}"), 0, silent=silent),
        Case(f"{layout}: {name} is committed", build, ("commit", f"{{root}}/{new}"), 0),
    ]


def every_way(layout: str, path: str, *, record: str = "data.pkl") -> list[Case]:
    """Rows for all that can happen to one file of ``torch.save``."""
    at = f"{name_of(layout, STEPS[1])}/{path}"
    where = f"error item-structure: {path}"
    return [
        *bad(layout, f"{path} cut in half", cuts(at, 500), where),
        *bad(layout, f"{path} one byte short", cuts(at, 1), where),
        *bad(layout, f"{path} with a flipped bit", record_flipped(at, record), f"checksum: {path}"),
        *bad(layout, f"{path} with a flipped first bit", flips(at, 0), where),
        *bad(layout, f"{path} of text", writes(at, "no zip"), where),
        *bad(layout, f"{path} empty", writes(at, b""), f"malformed-companion: {path}"),
        *bad(layout, f"{path} a FIFO", replaced_by(at, os.mkfifo), f"not-a-file: {path}"),
        *bad(
            layout,
            f"{path} a link to nothing",
            replaced_by(at, lambda one: one.symlink_to("nowhere")),
            f"{path}",
        ),
    ]


def kept(root: Path) -> None:
    """Leave a file of one's own beside the rest, with a tensor in it."""
    torch.save({"ema": torch.ones(256)}, root / name_of("trainer", 12) / "ema.pt")


def directory(path: str) -> Build:
    """Put a directory with something in it where a file is."""
    return each(removes(path), writes(f"{path}/inside", "x"))


def plateau(root: Path) -> None:
    """Let the schedule step with a metric: it counts something else."""
    state = {"best": 1.0, "num_bad_epochs": 0, "last_epoch": 2, "_step_count": 3}
    torch.save(state, root / name_of("trainer", 12) / "scheduler.pt")


def schedule_of(step: int) -> Build:
    """Write a schedule of another step."""
    return lambda root: torch.save(
        companions.schedule(step), root / name_of("trainer", 12) / "scheduler.pt"
    )


def legacy(root: Path) -> None:
    """Write the schedule in the form of torch before 1.6, which has no CRCs."""
    torch.save(
        companions.schedule(12),
        root / name_of("trainer", 12) / "scheduler.pt",
        _use_new_zipfile_serialization=False,
    )


HF, OLMO, PL, MEGATRON = map(name_of, ("trainer", "olmo", "lightning", "megatron"), (12,) * 4)
STATE = "trainer_state.json"

CASES: list[Case] = [
    *every_way("trainer", "scheduler.pt"),
    *every_way("olmo", "train/rank1.pt"),
    *every_way("lightning", "meta.pt"),
    *every_way("megatron", "common.pt"),
    *bad(
        "trainer",
        "a flipped random state",
        record_flipped(f"{HF}/rng_state_1.pth", "data/0"),
        "checksum: rng_state_1.pth",
    ),
    *bad(
        "trainer",
        "a flipped bit in a file of one's own",
        each(kept, record_flipped(f"{HF}/ema.pt", "data/0")),
        "checksum: ema.pt",
    ),
    *bad("megatron", "common.pt a directory", directory(f"{MEGATRON}/common.pt"), "missing-file"),
    *bad(
        "megatron",
        "common.pt a link to that of before",
        replaced_by(
            f"{MEGATRON}/common.pt",
            lambda one: one.symlink_to(f"../{name_of('megatron', 8)}/common.pt"),
        ),
        "mixed-step: common.pt",
    ),
    *bad("trainer", "a state a directory", directory(f"{HF}/{STATE}"), "missing-file"),
    *bad("trainer", "a random state empty", writes(f"{HF}/rng_state_2.pth", b""), "it is empty"),
    *bad(
        "accelerate",
        "two random states exchanged",
        exchanged(
            f"{name_of('accelerate', 12)}/random_states_0.pkl",
            f"{name_of('accelerate', 12)}/random_states_3.pkl",
        ),
        "misplaced-file: random_states_0.pkl",
    ),
    *bad(
        "accelerate",
        "a schedule with a flipped bit",
        record_flipped(f"{name_of('accelerate', 12)}/scheduler.bin", "data.pkl"),
        "checksum: scheduler.bin",
    ),
    *bad(
        "accelerate", "the optimizer of before", older("accelerate", "optimizer_0"), "foreign-shard"
    ),
    *bad("trainer", "a random state absent", removes(f"{HF}/rng_state_3.pth"), "missing-file"),
    *bad(
        "trainer",
        "two random states exchanged",
        exchanged(f"{HF}/rng_state_0.pth", f"{HF}/rng_state_1.pth"),
        "misplaced-file: rng_state_0.pth",
        "misplaced-file: rng_state_1.pth",
    ),
    *bad(
        "olmo",
        "the states of two ranks exchanged",
        exchanged(f"{OLMO}/train/rank0.pt", f"{OLMO}/train/rank2.pt"),
        "misplaced-file: train/rank0.pt",
    ),
    *bad("trainer", "a state cut", cuts(f"{HF}/{STATE}"), f"malformed-companion: {STATE}"),
    *bad("trainer", "a state of a list", writes(f"{HF}/{STATE}", "[1]"), "an object was expected"),
    *bad(
        "trainer",
        "a state of nothing",
        writes(f"{HF}/{STATE}", b""),
        f"malformed-companion: {STATE}",
    ),
    *bad("trainer", "a state without its step", writes(f"{HF}/{STATE}", "{}"), "no global_step"),
    *bad("trainer", "a step of text", edited(f"{HF}/{STATE}", global_step="12"), "is a str"),
    *bad("trainer", "a step of true", edited(f"{HF}/{STATE}", global_step=True), "is a bool"),
    *bad(
        "trainer",
        "a step of 5,000 digits",
        writes(f"{HF}/{STATE}", '{"global_step": ' + "9" * 5000 + "}"),
        "too many digits",
    ),
    *bad("trainer", "brackets without end", writes(f"{HF}/{STATE}", "[" * 99999), "as JSON"),
    *bad("trainer", "the state of before", older("trainer", STATE), f"mixed-step: {STATE}"),
    *bad("trainer", "the optimizer of before", older("trainer", "optimizer_0"), "mixed-step"),
    *bad("trainer", "the schedule of before", older("trainer", "scheduler.pt"), "mixed-step"),
    *bad("olmo", "all states of before", older("olmo", "train"), "mixed-step: train/rank0.pt"),
    *bad("olmo", "one state of before", older("olmo", "train/rank1.pt"), "mixed-step"),
    *bad("olmo", "a marker cut", cuts(f"{OLMO}/.metadata.json"), "malformed-companion"),
    *bad("olmo", "the shards of before", older("olmo", "model_and_optim"), "mixed-step"),
    *bad("lightning", "meta.pt of before", older("lightning", "meta.pt"), "mixed-step: meta.pt"),
    *bad("megatron", "common.pt of before", older("megatron", "common.pt"), "mixed-step"),
    *bad("megatron", "a marker cut", cuts(f"{MEGATRON}/metadata.json"), "malformed-companion"),
    *bad(
        "megatron",
        "a marker of numbers",
        edited(f"{MEGATRON}/metadata.json", sharded_backend=1),
        "malformed-companion: metadata.json",
    ),
    *bad("measured", "digests of before", older("measured", "integrity.json"), "altered-file"),
    *bad("measured", "digests cut", cuts(f"{MEGATRON}/integrity.json"), "malformed-companion"),
    *bad(
        "measured",
        "digests without a table",
        writes(f"{MEGATRON}/integrity.json", "{}"),
        "no table",
    ),
    *bad(
        "measured",
        "a shard that was written anew",
        older("measured", "__1_0.distcp"),
        "altered-file: __1_0.distcp",
    ),
    *bad(
        "measured", "a shard cut", cuts(f"{MEGATRON}/__2_0.distcp"), "truncated-file: __2_0.distcp"
    ),
    *bad("measured", "other metadata", older("measured", ".metadata"), "altered-file: .metadata"),
    *bad(
        "measured",
        "a digest of what is not there",
        edited(
            f"{MEGATRON}/integrity.json",
            algorithm="sha256",
            files={"gone.distcp": "0" * 64},
        ),
        "gone.distcp",
    ),
    *bad(
        "measured",
        "no marker, where a tracker tells whose it is",
        each(
            writes("latest_checkpointed_iteration.txt", "12"),
            removes(f"{MEGATRON}/metadata.json", f"{MEGATRON}/integrity.json"),
        ),
        "missing-file: metadata.json",
    ),
    *(row for layout in LAYOUTS for row in good(layout, "as it was written")),
    *good("trainer", "a schedule that steps with a metric", plateau),
    *good("trainer", "a schedule in the old form", legacy),
    *good("trainer", "a model configuration", writes(f"{HF}/config.json", '{"model_type": "x"}')),
    *good("trainer", "a file of one's own", kept),
    *good("trainer", "a file of nobody", writes(f"{HF}/notes.pt", "what I did")),
    *good("trainer", "an empty file of nobody", writes(f"{HF}/notes.bin", b"")),
    *good("lightning", "a log", writes(f"{PL}/train.log", "x")),
]
