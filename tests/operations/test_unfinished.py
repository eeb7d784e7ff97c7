"""Results are temporary until they are proven: whatever ends a command, nothing half has a name."""

from __future__ import annotations

import errno
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ckptctl import convert
from ckptctl.errors import Findings, StorageError
from ckptctl.model.names import parse_name
from ckptctl.operations.convert import convert as converting
from ckptctl.protocol import read_manifest
from ckptctl.sharding.record import CONVERTED, RESHARD, staging_name, temporary
from ckptctl.storage.posix import PosixStore, PosixUpload
from conftest import FIXTURES
from support.cli import run

SOURCE = FIXTURES / "fsdp2/step-12"
COMMANDS = {
    "reshard": ("reshard", SOURCE, "--world-size", "3", "--rng", "drop", "--data", "drop"),
    "safetensors": ("convert", SOURCE, "--to", "safetensors", "--max-shard-size", "500"),
    "torch": ("convert", SOURCE, "--to", "torch"),
    "dcp": ("convert", "SAFETENSORS", "--to", "dcp", "--world-size", "2"),
}
TELLING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
from ckptctl.cli.main import main
from ckptctl.storage.posix import PosixStore, PosixUpload
def telling(function):
    def call(*args, **how):
        os.write(2, b".")
        sys.stdin.buffer.read(1)
        return function(*args, **how)
    return call
for kind, name in ((PosixUpload, "write"), (PosixUpload, "finish"), (PosixStore, "put"),
                   (PosixStore, "create"), (PosixStore, "rename_directory")):
    setattr(kind, name, telling(getattr(kind, name)))
main()
"""
"""Tells of each call that changes the store before it is made, and waits to be let go on."""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("source") / "weights"
    assert run("convert", SOURCE, "--to", "safetensors", "--out", out).code == 0
    return out


def words_of(kind: str, weights: Path, out: Path) -> list[str]:
    words = [weights if word == "SAFETENSORS" else word for word in COMMANDS[kind]]
    return [*map(str, words), "--out", str(out), "--workers", "1"]


def stopped(words: list[str], after: int, how: signal.Signals) -> subprocess.CompletedProcess[str]:
    """Run a command in a process and send it a signal at one of its calls to the store."""
    with subprocess.Popen(
        [sys.executable, "-c", TELLING, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as process:
        assert process.stderr is not None and process.stdin is not None
        process.stdin.write(b"." * (after - 1))
        for _ in range(after):
            process.stderr.read(1)
        process.send_signal(how)
        out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(words, process.returncode, out.decode(), err.decode())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_signal_leaves_nothing_under_the_name_and_says_what_to_type(
    tmp_path: Path, weights: Path, kind: str, how: signal.Signals
) -> None:
    out = tmp_path / ("step-12.pt" if kind == "torch" else "step-12")
    words = words_of(kind, weights, out)
    ended = stopped(words, 4, how)
    assert not out.exists(), ended
    assert [path.name for path in tmp_path.iterdir()] == [staging_name(out.name)]
    if how is not signal.SIGKILL:
        assert ended.returncode == 128 + how
        last = ended.stderr.rstrip().splitlines()[-1]
        assert last.startswith(f"ckptctl {words[0]} ") and last.endswith(" --resume")
        assert "nothing was made of" in ended.stderr and "--overwrite" in ended.stderr
    again = run(*words)
    assert again.code == 5 and "--resume" in again.stderr
    for option in ("--resume",) if how is signal.SIGTERM else ("--overwrite",):
        done = run(*words, option)
        assert done.code == 0, done.stderr
    assert out.exists() and [path.name for path in tmp_path.iterdir()] == [out.name]


@pytest.mark.parametrize("kind", COMMANDS)
def test_killed_at_any_call_it_is_whole_or_not_there(
    tmp_path: Path, weights: Path, kind: str
) -> None:
    """After every call there is nothing under the name, or all of it."""
    for after in range(1, 200, 6):
        out = tmp_path / f"n{after}" / ("step-12.pt" if kind == "torch" else "step-12")
        out.parent.mkdir()
        words = words_of(kind, weights, out)
        ended = stopped(words, after, signal.SIGKILL)
        if out.exists():
            assert run("digest", out, "--only", "model.*").code == 0
            if kind == "reshard":
                assert read_manifest(PosixStore(out), "") is not None
        elif ended.returncode != 0:
            done = run(*words, "--resume")
            assert done.code == 0, done.stderr
        if ended.returncode == 0:
            break
    assert after > 4


@pytest.mark.parametrize("kind", ["reshard", "safetensors", "torch"])
def test_a_full_disk_leaves_nothing_under_the_name(
    tmp_path: Path, weights: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / ("step-12.pt" if kind == "torch" else "step-12")
    write = PosixUpload.write

    def full(self: PosixUpload, data: Any, /) -> object:
        raise StorageError(f"disk: {errno.ENOSPC}: no space left on device")

    words = words_of(kind, weights, out)
    with monkeypatch.context() as patch:
        patch.setattr(PosixUpload, "write", full)
        ended = run(*words)
    assert ended.code == 4 and "no space left" in ended.stderr and "--resume" in ended.stderr
    assert not out.exists() and PosixUpload.write is write
    assert run(*words, "--resume").code == 0 and out.exists()


def test_a_conversion_goes_on_with_the_files_that_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, upload = tmp_path / "out", PosixStore.upload
    written: list[str] = []
    options: Any = {"only": ("model.*",), "max_shard_size": 300, "workers": 1}

    def stopping(self: PosixStore, path: str) -> PosixUpload:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path)
        return upload(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(PosixStore, "upload", stopping)
        with pytest.raises(KeyboardInterrupt, match="nothing was made of"):
            convert(SOURCE, out, to="safetensors", **options)
    assert (tmp_path / staging_name("out") / RESHARD).exists()
    later: list[str] = []

    def noting(self: PosixStore, path: str) -> PosixUpload:
        later.append(path)
        return upload(self, path)

    monkeypatch.setattr(PosixStore, "upload", noting)
    result = convert(SOURCE, out, to="safetensors", resume=True, **options)
    assert result.proof and later and not set(written) & set(later)
    whole = convert(SOURCE, tmp_path / "whole", to="safetensors", **options)
    assert (whole.proof, whole.outputs) == (result.proof, result.outputs)


def test_what_reads_back_otherwise_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = PosixUpload.finish

    def lossy(self: PosixUpload) -> None:
        finish(self)
        data = bytearray(self._final.read_bytes())
        data[-1] ^= 1
        self._final.write_bytes(data)

    monkeypatch.setattr(PosixUpload, "finish", lossy)
    with pytest.raises(Findings, match="is not what was read"):
        convert(SOURCE, tmp_path / "out", to="safetensors", only=("model.*",))
    assert list(tmp_path.iterdir()) == []


def test_the_old_result_stays_until_the_new_one_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    convert(SOURCE, out, to="safetensors", only=("model.*",))
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def broken(*_: Any) -> str:
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
        raise Findings("not what was read")

    with monkeypatch.context() as patch:
        patch.setattr(converting, "_prove", broken)
        with pytest.raises(Findings):
            convert(SOURCE, out, to="safetensors", only=("model.up*",), overwrite=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    result = convert(SOURCE, out, to="safetensors", only=("model.up*",), overwrite=True)
    assert result.tensors == 2 and list(tmp_path.iterdir()) == [out]
    assert (out / CONVERTED).read_bytes() != before[CONVERTED]


def test_temporary_names_are_no_steps_and_no_checkpoints(tmp_path: Path) -> None:
    """No trainer that looks for numbers finds one, and no two destinations share a name."""
    names = [staging_name(f"step-{step}") for step in range(1000)]
    assert len(set(names)) == len(names) and all(map(temporary, names))
    assert not any(any(letter.isdigit() for letter in name) for name in names)
    assert all(parse_name(name).step is None for name in names)
    shutil.copytree(SOURCE, tmp_path / names[12])
    assert run("resolve", tmp_path, "--allow-uncommitted").code == 10
    assert temporary(".ckptctl-0123.tmp") and not temporary("step-12.tmp")
