"""Verdicts of a verification: what proves nothing is never called good, what is legal never bad."""

from __future__ import annotations

import dataclasses
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptctl.exit_codes import ExitCode
from ckptctl.model.result.verdict import Verdict
from ckptctl.operations.find import locate
from ckptctl.operations.located import Located
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.stages import STAGES, run_stages
from ckptctl.operations.verify.verify import Verification, verify
from ckptctl.operations.verify.work import begin
from ckptctl.storage import open_store
from conftest import FIXTURES
from support.damage import flip_field
from support.publish import ckptctl, done, refused

Save = Callable[..., Path]
SEALED_ONLY = ("resized-file", "missing-promised-file", "altered-file", "renamed-checkpoint")


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Save a state dict as ``step-1`` of a run, by torch."""
    pytest.importorskip("torch")
    import torch.distributed.checkpoint as dcp

    def saved(state: dict[str, Any], name: str = "step-1") -> Path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(state, checkpoint_id=tmp_path / "run" / name, no_dist=True)
        return tmp_path / "run" / name

    return saved


def look(path: Path, **options: Any) -> Verification:
    """Verify one checkpoint through the directory it lies in."""
    store, (place,) = locate(str(path), open_store)
    return verify(store, place, options=Options(workers=1, **options))


class TestNothingExamined:
    """Zero of zero is no proof."""

    def test_a_checkpoint_without_keys(self, save: Save) -> None:
        result = look(save({}))
        assert (result.verdict, result.exit_code) == (Verdict.NOTHING, ExitCode.STORAGE_FAILED)
        assert "no keys" in result.why
        assert result.findings == ()

    def test_it_says_so_on_the_command_line(self, save: Save) -> None:
        ended = ckptctl("verify", save({}))
        assert ended.code == 4
        assert ended.stdout.splitlines()[-1].startswith("NOTHING EXAMINED: ")
        assert "whole" not in ended.stdout

    def test_it_is_not_committed(self, save: Save) -> None:
        path = save({})
        assert "no keys" in refused("commit", path)
        assert not (path / "ckptctl.manifest.json").exists()

    def test_it_is_not_resolved(self, save: Save) -> None:
        path = save({})
        ended = ckptctl("resolve", path.parent, "--allow-uncommitted")
        assert ended.code == 10
        assert "no keys" in ended.stdout + ended.stderr

    @pytest.mark.parametrize("check", [*SEALED_ONLY, "no-manifest", "missing-component"])
    def test_a_check_that_has_nothing_to_ask(self, check: str) -> None:
        result = look(FIXTURES / "fsdp2" / "step-12", select=frozenset({check}))
        assert result.verdict is Verdict.NOTHING
        assert result.exit_code == 4

    def test_a_chosen_check_of_steps_where_no_file_says_one(self, save: Save) -> None:
        import torch

        path = save({"weight": torch.zeros(2)}, "weights")
        assert look(path, select=frozenset({"mixed-step"})).verdict is Verdict.NOTHING

    def test_what_is_left_out_of_everything(self) -> None:
        from ckptctl.checks import by_id

        result = look(FIXTURES / "fsdp2" / "step-12", ignore=frozenset(by_id()))
        assert result.verdict is Verdict.NOTHING

    def test_damage_outranks_it(self, save: Save) -> None:
        path = save({})
        (path / ".metadata").write_bytes(b"")
        assert look(path).verdict is Verdict.FINDINGS


class TestNothingCompared:
    """Nothing is equal to nothing, which is no answer."""

    def test_two_checkpoints_without_keys(self, save: Save) -> None:
        one, other = save({}, "a/step-1"), save({}, "b/step-1")
        ended = ckptctl("diff", one, other)
        assert ended.code == 4
        last = ended.stdout.splitlines()[-1]
        assert last == "nothing compared: neither holds a key"

    def test_patterns_that_match_nothing(self) -> None:
        one, other = FIXTURES / "fsdp2" / "step-8", FIXTURES / "fsdp2" / "step-12"
        ended = ckptctl("diff", one, other, "--only", "nosuch*", "--quiet")
        assert ended.code == 4
        assert "nothing compared" in ended.stdout
        assert "the same" not in ended.stdout.splitlines()[-1]

    def test_one_that_holds_nothing_differs_from_one_that_does(self, save: Save) -> None:
        ended = ckptctl("diff", save({}, "step-1"), save({"step": 1}, "step-2"), "--quiet")
        assert ended.code == 10

    def test_a_digest_over_nothing(self, save: Save) -> None:
        ended = ckptctl("digest", save({}))
        assert ended.code == 4
        assert "xxh3" not in ended.stdout
        assert "nothing to digest" in ended.stderr

    def test_a_digest_of_keys_that_are_not_there(self) -> None:
        path = FIXTURES / "fsdp2" / "step-12"
        ended = ckptctl("digest", path, "--only", "nosuch*", "--json")
        assert ended.code == 4
        assert "xxh3" not in ended.stdout
        assert ckptctl("digest", path, "--only", "model.*").code == 0

    def test_a_conversion_of_no_tensor(self, save: Save, tmp_path: Path) -> None:
        out = tmp_path / "out.safetensors"
        said = refused("convert", save({"step": 3}), "--to", "safetensors", "--out", out, code=10)
        assert "no tensor" in said
        assert not out.exists()

    def test_a_reshard_of_nothing(self, save: Save, tmp_path: Path) -> None:
        ended = ckptctl("reshard", save({}), "--world-size", "2", "--out", tmp_path / "out")
        assert ended.code == 5
        assert "no keys" in ended.stderr


class TestWhatASelectionAsks:
    """One check is enough, if it has something to ask."""

    @pytest.mark.parametrize("check", ["hole", "checksum", "item-structure", "missing-file"])
    def test_of_any_checkpoint(self, check: str) -> None:
        assert look(FIXTURES / "fsdp2" / "step-12", select=frozenset({check})).good

    @pytest.mark.parametrize("check", [*SEALED_ONLY, "checksum"])
    def test_of_a_committed_one(self, tmp_path: Path, check: str) -> None:
        path = tmp_path / "step-12"
        shutil.copytree(FIXTURES / "fsdp2" / "step-12", path)
        done("commit", path)
        result = look(path, select=frozenset({check}))
        assert (result.verdict, result.exit_code) == (Verdict.OK, ExitCode.DONE)

    def test_of_a_required_manifest_that_is_not_there(self) -> None:
        chosen = frozenset({"no-manifest"})
        result = look(FIXTURES / "fsdp2" / "step-12", select=chosen, require_manifest=True)
        assert [finding.check for finding in result.findings] == ["no-manifest"]


def _empty_tensor() -> dict[str, Any]:
    import torch

    return {"empty": torch.zeros(0, 4), "w": torch.ones(2)}


def _only_empty() -> dict[str, Any]:
    import torch

    return {"empty": torch.zeros(0)}


def _scalar() -> dict[str, Any]:
    import torch

    return {"step": torch.tensor(3)}


LEGAL: dict[str, Callable[[], dict[str, Any]]] = {
    "only objects": lambda: {"config": {"lr": 0.1}, "names": ["a", "b"]},
    "one object": lambda: {"step": 3},
    "None": lambda: {"scheduler": None},
    "an empty tensor among others": _empty_tensor,
    "an empty tensor alone": _only_empty,
    "a scalar": _scalar,
}


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_state_is_good(save: Save, name: str) -> None:
    result = look(save(LEGAL[name]()))
    assert result.good, (result.verdict, result.why, result.findings)
    assert result.exit_code == 0


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_state_is_committed_and_then_ok(save: Save, name: str) -> None:
    path = save(LEGAL[name]())
    done("commit", path)
    assert look(path).verdict is Verdict.OK


def test_a_rank_that_holds_nothing_is_legal() -> None:
    """Each rank opens a file, also one that has nothing to save."""
    result = look(FIXTURES / "fsdp2" / "step-12", part=(1, 1000))
    assert result.good
    assert "outside the part" in {g.reason for row in result.report.coverage for g in row.gaps}


class TestVerdictInTheResult:
    """What is printed was decided in the library, so that JSON and callers see it too."""

    def test_inferred_and_unverified_are_told_apart(self, save: Save) -> None:
        import torch

        state = {"w": torch.zeros(2)}
        silent = look(save(state, "step-1"))
        assert (silent.verdict, silent.exit_code) == (Verdict.UNVERIFIED, 0)
        assert "nothing says which step" in silent.why
        counted = {**state, "train_state": {"step": 2}, "optimizer": {"state": {"step": 2}}}
        told = look(save(counted, "step-2"))
        assert (told.verdict, told.exit_code) == (Verdict.OK, 0)
        assert told.why.startswith("every file says step 2")
        assert told.manifest is None

    def test_json_has_verdict_and_why(self) -> None:
        ended = ckptctl("verify", FIXTURES / "fsdp2" / "step-12", "--json")
        (found,) = ended.json()["checkpoints"]
        assert found["verdict"] == "unverified"
        assert found["why"].startswith("nothing says which step __0_0.distcp is of")

    def test_what_is_not_read_is_not_examined(self, tmp_path: Path) -> None:
        folder = tmp_path / "global_step4"
        folder.mkdir()
        (folder / "mp_rank_00_model_states.pt").write_bytes(b"")
        (folder / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(b"")
        result = look(folder)
        assert (result.verdict, result.exit_code) == (Verdict.NOT_EXAMINED, 4)
        assert result.findings == ()


class TestStages:
    """Verification is a list of stages; commands run the ones they need."""

    def test_none_changes_what_it_is_given(self) -> None:
        store, (place,) = locate(str(FIXTURES / "fsdp2" / "step-12"), open_store)
        work = begin(Located(store, place), Options(workers=1, values=True))
        for stage in STAGES:
            before = dataclasses.replace(work)
            after = stage.run(work)
            assert work == before
            work = after
        assert work.context.values
        assert work.context.audit is not None
        assert work.context.evidence.files

    def test_each_can_run_alone(self) -> None:
        store, (place,) = locate(str(FIXTURES / "fsdp2" / "step-12"), open_store)
        begun = begin(Located(store, place), Options(workers=1))
        alone = [run_stages(begun, (stage,)).report for stage in STAGES]
        together = run_stages(begun).report
        for report in alone[:3]:
            assert set(report.coverage) <= set(together.coverage)

    def test_items_are_looked_at_once_more_where_a_digest_fails(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        path = tmp_path / "step-12"
        shutil.copytree(FIXTURES / "fsdp2" / "step-12", path)
        done("commit", path)
        flip_field(path, fqn="model.embed.weight", origin=(3, 0))
        result = look(path)
        assert {f.check for f in result.findings} >= {"altered-file", "checksum"}
