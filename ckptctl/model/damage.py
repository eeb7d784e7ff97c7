"""Saying what damage costs: which rows of which tensors, with their optimizer states."""

from __future__ import annotations

from collections.abc import Iterable

from ckptctl.model.checkpoint import BoxIndex, Checkpoint, Item, TensorEntry
from ckptctl.model.components import component_of, elements, optimizer_state_of
from ckptctl.model.geometry import describe

_ADAM = ("exp_avg", "exp_avg_sq")
_COUNTS = ("no", "one", "two", "three", "four", "five", "six")


def describe_part(checkpoint: Checkpoint, boxes: BoxIndex, item: Item) -> str:
    """Say what one item holds, e.g. ``rows 3-5 of model.embed.weight``."""
    entry = checkpoint.entries.get(item.fqn)
    if not item.fqn and item.path in checkpoint.companions:
        return checkpoint.companions[item.path].holds
    if not isinstance(entry, TensorEntry):
        return item.fqn
    box = boxes.box(item)
    part = "a piece" if box is None else describe(box, entry.shape)
    return item.fqn if part in ("all", "the value") else f"{part} of {item.fqn}"


def describe_loss(
    checkpoint: Checkpoint, boxes: BoxIndex, items: Iterable[Item], *, limit: int = 4
) -> str:
    """Say what is lost with these items, the model's tensors first and optimizer states with them."""
    lost = list(items)
    states: dict[tuple[str, tuple[int, ...] | None], list[str]] = {}
    parameters: list[Item] = []
    rest: list[Item] = []
    for item in lost:
        box = boxes.box(item)
        if box is not None and box.volume == 0:
            continue  # the empty tail that a rank without rows saves: nothing is lost with it
        component = component_of(elements(item.fqn, checkpoint.paths_in_state.get(item.fqn)))
        state = optimizer_state_of(item.fqn)
        if component == "model":
            parameters.append(item)
        elif state is not None and state[1] != "step" and item.offsets is not None:
            states.setdefault((state[0], item.offsets), []).append(state[1])
        else:
            rest.append(item)
    words: list[str] = []
    for item in parameters:
        words.append(describe_part(checkpoint, boxes, item))
        for key in [k for k in states if k[1] == item.offsets and _same(item.fqn, k[0])]:
            words[-1] += f" and its {_moments(states.pop(key))}"
    orphans = sum(len(names) for names in states.values())
    for (parameter, _), names in list(states.items())[:limit]:
        if len(words) < limit:
            words.append(f"the {_moments(names)} of {parameter}")
            orphans -= len(names)
    shown = words[:limit]
    hidden = len(words) - len(shown) + orphans
    if hidden > 0:
        shown.append(f"{hidden} more piece{'s' if hidden > 1 else ''} of tensors")
    if rest:
        names = [item.fqn for item in rest]
        listed = ", ".join(names[:limit])
        more = f" and {len(names) - limit} more" if len(names) > limit else ""
        shown.append(listed + more)
    return "; ".join(shown)


def _same(model_key: str, parameter: str) -> bool:
    return model_key == parameter or model_key.endswith(f".{parameter}")


def _moments(names: list[str]) -> str:
    if sorted(names) == sorted(_ADAM):
        return "two Adam moments"
    count = _COUNTS[len(names)] if len(names) < len(_COUNTS) else str(len(names))
    return f"{count} optimizer state{'s' if len(names) != 1 else ''} ({', '.join(names)})"
