"""Evidence: what tells that a save was taken at a wrong moment, or lacks what those before it have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from cases.frame import Build, Case, each
from support.damage import save_with_torch

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
    states: Callable[[str], tuple[str, ...]] = lambda _: ("exp_avg", "exp_avg_sq"),
) -> Build:
    """Save what one rank has: ``steps`` are those of the parameters, one number is that of all."""
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
        save_with_torch(root / (name or f"step-{step}"), state)

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

CASES: list[Case] = [*STEPS]
