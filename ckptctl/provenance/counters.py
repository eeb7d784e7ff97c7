"""Which small values tell the step of a save, by their names: counters of progress, steps of Adam.

Nothing in a shard says which save it belongs to. Some of what it holds counts, though: the steps
taken (absolutely), or how far one rank has read its data (comparable with what its peers say).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckptctl.dataclass import dataclass
from ckptctl.model.companion import Companion, Kind
from ckptctl.model.components import KeyName
from ckptctl.pattern import pattern

MOST_BYTES = 64 << 10
"""Bytes of an item above which nobody looks for counters in it."""

_STEPS = frozenset(
    {
        *("step", "global_step", "global_steps", "iteration", "current_step", "current_iteration"),
        *("train_step", "optimizer_step", "num_updates"),
    }
)
_SCHEDULER = {"last_epoch": 0, "_step_count": -1}
_RUNS = frozenset({"run_id", "run_uuid", "wandb_run_id", "wandb_id", "experiment_id"})
_MOVES = pattern(
    r"pos(ition)?$|cursor|yield|consumed|seen|processed|fetched|served|(batch|sample)_idx"
    r"|(^|_)offset$|(^|_)(step|iter|iteration|batch_index|sample_index)$"
)
_MOST_BITS = 512
"""Bits of a counter: what is larger counts nothing, and may be no float."""

_SHARD = pattern(r"/shard_[\d.]+_[\d.]+$")
_MOMENTS = frozenset(
    {
        *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg"),
        *("acc_delta", "exp_avg_sq_row", "exp_avg_sq_col", "exp_inf"),
    }
)
_LOOKED_UP = pattern(r"emb|(^|[._])w[tp]e([._]|$)|tok(en)?s?[._]|lookup|vocab|lm_head", re.I)
_NUMBERS = pattern(r"\d+")
_MODELS = pattern(
    r"actor|critic|polic|value|generator|discriminator|teacher|student|reward", re.IGNORECASE
)
"""Names of models that are trained side by side, each by steps of its own."""
_WIDEST, _DEEPEST, _MOST = 64, 8, 512

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Stamp:
    """One absolute step that a file holds.

    ``key`` is equal for what different ranks keep under one name: their numbers are taken out.
    ``scheme`` names a way of counting that others share; what is ``exact`` can be of no other step
    than the whole checkpoint.
    """

    file: str
    key: str
    kind: Kind
    step: int
    scheme: str = ""
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Counter:
    """A number that each rank keeps for itself; ``moves`` if its name says that it grows by the step."""

    file: str
    key: str
    value: float
    moves: bool = False


@dataclass(frozen=True, slots=True)
class RunMark:
    """The name of a run that a file holds."""

    file: str
    key: str
    text: str


def tells(name: KeyName, *, scalar: bool) -> bool:
    """Tell by a key's name whether its item may hold a counter; ``scalar`` is a tensor of no dimension."""
    component, last = name.component, name.last
    if component == "optimizer":
        whole = not scalar and _SHARD.search(last) is not None and "optimizer/" in last
        return last == "step" or whole or (not scalar and last == "param_groups")
    if component in ("progress", "scheduler"):
        return not scalar or last in _STEPS or last in _SCHEDULER
    if component == "rng":
        return not scalar and re.search(r"np|numpy", last) is not None
    if component == "data":
        return True
    if component == "model":
        return False
    return last in _STEPS or last in _SCHEDULER or (not scalar and last in _RUNS)


def counts_steps(name: KeyName) -> bool:
    """Tell whether a key holds one number that changes at every step."""
    return _stamp("", name, 1) is not None


def stamps_of(
    file: str, path: Path, value: object, *, alone: bool
) -> Iterator[Stamp | Counter | RunMark]:
    """Yield what one decoded value says; ``alone`` if each rank saved on its own."""
    for inner, leaf in leaves(value):
        name = KeyName.of((*path, *inner))
        found = _stamp(file, name, leaf) or _run(file, name, leaf)
        if found is not None:
            yield found
        if isinstance(leaf, float) or (type(leaf) is int and leaf.bit_length() <= _MOST_BITS):
            counter = _counter(file, name, float(leaf), alone=alone)
            if counter is not None:
                yield counter


def _stamp(file: str, name: KeyName, value: object) -> Stamp | None:
    number = _whole(value)
    if number is None:
        return None
    component, last = name.component, name.last
    if component == "optimizer":
        if last != "step":
            return None
        kind = Kind.GROUP if "param_groups" in name.text.split(".") else Kind.OPTIMIZER
        return Stamp(file, name.text, kind, number)
    if component in ("data", "rng", "model"):
        return None
    if last == "step" and "param_groups" in name.path:
        return Stamp(file, name.text, Kind.GROUP, number)
    if last in _SCHEDULER:
        step = number + _SCHEDULER[last]
        return Stamp(file, name.text, Kind.SCHEDULER, step) if step >= 0 else None
    if last in _STEPS and component in ("progress", "other", None):
        return Stamp(file, name.text, Kind.PROGRESS, number)
    return None


def _run(file: str, name: KeyName, value: object) -> RunMark | None:
    if isinstance(value, str) and value and name.last in _RUNS:
        return RunMark(file, name.text, value[:200])
    return None


def _counter(file: str, name: KeyName, value: float, *, alone: bool) -> Counter | None:
    component, path = name.component, name.path
    if component not in ("data", "rng", "progress") or not (name.ranked or alone):
        return None
    if component == "rng" and path[-1] not in (2, "pos"):
        return None  # of numpy's generator only the position counts: what it has drawn so far
    moves = component != "rng" and any(
        isinstance(element, str) and _MOVES.search(element.lower()) for element in path[-1:]
    )
    return Counter(file, name.text, value, moves)


def stamps_beside(companion: Companion, value: object) -> Iterator[Stamp | RunMark]:
    """Yield what a file beside the tensors states, where its framework puts it."""
    if not isinstance(value, dict):
        return
    for told in companion.told:
        if told.unless & value.keys():
            continue
        found: object = value
        for key in told.path:
            found = found.get(key) if isinstance(found, dict) else None
        step = _whole(found)
        if step is not None and step + told.offset >= 0:
            key = ".".join(told.path)
            yield Stamp(
                companion.path, key, told.kind, step + told.offset, told.scheme, exact=told.exact
            )
    for key in _RUNS & value.keys():
        if isinstance(value[key], str) and value[key]:
            yield RunMark(companion.path, key, value[key][:200])


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < 1 << 53 and int(value) == value else None


def leaves(value: object) -> Iterator[tuple[Path, int | float | str]]:
    """Yield the numbers and texts inside plain containers with their paths, within bounds."""
    left = _MOST

    def walk(one: object, path: Path) -> Iterator[tuple[Path, int | float | str]]:
        nonlocal left
        left -= 1
        if left < 0 or len(path) > _DEEPEST:
            return
        if isinstance(one, int | float | str):
            yield path, one
        elif isinstance(one, dict):
            for key, inner in list(one.items())[:_WIDEST]:
                yield from walk(inner, (*path, key if isinstance(key, str | int) else str(key)))
        elif isinstance(one, list | tuple) and len(one) <= _WIDEST:
            for number, inner in enumerate(one):
                yield from walk(inner, (*path, number))

    yield from walk(value, ())


def moment_of(fqn: str) -> tuple[str, str] | None:
    """Split the key of an optimizer's moment into parameter and moment; None for other keys.

    What a moment says: a parameter that is trained changes it at every step.
    """
    words = fqn.split(".")
    if words[-1] in _MOMENTS:
        rest = words[:-1]
        if "state" in rest:
            rest = rest[rest.index("state") + 1 :]
        return ".".join(rest), words[-1]
    for index, word in enumerate(words):
        if word in _MOMENTS and "state" in words[:index]:
            return ".".join(words[index + 1 :]), word
    return None


def optimizer_of(stamp: Stamp) -> str:
    """Name the optimizer whose step a stamp is of: the words before its state, without numbers.

    Pipeline stages are told apart by numbers and count alike. Models that are trained side by side
    count each for itself, also where one state dict holds the states of both.
    """
    words = stamp.key.split(".")
    mark = "param_groups" if stamp.kind is Kind.GROUP else "state"
    if mark not in words:
        return ""
    at = words.index(mark)
    if at == 0 and mark in words[1:]:  # ``state`` wraps all
        at = words.index(mark, 1)
    model = [word for word in words[at + 1 : at + 2] if _MODELS.search(word)]
    return ".".join(_NUMBERS.sub("#", word) for word in (*words[:at], *model))


def parameter_of(key: str) -> str:
    """Return the parameter of which ``key`` is the optimizer's step."""
    words = key.split(".")
    rest = words[words.index("state") + 1 :] if "state" in words else words
    return ".".join(rest[:-1] if rest and rest[-1] == "step" else rest[1:])


def tails_of(fqn: str) -> Iterator[str]:
    """Yield a key and what is left of it without its first words, as optimizers call parameters."""
    yield fqn
    at = fqn.find(".")
    while at >= 0:
        yield fqn[at + 1 :]
        at = fqn.find(".", at + 1)


def looked_up(fqn: str) -> bool:
    """Tell by its name whether rows of a tensor may stay untouched for long: embeddings."""
    return _LOOKED_UP.search(fqn) is not None
