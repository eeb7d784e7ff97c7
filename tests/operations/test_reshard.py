"""``ckptctl reshard``: what it writes, what it refuses, and that a failure leaves nothing committed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from ckptctl.errors import Findings, Refused
from ckptctl.model.manifest import MANIFEST
from ckptctl.operations.content.digest import digest_content
from ckptctl.operations.content.open import open_tensors
from ckptctl.operations.content.proof import ProofBy
from ckptctl.operations.reshard import target as reshard_target
from ckptctl.operations.reshard.options import Resharding, ReshardOptions
from ckptctl.operations.reshard.plan import Request
from ckptctl.operations.reshard.reshard import reshard
from ckptctl.protocol import read_manifest
from ckptctl.sharding.mesh import Mesh
from ckptctl.sharding.rank_policy import Policy
from ckptctl.sharding.record import RESHARD, staging_name
from ckptctl.storage.posix import PosixStore
from conftest import FIXTURES
from support import companions
from support.cli import run, run_process
from support.damage import flip_field, remove

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")

KEEP = {"rng": Policy.KEEP, "data": Policy.KEEP}
CASES = (
    "fsdp2/step-12",
    "hsdp/step-12",
    "tp_fsdp/step-12",
    "ddp/step-12",
    "no_dist/step-12",
    "async_save/step-12",
    "rank_local/step-12",
    "thread_count_3/step-12",
    "file_per_item/step-12",
    "dedup_lowest_rank/step-12",
    "zstd/step-12",
    "no_crc/step-1",
    "dtype_zoo/step-1",
)


def made(
    source: Path, target: Path, ranks: int, *, policies: Any = None, **options: Any
) -> Resharding:
    how = {name: options.pop(name) for name in ("mesh", "rules") if name in options}
    executor = options.pop("executor", None)
    request = Request(ranks, policies=KEEP if policies is None else policies, **how)
    chosen = ReshardOptions(request, **{"workers": 2} | options)
    return reshard(str(source), str(target), options=chosen, executor=executor)


def staged(target: Path) -> Path:
    """Where a result lies until it is proven."""
    return target.with_name(staging_name(target.name))


def contents(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Digests of all tensors and objects; of copies of one object that of the lowest rank."""
    found = digest_content(open_tensors(str(path)))
    assert found.problems == ()
    objects: dict[str, str] = {}
    for row in found.objects:
        objects.setdefault(row.fqn, row.digest)
    return {row.fqn: row.digest for row in found.tensors}, objects


def snapshot(path: Path) -> dict[str, tuple[bytes, int]]:
    return {
        file.relative_to(path).as_posix(): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def step_of(case: str) -> str:
    return case.rpartition("/")[2]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_the_result_holds_what_the_source_holds(tmp_path: Path, case: str, ranks: int) -> None:
    source, target = FIXTURES / case, tmp_path / step_of(case)
    before = snapshot(source)
    result = made(source, target, ranks)
    assert snapshot(source) == before
    assert contents(target) == contents(source)
    names = {file.name for file in target.iterdir()}
    shards = {f"__{rank}_0.distcp" for rank in range(ranks)}
    assert names == shards | {".metadata", MANIFEST}
    verified = run("verify", target)
    assert verified.code == 0 and "whole" in verified.stdout
    manifest = read_manifest(PosixStore(tmp_path), target.name)
    assert manifest is not None and manifest.digest == result.manifest
    assert manifest.world_size == ranks and manifest.step == result.step
    told = manifest.provenance["resharded_from"]
    assert told["plan"] == result.plan and told["policies"] == {"rng": "keep", "data": "keep"}
    assert {file.path for file in manifest.files} == shards | {".metadata"}


@pytest.mark.parametrize("case", ["fsdp2/step-12", "tp_fsdp/step-12", "dtype_zoo/step-1"])
def test_there_and_back_is_the_identity(tmp_path: Path, case: str) -> None:
    one, two = tmp_path / "a" / step_of(case), tmp_path / "b" / step_of(case)
    made(FIXTURES / case, one, 3)
    assert made(one, two, 4).tensors_digest == made(one, two.parent / "c", 5).tensors_digest
    assert contents(two) == contents(FIXTURES / case)


def test_torch_loads_the_result(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    target = tmp_path / "step-1"
    made(FIXTURES / "dtype_zoo/step-1", target, 3)
    reader = dcp.FileSystemReader(str(target))
    metadata = reader.read_metadata()
    state = {
        key: torch.full(tuple(entry.size), 1, dtype=torch.float32).to(entry.properties.dtype)
        for key, entry in metadata.state_dict_metadata.items()
        if hasattr(entry, "size") and entry.properties.dtype in (torch.float32, torch.bfloat16)
    }
    assert state
    twin = {key: value.clone() for key, value in state.items()}
    dcp.load(state, storage_reader=reader, no_dist=True)
    dcp.load(twin, checkpoint_id=str(FIXTURES / "dtype_zoo/step-1"), no_dist=True)
    for key, value in state.items():
        assert torch.equal(value, twin[key]), key


def test_a_manifest_is_passed_on_without_what_holds_for_the_old_ranks(
    copy: Callable[..., Path], tmp_path: Path
) -> None:
    source = copy("fsdp2/step-12")
    facts = tmp_path / "facts.json"
    given = {"dataset": "d", "world_size": 4, "micro_batch": 2, "accumulation": 3}
    facts.write_text(json.dumps(given))
    assert run("commit", source, "--identity", facts, "--run-id", "r-1").code == 0
    result = made(source, tmp_path / "out" / "step-12", 8)
    first = read_manifest(PosixStore(source), "")
    second = read_manifest(PosixStore(tmp_path / "out"), "step-12")
    assert first is not None and second is not None
    assert second.run_id == "r-1" and second.identity["dataset"] == "d"
    assert "world_size" not in second.identity and second.world_size == 8
    assert second.provenance["resharded_from"]["manifest"] == first.digest
    told = {aspect.name: (aspect.verdict, aspect.why) for aspect in result.aspects}
    assert told["global batch"][0] == "changed" and "24 before, 48" in told["global batch"][1]
    assert told["model"][0] == "kept"
    assert told["sample order"][0] == told["data position"][0] == "changed"


# --- state that each rank has its own of -------------------------------------------------------


def test_state_of_ranks_needs_a_decision_before_anything_is_written(tmp_path: Path) -> None:
    target = tmp_path / "step-12"
    with pytest.raises(Refused, match="ranks 4-7 would find none"):
        made(
            FIXTURES / "fsdp2/step-12",
            target,
            8,
            policies={"rng": Policy.FAIL, "data": Policy.KEEP},
        )
    assert not target.exists()
    done = run(
        "reshard", FIXTURES / "fsdp2/step-12", "--world-size", "8", "--out", target, "--dry-run"
    )
    assert done.code == 5 and "ranks 4-7 would find none" in done.stdout
    assert "--rng can be keep or drop" in done.stdout
    assert "--data can be keep or drop or merge" in done.stdout
    assert not target.exists()


def test_what_is_dropped_is_gone_and_named(tmp_path: Path) -> None:
    target = tmp_path / "step-12"
    policies = {"rng": Policy.DROP, "data": Policy.DROP}
    result = made(FIXTURES / "fsdp2/step-12", target, 8, policies=policies)
    tensors, objects = contents(target)
    assert not any(key.startswith(("rng.", "dataloader.")) for key in [*tensors, *objects])
    assert len(result.dropped) == 20


def test_equal_state_of_ranks_is_merged(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    source, target = tmp_path / "step-3", tmp_path / "out" / "step-3"
    state = {
        "w": torch.arange(12.0),
        "dataloader": {f"dp_rank_{rank}": {"position": 40, "epoch": 2} for rank in range(2)},
    }
    dcp.save(state, checkpoint_id=str(source), no_dist=True)
    made(source, target, 3, policies={"rng": Policy.FAIL, "data": Policy.MERGE})
    # torch rebuilds the nested state from the paths, those of the new keys included
    planner = pytest.importorskip("torch.distributed.checkpoint.default_planner")
    found: dict[str, Any] = {}
    loader = pytest.importorskip("torch.distributed.checkpoint.state_dict_loader")
    loader._load_state_dict(
        found,
        storage_reader=dcp.FileSystemReader(str(target)),
        planner=planner._EmptyStateDictLoadPlanner(),
        no_dist=True,
    )
    assert found["dataloader"] == {
        f"dp_rank_{rank}": {"position": 40, "epoch": 2} for rank in range(3)
    }
    assert torch.equal(found["w"], state["w"])


# --- refusals ----------------------------------------------------------------------------------


def test_an_occupied_destination_is_refused(tmp_path: Path) -> None:
    source, target = FIXTURES / "ddp/step-12", tmp_path / "step-12"
    target.mkdir()
    made(source, target, 2)
    for options in ({}, {"resume": True}, {"force": True}):
        with pytest.raises(Refused, match="committed checkpoint"):
            made(source, target, 2, **options)
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    for options in ({}, {"resume": True}):
        with pytest.raises(Refused, match="nothing was written"):
            made(source, other, 2, **options)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Refused, match="not a directory"):
        made(source, tmp_path / "file", 2)
    assert (other / "notes.txt").read_text() == "mine" and len(list(other.iterdir())) == 1


def test_the_source_is_never_the_destination(copy: Callable[..., Path]) -> None:
    source = copy("ddp/step-12")
    before = snapshot(source)
    for target in (source, source / "inside", source / ".." / source.name):
        with pytest.raises(Refused, match="never touched"):
            made(source, target, 2)
    assert snapshot(source) == before


def test_a_name_of_another_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="names step 13, and the source is of step 12"):
        made(FIXTURES / "ddp/step-12", tmp_path / "step-13", 2)
    assert made(FIXTURES / "ddp/step-12", tmp_path / "eight-ranks", 8).step == 12


def test_a_source_that_does_not_verify_is_refused(
    copy: Callable[..., Path], tmp_path: Path
) -> None:
    source = copy("fsdp2/step-12")
    remove(source, file="__1_0.distcp")
    with pytest.raises(Findings, match="does not verify"):
        made(source, tmp_path / "out", 2)
    flipped = copy("fsdp2/step-12", "flipped")
    flip_field(flipped, fqn="model.embed.weight", origin=(3, 0))
    with pytest.raises(Findings, match=r"model\.embed\.weight.*CRC"):
        made(flipped, tmp_path / "out", 2)
    assert not (tmp_path / "out").exists()
    assert run("reshard", flipped, "--world-size", "4", "--out", tmp_path / "out").code == 10


def test_force_leaves_out_what_is_damaged_and_names_it(
    copy: Callable[..., Path], tmp_path: Path
) -> None:
    source = copy("fsdp2/step-12")
    flip_field(source, fqn="model.embed.weight", origin=(3, 0))
    result = made(source, tmp_path / "step-12", 2, force=True)
    assert result.lost == ("model.embed.weight",)
    tensors, objects = contents(tmp_path / "step-12")
    whole_tensors, whole_objects = contents(FIXTURES / "fsdp2/step-12")
    del whole_tensors["model.embed.weight"]
    assert (tensors, objects) == (whole_tensors, whole_objects)
    manifest = read_manifest(PosixStore(tmp_path), "step-12")
    assert manifest is not None
    assert manifest.provenance["resharded_from"]["lost"] == ["model.embed.weight"]


def test_a_file_that_a_manifest_promises_otherwise_is_refused(
    copy: Callable[..., Path], tmp_path: Path
) -> None:
    """A shard of another save has sound CRCs; only the digest of the manifest tells."""
    source = copy("fsdp2/step-12")
    assert run("commit", source).code == 0
    shutil.copyfile(FIXTURES / "fsdp2/step-8/__1_0.distcp", source / "__1_0.distcp")
    with pytest.raises(Findings, match="does not verify"):
        made(source, tmp_path / "out", 4)
    assert not (tmp_path / "out").exists()


def test_no_room_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PosixStore, "space", lambda self: 10_000)
    with pytest.raises(Refused, match="bytes are to be written and 10,000 are free"):
        made(FIXTURES / "fsdp2/step-12", tmp_path / "out", 4)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--mesh", "dp=3,tp=2"),
        ("--mesh", "qq=4"),
        ("--dim-rule", "nonsense"),
        ("--dim-rule", "model.embed.weight=7"),
        ("--rng", "merge"),
        ("--data", "guess"),
    ],
)
def test_wrong_calls_exit_2(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = run(
        "reshard",
        FIXTURES / "fsdp2/step-12",
        "--world-size",
        "4",
        "--out",
        tmp_path / "o",
        *options,
    )
    assert done.code == 2 and "Traceback" not in done.stderr
    assert not (tmp_path / "o").exists()


def test_nothing_there_exits_3_and_no_such_place_4(tmp_path: Path) -> None:
    words = ("--world-size", "4", "--out", tmp_path / "o")
    assert run("reshard", tmp_path, *words).code == 3
    assert run("reshard", tmp_path / "x", *words).code == 4


# --- the proof ---------------------------------------------------------------------------------


def test_nothing_is_committed_unless_the_proof_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that loses a bit after the write: torch would load it without a word."""
    target = tmp_path / "step-12"
    write = reshard_target.write_metadata

    def write_and_flip(*args: Any) -> None:
        flip_after(staged(target))
        write(*args)

    def flip_after(path: Path) -> None:
        file = path / "__0_0.distcp"
        data = bytearray(file.read_bytes())
        data[-5000] ^= 4
        file.write_bytes(data)

    monkeypatch.setattr(reshard_target, "write_metadata", write_and_flip)
    with pytest.raises(Findings, match="not committed"):
        made(FIXTURES / "fsdp2/step-12", target, 2)
    assert not target.exists()
    monkeypatch.setattr(reshard_target, "write_metadata", write)
    result = made(FIXTURES / "fsdp2/step-12", target, 2, resume=True)
    assert result.reused == 2  # the other shard, and the metadata
    assert contents(target) == contents(FIXTURES / "fsdp2/step-12")


# --- going on after an interruption ------------------------------------------------------------


class Stop(Exception):
    """Somebody pulled the plug."""


@pytest.mark.parametrize("after", range(6))
def test_an_interrupted_reshard_is_finished_without_redoing_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Stopped after each file in turn; what is finished stays, byte for byte and as it was."""
    source, target = FIXTURES / "fsdp2/step-12", tmp_path / "step-12"
    finish = reshard_target.Target.finish
    count = iter(range(100))

    def stopping(self: reshard_target.Target, file: Any) -> None:
        if next(count) == after:
            raise Stop
        finish(self, file)

    with monkeypatch.context() as patch:
        patch.setattr(reshard_target.Target, "finish", stopping)
        with pytest.raises(Stop):
            made(source, target, 5, workers=1)
    assert not target.exists()
    recorded = json.loads((staged(target) / RESHARD).read_bytes())["files"]
    assert len(recorded) == after
    before = snapshot(staged(target))
    with pytest.raises(Refused, match="`resume` goes on"):
        made(source, target, 5)
    with pytest.raises(Refused, match="another plan"):
        made(source, target, 6, resume=True)
    assert snapshot(staged(target)) == before
    result = made(source, target, 5, resume=True)
    assert result.reused == after
    for file in recorded:
        assert snapshot(target)[file["path"]] == before[file["path"]]
    assert contents(target) == contents(source)
    assert run("verify", target).code == 0
    assert not (target / RESHARD).exists()


def test_a_finished_file_that_changed_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = FIXTURES / "fsdp2/step-12", tmp_path / "step-12"

    def stop(*_: Any) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(reshard_target, "write_metadata", stop)
        with pytest.raises(Stop):
            made(source, target, 3)
    with (staged(target) / "__1_0.distcp").open("r+b") as file:
        file.seek(100)
        file.write(b"?")
    (staged(target) / ".ckptctl-0123.tmp").write_bytes(b"left over")
    (staged(target) / ".metadata").write_bytes(b"torn")
    assert made(source, target, 3, resume=True).reused == 2
    assert contents(target) == contents(source)
    assert not (target / ".ckptctl-0123.tmp").exists()


def test_another_source_under_the_same_name_is_another_plan(
    tmp_path: Path, copy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise Stop

    source, target = copy("fsdp2/step-12"), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(reshard_target, "write_metadata", stop)
        with pytest.raises(Stop):
            made(source, target, 3)
    shutil.rmtree(source)
    shutil.copytree(FIXTURES / "fsdp2/step-8", source)
    with pytest.raises(Refused, match="another plan"):
        made(source, target, 3, resume=True)


TELLING = """
import os
from ckptctl.cli.main import main
from ckptctl.storage.posix import PosixStore, PosixUpload
def telling(function):
    def call(*args, **how):
        os.write(2, b".")
        return function(*args, **how)
    return call
for kind, name in ((PosixUpload, "write"), (PosixUpload, "finish"),
                   (PosixStore, "put"), (PosixStore, "create")):
    setattr(kind, name, telling(getattr(kind, name)))
main()
"""


@pytest.mark.parametrize("after", [1, 2, 4, pytest.param(None, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_is_never_committed_half_done(
    tmp_path: Path, after: int | None
) -> None:
    """The process is killed at one of its calls to the store, then finished by --resume."""
    source = FIXTURES / "fsdp2/step-12"
    before = snapshot(source)
    expected = contents(source)
    arguments = ["--world-size", "6", "--rng", "keep", "--data", "keep", "--workers", "1"]
    endings = []
    for number in itertools.takewhile(
        lambda _: True not in endings, itertools.count(0, 2) if after is None else [after]
    ):
        target = tmp_path / f"n{number}" / "step-12"
        with subprocess.Popen(
            [sys.executable, "-c", TELLING, "reshard", source, "--out", target, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
        ) as process:
            assert process.stderr is not None
            for _ in range(number + 1):
                process.stderr.read(1)
            process.send_signal(signal.SIGKILL)
        finished = (target / MANIFEST).exists()
        endings.append(finished)
        if not finished:
            done = run("reshard", source, "--out", target, *arguments, "--resume")
            assert done.code == 0, done.stderr
        assert contents(target) == expected
        assert run("verify", target).code == 0
    assert False in endings
    assert len(endings) > 5 or after is not None
    assert snapshot(source) == before


# --- where the work is done --------------------------------------------------------------------


def test_units_can_be_done_by_other_processes(tmp_path: Path) -> None:
    target = tmp_path / "step-12"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        mesh = Mesh.parse("dp=3,tp=2")
        source = FIXTURES / "tp_fsdp/step-12"
        done = made(source, target, 6, executor=pool, mesh=mesh, proof=ProofBy.CRC)
    assert done.proven_by == "crc"  # what the others have read came back
    assert contents(target) == contents(FIXTURES / "tp_fsdp/step-12")


def test_one_worker_and_many_write_the_same_bytes(tmp_path: Path) -> None:
    for workers in (1, 7):
        made(FIXTURES / "fsdp2/step-12", tmp_path / f"w{workers}", 5, workers=workers)
    for rank in range(5):
        name = f"__{rank}_0.distcp"
        assert (tmp_path / "w1" / name).read_bytes() == (tmp_path / "w7" / name).read_bytes()


def test_json_and_dry_run(tmp_path: Path) -> None:
    target = tmp_path / "step-12"
    arguments = ("reshard", FIXTURES / "tp_fsdp/step-12", "--out", target, "--data", "keep")
    dry = run(*arguments, "--world-size", "8", "--dry-run", "--json")
    assert dry.code == 0 and not target.exists()
    planned = dry.json()
    assert planned["mesh"] == "dp=4,tp=2" and planned["dry_run"] and not planned["manifest"]
    assert sum(file["size"] for file in planned["files"]) == planned["bytes_written"]
    done = run(*arguments, "--world-size", "8", "--json").json()
    assert done["plan"] == planned["plan"] and done["manifest"].startswith("sha256:")
    for file in planned["files"]:
        assert os.path.getsize(target / file["path"]) == file["size"]
    assert run(*arguments, "--world-size", "8", "--quiet").code == 5


def test_torch_is_not_imported(tmp_path: Path) -> None:
    before = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
    )
    done = run_process(
        *("reshard", FIXTURES / "no_dist/step-12", "--out", tmp_path / "step-12"),
        *("--world-size", "2", "--rng", "keep", "--data", "keep"),
        before=before,
    )
    assert done.code == 0 and done.stderr.strip() == "False"


@pytest.mark.slow
def test_source_and_result_may_lie_in_different_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a directory to S3, within S3, and back; every time the same content."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    import boto3
    import fsspec

    from support.servers import moto_server, s3_environment

    fixture = FIXTURES / "fsdp2/step-12"
    with moto_server() as endpoint:
        for name, value in s3_environment(endpoint).items():
            monkeypatch.setenv(name, value)
        fsspec.filesystem("s3").clear_instance_cache()
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="runs")
        names = ["s3://runs/a/step-12", "s3://runs/b/step-12", str(tmp_path / "step-12")]
        for source, target, ranks in zip([str(fixture), *names], names, (3, 6, 4), strict=False):
            arguments = ("--world-size", str(ranks), "--rng", "keep", "--data", "keep")
            done = run("reshard", source, "--out", target, *arguments)
            assert done.code == 0, done.stderr
            again = run("reshard", source, "--out", target, *arguments, "--resume")
            assert again.code == 5 and "committed checkpoint" in again.stderr
            assert run("verify", target).code == 0
        for kind, name in (("safetensors", "w"), ("torch", "w.pt"), ("dcp", "d")):
            source = "s3://runs/w" if kind == "dcp" else names[0]
            words = ("convert", source, "--to", kind, "--out", f"s3://runs/{name}")
            done = run(*words)
            assert done.code == 0 and "proof" in done.stdout, done.stderr
            assert run(*words).code == 5 and run(*words, "--overwrite").code == 5
            assert run("digest", f"s3://runs/{name}", "--only", "model.*").code == 0
        left = fsspec.filesystem("s3").find("runs")
        assert not any(".ckptctl-" in path or path.endswith(RESHARD) for path in left)
    assert contents(tmp_path / "step-12") == contents(fixture)


def test_files_that_a_framework_needs_beside_the_shards_come_along(
    copy: Callable[..., Path], tmp_path: Path
) -> None:
    source, target = copy("ddp/step-12"), tmp_path / "out" / "step-12"
    companions.megatron(source, 12)
    companions.digests(source)
    made(source, target, 3)
    for name in ("metadata.json", "common.pt"):
        assert (target / name).read_bytes() == (source / name).read_bytes()
    assert not (target / "integrity.json").exists()
    manifest = read_manifest(PosixStore(target), "")
    assert manifest is not None
    assert {"metadata.json", "common.pt"} < {file.path for file in manifest.files}


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["dp=3", "dp=1,tp=3"])
def test_memory_stays_small_whatever_the_size(tmp_path: Path, mesh: str) -> None:
    """A tensor of 768 MiB, cut along rows into rows or columns."""
    from array import array

    from ckptctl.formats.dcp.metadata_writer import encode_metadata
    from ckptctl.formats.torch.zip_writer import write_tensor
    from ckptctl.model.checkpoint import Entry, Items, TensorEntry
    from ckptctl.model.geometry import Boxes
    from ckptctl.sharding.mesh import parts

    shape, items, source = (65536, 3072), Items(), tmp_path / "a"
    held = parts(shape, Mesh(("dp",), (2,)), {"dp": 0})
    source.mkdir()
    block = os.urandom(1 << 20)
    lengths = []
    for part in held:
        with (source / f"__{part.ranks[0]}_0.distcp").open("wb") as file:
            pieces = [block] * (part.box.volume * 4 >> 20)
            lengths.append(write_tensor(file, "float32", part.box.sizes, pieces).length)
    names = [f"__{part.ranks[0]}_0.distcp" for part in held]
    origins: list[tuple[int, ...] | None] = [part.box.offsets for part in held]
    items = Items(["w", "w"], origins, names, array("q", [0, 0]), array("q", lengths))
    boxes = Boxes.of(2, [part.box for part in held])
    entries: dict[str, Entry] = {"w": TensorEntry("w", "float32", shape, boxes)}
    pieces_of = encode_metadata(entries, items, {}, save_id="s-1", checkpoint_id="a")
    (source / ".metadata").write_bytes(b"".join(pieces_of))
    peak = (  # what getrusage says includes the process that started this one
        "import atexit, pathlib, sys\n"
        "status = pathlib.Path('/proc/self/status')\n"
        "line = lambda: next(l for l in status.read_text().split('\\n') if 'VmHWM' in l)\n"
        "atexit.register(lambda: print(line().split()[1], file=sys.stderr))\n"
    )
    done = run_process(
        *("reshard", source, "--world-size", "3", "--out", tmp_path / "b", "--mesh", mesh),
        *("--dim-rule", "*=" + ("tp:1" if "tp" in mesh else "0")),
        before=peak,
    )
    assert done.code == 0, done.stderr
    assert int(done.stderr) < 150 << 10  # KiB
