"""Evidence: what tells that a save was taken at a wrong moment, or lacks what those before it have."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItem

from cases.frame import Build, Case, each
from support.damage import load_with_torch, metadata_of, save_with_torch, write_metadata

LAYERS = tuple(f"layers.{layer}.{kind}" for layer in range(4) for kind in ("weight", "bias"))
CHOSEN = ("error ", "warning ")


def writes_state(
    step: int,
    steps: int | Mapping[str, int] | None = None,
    *,
    progress: int | None = None,
    schedule: int | None = None,
    optimizer: str = "optimizer",
    name: str = "",
    files: int = 1,
    more: Mapping[str, object] | None = None,
    without: tuple[str, ...] = (),
    states: Callable[[str], tuple[str, ...]] = lambda _: ("exp_avg", "exp_avg_sq"),
) -> Build:
    """Save what one rank has: ``steps`` are those of the parameters, one number is that of all.

    ``more`` is saved too, and what is called as in ``without`` is not.
    """
    counted = (
        dict.fromkeys(LAYERS, step if steps is None else steps)
        if not isinstance(steps, Mapping)
        else steps
    )
    generator = torch.Generator().manual_seed(step)

    def numbers(fqn: str) -> torch.Tensor:
        return torch.randn((8, 4) if "bias" not in fqn else (8,), generator=generator)

    def build(root: Path) -> None:
        state: dict[str, object] = {"model": {fqn: numbers(fqn) for fqn in counted}}
        inner: dict[str, object] = state
        for word in optimizer.split("."):
            inner = inner.setdefault(word, {})  # type: ignore[assignment]
        inner["state"] = {
            fqn: {"step": torch.tensor(float(own)), **{one: numbers(fqn) for one in states(fqn)}}
            for fqn, own in counted.items()
        }
        if progress is not None:
            state["train_state"] = {"step": progress}
        if schedule is not None:
            state["lr_scheduler"] = {"last_epoch": schedule, "_step_count": schedule + 1}
        state |= more or {}
        for key in without:
            del state[key]
        save_with_torch(root / (name or f"step-{step}"), state, files=files)

    return build


def ahead(*fqns: str, step: int = 101) -> dict[str, int]:
    """Return the steps of all parameters, of which these are one ahead."""
    return {fqn: step if fqn in fqns else step - 1 for fqn in LAYERS}


def told(name: str, build: Build, code: int, *says: str, step: int = 100) -> Case:
    """A row for what ``verify`` says of a checkpoint."""
    return Case(name, build, ("verify", f"{{root}}/step-{step}"), code, says=says)


def quiet(name: str, build: Build, *says: str, step: int = 100) -> Case:
    """A row for what is legal: nothing above a note is said of it."""
    command = ("verify", f"{{root}}/step-{step}")
    return Case(name, build, command, says=says, silent=CHOSEN)


TORN, MAYBE, MISSED = "error torn-step", "warning torn-step", "note odd-counter"
EXPERT = {**dict.fromkeys(LAYERS, 101), "layers.3.experts.1.w": 100, "norm.weight": 101}
ONE_AHEAD = each(
    *(writes_state(n, n + 1, progress=n) for n in (80, 90)),
    writes_state(100, ahead(*LAYERS[:3]), progress=100),
)


def algorithms(fqn: str) -> tuple[str, ...]:
    """Two rules in one optimizer, as of Muon and Adam."""
    return ("momentum_buffer",) if fqn in LAYERS[:4] else ("exp_avg", "exp_avg_sq")


STEPS: list[Case] = [
    told(
        "one of two parameters is ahead of the step",
        writes_state(100, {"w": 101, "v": 100}, progress=100),
        10,
        TORN,
        "w took step 101, and v did not",
    ),
    told("the first are ahead", writes_state(100, ahead(*LAYERS[:3]), progress=100), 10, TORN),
    told("the last are ahead", writes_state(100, ahead(*LAYERS[3:]), progress=100), 10, TORN),
    told(
        "one group of parameters is ahead",
        writes_state(100, ahead(*LAYERS[::2]), progress=100),
        10,
        TORN,
    ),
    told(
        "some are ahead, and the schedule is not",
        writes_state(100, ahead(*LAYERS[1:6:2], LAYERS[4]), progress=100, schedule=100),
        10,
        TORN,
    ),
    told(
        "some are ahead, where a missed step looks like it too",
        writes_state(100, ahead(*LAYERS[1:6:2], LAYERS[4]), progress=100),
        0,
        MAYBE,
        "SUSPECT",
    ),
    told(
        "some are ahead, and in no other checkpoint",
        each(
            *(writes_state(n, n, progress=n) for n in (80, 90)),
            writes_state(100, ahead(*LAYERS[1:6:2], LAYERS[4]), progress=100),
        ),
        10,
        TORN,
    ),
    told(
        "the first are ahead of a step that only the name says",
        writes_state(100, ahead(*LAYERS[:3])),
        0,
        MAYBE,
    ),
    told(
        "a frozen parameter does not hide those ahead",
        writes_state(100, {**ahead(*LAYERS[:3]), "embed.weight": 40}, progress=100),
        10,
        TORN,
    ),
    told(
        "the first took a step that was counted before it was taken",
        writes_state(100, ahead(*LAYERS[:3], step=100), progress=100, schedule=99),
        0,
        MAYBE,
        "the schedule did not take that step",
    ),
    told(
        "the first took a step that was counted before, and in no other checkpoint",
        each(
            *(writes_state(n, n, progress=n, schedule=n) for n in (80, 90)),
            writes_state(100, ahead(*LAYERS[:3], step=100), progress=100, schedule=99),
        ),
        10,
        TORN,
    ),
    told(
        "one of two optimizers is torn",
        writes_state(
            100,
            {**{f"critic.{n}": 140 for n in "ab"}, "actor.a": 101, "actor.b": 100},
            progress=100,
        ),
        10,
        TORN,
        "actor.a took step 101",
    ),
    Case(
        "what is torn is not handed out",
        each(writes_state(90, progress=90), writes_state(100, ahead(*LAYERS[:3]), progress=100)),
        ("resolve", "{root}", "--allow-uncommitted"),
        facts={"name": "step-90"},
    ),
    Case(
        "what may be torn is not handed out uncommitted",
        each(
            writes_state(90, 90),
            writes_state(100, ahead(*LAYERS[1:6:2], LAYERS[4]), progress=100, schedule=99),
        ),
        ("resolve", "{root}", "--allow-uncommitted"),
        facts={"name": "step-90"},
    ),
    Case(
        "what is torn is not committed",
        writes_state(100, ahead(*LAYERS[:3]), progress=100),
        ("commit", "{root}/step-100"),
        10,
        untouched=True,
    ),
    # ---- legal
    quiet("all parameters have the step", writes_state(100, progress=100, schedule=100)),
    quiet("the run counts from zero", writes_state(100, 101, progress=100)),
    quiet(
        "the run counts from zero, and its schedule does not",
        writes_state(100, 101, progress=100, schedule=101),
    ),
    quiet(
        "the run counts from zero, and a parameter missed a step",
        writes_state(100, ahead(*LAYERS[1:]), progress=100, schedule=101),
    ),
    quiet("the run counts from zero, and so do its other checkpoints", ONE_AHEAD, MISSED),
    quiet(
        "a parameter missed a step, in other checkpoints too",
        each(
            *(writes_state(n, ahead(*LAYERS[1:], step=n + 1), progress=n) for n in (80, 90)),
            writes_state(100, ahead(*LAYERS[1:]), progress=100),
        ),
    ),
    quiet(
        "the first parameters missed a step",
        writes_state(100, ahead(*LAYERS[3:], step=100), progress=100),
        MISSED,
    ),
    quiet(
        "a group was added late",
        writes_state(100, {**ahead(step=101), "head.weight": 60}, progress=100),
    ),
    quiet(
        "parameters miss steps, each its own",
        writes_state(100, {n: 100 - i for i, n in enumerate(LAYERS)}, progress=99),
    ),
    quiet("an expert was idle once", writes_state(100, EXPERT, progress=100)),
    quiet(
        "moments come from an earlier run",
        writes_state(100, {n: 140 if i < 5 else 100 for i, n in enumerate(LAYERS)}, progress=100),
    ),
    quiet("the optimizer started over", writes_state(100, 3, progress=100)),
    quiet("all but one started over", writes_state(100, ahead(*LAYERS[1:], step=2), progress=100)),
    quiet("micro-batches are counted", writes_state(100, 25, progress=100, schedule=25)),
    quiet("steps are skipped for overflow", writes_state(100, 97, progress=100, schedule=97)),
    quiet(
        "nothing is counted yet", writes_state(0, ahead(*LAYERS[:3], step=1), progress=0), step=0
    ),
    quiet(
        "two rules in one optimizer, one of which counts first",
        writes_state(100, ahead(*LAYERS[:4]), progress=100, states=algorithms),
    ),
    quiet(
        "two models with steps of their own",
        writes_state(100, {"actor.w": 100, "critic.w": 101, "critic.v": 101}, progress=100),
    ),
    quiet(
        "two optimizers with steps of their own",
        each(writes_state(100, {"w": 101}, progress=100, optimizer="optimizer.critic")),
    ),
]


class Halves(DefaultSavePlanner):
    """A planner that writes half precision and leaves the plan as it was, as in torch's manual."""

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """Return what is written."""
        found = super().resolve_data(write_item)
        whole = isinstance(found, torch.Tensor) and found.is_floating_point()
        return found.to(torch.bfloat16) if whole else found


def casts(root: Path) -> None:
    """Save with that planner."""
    weights = {"w": torch.linspace(-2, 2, 12).reshape(4, 3), "v": torch.ones(3)}
    state = {"model": weights, "train_state": {"step": 100}}
    save_with_torch(root / "step-100", state, Halves())


def reuses_metadata(*changes: Build) -> Build:
    """Save twice, the second time with the metadata of the first."""

    def build(root: Path) -> None:
        for step in (90, 100):
            writes_state(step, progress=step)(root)
        shutil.copy(root / "step-90/.metadata", root / "step-100")
        for change in changes:
            change(root)

    return build


def drops(prefix: str, *, paths: bool = True) -> Build:
    """Take keys out of the metadata, from its list of paths too or not."""

    def build(root: Path) -> None:
        metadata = metadata_of(root / "step-100")
        for fqn in [one for one in metadata.state_dict_metadata if one.startswith(prefix)]:
            del metadata.state_dict_metadata[fqn]
            if paths:
                del metadata.planner_data[fqn]
        for key in [one for one in metadata.storage_data if one.fqn.startswith(prefix)]:
            del metadata.storage_data[key]
        write_metadata(root / "step-100", metadata)

    return build


def appends(data: bytes) -> Build:
    """Write something behind the last item."""

    def build(root: Path) -> None:
        with (root / "step-100/__0_0.distcp").open("ab") as shard:
            shard.write(data)

    return build


def saves_over(state: dict[str, object]) -> Build:
    """Leave a shard of a whole state, and the metadata of a later save of something else."""

    def build(root: Path) -> None:
        path = root / "step-100"
        writes_state(100, progress=100)(root)
        (path / "__0_0.distcp").rename(path / "__1_0.distcp")
        save_with_torch(path, state)

    return build


WEIGHTS = each(writes_state(100, progress=100), drops("optimizer"))
LITTLE: dict[str, object] = {"train_state": {"step": 100}}
LARGE: dict[str, object] = {"model": {"w": torch.ones(256, 64)}, **LITTLE}
CAST = "warning cast-item"

MEANT: list[Case] = [
    quiet("one metadata for every save", reuses_metadata(), "note stale-metadata", "UNVERIFIED"),
    Case(
        "one metadata for every save is committed", reuses_metadata(), ("commit", "{root}/step-100")
    ),
    Case(
        "one metadata for every save is handed out",
        reuses_metadata(),
        ("resolve", "{root}", "--allow-uncommitted"),
        facts={"name": "step-100"},
    ),
    told(
        "metadata of another save, that says nothing of its step",
        each(
            *(writes_state(n) for n in (90, 100)),
            lambda root: shutil.copytree(root / "step-90", root / "step-100", dirs_exist_ok=True),
        ),
        0,
        "warning duplicate-save",
    ),
    told(
        "metadata of another save, that does not fit",
        reuses_metadata(appends(bytes(64))),
        10,
        "warning stale-metadata",
        "error unreferenced-bytes",
    ),
    told("floats are cast as they are saved", casts, 0, CAST, "loading casts what was saved"),
    Case("floats that were cast are committed", casts, ("commit", "{root}/step-100")),
    Case(
        "floats that were cast are converted as torch loads them",
        casts,
        ("convert", "{root}/step-100", "--to", "torch", "--out", "{root}/out.pt"),
        then=lambda root: _equals_what_torch_loads(root),
        made=("out.pt",),
    ),
    told(
        "keys were taken out of the metadata",
        WEIGHTS,
        0,
        "warning unreferenced-bytes",
        "UNVERIFIED",
    ),
    Case(
        "a checkpoint of which keys were taken out is complete",
        WEIGHTS,
        ("list", "{root}"),
        facts={"checkpoints.0.state": "complete"},
    ),
    Case(
        "what is left of keys that were taken out is resharded",
        WEIGHTS,
        ("reshard", "{root}/step-100", "--world-size", "2", "--out", "{root}/out"),
        facts={"tensors": len(LAYERS), "lost": []},
    ),
    told(
        "keys were taken out, and the paths still name them",
        each(writes_state(100, progress=100), drops("optimizer", paths=False)),
        10,
        "error unreferenced-bytes",
        "error path-mismatch",
    ),
    told(
        "keys were taken out, and something else lies there too",
        each(WEIGHTS, appends(b"x" * 200)),
        10,
        "error unreferenced-bytes",
    ),
    told(
        "a shard that is larger than all that is in use",
        saves_over(LITTLE),
        0,
        "warning unreferenced-file",
    ),
    quiet(
        "a shard that is left, and smaller than what is in use",
        saves_over(LARGE),
        "note unreferenced-file",
    ),
]


def _equals_what_torch_loads(root: Path) -> None:
    converted = torch.load(root / "out.pt")
    loaded = load_with_torch(root / "step-100")
    for fqn in ("model.w", "model.v"):
        assert torch.equal(converted[fqn.partition(".")[0]][fqn.partition(".")[2]], loaded[fqn])


def run(*steps: int, **options: Any) -> Build:
    """Save a run of checkpoints."""
    return each(*(writes_state(n, progress=n, **options) for n in steps))


def copies(path: str, other: str) -> Build:
    """Put a file in place of another."""
    return lambda root: shutil.copy(root / path, root / other)


def within(folder: str, *builds: Build) -> Build:
    """Move each checkpoint one level down: ``step-9/dist``."""

    def build(root: Path) -> None:
        each(*builds)(root)
        for path in sorted(root.glob("step-*")):
            path.rename(root / "aside")
            path.mkdir()
            (root / "aside").rename(path / folder)

    return build


def apart(*builds: Build) -> Build:
    """Give each shard a directory of its own inside its checkpoint."""

    def build(root: Path) -> None:
        each(*builds)(root)
        for path in sorted(root.glob("step-*")):
            metadata = metadata_of(path)
            for place in metadata.storage_data.values():
                name, place.relative_path = place.relative_path, f"of/{place.relative_path}"
                if (path / name).exists():
                    (path / "of").mkdir(exist_ok=True)
                    (path / name).rename(path / "of" / name)
            write_metadata(path, metadata)

    return build


def layers(count: int) -> dict[str, int]:
    """Return the parameters of a model with so many layers."""
    return {f"layers.{n}.weight": 1 for n in range(count)}


MANY = tuple(range(10, 201, 10))
TWO = run(*MANY, files=2)
STRAY = copies("step-10/__0_1.distcp", "step-200/__0_1.distcp")
SHRUNKEN = "warning shrunken-checkpoint"
EXPORT = ("optimizer", "train_state")
LOADERS = {"dataloader": {f"dp_rank_{n}": {"pos": n, "seen": [n, n]} for n in range(4)}}
LOADER = {"dataloader": {f"dp_rank_{n}": {"pos": n, "seen": [n]} for n in range(2)}}


BESIDE: list[Case] = [
    # ---- how many, and which
    quiet(
        "four of twenty neighbours",
        run(*MANY),
        "4 of 19 neighbours; ",
        "were not compared",
        step=200,
    ),
    quiet("all four neighbours", run(10, 20, 30, 40, 50), "all 4 neighbours", step=50),
    told(
        "a file of the first of twenty in the last",
        each(TWO, STRAY),
        10,
        "error foreign-shard: __0_1.distcp",
        "equal to the one in step-10",
        step=200,
    ),
    told(
        "a file of one before the shape of the run changed",
        each(
            run(10, 20, files=2),
            run(30, 40, 50, 60, 70),
            run(80, files=2),
            copies("step-20/__0_1.distcp", "step-80/__0_1.distcp"),
        ),
        10,
        "error foreign-shard",
        "equal to the one in step-20",
        step=80,
    ),
    # ---- in directories
    told(
        "a file of another step below the directory with the step",
        within(
            "dist", run(90, 100, files=2), copies("step-90/__0_1.distcp", "step-100/__0_1.distcp")
        ),
        10,
        "error foreign-shard",
        step=100,
    ),
    Case(
        "a file of another step below the directory with the step, named directly",
        within(
            "dist", run(90, 100, files=2), copies("step-90/__0_1.distcp", "step-100/__0_1.distcp")
        ),
        ("verify", "{root}/step-100/dist"),
        10,
        says=("error foreign-shard",),
    ),
    told(
        "a file of another step in a directory of the checkpoint",
        each(
            apart(run(90, 100, files=2)),
            copies("step-90/of/__0_1.distcp", "step-100/of/__0_1.distcp"),
        ),
        10,
        "error foreign-shard: of/__0_1.distcp",
    ),
    quiet("shards in directories", apart(run(90, 100, files=2)), "all 1 neighbour"),
    quiet(
        "checkpoints below the directory with the step",
        within("dist", run(90, 100)),
        "all 1 neighbour",
    ),
    quiet(
        "parts below the directory with the step are no neighbours of each other",
        each(within("model", run(90, 100)), run(100, name="step-100/other")),
        "all 1 neighbour",
    ),
    # ---- keys
    told(
        "weights and optimizer are gone",
        each(run(80, 90), run(100, without=("model", "optimizer"))),
        0,
        SHRUNKEN,
        "it lacks keys that step-90, step-80 have",
        "SUSPECT",
    ),
    told("the optimizer is gone", each(run(80, 90), run(100, without=("optimizer",))), 0, SHRUNKEN),
    told(
        "the optimizer is gone, beside one alone",
        each(run(90), run(100, without=("optimizer",))),
        0,
        SHRUNKEN,
    ),
    told(
        "half of the layers are gone",
        each(run(80, 90, steps=layers(6)), run(100, steps=layers(3))),
        0,
        SHRUNKEN,
        "layers.3.weight",
    ),
    Case(
        "what is required is gone",
        each(run(80, 90, steps=layers(6)), run(100, steps=layers(3))),
        ("verify", "{root}/step-100", "--require", "weights"),
        10,
        says=("error shrunken-checkpoint",),
    ),
    Case(
        "what is gone is not handed out",
        each(run(80, 90), run(100, without=("model", "optimizer"))),
        ("resolve", "{root}", "--allow-uncommitted"),
        facts={"name": "step-90"},
    ),
    quiet("the middle one is whole", each(run(80, 90, 110), run(100)), step=90),
    quiet("keys are new", each(run(80, 90, without=("optimizer",)), run(100))),
    quiet(
        "an export of the weights at the end",
        each(run(80, 90), run(100, without=EXPORT)),
        "note shrunken-checkpoint",
    ),
    Case(
        "an export of the weights where a resume is asked for",
        each(run(80, 90), run(100, without=EXPORT)),
        ("verify", "{root}/step-100", "--require", "resume"),
        10,
        says=("error shrunken-checkpoint",),
    ),
    quiet(
        "the optimizer is gone from the next one too",
        each(run(80, 90), run(100, 110, without=("optimizer",))),
        "note shrunken-checkpoint",
    ),
    quiet(
        "light saves between whole ones",
        each(run(70, 90), run(80, 100, without=("optimizer",))),
    ),
    quiet("fewer ranks read the data", each(run(80, 90, more=LOADERS), run(100, more=LOADER))),
    quiet("the first of a run", run(100)),
    quiet(
        "a damaged neighbour",
        each(run(80, 90), lambda root: (root / "step-90/.metadata").write_bytes(b"x"), run(100)),
    ),
]


def of_ranks(*ranks: tuple[str, str, int]) -> Build:
    """Save what several ranks hold: for each its optimizer, the first word of its keys, the steps."""

    def build(root: Path) -> None:
        target = root / "step-100"
        whole = None
        for rank, (optimizer, model, taken) in enumerate(ranks):
            steps = {f"{model}.layers.{rank}.{n}": taken for n in range(4)}
            progress = None if rank else 100
            writes_state(100, steps, progress=progress, optimizer=optimizer, name="part")(root)
            part = metadata_of(root / "part")
            for place in part.storage_data.values():
                place.relative_path = f"__{rank}_0.distcp"
            if whole is None:
                target.mkdir()
                whole = part
            whole.state_dict_metadata |= part.state_dict_metadata
            whole.storage_data = {**part.storage_data, **whole.storage_data}
            whole.planner_data |= part.planner_data
            (root / "part/__0_0.distcp").rename(target / f"__{rank}_0.distcp")
            shutil.rmtree(root / "part")
        write_metadata(target, whole)

    return build


ACTOR, CRITIC = ("optimizer.actor", "actor", 100), ("optimizer.critic", "critic", 140)
MERGED = (("optimizer", "actor", 100), ("optimizer", "critic", 140))
RANKS: list[Case] = [
    quiet("a critic of another step on ranks of its own", of_ranks(ACTOR, ACTOR, CRITIC, CRITIC)),
    quiet("a critic of another step on one rank of its own", of_ranks(ACTOR, ACTOR, CRITIC)),
    quiet(
        "a critic in the state of one optimizer",
        of_ranks(MERGED[0], MERGED[0], MERGED[1], MERGED[1]),
    ),
    Case(
        "a critic of another step is committed",
        of_ranks(ACTOR, ACTOR, CRITIC, CRITIC),
        ("commit", "{root}/step-100"),
    ),
    quiet(
        "another optimizer than before",
        each(
            run(80, 90),
            writes_state(100, progress=100, states=lambda _: ("momentum_buffer",)),
        ),
    ),
    quiet(
        "another model than before",
        each(writes_state(90, {f"old.{n}": 90 for n in range(9)}, progress=90), run(100)),
    ),
    quiet(
        "lists are shorter",
        each(
            run(80, 90, more={"metrics": {"loss": [torch.tensor(1.0), torch.tensor(2.0)]}}),
            run(100, more={"metrics": {"loss": [torch.tensor(1.0)]}}),
        ),
    ),
    quiet(
        "keys have the names of a wrapper",
        each(
            run(80, 90),
            run(100, steps={f"_orig_mod.{name}": 100 for name in LAYERS}),
        ),
    ),
]


CASES: list[Case] = [*STEPS, *MEANT, *BESIDE, *RANKS]
