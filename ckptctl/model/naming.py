"""What names say: the step in a directory's name, the component in a key's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_STAGING = re.compile(
    r"(?:[.-](?:tmp|temp|partial|unfinished|incomplete|inprogress)(?:[.-][\w.-]*)?"
    r"|\.orbax-checkpoint-tmp-[\w.-]*)$",
    re.IGNORECASE,
)
_STAGING_PREFIX = re.compile(r"^(?:\.?tmp[_-]|\.)(?=\w)", re.IGNORECASE)
_STEP = re.compile(
    r"(?:(?:global)?[_-]?step|checkpoint|ckpt|iter(?:ation)?)s?[-_=]?(\d+)$", re.IGNORECASE
)
_EPOCH = re.compile(r"(?:^|[-_])ep(?:och)?[-_=]?(\d+)(?=$|[-_])", re.IGNORECASE)
_INNER_STEP = re.compile(r"(?:^|[-_])(?:global_)?(?:step|ba)[-_=]?(\d+)(?=$|[-_.])", re.IGNORECASE)
_FILE_SUFFIX = re.compile(r"\.(?:ckpt|pt|pth|bin)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CheckpointName:
    """What a directory's name says; ``staging`` means the writer marks it as not finished."""

    text: str
    step: int | None = None
    epoch: int | None = None
    staging: bool = False

    @property
    def recognised(self) -> bool:
        """True if trainers give such names to checkpoints."""
        return self.step is not None or self.epoch is not None


def parse_name(text: str) -> CheckpointName:
    """Read a directory or file name as trainers write it: ``step-12``, ``iter_0000012.tmp``, ...

    The number must end the name: ``step-88.bak`` is somebody's backup and not step 88.
    """
    stem, staging = text, False
    match = _STAGING.search(stem)
    if match:
        stem, staging = stem[: match.start()], True
    match = _STAGING_PREFIX.match(stem)
    if match and not stem.startswith("."):
        stem, staging = stem[match.end() :], True
    stem = _FILE_SUFFIX.sub("", stem)
    if re.fullmatch(r"\d{1,18}", stem):
        return CheckpointName(text, int(stem), None, staging)
    epoch = _EPOCH.search(stem)
    step = _STEP.fullmatch(stem) or (_INNER_STEP.search(stem) if epoch or "=" in stem else None)
    return CheckpointName(
        text, int(step[1]) if step else None, int(epoch[1]) if epoch else None, staging
    )


COMPONENTS: dict[str, tuple[str, ...]] = {
    "optimizer": ("optimizer", "optim", "optimizers", "opt", "optimizer_0", "optimizer_state"),
    "scheduler": (
        "lr_scheduler",
        "scheduler",
        "schedulers",
        "lr_schedulers",
        "opt_param_scheduler",
    ),
    "scaler": ("scaler", "grad_scaler", "loss_scaler"),
    "rng": (
        "rng",
        "rng_state",
        "rng_states",
        "random_states",
        "rng_tracker_states",
        "random_rng_state",
        "np_rng_state",
        "torch_rng_state",
        "cuda_rng_state",
    ),
    "data": ("dataloader", "data_loader", "dataset", "sampler", "dataloaders", "data"),
    "progress": (
        "train_state",
        "trainer",
        "trainer_state",
        "progress",
        "loop",
        "loops",
        "common_state",
        "rerun_state_machine_state",
        "step",
        "global_step",
        "iteration",
        "epoch",
    ),
    "model": ("model", "module", "state_dict", "app"),
}
"""Component by the first element of a key's path. Keys that match nothing are the model's:
trainers that keep the model at top level (torchtitan, Megatron) name everything else."""

_BY_ELEMENT = {name: component for component, names in COMPONENTS.items() for name in names}
_CHAINED = re.compile(r"chained_\d+$")


def component_of(path: Iterable[str | int]) -> str:
    """Classify a key by its path elements."""
    for element in path:
        text = str(element).partition("/")[0].lower()
        if _CHAINED.match(text):
            continue
        return _BY_ELEMENT.get(text, _BY_ELEMENT.get(re.sub(r"_\d+$", "", text), "model"))
    return "model"


def elements(fqn: str, path: tuple[str | int, ...] | None = None) -> tuple[str | int, ...]:
    """Return the elements of a key: its recorded path, split further where that is one string."""
    head = path if path else (fqn,)
    return (*str(head[0]).split("."), *head[1:]) if head else ()


OPTIMIZER_STATES: tuple[str, ...] = (
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "momentum_buffer",
    "square_avg",
    "grad_avg",
    "acc_delta",
    "sum",
    "step",
    "fp32_param",
    "param",
)


def optimizer_state_of(fqn: str) -> tuple[str, str] | None:
    """Split an optimizer key into parameter and state: ``...state.a.b.exp_avg`` is (``a.b``, ``exp_avg``).

    Megatron puts the state's name first (``optimizer.state.exp_avg.a.b``). None for other keys.
    """
    _, marker, rest = fqn.partition("state.")
    if not marker or component_of(elements(fqn)) != "optimizer":
        return None
    for name in OPTIMIZER_STATES:
        if rest.endswith(f".{name}"):
            return rest[: -len(name) - 1], name
        if rest.startswith(f"{name}."):
            return rest[len(name) + 1 :], name
    return None
