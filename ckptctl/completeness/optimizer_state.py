"""Which parameters have optimizer state, and which state has a parameter, by names and sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ckptctl.completeness.classifier import Key
from ckptctl.dataclass import dataclass, field, replace
from ckptctl.model.checkpoint import Checkpoint, TensorEntry
from ckptctl.model.components import OPTIMIZER_STATES
from ckptctl.pattern import pattern

BUFFERS = frozenset(
    {
        "running_mean", "running_var", "num_batches_tracked", "inv_freq", "freqs_cis", "freqs",
        "cos_cached", "sin_cached", "position_ids", "attn_mask", "causal_mask", "mask",
        "relative_position_index", "expert_bias", "tokens_per_expert", "local_tokens_per_expert",
        "_extra_state", "scale_inv", "weight_scale_inv",
    }
)  # fmt: skip
"""Last elements of model tensors that no optimizer updates, whatever their dtype."""

_COPIES = frozenset({"ema", "ema_model"})
_OUTER = frozenset(
    {
        "module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
        "_forward_module",
    }
)  # fmt: skip
_TIED = pattern(r"(?:^|\.)(?:lm_head|output|output_layer|head|wte|\w*embed\w*|decoder)\.weight$")


@dataclass(slots=True)
class State:
    """What the optimizer holds of one parameter: names, and elements of its largest tensor."""

    names: set[str] = field(default_factory=set)
    numel: int = 0


@dataclass(frozen=True, slots=True)
class Moments:
    """How optimizer state and parameters fit.

    ``states`` counts parameters with state, ``parameters`` those of the model that could have it.
    ``method`` says how they were compared: by ``names``, by ``sizes`` where state is numbered or
    kept in flat buckets, or not at all (empty). ``stateless`` parameters have none, the
    ``irregular`` among them although their like in other layers do; ``lacking`` lack one of Adam's
    moments or its step; ``orphans`` are states of parameters that the model does not have, which are
    ``certain`` to be lost if no other parameter could stand for them.
    """

    parameters: int = 0
    states: int = 0
    names: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    method: str = ""
    stateless: tuple[str, ...] = ()
    irregular: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    certain: bool = False
    short: tuple[int, int] | None = None
    opaque: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """True if there is no state of any parameter, only settings."""
        return not self.states and not self.opaque


def moments(checkpoint: Checkpoint, keys: Iterable[Key]) -> Moments:
    """Compare the optimizer's keys with the model's."""
    model: dict[str, int] = {}
    optimizer: list[Key] = []
    for key in keys:
        entry = checkpoint.entries[key.fqn]
        if key.component == "optimizer":
            optimizer.append(key)
        elif key.component == "model" and isinstance(entry, TensorEntry) and _trained(key, entry):
            model[_canonical(key.inner)] = entry.numel
    states: dict[str, State] = {}
    buckets: Counter[str] = Counter()
    settings: set[str] = set()
    opaque: list[str] = []
    for key in optimizer:
        entry = checkpoint.entries[key.fqn]
        numel = entry.numel if isinstance(entry, TensorEntry) else 0
        inner = [*map(str, key.inner)]
        dotted = ".".join(inner)
        if not inner or inner == ["state"] or inner[-1].startswith("param_state"):
            opaque.append(key.fqn)
        elif "param_groups" in dotted and "param_groups" in dotted.split("."):
            settings.add(inner[-1].rpartition(".")[2])
        elif "dp_group_idx" in dotted:
            if numel and inner[-1] in OPTIMIZER_STATES:
                buckets[inner[-1]] += numel
        else:
            found = _split(key, checkpoint, model)
            if found is not None:
                state = states.get(found[0])
                if state is None:
                    state = states[found[0]] = State()
                state.names.add(found[1])
                if numel > state.numel:
                    state.numel = numel
    names = {name for state in states.values() for name in state.names} | set(buckets)
    base = Moments(
        len(model),
        sum(any(name != "step" for name in state.names) for state in states.values()),
        tuple(sorted(names)),
        tuple(sorted(settings)),
        opaque=tuple(opaque),
    )
    return _compare(base, model, states, buckets)


def _trained(key: Key, entry: TensorEntry) -> bool:
    return (
        entry.dtype.startswith(("float", "bfloat"))
        and 0 not in entry.shape
        and str(key.path[0]).lower() not in _COPIES
        and str(key.path[-1]).rpartition(".")[2] not in BUFFERS
    )


def _canonical(parts: Iterable[str | int]) -> str:
    """Join the elements of a parameter's name without those that only wrap modules."""
    text = ".".join(map(str, parts))
    words = text.split(".")
    if _OUTER.isdisjoint(words):
        return text
    return ".".join([word for word in words if word not in _OUTER])


def _split(key: Key, checkpoint: Checkpoint, model: dict[str, int]) -> tuple[str, str] | None:
    """Split an optimizer key into parameter and name of state, whichever comes first."""
    recorded = checkpoint.paths_in_state.get(key.fqn) or ()
    if "state" in recorded[:-2]:
        rest = recorded[recorded.index("state") + 1 :]
        return _canonical(rest[:1]), ".".join(map(str, rest[1:]))
    text = ".".join(map(str, key.inner))
    if text.startswith("state."):  # nearly all: a parameter's name, and one word
        name, _, last = text[6:].rpartition(".")
        if name in model and last not in _OUTER:
            return name, last
    words = text.split(".")
    if "state" not in words[:-1]:
        return None
    words = [word for word in words[words.index("state") + 1 :] if word not in _OUTER]
    if len(words) < 2:
        return None
    for cut in range(len(words) - 1, 0, -1):
        name = ".".join(words[:cut])
        if name in model:
            return name, ".".join(words[cut:])
    if words[0] in OPTIMIZER_STATES:
        return ".".join(words[1:]), words[0]
    return ".".join(words[:-1]), words[-1]


def _compare(
    base: Moments, model: dict[str, int], states: dict[str, State], buckets: Counter[str]
) -> Moments:
    held = {name: state for name, state in states.items() if state.names != {"step"}}
    base = replace(base, lacking=_lacking(states))
    want = sum(model.values())
    if buckets:
        most = max(buckets.values())
        return replace(
            base,
            method="sizes",
            states=max(base.states, 1),
            lacking=base.lacking + tuple(n for n, numel in buckets.items() if numel < most),
            short=(most, want) if most < want else None,
        )
    if not held or not model:
        return base
    if held.keys() & model.keys():
        return replace(base, method="names", **_by_name(model, held))
    have = sum(state.numel for state in held.values())
    return replace(base, method="sizes", short=(have, want) if 0 < have < want else None)


def _by_name(model: dict[str, int], held: dict[str, State]) -> dict[str, Any]:
    stateless = [name for name in model if name not in held]
    orphans = [name for name in held if name not in model]
    stateless, orphans = _without_fused(model, held, stateless, orphans)
    if sum(held[name].numel for name in orphans) == sum(model[name] for name in stateless):
        stateless, orphans = [], []  # all of them under other names
    tied = {
        name
        for name in stateless
        if _TIED.search(name)
        and any(
            _TIED.search(other) and model[name] == model[other]
            for other in held.keys() & model.keys()
        )
    }
    stateless = [name for name in stateless if name not in tied]
    spare = sum(model[name] for name in stateless)
    return {
        "stateless": tuple(stateless),
        "irregular": tuple(_irregular(stateless, held)),
        "orphans": tuple(orphans),
        "certain": bool(orphans) and spare < sum(held[name].numel for name in orphans),
    }


def _without_fused(
    model: dict[str, int], held: dict[str, State], stateless: list[str], orphans: list[str]
) -> tuple[list[str], list[str]]:
    """Leave out what the optimizer keeps as one and the model as several, as in ``wqkv``."""
    parts: dict[tuple[str, str], list[str]] = {}
    for name in stateless:
        parts.setdefault(_parent(name), []).append(name)
    wholes: dict[tuple[str, str], list[str]] = {}
    for name in orphans:
        wholes.setdefault(_parent(name), []).append(name)
    gone: set[str] = set()
    for parent, fused in wholes.items():
        names = parts.get(parent, [])
        if sum(held[name].numel for name in fused) == sum(model[name] for name in names):
            gone.update(fused, names)
    return [n for n in stateless if n not in gone], [n for n in orphans if n not in gone]


def _parent(name: str) -> tuple[str, str]:
    words = name.split(".")
    return ".".join(words[:-2]), words[-1]


def _irregular(stateless: list[str], held: dict[str, State]) -> list[str]:
    """Name those whose like in other layers have state, in layers where others have it too.

    What is frozen by layer or by kind is explained by that; what is left looks lost.
    """
    kinds = {_kind(name) for name in held}
    layers = {_layer(name) for name in held}
    return [
        name
        for name in stateless
        if _layer(name) and _kind(name) in kinds and _layer(name) in layers
    ]


def _kind(name: str) -> str:
    return ".".join("*" if word.isdigit() else word for word in name.split("."))


def _layer(name: str) -> str:
    words = name.split(".")
    for index, word in enumerate(words):
        if word.isdigit():
            return ".".join(words[: index + 1])
    return ""


def _lacking(states: dict[str, State]) -> tuple[str, ...]:
    """Name the parameters of which Adam's moments or step are not all there, where most have all.

    Lion keeps ``exp_avg`` alone, and no ``step``; Adafactor spreads the second over two tensors.
    """
    whole, steps, halves, stepless = 0, 0, [], []
    for name, state in states.items():
        first = "exp_avg" in state.names
        second = any(one.startswith("exp_avg_sq") for one in state.names)
        step = "step" in state.names
        if first and second:
            whole += 1
            steps += step
            if not step:
                stepless.append(name)
        elif first or "exp_avg_sq" in state.names or state.names == {"step"}:
            halves.append(name)
    if whole <= len(halves):
        return ()
    found = [name for name in halves if "step" in states[name].names or not steps]
    return (*found, *(stepless if steps > len(stepless) else ()))
