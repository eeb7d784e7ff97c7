"""The manifest of a resharded checkpoint: what its source was, and what was done with it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from ckptctl import protocol
from ckptctl.comparison.consequences import standard_facts
from ckptctl.dataclass import replace
from ckptctl.formats import registry
from ckptctl.model.acceptance import told
from ckptctl.model.checkpoint import rank_of
from ckptctl.model.manifest import Manifest
from ckptctl.model.run_facts import flatten
from ckptctl.operations.provenance.facts import Facts
from ckptctl.operations.publish.actor import actor, now
from ckptctl.operations.reshard.proof import Proof
from ckptctl.operations.reshard.source import Source
from ckptctl.operations.reshard.target import Target
from ckptctl.sharding.plan import Plan
from ckptctl.version import __version__

_OF_RANKS = ("world_size", "mesh.")


def manifest_of(
    target: Target,
    source: Source,
    facts: Facts,
    plan: Plan,
    proof: Proof,
    step: int | None,
    components: Mapping[str, list[int]],
) -> Manifest:
    """Describe the result; facts about the ranks that saved the source are not passed on."""
    before = source.manifest
    previous = protocol.read_pointer(target.store).decided
    identity = source.opened.checkpoint.identity
    files = sorted(target.record.files, key=lambda file: file.path)
    return Manifest(
        name=target.destination.name,
        step=step,
        files=tuple(replace(file, rank=rank_of(file.path), step=step) for file in files),
        commit_id=uuid.uuid4().hex,
        format=registry.SHARDED.name,
        run_id=before.run_id if before is not None else None,
        save_id=target.record.save_id,
        world_size=plan.world_size,
        torch=identity.torch_versions,
        time=now(),
        actor=actor(),
        tool=f"ckptctl {__version__}",
        identity=_passed_on(before.identity if before is not None else facts.identity),
        progress=dict(before.progress if before is not None else facts.progress),
        components=components,
        previous=previous.target if previous is not None else None,
        provenance={
            "resharded_from": {
                "checkpoint": source.opened.url,
                "manifest": before.digest if before is not None else None,
                "save_id": identity.save_id,
                "plan": plan.digest,
                "mesh": plan.mesh,
                "policies": dict(plan.policies),
                "dropped": list(plan.dropped),
                "lost": list(lost_in(plan, source)),
                "accepted": [told(one) for one in source.accepted],
                "tensors": proof.tensors_digest,
                "proof": {"by": proof.by.value, "covers": proof.covers},
                "tool": f"ckptctl {__version__}",
            }
        },
    )


def lost_in(plan: Plan, source: Source) -> tuple[str, ...]:
    """Return what damage took of what the plan takes over; what is left out as asked is no loss."""
    return tuple(sorted(source.lost.difference(plan.dropped)))


def _passed_on(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out facts that hold for the ranks of the source only."""
    flat = flatten(identity)
    stale = {
        name
        for standard, (_, name) in standard_facts(flat).items()
        if standard.startswith(_OF_RANKS)
    }
    return {name: value for name, value in flat.items() if name not in stale}
