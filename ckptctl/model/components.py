"""What a key's path says: the component it belongs to, the rank, the optimizer state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ckptctl.dataclass import dataclass
from ckptctl.pattern import pattern

COMPONENTS: dict[str, tuple[str, ...]] = {
    "optimizer": (
        "optimizer", "optim", "optimizers", "opt", "optimizer_state", "optimizer_states",
        "optimizer_state_dict", "optim_state",
    ),
    "scheduler": (
        "lr_scheduler", "scheduler", "sched", "schedulers", "lr_schedulers", "lr_sched",
        "opt_param_scheduler", "scheduler_state", "lr_scheduler_state_dict", "scheduler_state_dict",
    ),
    "scaler": ("scaler", "grad_scaler", "loss_scaler", "gradscaler", "amp"),
    "rng": (
        "rng", "rngs", "rng_state", "rng_states", "random_state", "random_states",
        "rng_tracker_states", "random_rng_state", "np_rng_state", "torch_rng_state",
        "cuda_rng_state", "cpu_rng_state",
    ),
    "data": (
        "dataloader", "data_loader", "train_dataloader", "train_loader", "dataset", "sampler",
        "dataloaders", "data_loaders", "datasets", "samplers", "batch_sampler", "data",
        "data_state", "dataset_state", "dataloader_state", "data_iterator",
    ),
    "progress": (
        "train_state", "trainer", "trainer_state", "training_state", "train_progress", "progress",
        "loop", "loops", "common_state", "rerun_state_machine_state", "timestamp",
        "step", "steps", "global_step", "current_step", "num_steps", "num_updates",
        "iteration", "iterations", "iter", "epoch", "epochs", "current_epoch",
        "tokens", "tokens_seen", "ntokens_seen", "num_tokens", "samples", "samples_seen",
        "num_samples", "batches", "batches_seen", "num_batches", "accumulation_step",
        "consumed_samples", "consumed_train_samples", "consumed_valid_samples",
        "num_floating_point_operations_so_far",
    ),
    "model": ("model", "module", "state_dict", "model_state", "model_state_dict", "ema", "ema_model"),
    "other": (
        "args", "arguments", "config", "cfg", "hparams", "hyper_parameters", "hyperparameters",
        "hparams_name", "run_id", "run_name", "version", "versions", "checkpoint_version",
        "pytorch-lightning_version", "torch_version", "metadata", "content_metadata", "git",
        "git_hash", "commit", "callbacks", "tokenizer", "logger", "wandb", "wandb_id", "seed",
        "extra", "extras", "extra_state", "misc", "user_content", "metrics", "best_metric",
    ),
}  # fmt: skip
"""Component by the first element of a key's path that tells. A tensor that matches nothing is the
model's: trainers that keep the model at top level (torchtitan, Megatron) name everything else."""

MIXED = frozenset(
    {"train_state", "trainer", "trainer_state", "training_state", "loop", "loops", "progress"}
    | {"extra", "extras", "extra_state", "misc", "user_content"}
)
"""Elements that may hold other components, which then count as those: ``trainer.rng.torch``."""

WRAPPERS = frozenset({"app", "app_state", "state", "checkpoint"})
"""Elements that say nothing themselves: ``app.model.0.weight``, ``state.optimizers.0...``."""

_BY_ELEMENT = {name: component for component, names in COMPONENTS.items() for name in names}
_CHAINED = pattern(r"chained_\d+$")
_NUMBER = pattern(r"_\d+$")
_DIGITS = pattern(r"\d+$")
_RANK = pattern(
    r"(?:(dp|tp|pp|cp|ep|global|local|world|data_parallel)[-_]?)?rank[-_]?(\d{1,7})$", re.IGNORECASE
)


def rank_element(element: str | int) -> tuple[str, int] | None:
    """Read an element that names a rank: ``dp_rank_3`` is (``dp``, 3), ``rank3`` is (``""``, 3)."""
    match = _RANK.match(element) if isinstance(element, str) else None
    return ((match[1] or "").lower(), int(match[2])) if match else None


def _plain(element: str | int) -> str:
    return str(element).partition("/")[0].lower()


def _lookup(name: str) -> str | None:
    return _BY_ELEMENT.get(name) or _BY_ELEMENT.get(_NUMBER.sub("", name))


def locate_component(path: Sequence[str | int]) -> tuple[str | None, int]:
    """Return the component that a path names, and how many elements it took to say so.

    Without a telling element: None and 0, unless the form is that of an optimizer's state dict.
    """
    for index, element in enumerate(path):
        name = _plain(element)
        last = index + 1 == len(path)
        component = _lookup(name)
        if component is None or (name in WRAPPERS and not last):
            if name in WRAPPERS or _CHAINED.match(name) or rank_element(name):
                continue
            break
        if name in MIXED:
            for inner in range(index + 1, len(path)):
                held = _lookup(_plain(path[inner]))
                if held not in (None, "model", "progress", "other"):
                    return held, inner + 1
        return component, index + 1
    if "param_groups" in path:
        return "optimizer", path.index("param_groups")
    if len(path) > 1 and path[-1] in _MOMENTS and "state" in path[:-1]:
        return "optimizer", path.index("state")
    return None, 0


def settle(component: str | None, path: Sequence[str | int], *, tensor: bool) -> str:
    """Choose for what no element tells; weights that share a name with something are weights."""
    if component is None:
        return "model" if tensor else "other"
    if tensor and component not in ("model", "optimizer") and path[-1] in ("weight", "bias"):
        return "model"
    return component


def component_of(path: Iterable[str | int], *, tensor: bool = True) -> str:
    """Classify a key by its path elements."""
    names = tuple(path)
    return settle(locate_component(names)[0], names, tensor=tensor)


def elements(fqn: str, path: tuple[str | int, ...] | None = None) -> tuple[str | int, ...]:
    """Return the elements of a key: its recorded path, split further where that is one string."""
    head = path if path else (fqn,)
    return (*str(head[0]).split("."), *head[1:]) if head else ()


@dataclass(frozen=True, slots=True)
class KeyName:
    """A key's path, read once: the component it names and its last word."""

    path: tuple[str | int, ...]
    component: str | None
    last: str

    @classmethod
    def of(cls, path: tuple[str | int, ...]) -> KeyName:
        """Read a path."""
        last = str(path[-1]).rpartition(".")[2].lower() if path else ""
        return cls(path, locate_component(path)[0], last)

    @property
    def text(self) -> str:
        """The path as one name in which every rank's number is ``*``."""
        return ".".join(
            _DIGITS.sub("*", str(element)) if rank_element(element) is not None else str(element)
            for element in self.path
        )

    @property
    def ranked(self) -> bool:
        """True if an element names a rank."""
        return any(rank_element(element) is not None for element in self.path)

    @property
    def holds_state(self) -> bool:
        """True if a tensor of this name is of the model or of its optimizer."""
        return settle(self.component, self.path, tensor=True) in ("model", "optimizer")


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

_MOMENTS = frozenset(OPTIMIZER_STATES) - {"step", "sum", "param"}


def optimizer_state_of(fqn: str) -> tuple[str, str] | None:
    """Split an optimizer key into parameter and state: ``...state.a.b.exp_avg`` is (``a.b``, ``exp_avg``).

    Megatron puts the state's name first (``optimizer.state.exp_avg.a.b``). None for other keys.
    """
    path = elements(fqn)
    component, depth = locate_component(path)
    _, marker, rest = ".".join(map(str, path[depth:])).partition("state.")
    if not marker or component != "optimizer":
        return None
    for name in OPTIMIZER_STATES:
        if rest.endswith(f".{name}"):
            return rest[: -len(name) - 1], name
        if rest.startswith(f"{name}."):
            return rest[len(name) + 1 :], name
    return None
