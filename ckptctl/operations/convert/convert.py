"""``ckptctl convert``: another file format, streamed tensor by tensor, and compared afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ckptctl.errors import Findings, Refused, StorageError, UsageError
from ckptctl.formats.items.casting import CASTABLE
from ckptctl.model.checkpoint import TensorEntry
from ckptctl.model.finding import Severity
from ckptctl.operations.content.digest import ObjectDigest, TensorDigest, digest_content
from ckptctl.operations.content.open import Opened, open_tensors
from ckptctl.operations.convert.dcp import to_dcp
from ckptctl.operations.convert.options import (
    CastTensor,
    Conversion,
    ConvertOptions,
    LeftOut,
    Reading,
    TargetTensor,
)
from ckptctl.operations.convert.safetensors import to_safetensors
from ckptctl.operations.convert.torch import to_torch
from ckptctl.operations.progress import Progress, Silent
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verdict, verify

FORMATS = ("safetensors", "torch", "dcp")


def convert(
    url: str,
    out: str,
    *,
    to: str,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Write the tensors of a checkpoint in another format, read them back and compare.

    Raises ``Findings`` for a source that is not whole (10) and for a result that is not what was
    read, ``Refused`` for an occupied destination or one without room, ``UsageError`` for names
    that collide.
    """
    options = options or ConvertOptions()
    if options.dtype and options.dtype not in CASTABLE:
        raise UsageError(f"`dtype` takes one of {', '.join(CASTABLE)}, not {options.dtype}")
    opened = _open(url, options)
    names = options.selection.names(opened.checkpoint.entries)
    left_out = _damaged(opened, names, options)
    names = {fqn: name for fqn, name in names.items() if fqn not in {o.fqn for o in left_out}}
    writer = {"safetensors": to_safetensors, "torch": to_torch, "dcp": to_dcp}.get(to)
    if writer is None:
        raise UsageError(f"`to` takes one of {', '.join(FORMATS)}, not {to!r}")
    entries = opened.checkpoint.entries
    if to == "safetensors" and not any(isinstance(entries[fqn], TensorEntry) for fqn in names):
        raise Refused(f"{url}: it holds no tensor, and safetensors hold nothing else")
    with opened.source() as source:
        reading = Reading(source, progress or Silent())
        result, tensors = writer(opened, out, names, options, reading, left_out)
    if options.dry_run:
        return result
    proof = _prove(result, tensors, reading, options)
    return replace(result, casts=_casts(tensors, reading), proof=proof)


def _open(url: str, options: ConvertOptions) -> Opened:
    """Open the source and check its structure; the content is checked as it is read."""
    opened = open_tensors(url, options.framework)
    problems = [f"{f.where.file or ''}: {f.message}" for f in opened.serious]
    place = opened.place
    if place is not None and place.readable:
        work = Options(quick=True, workers=options.workers)
        outcome = verify(opened.store, place, options=work)
        problems = [
            f"{f.check}: {f.where.file or ''}: {f.message}"
            for f in outcome.report.findings
            if f.severity is Severity.ERROR
        ]
        if outcome.verdict is Verdict.UNFINISHED and not options.force:
            raise StorageError(f"{url}: {outcome.why}")
    if problems and not options.force:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise Findings(
            f"{url} is not whole, so nothing was written: {problems[0]}{more}; `force` takes what "
            "the damage does not touch"
        )
    return opened


def _damaged(opened: Opened, names: Mapping[str, str], options: ConvertOptions) -> list[LeftOut]:
    """With ``force``, find the keys that the damage touches by reading everything once."""
    if not options.force:
        return []
    content = digest_content(opened, workers=options.workers)
    rows: tuple[TensorDigest | ObjectDigest, ...] = (*content.tensors, *content.objects)
    return [LeftOut(r.fqn, f"damaged: {r.problem}") for r in rows if r.problem and r.fqn in names]


def _prove(
    result: Conversion,
    tensors: list[TargetTensor],
    reading: Reading,
    options: ConvertOptions,
) -> str:
    """Read the result back and compare each tensor with what was read from the source."""
    written = open_tensors(result.out)
    content = digest_content(written, workers=options.workers)
    found = {row.fqn: row for row in content.tensors}
    expected = {t.name: (t.dtype, t.shape, reading.digests.get(t.name, "")) for t in tensors}
    wrong = [
        name
        for name, facts in expected.items()
        if name not in found or (found[name].dtype, found[name].shape, found[name].digest) != facts
    ]
    wrong += [name for name in found if name not in expected]
    objects = {row.fqn: row.digest for row in content.objects}
    wrong += [name for name, digest in reading.objects.items() if objects.get(name) != digest]
    if wrong or written.serious or bool(content.tensors and not content.tensors_digest):
        raise Findings(
            f"{result.out}: what was written is not what was read ({', '.join(wrong[:4])}): do "
            "not use it, and look at the storage"
        )
    return content.tensors_digest


def _casts(tensors: list[TargetTensor], reading: Reading) -> tuple[CastTensor, ...]:
    rows = []
    for tensor in tensors:
        loss = reading.losses.get(tensor.name)
        if loss is not None:
            rows.append(
                CastTensor(tensor.fqn, tensor.before, tensor.dtype, loss.error, loss.overflowed)
            )
    return tuple(rows)


Writer = Callable[
    [Opened, str, Mapping[str, str], ConvertOptions, Reading, list[LeftOut]],
    tuple[Conversion, list[TargetTensor]],
]
