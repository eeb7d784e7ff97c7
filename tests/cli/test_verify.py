"""``ckptctl verify`` as a user or a launcher sees it: exit codes above all."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import FIXTURES
from support.cli import (
    OWN_COLOURS,
    Ended,
    assert_golden,
    assert_golden_pair,
    command,
    environment,
    make_old,
    normal,
    plant,
    run,
    run_on_terminal,
    run_process,
)
from support.damage import flip_byte, flip_field, garble, remove, rewrite, truncate
from support.effort import PATIENCE

GOOD = FIXTURES / "fsdp2" / "step-12"
EMBED = {"fqn": "model.embed.weight", "origin": (3, 0)}
UNREACHABLE = "http://127.0.0.1:9/run/step-12"
NO_ZSTANDARD = "import sys; sys.modules['zstandard'] = None"
HALTED_READS = """
import os, signal, sys
# it is ignored where the tests run in the background of a shell
signal.signal(signal.SIGINT, signal.default_int_handler)
from ckptctl.storage.posix import PosixReader
real = PosixReader.read
def read(self, start, stop):
    if str(self._path).endswith(".distcp"):
        sys.stderr.write("reading\\n")
        sys.stderr.flush()
        os.read(0, 1)  # until the test closes it
    return real(self, start, stop)
PosixReader.read = read
"""
ONE_LINE = """
import os, sys
class Halted:
    def __init__(self, stream):
        self.stream, self.written = stream, 0
    def __getattr__(self, name):
        return getattr(self.stream, name)
    def write(self, text):
        if self.written:
            os.read(0, 1)  # until the test has closed its end of stdout
        self.written = self.stream.write(text)
        self.stream.flush()
sys.stdout = Halted(sys.stdout)
"""
FAILING_READS = """
from ckptctl.errors import StorageError
from ckptctl.storage.posix import PosixReader
real = PosixReader.read
def read(self, start, stop):
    if str(self._path).endswith("__1_0.distcp"):
        raise StorageError("__1_0.distcp: the disk gave no answer")
    return real(self, start, stop)
PosixReader.read = read
"""
BROKEN = """
import ckptctl.operations.verify.stages as verify
def broken(*args, **how):
    raise RuntimeError("a bug\\x1b[35m")
verify.to_read = broken
"""


def coverage(ended: Ended, stage: str) -> dict[str, Any]:
    """Return the one coverage row of a stage that a JSON result of one checkpoint holds."""
    (found,) = ended.json()["checkpoints"]
    (row,) = (row for row in found["report"]["coverage"] if row["stage"] == stage)
    return dict(row)


def counts(row: dict[str, Any]) -> dict[str, int]:
    """Return how many were not examined, by reason."""
    return {gap["reason"]: gap["count"] for gap in row["gaps"]}


def findings(ended: Ended) -> list[str]:
    """Return the check id of each finding in a JSON result."""
    found = ended.json()["checkpoints"]
    return [finding["check"] for one in found for finding in one["report"]["findings"]]


@functools.cache
def records_of_a_quick_look() -> int:
    """Count the records that even a quick look checks: the small ones."""
    row = coverage(run("verify", GOOD, "--quick", "--json"), "content")
    count = row["total"] - row["examined"]
    assert row["gaps"] == [{"kind": "left-out", "reason": "left out by `quick`", "count": count}]
    return int(row["examined"])


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A checkpoint with several kinds of damage, below ``run`` in the working directory."""
    pytest.importorskip("torch")
    path = plant(GOOD, tmp_path / "run" / "step-12")
    flip_field(path, **EMBED)
    remove(path, file="__2_0.distcp")
    truncate(path, file="__3_0.distcp", size=20000)
    rewrite(path, file="__7_0.distcp", data=b"left over")
    make_old(path)
    return path


class TestExitCodes:
    """One test for each code; a launcher decides by these alone."""

    def test_0_nothing_is_wrong(self) -> None:
        ended = run("verify", GOOD)
        assert (ended.code, ended.stderr) == (0, "")
        assert ended.stdout.splitlines()[-1].startswith(f"UNVERIFIED: {GOOD}: whole, ")

    def test_1_ckptctl_itself_failed(self) -> None:
        ended = run_process("verify", GOOD, before=BROKEN)
        assert (ended.code, ended.stdout) == (1, "")
        assert "itself failed: RuntimeError: a bug\\x1b[35m" in ended.stderr
        assert "Traceback" not in ended.stderr
        debugged = run_process("verify", GOOD, before=BROKEN, env={"CKPTCTL_DEBUG": "1"})
        assert debugged.code == 1
        assert "Traceback" in debugged.stderr

    @pytest.mark.parametrize(
        ("args", "said"),
        [
            (("--select", "holes"), "there is no check 'holes'"),
            (("--ignore", "nothing"), "there is no check 'nothing'"),
            (("--fail-on", "note"), "--fail-on"),
            (("--sample", "0"), "--sample"),
            (("--sample", "101%"), "--sample"),
            (("--sample", "nan"), "--sample"),
            (("--part", "0/4"), "--part"),
            (("--part", "5/4"), "--part"),
            (("--part", "1"), "--part"),
            (("--workers", "0"), "--workers"),
            (("--quick", "--part", "1/2"), "choose one"),
            (("--bogus",), "--bogus"),
        ],
    )
    def test_2_usage(self, args: tuple[str, ...], said: str) -> None:
        ended = run("verify", GOOD, *args)
        assert (ended.code, ended.stdout) == (2, "")
        assert said in ended.stderr

    def test_2_an_empty_path(self) -> None:
        ended = run("verify", "")
        assert (ended.code, ended.stdout) == (2, "")
        assert "is a variable not set?" in ended.stderr

    def test_4_no_such_path(self, tmp_path: Path) -> None:
        ended = run("verify", tmp_path / "gone")
        assert (ended.code, ended.stdout) == (4, "")
        assert ended.stderr == f"ckptctl: {tmp_path / 'gone'}: no such directory\n"

    def test_3_no_checkpoint(self, tmp_path: Path) -> None:
        ended = run("verify", tmp_path)
        assert (ended.code, ended.stdout) == (3, "")
        assert (
            ended.stderr
            == f"ckptctl: {tmp_path}: no checkpoint here or below, nor what could be one; listed: nothing\n"
        )

    @pytest.mark.parametrize("name", ["verify", "list", "show"])
    def test_4_no_answer_from_the_storage(self, name: str) -> None:
        pytest.importorskip("aiohttp")
        ended = run(name, UNREACHABLE)
        assert (ended.code, ended.stdout) == (4, "")
        assert UNREACHABLE in ended.stderr
        assert "Traceback" not in ended.stderr

    def test_4_an_unknown_scheme(self) -> None:
        ended = run("verify", "nosuch://bucket/run")
        assert (ended.code, ended.stdout) == (4, "")
        assert "nosuch" in ended.stderr

    def test_4_a_file_that_the_storage_does_not_give(self) -> None:
        ended = run_process("verify", GOOD, "--json", before=FAILING_READS)
        (found,) = ended.json()["checkpoints"]
        assert (ended.code, ended.document()["exit_code"], found["verdict"]) == (
            4,
            4,
            "could not finish",
        )
        row = coverage(ended, "items")
        assert 0 < row["examined"] < row["total"] == 100
        assert "the disk gave no answer" in json.dumps(row["gaps"])
        text = run_process("verify", GOOD, "--quiet", before=FAILING_READS)
        assert text.code == 4
        assert text.stdout.startswith(f"COULD NOT FINISH: {GOOD}: ")
        assert "the disk gave no answer" in text.stdout

    def test_4_a_package_is_missing(self) -> None:
        ended = run_process("verify", FIXTURES / "zstd" / "step-12", before=NO_ZSTANDARD)
        assert ended.code == 4
        assert "COULD NOT FINISH" in ended.stdout
        assert "the package zstandard is not installed" in ended.stdout
        assert "OK" not in ended.stdout

    def test_4_another_format(self, tmp_path: Path) -> None:
        (tmp_path / "step-12").mkdir()
        rewrite(tmp_path / "step-12", file="_CHECKPOINT_METADATA", data=b"{}")
        ended = run("verify", tmp_path / "step-12")
        assert ended.code == 4
        last = ended.stdout.splitlines()[-1]
        assert last == f"NOT EXAMINED: {tmp_path / 'step-12'}: Orbax: contents not read yet"

    def test_10_findings(self, damaged: Path) -> None:
        ended = run("verify", damaged)
        assert (ended.code, ended.stderr) == (10, "")
        last = ended.stdout.splitlines()[-1]
        assert last == f"FINDINGS: {damaged}: 3 errors, 1 note"

    @pytest.mark.parametrize(
        "damage",
        [
            lambda path: remove(path, file=".metadata"),
            lambda path: garble(path, file=".metadata"),
            lambda path: (path / ".metadata").rename(path / ".metadata.tmp"),
            lambda path: [file.unlink() for file in path.iterdir()],
        ],
    )
    def test_10_something_was_there_once(
        self, copy: Callable[..., Path], damage: Callable[[Path], object]
    ) -> None:
        path = copy("fsdp2/step-12")
        damage(path)
        assert run("verify", path).code == 10
        assert run("verify", path.parent).code == 10

    @pytest.mark.parametrize("args", [("--workers", "1"), ("--workers", "4"), ("--json",)])
    def test_130_interrupted(self, args: tuple[str, ...]) -> None:
        with subprocess.Popen(
            command("verify", str(GOOD), *args, before=HALTED_READS),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        ) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == b"reading\n"
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        if "--json" in args:
            assert json.loads(out)["verdict"] == "interrupted"
        else:
            assert out == b""
        said = [line for line in error.decode().splitlines() if line not in ("reading", "")]
        assert said == ["ckptctl: interrupted"]


class TestSeveralPaths:
    """The worst ending of all counts: damage, then storage, then nothing there."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        plant(FIXTURES / "no_crc" / "step-1", tmp_path / "good" / "step-1")
        plant(FIXTURES / "no_crc" / "step-1", tmp_path / "bad" / "step-1")
        truncate(tmp_path / "bad" / "step-1", file="__0_0.distcp", size=5000)
        plant(FIXTURES / "zstd" / "step-12", tmp_path / "packed" / "step-12")
        return tmp_path

    @pytest.mark.parametrize(
        ("paths", "code", "seen"),
        [
            (("good", "packed"), 4, 2),
            (("good", "gone"), 4, 1),
            (("packed", "gone"), 4, 1),
            (("gone", "packed", "bad", "good"), 10, 3),
            (("good", "good"), 0, 1),
            (("good",), 0, 1),
        ],
    )
    def test_one_code(self, root: Path, paths: tuple[str, ...], code: int, seen: int) -> None:
        ended = run_process("verify", *paths, "--json", cwd=root, before=NO_ZSTANDARD)
        assert ended.code == ended.document()["exit_code"] == code
        assert len(ended.json()["checkpoints"]) == seen
        assert len(ended.json()["failures"]) == paths.count("gone")
        assert ("gone: no such directory" in ended.stderr) == ("gone" in paths)

    def test_a_sum_for_people(self, root: Path) -> None:
        ended = run_process("verify", ".", cwd=root, before=NO_ZSTANDARD)
        assert ended.code == 10
        assert ended.stdout.splitlines()[-1] == (
            "3 checkpoints: 0 ok, 1 unverified, 1 with findings, 1 not finished"
        )


class TestRendering:
    """What is printed for whom."""

    def test_good_ones(self, tmp_path: Path) -> None:
        plant(FIXTURES / "fsdp2", tmp_path / "run")
        plant(FIXTURES / "rank_local", tmp_path / "run" / "local")
        plant(FIXTURES / "no_crc", tmp_path / "run" / "no_crc")
        assert_golden_pair("verify/good", ["verify", "run"], tmp_path)

    def test_a_bad_one(self, damaged: Path) -> None:
        assert_golden_pair("verify/bad", ["verify", "run"], damaged.parent.parent, code=10)

    def test_a_quick_look(self, tmp_path: Path) -> None:
        plant(FIXTURES / "zstd", tmp_path / "run")
        plant(FIXTURES / "fsdp2" / "step-8", tmp_path / "run" / "step-8")
        assert_golden_pair("verify/quick", ["verify", "run", "--quick"], tmp_path)

    def test_a_terminal_is_filled_and_not_overrun(self, damaged: Path) -> None:
        ended = run_on_terminal("verify", "run", cwd=damaged.parent.parent)
        assert ended.code == 10
        assert_golden("verify/bad-terminal.txt", normal(ended.stdout))
        lines = OWN_COLOURS.sub("", ended.stdout).splitlines()
        assert max(map(len, lines)) <= 80
        assert any(len(line) > 70 for line in lines)
        assert "\x1b[31;1merror checksum:\x1b[0m" in ended.stdout

    @pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
    def test_no_colour_where_none_is_wanted(self, damaged: Path, variables: dict[str, str]) -> None:
        ended = run_on_terminal("verify", damaged, env=variables)
        assert ended.code == 10
        assert "FINDINGS" in ended.stdout
        assert "\x1b" not in ended.stdout

    def test_no_colour_in_a_pipe(self, damaged: Path) -> None:
        ended = run("verify", damaged)
        assert "FINDINGS" in ended.stdout
        assert "\x1b" not in ended.stdout
        assert "\x1b[31;1m" in run("verify", damaged, env={"FORCE_COLOR": "1"}).stdout

    def test_quiet_says_nothing_of_what_is_good(self) -> None:
        assert run("verify", "--quiet", FIXTURES / "fsdp2", FIXTURES / "zstd") == Ended(0, "", "")
        assert run_on_terminal("verify", "-q", GOOD).stdout == ""

    def test_quiet_says_what_is_wrong(self, damaged: Path) -> None:
        ended = run("verify", "--quiet", damaged.parent, FIXTURES / "zstd")
        assert ended.code == 10
        assert "error missing-file: __2_0.distcp (rank 2)" in ended.stdout
        assert "FINDINGS" in ended.stdout
        assert "unreferenced-file" not in ended.stdout
        assert "zstd" not in ended.stdout
        assert "  items  " not in ended.stdout

    def test_json_on_a_terminal_is_json_alone(self, damaged: Path) -> None:
        ended = run_on_terminal("verify", damaged, "--json")
        assert json.loads(ended.stdout)["exit_code"] == ended.code == 10

    @pytest.mark.parametrize("args", [(), ("--json",)])
    @pytest.mark.parametrize("lines", [0, 1])
    def test_a_reader_that_goes_away(
        self, damaged: Path, lines: int, args: tuple[str, ...]
    ) -> None:
        with subprocess.Popen(
            command("verify", str(damaged), *args, before=ONE_LINE if lines else ""),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment({"PYTHONUNBUFFERED": "1"}),
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            for _ in range(lines):
                process.stdout.readline()
            process.stdout.close()
            assert process.stdin is not None
            process.stdin.close()
            error = process.stderr.read().decode()
            process.wait(PATIENCE)
        assert error == ""
        # it may have ended before it could know that nobody reads
        endings = (141, -signal.SIGPIPE) if lines and not args else (10, 141, -signal.SIGPIPE)
        assert process.returncode in endings

    def test_a_full_disk_behind_stdout_is_an_error(self) -> None:
        if not Path("/dev/full").exists():
            pytest.skip("no /dev/full here")
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                command("verify", str(GOOD)),
                stdout=full,
                stderr=subprocess.PIPE,
                env=environment(),
                check=False,
            )
        assert done.returncode not in (0, 10)
        assert b"Traceback" not in done.stderr


class TestExtent:
    """``--quick``, ``--sample`` and ``--part``: how much of the content is read."""

    def test_everything(self) -> None:
        row = coverage(run("verify", GOOD, "--json"), "content")
        assert (row["examined"], row["gaps"]) == (row["total"], [])

    def test_quick_does_not_see_a_flipped_bit(self, copy: Callable[..., Path]) -> None:
        pytest.importorskip("torch")
        path = copy("fsdp2/step-12")
        flip_field(path, **EMBED)
        quick = run("verify", path, "--quick")
        assert quick.code == 0
        assert "content not read" in quick.stdout
        assert run("verify", path).code == 10

    @pytest.mark.parametrize("parts", [1, 2, 5])
    def test_parts_are_disjoint_and_cover_everything(self, parts: int) -> None:
        extra, total = 0, 0
        for number in range(1, parts + 1):
            row = coverage(run("verify", GOOD, "--part", f"{number}/{parts}", "--json"), "content")
            total = row["total"]
            outside = counts(row).get("outside the part", 0)
            assert row["examined"] + outside == total
            assert parts == 1 or row["examined"] < total
            extra += row["examined"] - records_of_a_quick_look()
        assert extra == total - records_of_a_quick_look() > 0

    def test_each_damage_is_found_by_exactly_one_part(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        path = plant(GOOD, tmp_path / "step-12")
        places = [("model.up.weight", (0, 0)), ("model.down.weight", (6, 0)), EMBED.values()]
        for fqn, origin in places:
            flip_field(path, fqn=fqn, origin=origin)
        whole = Counter(findings(run("verify", path, "--json")))
        union: Counter[str] = Counter()
        for number in range(1, 6):
            union += Counter(findings(run("verify", path, "--part", f"{number}/5", "--json")))
        assert union == whole == {"checksum": 3}

    def test_many_more_parts_than_items(self) -> None:
        ended = run("verify", GOOD, "--part", "999999/999999", "--json")
        assert ended.code == 0

    @pytest.mark.parametrize("share", ["50%", "0.5", "0.001%"])
    def test_a_sample(self, share: str) -> None:
        row = coverage(run("verify", GOOD, "--sample", share, "--json"), "content")
        extra = row["examined"] - records_of_a_quick_look()
        assert extra > 5 if share != "0.001%" else extra <= 2
        assert row["examined"] < row["total"]
        assert counts(row) == {"outside the sample": row["total"] - row["examined"]}

    @pytest.mark.parametrize("share", ["100%", "1"])
    def test_a_sample_of_everything(self, share: str) -> None:
        row = coverage(run("verify", GOOD, "--sample", share, "--json"), "content")
        assert row["examined"] == row["total"]

    def test_a_verdict_tells_its_extent(self) -> None:
        sample = run("verify", GOOD, "--sample", "5%").stdout.splitlines()[-1]
        part = run("verify", GOOD, "--part", "1/2").stdout.splitlines()[-1]
        for line in (sample, part):
            assert line.startswith(f"UNVERIFIED: {GOOD}: structure whole, content of ")

    @pytest.mark.parametrize("args", [("--sample", "5%"), ("--part", "1/6")])
    def test_compressed_items_that_were_left_out_are_not_called_whole(
        self, args: tuple[str, ...]
    ) -> None:
        ended = run("verify", FIXTURES / "zstd" / "step-12", *args)
        assert ended.code == 0
        assert ": whole, content checked" not in ended.stdout
        assert "--quick" not in ended.stdout, "that is not the option in use"

    def test_parts_of_a_compressed_checkpoint_cover_everything(self) -> None:
        found = [
            coverage(run("verify", FIXTURES / "zstd", "--part", f"{n}/3", "--json"), "items")
            for n in (1, 2, 3)
        ]
        assert sum(row["examined"] for row in found) == found[0]["total"] == 11

    def test_the_number_of_workers_changes_nothing(self, damaged: Path) -> None:
        one, many = (run("verify", damaged, "--workers", n, "--json") for n in ("1", "16"))
        assert one.code == many.code == 10
        assert one.stdout == many.stdout


class TestChoosingChecks:
    """``--select``, ``--ignore`` and ``--fail-on``."""

    def test_select(self, damaged: Path) -> None:
        ended = run("verify", damaged, "--json", "--select", "missing-file")
        assert (ended.code, findings(ended)) == (10, ["missing-file"])

    def test_select_several(self, damaged: Path) -> None:
        chosen = ("--select", "checksum", "--select", "unreferenced-file")
        ended = run("verify", damaged, "--json", *chosen)
        assert (ended.code, findings(ended)) == (10, ["checksum", "unreferenced-file"])

    def test_ignore(self, damaged: Path) -> None:
        everything = findings(run("verify", damaged, "--json"))
        ended = run("verify", damaged, "--json", "--ignore", "checksum")
        assert sorted([*findings(ended), "checksum"]) == sorted(everything)

    def test_what_was_not_asked_is_not_called_whole(self, damaged: Path) -> None:
        ended = run("verify", damaged, "--select", "unknown-dtype")
        assert ended.code != 10
        assert "whole" not in ended.stdout.splitlines()[-1]

    def test_a_warning_counts_only_if_wanted(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        path = plant(GOOD, tmp_path / "step-12")
        flip_field(path, **EMBED, part="descriptor", field="crc")
        ended = run("verify", path, "--json")
        assert (ended.code, findings(ended)) == (0, ["stored-checksum"])
        assert run("verify", path).stdout.count("(1 warning)") == 1
        assert run("verify", path, "--quiet") == Ended(0, "", "")
        assert run("verify", path, "--fail-on", "warning").code == 10
        said = run("verify", path, "--fail-on", "warning", "--quiet")
        assert "warning stored-checksum" in said.stdout

    def test_a_note_never_counts(self, tmp_path: Path) -> None:
        path = plant(GOOD, tmp_path / "step-12")
        rewrite(path, file="__9_0.distcp", data=b"left over")
        ended = run("verify", path, "--fail-on", "warning", "--json")
        assert (ended.code, findings(ended)) == (0, ["unreferenced-file"])

    def test_every_finding_names_the_next_command(self, damaged: Path) -> None:
        ended = run("verify", damaged, "--json")
        (found,) = ended.json()["checkpoints"]
        for finding in found["report"]["findings"]:
            assert finding["where"]["checkpoint"] == str(damaged)
            assert finding["remedy"]
            assert "{" not in finding["remedy"]


def test_damage_outranks_an_unfinished_check(copy: Callable[..., Path]) -> None:
    path = copy("fsdp2/step-12")
    flip_byte(path, file="__0_0.distcp", at=20)
    assert run_process("verify", path, before=FAILING_READS).code == 10


def test_verifying_changes_nothing(damaged: Path) -> None:
    def state() -> list[tuple[str, int, int]]:
        return [(str(p), os.stat(p).st_mtime_ns, os.stat(p).st_size) for p in damaged.iterdir()]

    before = state()
    assert run("verify", damaged).code == 10
    assert state() == before


def test_a_checkpoint_may_be_the_working_directory(copy: Callable[..., Path]) -> None:
    path = copy("no_crc/step-1")
    ended = run("verify", ".", "--json", cwd=path)
    assert ended.code == 0
    assert ended.json()["checkpoints"][0]["step"] == 1
