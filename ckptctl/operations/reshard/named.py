"""A reshard of what a user named: which checkpoint of a root, and where its result goes."""

from __future__ import annotations

from collections.abc import Iterable

from ckptctl.dataclass import replace
from ckptctl.errors import UsageError
from ckptctl.model.result.plain import absolute
from ckptctl.operations.catalog.resolution import Resolution, ResolveOptions
from ckptctl.operations.catalog.resolve import resolve
from ckptctl.operations.place import address, split
from ckptctl.operations.progress import Progress
from ckptctl.operations.reshard.options import DecisionNeeded, Resharding, ReshardOptions
from ckptctl.operations.reshard.plan import Request
from ckptctl.operations.reshard.reshard import reshard
from ckptctl.operations.target import Named, Target, open_target
from ckptctl.sharding.cuts import DimRule
from ckptctl.sharding.mesh import Mesh
from ckptctl.sharding.rank_policy import Policy
from ckptctl.storage import Store

_RNG = (Policy.KEEP, Policy.DROP, Policy.FAIL)
_DATA = (Policy.KEEP, Policy.MERGE, Policy.DROP, Policy.FAIL)


def request_of(
    world_size: int, *, mesh: str, dim_rule: Iterable[str], rng: str, data: str
) -> Request:
    """Check what a user asked for; raises ``UsageError`` for what makes no sense."""
    return Request(
        world_size,
        Mesh.parse(mesh) if mesh else None,
        tuple(map(DimRule.parse, dim_rule)),
        {"rng": _policy("rng", rng, _RNG), "data": _policy("data", data, _DATA)},
    )


def _policy(option: str, text: str, known: tuple[Policy, ...]) -> Policy:
    names = [policy.value for policy in known]
    if text not in names:
        raise UsageError(f"`{option}` takes one of {', '.join(names)}, not {text!r}")
    return Policy(text)


def reshard_named(
    named: Named, out: str | None, *, options: ReshardOptions, progress: Progress | None = None
) -> Resharding:
    """Reshard the checkpoint that is named, or the one of a root that ``resolve`` names.

    Without ``out`` the result goes under its name into a root beside the root, so that a job of
    another size has a root of its own. Raises what ``resolve`` and ``reshard`` raise.
    """
    target = open_target(named, options.framework)
    chosen: Resolution | None = None
    if target.single:
        source = address(target.store, target.one().path)
    else:
        asked = ResolveOptions(workers=options.workers)
        chosen = resolve(target.store, options=asked, progress=progress, places=target.places)
        source = chosen.path
    goal = out or _beside(target, source, options.request.world_size)
    try:
        result = reshard(source, goal, options=options, progress=progress)
    except DecisionNeeded as needed:
        raise DecisionNeeded(replace(needed.resharding, chosen=chosen)) from None
    return replace(result, chosen=chosen)


def _beside(target: Target[Store], source: str, world_size: int) -> str:
    root, name = split(source)
    if target.places[0].path:
        root = target.store.url
    if not root or not name:
        raise UsageError(f"{source} lies in no root that another could be beside; name `out`")
    root = absolute(root).rstrip("/")
    return f"{root}-w{world_size}/{name}"
