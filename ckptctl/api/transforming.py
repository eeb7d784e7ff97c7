"""The verbs that write a checkpoint in another form: convert, reshard."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ckptctl.dataclass import replace

if TYPE_CHECKING:
    from ckptctl import results

Path = str | os.PathLike[str] | None


def convert(
    path: Path,
    out: str | os.PathLike[str],
    *,
    to: str,
    only: Iterable[str] = (),
    exclude: Iterable[str] = (),
    dtype: str = "",
    strip_prefix: Iterable[str] = (),
    rename: Mapping[str, str] | None = None,
    max_shard_size: int | str = "5GB",
    world_size: int = 1,
    force: bool = False,
    strict: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    accept: Iterable[str] = (),
    reason: str = "",
    workers: int | None = None,
    dry_run: bool = False,
    framework: str = "",
    proof: str = "",
    progress: results.Progress | None = None,
) -> results.Conversion:
    """Write tensors as ``safetensors``, ``torch`` or ``dcp``, read them back and compare.

    What there is no reader for is left out and named, with ``strict`` it is refused. ``force`` leaves out
    what is damaged; ``resume`` goes on from what the same
    conversion left unfinished, ``overwrite`` begins again, and replaces what ``convert`` wrote.
    ``accept`` takes the source in spite of what these checks find, for a ``reason`` that is recorded.
    ``proof`` is ``digest`` or ``crc``: what result and source are compared by; empty chooses.
    Raises ``Findings`` for a source that is not whole and for a result that is not what was read,
    ``Refused`` for a destination that is taken or has no room.
    """
    from ckptctl.formats.safetensors.writer import parse_size
    from ckptctl.operations import requests
    from ckptctl.operations.content.proof import ProofBy
    from ckptctl.operations.content.selection import Selection
    from ckptctl.operations.convert import convert as converting
    from ckptctl.operations.convert.options import ConvertOptions
    from ckptctl.operations.target import checkpoint_of, text_of

    prefixes = tuple((rename or {}).items())
    options = ConvertOptions(
        selection=Selection(tuple(only), tuple(exclude), tuple(strip_prefix), prefixes),
        dtype=dtype,
        largest=parse_size(str(max_shard_size)),
        world_size=world_size,
        force=force,
        strict=strict,
        resume=resume,
        overwrite=overwrite,
        dry_run=dry_run,
        framework=framework,
        accepting=requests.accepting_only(accept, reason, path=text_of(path)),
        proof=ProofBy.parse(proof),
    )
    if workers is not None:
        options = replace(options, workers=workers)
    target = os.fspath(out)
    return converting.convert(
        checkpoint_of(path, framework), target, to=to, options=options, progress=progress
    )


def reshard(
    path: Path = None,
    out: str | os.PathLike[str] | None = None,
    *,
    world_size: int,
    mesh: str = "",
    dim_rule: Iterable[str] = (),
    rng: str = "fail",
    data: str = "fail",
    resume: bool = False,
    overwrite: bool = False,
    force: bool = False,
    accept: Iterable[str] = (),
    reason: str = "",
    workers: int | None = None,
    dry_run: bool = False,
    framework: str = "",
    proof: str = "",
    progress: results.Progress | None = None,
) -> results.Resharding:
    """Write a checkpoint for another number of ranks, prove it equal, and commit it.

    Of a root it takes what ``resolve`` names; without ``out`` the result goes to a root beside the
    root, ``ROOT-wN``. ``rng`` takes keep, drop or fail, ``data`` also merge. ``accept`` takes the
    source in spite of what these checks find, for a ``reason`` that the result records. ``proof``
    is ``digest`` or ``crc``: what result and source are compared by; empty chooses. Raises
    ``DecisionNeeded`` where state kept per rank needs one, ``Refused`` where the destination is
    taken, ``Findings`` where the source does not verify; nothing is committed then.
    """
    from ckptctl.operations import requests
    from ckptctl.operations.content.proof import ProofBy
    from ckptctl.operations.reshard.named import request_of, reshard_named
    from ckptctl.operations.reshard.options import ReshardOptions
    from ckptctl.operations.target import text_of

    request = request_of(world_size, mesh=mesh, dim_rule=dim_rule, rng=rng, data=data)
    options = ReshardOptions(
        request,
        dry_run=dry_run,
        resume=resume,
        overwrite=overwrite,
        force=force,
        framework=framework,
        accepting=requests.accepting_only(accept, reason, path=text_of(path)),
        proof=ProofBy.parse(proof),
    )
    if workers is not None:
        options = options.with_workers(workers)
    target = None if out is None else os.fspath(out)
    return reshard_named(path, target, options=options, progress=progress)
