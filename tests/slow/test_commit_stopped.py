"""A commit that is stopped at any call to the file system: nothing half, what to type, and it works then."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ckptctl.errors import Interrupted, Terminated
from ckptctl.model.manifest import MANIFEST
from ckptctl.operations.publish.commit import CommitOptions, commit_checkpoint
from ckptctl.storage.posix import PosixStore
from ckptctl.storage.system import RealSystem
from conftest import FIXTURES
from support.cli import environment, run
from support.effort import PATIENCE
from support.publish import place_of

SOURCE = "thread_count_3/step-12"
CALLS = ("make_directory", "write", "sync_file", "sync_directory", "link", "rename", "unlink")


class Stopping(RealSystem):
    """Is told to stop before or after one of its calls."""

    def __init__(self, stop: type[BaseException], nth: int, *, after: bool) -> None:
        self.left, self.stop, self.after = nth, stop, after

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name not in CALLS:
            return found

        def call(*args: object) -> object:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise self.stop()
            answer = found(*args)  # type: ignore[operator]
            if self.left == 0 and self.after:
                raise self.stop()
            return answer

        return call


@pytest.mark.parametrize("publish_as", [None, "step-13"])
@pytest.mark.parametrize("stop", [KeyboardInterrupt, Terminated])
@pytest.mark.parametrize("after", [False, True])
def test_stopped_at_every_call(
    tmp_path: Path, publish_as: str | None, stop: type[BaseException], after: bool
) -> None:
    name = "step-13.tmp" if publish_as else "step-12"
    final = publish_as or name
    for nth in range(1, 1000):
        root = tmp_path / f"{nth}"
        shutil.copytree(FIXTURES / SOURCE, root / name)
        before = {path.name for path in (root / name).iterdir()}
        system = Stopping(stop, nth, after=after)
        store, place = place_of(root / name, lambda url, one=system: PosixStore(url, system=one))
        options = CommitOptions(publish_as=publish_as, workers=1)
        try:
            commit_checkpoint(store, place, options=options)
        except Interrupted as error:
            said = str(error)
        else:
            break
        there = root / (final if (root / final).exists() else name)
        names = {path.name for path in there.iterdir()} - before
        ended = run("verify", there)
        assert ended.code == 0, ended
        if MANIFEST in names:
            assert "sealed all the same" in said
        elif there.name != name:
            assert f"`ckptctl commit {root / final}`" in said
        else:
            assert "the same command begins again" in said
        assert {
            one for one in names if one != MANIFEST and not one.startswith(".ckptctl-")
        } == set()
        again = ["commit", str(there)]
        if there.name == name and publish_as:
            again += ["--as", publish_as]
        assert run(*again).code == 0
        assert run("verify", root / final, "--require", "manifest").code == 0
        shutil.rmtree(root)
    assert nth > 10


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_real_process_is_told_to_stop(tmp_path: Path, number: int, code: int) -> None:
    place = tmp_path / "run/step-12"
    shutil.copytree(FIXTURES / SOURCE, place)
    os.mkfifo(tmp_path / "gate")
    program = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys, ckptctl.operations.publish.stability as s, time\n"
        f"s_open = open({str(tmp_path / 'gate')!r}, 'w')\n"
        "from ckptctl.operations.publish import commit\n"
        "def wait(*_): s_open.write('x'); s_open.flush(); time.sleep(600)\n"
        "commit.refuse_changes = wait\n"
        "from ckptctl.__main__ import main\n"
        f"sys.argv = ['ckptctl', 'commit', {str(place)!r}]\n"
        "main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with open(tmp_path / "gate") as gate:
        assert gate.read(1) == "x"
        process.send_signal(number)
        out, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (code, "")
    assert "was not sealed; the same command begins again" in said
    assert [path.name for path in place.iterdir() if "ckptctl" in path.name] == []
    assert run("commit", place).code == 0
