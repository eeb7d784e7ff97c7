"""What frameworks write beside the tensors: configuration, versions, progress, number of ranks.

Small JSON files and ``torch.save`` files, read by exact name, within bounds and without running
anything: Megatron's ``common.pt``, Lightning's ``meta.pt``, the Trainer's ``trainer_state.json``
and ``training_args.bin``, OLMo-core's ``config.json`` and ``train/rank0.pt``, accelerate's states.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import MalformedData, NotFound
from ckptctl.formats.pickles.values import MAX_VALUE, Described, decode_item
from ckptctl.model.paths import join
from ckptctl.pattern import pattern
from ckptctl.storage import Store

_MAX_CONFIG = 4 << 20
_MAX_TRAINER_STATE = 32 << 20
_SECRET = pattern(
    r"(?:^|_)(?:hub_token|auth_token|access_token|api_?key|private_key|secret\w*|passw\w*"
    r"|credentials?)$",
    re.IGNORECASE,
)
_LONGEST_TEXT = 4096
_LONGEST_LIST = 1024
COUNTED = "the number of files with random states"
"""Where a number of ranks comes from that nobody recorded; nodes may keep files of their own."""

_RNG_FILE = pattern(r"(?:rng_state|random_states)(?:_(\d+))?\.(?:pth|pkl)")


@dataclass(frozen=True, slots=True)
class Companion:
    """What one file says: nested configuration, single facts, counters. All are plain values."""

    source: str
    config: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)


def read_companions(
    store: Store, base: str, names: Collection[str], problems: list[str]
) -> Iterator[Companion]:
    """Read the companion files among the names that lie in the directory ``base``.

    A file that cannot be understood is named in ``problems``. Raises ``StorageError`` where the
    storage does not answer.
    """
    for name, (read, limit) in _READERS.items():
        if name not in names:
            continue
        try:
            found = read(name, _bytes(store, join(base, name), limit))
        except NotFound:
            continue
        except (MalformedData, RecursionError) as error:
            problems.append(f"{name}: {error}")
            continue
        if found is not None:
            yield found
    ranks = _ranks(names)
    if ranks is not None:
        yield Companion(COUNTED, facts={"world_size": ranks})


def _bytes(store: Store, path: str, limit: int) -> bytes:
    with store.open(path) as reader:
        if reader.size > limit:
            raise MalformedData(f"{reader.size} bytes are more than is read of it ({limit})")
        return reader.read(0, reader.size)


def _ranks(names: Collection[str]) -> int | None:
    """Count the ranks that left their random states, where none is missing in between."""
    found = [match[1] for name in names if (match := _RNG_FILE.fullmatch(name))]
    if found == [None]:
        return 1
    numbers = sorted(int(number) for number in found if number is not None)
    return len(numbers) if numbers and numbers == list(range(len(numbers))) else None


def _json(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise MalformedData("it is not readable as JSON") from None
    if not isinstance(found, dict):
        raise MalformedData(f"it holds a {type(found).__name__} where an object was expected")
    return found


def _pickled(data: bytes) -> dict[str, Any]:
    found = decode_item(data, attributes=True)
    if not isinstance(found, dict):
        raise MalformedData(f"it holds a {type(found).__name__} where a mapping was expected")
    return {str(key): value for key, value in found.items()}


def _part(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = found.get(name)
    return part if isinstance(part, dict) else {}


def numbers_of(found: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Pick finite numbers by name and give them the names that progress has here."""
    picked: dict[str, Any] = {}
    for name, ours in names.items():
        value = found.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and _is_number(value):
            picked.setdefault(ours, value)
    return picked


def _is_number(value: float) -> bool:
    """Tell whether a number is finite and of a size that one counts with."""
    return abs(value) < 1 << 63 if isinstance(value, int) else math.isfinite(value)


def settings_of(found: Mapping[str, Any], *, without: Collection[str] = ()) -> dict[str, Any]:
    """Return settings as plain values: no secrets, and descriptions for what is no setting."""
    return {
        str(name): _setting(value)
        for name, value in found.items()
        if name not in without and not _SECRET.search(str(name))
    }


def _setting(value: Any) -> Any:
    if isinstance(value, dict):
        return settings_of(value)
    if isinstance(value, list | tuple):
        if len(value) > _LONGEST_LIST:
            return f"{len(value)} values"
        return [_setting(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted((_setting(one) for one in value), key=repr)
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else f"{len(value)} characters"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, bool | int | float | None):
        return value
    return value.text if isinstance(value, Described) else type(value).__name__


_MEGATRON_MOVES = ("iteration", "curr_iteration", "consumed_train_samples", "rank", "local_rank",
    "consumed_valid_samples", "skipped_train_samples", "padded_samples")  # fmt: skip
"""Arguments that differ from save to save or from rank to rank."""


def megatron(source: str, found: Mapping[str, Any]) -> Companion:
    """Read Megatron's common state: its arguments are the configuration."""
    arguments = _part(found, "args")
    progress = numbers_of(found, {"iteration": "step"})
    progress |= numbers_of(arguments, {"consumed_train_samples": "samples"})
    facts: dict[str, Any] = {}
    content = settings_of(_part(found, "content_metadata"))
    if content:
        facts["format"] = content
    config = settings_of(arguments, without=_MEGATRON_MOVES)
    return Companion(source, config, facts, progress)


def _common(name: str, data: bytes) -> Companion:
    return megatron(name, _pickled(data))


def _megatron_format(name: str, data: bytes) -> Companion | None:
    found = _json(data)
    return (
        Companion(name, facts={"format": settings_of(found)})
        if "sharded_backend" in found
        else None
    )


def _lightning(name: str, data: bytes) -> Companion:
    found = _pickled(data)
    progress = numbers_of(found, {"global_step": "step", "epoch": "epoch"})
    batches = found
    for part in ("loops", "fit_loop", "epoch_loop.batch_progress"):
        batches = _part(batches, part)
    progress |= numbers_of(_part(batches, "total"), {"processed": "batches"})
    progress |= numbers_of(_part(batches, "current"), {"processed": "batches_in_epoch"})
    version = found.get("pytorch-lightning_version")
    facts = {"packages": {"lightning": version}} if isinstance(version, str) else {}
    return Companion(name, settings_of(_part(found, "hyper_parameters")), facts, progress)


_TRAINER_SETTINGS = ("max_steps", "num_train_epochs", "train_batch_size", "logging_steps",
    "save_steps", "eval_steps")  # fmt: skip


def _trainer_state(name: str, data: bytes) -> Companion:
    found = _json(data)
    progress = numbers_of(found, {"global_step": "step", "epoch": "epoch"})
    tokens = numbers_of(found, {"num_input_tokens_seen": "tokens"})
    if tokens.get("tokens"):  # zero where nobody counted
        progress |= tokens
    config = {key: found[key] for key in _TRAINER_SETTINGS if key in found}
    return Companion(name, settings_of(config), {}, progress)


def _training_args(name: str, data: bytes) -> Companion:
    found = settings_of(_pickled(data), without=("_setup_devices", "local_rank"))
    state = _part(found, "distributed_state")
    for key in ("process_index", "local_process_index", "device"):
        state.pop(key, None)
    return Companion(name, found)


def _config(name: str, data: bytes) -> Companion:
    """Read a model's configuration as transformers writes it, or a whole one as OLMo-core does."""
    found = settings_of(_json(data))
    is_model = "model_type" in found or "architectures" in found
    return Companion(name, {"model": found} if is_model else found)


def _olmo_version(name: str, data: bytes) -> Companion:
    version = _json(data).get("version")
    return Companion(name, facts={"format": {"version": version}} if version else {})


def _olmo_train(name: str, data: bytes) -> Companion:
    found = _pickled(data)
    progress = numbers_of(
        found, {"global_step": "step", "global_train_tokens_seen": "tokens", "epoch": "epoch"}
    )
    loader = _part(found, "data_loader")
    progress |= numbers_of(loader, {"batches_processed": "batches"})
    chosen = ("dataset_type", "dataset_fingerprint", "dataset_fingerprint_version", "seed")
    facts: dict[str, Any] = {"data_loader": {key: loader[key] for key in chosen if key in loader}}
    facts |= numbers_of(found, {"world_size": "world_size"})
    facts |= {"config": numbers_of(found, {"max_steps": "max_steps"})}
    return Companion(name, {}, settings_of(facts), progress)


def _ranks_of_verl(name: str, data: bytes) -> Companion:
    return Companion(name, facts=numbers_of(_json(data), {"world_size": "world_size"}))


def _custom(name: str, data: bytes) -> Companion:
    """Read the first object that a user gave accelerate to keep, if it counts steps."""
    counters = {"step": "step", "global_step": "step", "epoch": "epoch"}
    return Companion(name, progress=numbers_of(_pickled(data), counters))


_READERS: dict[str, tuple[Callable[[str, bytes], Companion | None], int]] = {
    "config.json": (_config, _MAX_CONFIG),
    "training_args.bin": (_training_args, MAX_VALUE),
    "trainer_state.json": (_trainer_state, _MAX_TRAINER_STATE),
    "meta.pt": (_lightning, MAX_VALUE),
    "common.pt": (_common, MAX_VALUE),
    "weights/common.pt": (_common, MAX_VALUE),
    "metadata.json": (_megatron_format, _MAX_CONFIG),
    "weights/metadata.json": (_megatron_format, _MAX_CONFIG),
    ".metadata.json": (_olmo_version, _MAX_CONFIG),
    "train/rank0.pt": (_olmo_train, MAX_VALUE),
    "fsdp_config.json": (_ranks_of_verl, _MAX_CONFIG),
    "custom_checkpoint_0.pkl": (_custom, MAX_VALUE),
}
"""By exact name, with bytes above which a file is left alone; later ones outrank earlier ones."""
