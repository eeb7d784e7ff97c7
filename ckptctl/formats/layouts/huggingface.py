"""Hugging Face: directories of the Trainer (``checkpoint-N``) and of accelerate (``checkpoint_N``).

Weights as safetensors or ``.bin``, whole or as an adapter's; optimizer, scheduler and random states
as ``torch.save`` files. With FSDP's sharded states the model and the optimizer are DCP directories,
and such checkpoints are read whole. With DeepSpeed a tag's directory lies inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ckptctl.formats.base import Claim, Folder, PointerRule, StepKind, Sure
from ckptctl.formats.claims import directory, missing, missing_of_sets, numbered
from ckptctl.formats.companions import Rule
from ckptctl.formats.composite import Composite, Part, ranks_of
from ckptctl.model.checkpoint import Checkpoint, File
from ckptctl.model.companion import UPDATES, Form, Kind, Told
from ckptctl.pattern import pattern
from ckptctl.storage import Store

_STATE = "trainer_state.json"
_BEST = PointerRule(_STATE, "best_model_checkpoint")
_SUFFIXES = ("json", "pt", "pth", "bin", "pkl", "safetensors")
_RNG = pattern(r"rng_state_(\d{1,9})\.pth")
_RANDOM = pattern(r"random_states_(\d{1,9})\.pkl")
_LOCAL = pattern(r"pytorch_model_fsdp(?:_\d+)?_rank(\d{1,9})\.bin")
_FSDP_MODEL = pattern(r"pytorch_model_fsdp_\d+")
_FSDP_OPTIMIZER = pattern(r"optimizer_\d+")
_WEIGHTS = pattern(
    r"(?:model|adapter_model|pytorch_model)(?:_\d+)?(?:-\d+-of-\d+)?\.(?:safetensors|bin)"
    r"|pytorch_model_fsdp.*\.bin|(?:tf_model|flax_model)\..+"
)
_OPTIMIZER = pattern(r"optimizer(?:_\d+)?\.(?:pt|bin)")
_SCHEDULER = pattern(r"scheduler(?:_\d+)?\.(?:pt|bin)")
_ACCELERATE = pattern(r"random_states_\d+\.pkl|(?:optimizer|scheduler)(?:_\d+)?\.bin")
_TRAINER = pattern(r"rng_state(?:_\d+)?\.pth|(?:optimizer|scheduler)\.pt|training_args\.bin")
_RESUMED = pattern(r"rng_state(?:_\d+)?\.pth|scheduler\.(?:pt|bin)|random_states_\d+\.pkl")
_LEAST_NUMBERED = 2
"""Ranks that there are at least where the Trainer puts a number into a name: one alone gets none."""

_COUNTED = pattern(r"checkpoint_(\d{1,18})")
_NUMBERED = pattern(r"checkpoint-(\d{1,18})")
_PROGRESS = "the step and the place in the data: the Trainer does not resume"
_SCHEDULE = "the schedule, and the optimizer's state, which the Trainer skips"
_RANDOM_STATE = "the random state of a rank"
_OF_PLATEAU = frozenset({"best", "num_bad_epochs", "patience"})
"""Keys of a scheduler that steps when a metric was computed, not with the optimizer."""


def _steps(scheme: str = "") -> tuple[Told, ...]:
    return tuple(
        Told((key,), Kind.SCHEDULER, offset, scheme=scheme, unless=_OF_PLATEAU)
        for key, offset in (("last_epoch", 0), ("_step_count", -1))
    )


_MODEL = "weights of the model"
_OPTIMIZER_STATE = "the optimizer's state"

FILES = (
    Rule(
        r"(?:model|adapter_model|pytorch_model|consolidated)(?:_(?P<set>\d+))?(?:-\d+-of-\d+)?"
        r"\.safetensors(?:\.index\.json)?",
        Form.TORCH,
        _MODEL,
        prefix=("{set}",),
    ),
    Rule(
        r"pytorch_model_fsdp(?:_(?P<set>\d+))?_rank(?P<rank>\d{1,9})\.bin",
        Form.TORCH,
        _MODEL,
        prefix=("{set}",),
    ),
    Rule(
        r"(?:model|adapter_model|pytorch_model(?:_fsdp)?)(?:_(?P<set>\d+))?(?:-\d+-of-\d+)?\.bin",
        Form.TORCH,
        _MODEL,
        prefix=("{set}",),
    ),
    Rule(
        r"optimizer(?:_(?P<set>\d+))?\.(?:pt|bin)",
        Form.TORCH,
        _OPTIMIZER_STATE,
        prefix=("optimizer", "{set}"),
    ),
)
"""The files that hold tensors: of a second model or optimizer under its number."""

RULES = (
    Rule(
        r"trainer_state\.json",
        Form.JSON,
        _PROGRESS,
        told=(Told(("global_step",), exact=True),),
        needs={"global_step": (int,)},
    ),
    Rule(r"scheduler\.pt", Form.TORCH, _SCHEDULE, told=_steps(UPDATES)),
    Rule(r"scheduler(?:_\d+)?\.bin", Form.TORCH, "the schedule", told=_steps()),
    Rule(_RNG.pattern + r"|rng_state\.pth|" + _RANDOM.pattern, Form.TORCH, _RANDOM_STATE),
    Rule(r"scaler(?:_\d+)?\.pt", Form.TORCH, "the scaler of gradients"),
    Rule(r"training_args\.bin", Form.TORCH, "the arguments of the training", state=False),
    Rule(
        r"custom_checkpoint_\d+\.pkl",
        Form.TORCH,
        "an object that the training gave accelerate to keep",
        told=(Told(("step",)), Told(("global_step",))),
    ),
    Rule(
        r"(?:sampler|dl_state_dict)(?:_\d+)?\.bin", Form.TORCH, "the place in the data of a loader"
    ),
    Rule(
        r"(?:config|generation_config|tokenizer_config|special_tokens_map)\.json",
        Form.JSON,
        "the configuration of the model or the tokenizer",
        state=False,
    ),
)
"""What the Trainer and accelerate put beside the tensors."""


def _is_one(folder: Folder) -> Sure | None:
    """Tell whether names are those of one checkpoint, and how surely."""
    if folder.suffixes.isdisjoint(_SUFFIXES) and not folder.folders:
        return None
    if not folder.suffixes.isdisjoint(("metadata", "distcp")):
        return None  # a DCP directory with the Trainer's files beside its own
    if any(_NUMBERED.fullmatch(name) or _COUNTED.fullmatch(name) for name in folder.folders):
        return None  # the directory of a run, which has a trainer_state.json of its own
    own = [name for name in folder.files if _TRAINER.fullmatch(name) or _ACCELERATE.fullmatch(name)]
    parts = [n for n in folder.folders if _FSDP_MODEL.fullmatch(n) or _FSDP_OPTIMIZER.fullmatch(n)]
    resumable = [name for name in own if name != "training_args.bin"]
    named = _NUMBERED.fullmatch(folder.name.text) or _COUNTED.fullmatch(folder.name.text)
    if _STATE in folder.files and (named or resumable or parts):
        return Sure.MARKED
    if any(_RANDOM.fullmatch(name) for name in own) or len(parts) > 1:
        return Sure.MARKED
    weights = any(_WEIGHTS.fullmatch(name) for name in folder.files)
    marks = len(own) + len(parts) + weights
    one = bool(named) or (marks > 1 and (weights or bool(parts)))
    return Sure.PATTERN if (resumable or parts) and one else None


def _sharded(folder: Folder) -> bool:
    """Tell whether all that holds tensors lies in DCP directories."""
    parts = [n for n in folder.folders if _FSDP_MODEL.fullmatch(n) or _FSDP_OPTIMIZER.fullmatch(n)]
    others = [n for n in folder.files if _WEIGHTS.fullmatch(n) or _OPTIMIZER.fullmatch(n)]
    return bool(parts) and not others


def _lacks(folder: Folder) -> Iterator[str]:
    """Yield what the Trainer or accelerate would miss, by the names of what is there."""
    files, folders = folder.files, folder.folders
    tags = [name for name in folders if re.fullmatch(r"global_step\d+", name)]
    accelerate = _is_accelerate(folder)
    optimizer = any(map(_OPTIMIZER.fullmatch, files)) or any(
        map(_FSDP_OPTIMIZER.fullmatch, folders)
    )
    scheduler = any(map(_SCHEDULER.fullmatch, files))
    random = numbered(files, _RANDOM if accelerate else _RNG)
    weights = any(map(_WEIGHTS.fullmatch, files)) or any(map(_FSDP_MODEL.fullmatch, folders))
    others = [n for n in folders if not _FSDP_OPTIMIZER.fullmatch(n)]  # pipelines: unet, vae
    if not weights and not others:
        yield (
            "pytorch_model_fsdp_0"
            if any(map(_FSDP_OPTIMIZER.fullmatch, folders))
            else ("model.safetensors")
        )
    yield from missing_of_sets(files)
    suffix = "bin" if accelerate else "pt"
    if "latest" in files and "trainer_state.json" in files:
        tag = (folder.peek("latest", 256) or b"").decode("utf-8", "replace").strip()
        if tag and tag not in folders:
            yield tag
    elif (scheduler or random or "rng_state.pth" in files) and not optimizer and not tags:
        yield "optimizer_0" if any(map(_FSDP_MODEL.fullmatch, folders)) else f"optimizer.{suffix}"
    if optimizer and not scheduler and not accelerate:
        yield "scheduler.pt"
    local = numbered(files, _LOCAL)
    count = max(random | local, default=-1) + 1
    if random and not accelerate:
        count = max(count, _LEAST_NUMBERED)
    yield from missing(random, "random_states_{}.pkl" if accelerate else "rng_state_{}.pth", count)
    if local:
        yield from missing(local, "pytorch_model_fsdp_rank{}.bin", count)
    if optimizer and not random and "rng_state.pth" not in files:
        yield "random_states_0.pkl" if accelerate else "rng_state.pth"
    if not accelerate and _STATE not in files:
        yield _STATE


def _is_accelerate(folder: Folder) -> bool:
    if _STATE in folder.files or _NUMBERED.fullmatch(folder.name.text):
        return False
    counted = _COUNTED.fullmatch(folder.name.text) is not None
    return counted or any(_ACCELERATE.fullmatch(name) for name in folder.files)


def _counted(folder: Folder) -> dict[str, Any]:
    """Return the number and the step of what accelerate saved: its names count saves, not steps."""
    match = _COUNTED.fullmatch(folder.name.text)
    if match is None or not _is_accelerate(folder):
        return {}
    return {"step": _step_inside(folder), "number": int(match[1]), "step_is": StepKind.COUNTER}


def _step_inside(folder: Folder) -> int | None:
    """Return the step that the optimizer counted, where it is cheap to read."""
    for name in ("optimizer.bin", "optimizer.pt"):
        if name in folder.files:
            from ckptctl.formats.torch.glance import optimizer_step

            return optimizer_step(folder.store, folder.join(name))
    if "optimizer_0" in folder.folders:
        from ckptctl.formats.dcp import glance

        return glance.optimizer_step(folder.store, folder.join("optimizer_0"))
    return None


class _Saved(Composite):
    """What the Trainer and accelerate save, however the tensors are kept."""

    pointers = (_BEST,)
    parts = (
        Part(_FSDP_MODEL.pattern, "pytorch_model_fsdp_0", "the model", "model"),
        Part(_FSDP_OPTIMIZER.pattern, "optimizer_0", "the optimizer's state", "optimizer"),
    )
    rules = (*FILES, *RULES)

    def beside(self, store: Store, base: str, files: Mapping[str, File]) -> Mapping[str, str]:
        """Return what the Trainer needs beside both: it skips the optimizer without a scheduler."""
        accelerate = _STATE not in files and not any(_TRAINER.fullmatch(name) for name in files)
        found = {}
        optimizer = any(
            _FSDP_OPTIMIZER.fullmatch(name.partition("/")[0]) or _OPTIMIZER.fullmatch(name)
            for name in files
        )
        if not accelerate:
            found[_STATE] = _PROGRESS
            if optimizer:
                found["scheduler.pt"] = _SCHEDULE
        pattern, name = (
            (_RANDOM, "random_states_{}.pkl") if accelerate else (_RNG, "rng_state_{}.pth")
        )
        there = numbered(files, pattern)
        if there:  # of a save without any, nobody missed them
            least = 0 if accelerate else _LEAST_NUMBERED
            count = max(ranks_of(files), least, *(rank + 1 for rank in there))
            names = missing(there, name, count)
            found |= dict.fromkeys(names, _RANDOM_STATE)
        return found

    def tied(self, checkpoint: Checkpoint) -> frozenset[Kind]:
        """Say that the Trainer lets the schedule take a step whenever the optimizer does."""
        trainer = "scheduler.pt" in checkpoint.companions
        return frozenset({Kind.OPTIMIZER}) if trainer else frozenset()


class HuggingFace(_Saved):
    """Checkpoints of the Trainer and of accelerate, other than those with sharded FSDP states."""

    name = "huggingface"
    title = "HF Trainer, accelerate"

    def needed(self, files: Mapping[str, File]) -> tuple[Part, ...]:
        """Return no directory: the tensors lie in files."""
        return ()

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a directory with the states of a run, not that of a model alone."""
        sure = _is_one(folder)
        if sure is not None and not _sharded(folder):
            lacks = _lacks(folder)
            yield directory(self.name, folder, sure, lacks=lacks, **_counted(folder))


class HuggingFaceFsdp(_Saved):
    """Checkpoints of the Trainer and of accelerate with sharded FSDP states: two DCP directories."""

    name = "huggingface-fsdp"
    title = "HF Trainer, accelerate: FSDP"

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a directory with sharded states of a run."""
        sure = _is_one(folder)
        if sure is not None and _sharded(folder):
            lacks = _lacks(folder)
            yield directory(self.name, folder, sure, lacks=lacks, **_counted(folder))

    def needed(self, files: Mapping[str, File]) -> tuple[Part, ...]:
        """Return the model, and the optimizer unless only the model was to be saved."""
        resumable = any(_RESUMED.fullmatch(name) for name in files)
        return self.parts if resumable else self.parts[:1]
