"""``ckptctl convert``: another file format, streamed tensor by tensor, and compared afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ckptctl import protocol
from ckptctl.dataclass import replace
from ckptctl.errors import Findings, MalformedData, Refused, StorageError, Unsupported, UsageError
from ckptctl.formats.items.casting import CASTABLE
from ckptctl.model.acceptance import Acceptance
from ckptctl.model.checkpoint import TensorEntry
from ckptctl.model.finding import Finding, GapKind, Severity
from ckptctl.model.manifest import Manifest
from ckptctl.model.paths import join
from ckptctl.operations.content.digest import (
    ObjectDigest,
    TensorDigest,
    bytes_of,
    digest_content,
)
from ckptctl.operations.content.open import Opened, open_tensors
from ckptctl.operations.content.proof import Expected, ProofBy, read_back
from ckptctl.operations.content.segments import Log
from ckptctl.operations.content.unread import unproven_sources, unread_files
from ckptctl.operations.convert.dcp import to_dcp
from ckptctl.operations.convert.options import (
    CastTensor,
    Conversion,
    ConvertOptions,
    LeftOut,
    Prepared,
    Reading,
    TargetTensor,
)
from ckptctl.operations.convert.safetensors import to_safetensors
from ckptctl.operations.convert.torch import to_torch
from ckptctl.operations.convert.unreadable import Unread, unreadable
from ckptctl.operations.located import Located
from ckptctl.operations.progress import Progress, Silent
from ckptctl.operations.publish.actor import actor, now
from ckptctl.operations.reshard.destination import (
    Destination,
    kept_on_interrupt,
    look,
    need_space,
    publish,
)
from ckptctl.operations.reshard.target import Target, begin
from ckptctl.operations.reshard.touched import Damage, damage_of
from ckptctl.operations.verify.accepting import way_round
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verdict, examine, verification_of
from ckptctl.sharding.record import CONVERTED, ConvertedRecord
from ckptctl.version import __version__
from ckptctl.words import listed

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

    Raises ``Findings`` for a source that is not whole, or holds what cannot be read (10), and for a
    result that is not what was read, ``Refused`` for an occupied destination or one without room,
    ``UsageError`` for names that collide. Nothing has the destination's name before it is proven.
    """
    options = options or ConvertOptions()
    if options.dtype and options.dtype not in CASTABLE:
        raise UsageError(f"`dtype` takes one of {', '.join(CASTABLE)}, not {options.dtype}")
    writer = _WRITERS.get(to)
    if writer is None:
        raise UsageError(f"`to` takes one of {', '.join(FORMATS)}, not {to!r}")
    opened, damage, accepted = _open(url, options)
    names = options.selection.names(opened.checkpoint.entries)
    unproven = unproven_sources(opened, _manifest(opened))
    found = look(out, resume=options.resume, overwrite=options.overwrite, single=to == "torch")
    with opened.source() as source:
        by = options.proof or _fitting(opened, names, to)
        source.log = Log() if by is ProofBy.CRC else None
        reading = Reading(source, progress or Silent(), by)
        layouts = accepted.pop("layouts")
        unread = _unreadable(opened, names, reading, options, layouts=layouts)
        left_out = [LeftOut(fqn, why) for fqn, why in unread.all.items()]
        lost = _damaged(opened, names, damage, left_out, options) if options.force else []
        left_out += lost
        gone = {one.fqn for one in left_out}
        entries = opened.checkpoint.entries
        tensors = [fqn for fqn in names if isinstance(entries[fqn], TensorEntry)]
        lost += [one for one in left_out if one.fqn in unread.unsupported.keys() & set(tensors)]
        names = {fqn: name for fqn, name in names.items() if fqn not in gone}
        prepared = writer(opened, out, names, options, reading, left_out)
        _some_tensor(prepared, left_out, unread, options, had=bool(tensors))
        left_out.extend(LeftOut(path, why) for path, why in unread_files(opened).items())
        result = replace(prepared.result, left_out=tuple(left_out), proven_by=by.value, **accepted)
        there = sum(one.size for one in found.entries)
        need_space(found.store, max(0, result.size - there))
        if options.dry_run:
            return result
        target, _ = begin(found, prepared.plan, prepared.files, overwrite=options.overwrite)
        with kept_on_interrupt(found):
            try:
                written = prepared.write(target)
            except Unsupported as error:
                raise Unsupported(f"{error}; nothing was written") from None
            except MalformedData as error:
                raise Findings(
                    f"{error}; nothing was written; `force` leaves out what cannot be read"
                ) from None
            expected = Expected(
                {tensor.name: reading.held[tensor.name] for tensor in prepared.tensors},
                reading.objects,
                more=prepared.single,
            )
            proof = _prove(found, expected, options)
            result = replace(
                result,
                covers=expected.covers,
                size=written.size,
                outputs=written.outputs,
                casts=_casts(prepared.tensors, reading),
                proof=proof,
                unchecked=(*unproven, *sorted(source.unchecked & names.keys())),
            )
            _finish(target, found, result, lost)
    return result


def _manifest(opened: Opened) -> Manifest | None:
    records = opened.place.records if opened.place is not None else opened.base
    try:
        return protocol.read_manifest(opened.store, records)
    except MalformedData:
        return None  # what is promised is not known, so that nothing is proven by it


def _open(url: str, options: ConvertOptions) -> tuple[Opened, Damage, dict[str, Any]]:
    """Open the source and check its structure; the content is checked as it is read.

    Return it with what damage touches, and with what of it is accepted, as a result says that.
    """
    opened = open_tensors(url, options.framework)
    problems = [f"{f.where.file or ''}: {f.message}" for f in opened.serious]
    damage: Damage | None = Damage()
    place, accepting = opened.place, options.accepting
    findings: tuple[Finding, ...] = ()
    recorded: tuple[Acceptance, ...] = ()
    way = ""
    not_interpreted = False
    if place is not None and place.readable:
        asked = Options(quick=True, workers=options.workers, accepting=accepting)
        work = examine(Located(opened.store, place), asked)
        outcome = verification_of(work)
        findings = outcome.report.findings
        gaps = (gap for row in outcome.report.coverage for gap in row.gaps)
        not_interpreted = any(gap.kind is GapKind.NOT_INTERPRETED for gap in gaps)
        manifest = work.context.seal.manifest
        recorded = manifest.accepted if manifest is not None else ()
        errors = [f for f in findings if f.severity is Severity.ERROR]
        way = way_round(errors)
        problems = [f"{f.check}: {f.where.file or ''}: {f.message}" for f in errors]
        damage = damage_of(errors, opened.checkpoint)
        if outcome.verdict is Verdict.UNFINISHED and not options.force:
            raise StorageError(f"{url}: {outcome.why}")
    if problems and not options.force:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise Findings(
            f"{url} is not whole, so nothing was written: {problems[0]}{more}; `force` takes what "
            f"the damage does not touch{way}"
        )
    accepted = (*recorded, *accepting.acceptances(findings))
    told = {
        "accepted": accepted,
        "unmatched": accepting.unmatched(findings),
        "layouts": not_interpreted,
    }
    return opened, damage or Damage(), told


def _unreadable(
    opened: Opened,
    names: Mapping[str, str],
    reading: Reading,
    options: ConvertOptions,
    *,
    layouts: bool,
) -> Unread:
    """Find what cannot be taken over, before anything is written.

    Raises ``Findings`` for damage without ``force``, and for anything else with ``strict``.
    """
    found = unreadable(reading.source, names, layouts=layouts)
    for strange, ends, way in (
        (found.damaged, not options.force, "`force` leaves such keys out and names them, "),
        (found.unsupported, options.strict, "without `strict` such keys are left out and named, "),
    ):
        if strange and ends:
            fqn, why = next(iter(strange.items()))
            more = f" (and {len(strange) - 1} more keys)" if len(strange) > 1 else ""
            raise Findings(
                f"{opened.url}: {fqn}: {why}{more}; nothing was written; {way}`exclude` chooses what "
                "to leave"
            )
    return found


def _damaged(
    opened: Opened,
    names: Mapping[str, str],
    damage: Damage,
    unreadable: list[LeftOut],
    options: ConvertOptions,
) -> list[LeftOut]:
    """Find what damage takes of the rest, reading all of it."""
    known = {one.fqn for one in unreadable}
    touched = "damaged: what was found wrong touches it"
    found = [LeftOut(fqn, touched) for fqn in names if fqn in damage.keys - known]
    found += [LeftOut(one, "lost: no key says what lay there") for one in sorted(damage.unnamed)]
    content = digest_content(opened, workers=options.workers)
    rows: tuple[TensorDigest | ObjectDigest, ...] = (*content.tensors, *content.objects)
    known |= {one.fqn for one in found} | opened.checkpoint.values.keys()
    problems = {r.fqn: r.problem for r in rows if r.problem and not r.unsupported}
    problems = {fqn: why for fqn, why in problems.items() if fqn in names}
    found += [LeftOut(f, f"damaged: {p}") for f, p in problems.items() if f not in known]
    return found


def _some_tensor(
    prepared: Prepared,
    left_out: list[LeftOut],
    unread: Unread,
    options: ConvertOptions,
    *,
    had: bool,
) -> None:
    """Refuse to write a result without any tensor, unless that is what was asked for."""
    if prepared.tensors:
        return
    url = prepared.result.source
    names = listed([f"{one.fqn}: {one.reason}" for one in left_out], 2)
    more = f" ({names})" if names else ""
    if options.force:
        if had or prepared.result.to == "safetensors" or not prepared.result.values:
            raise Refused(f"{url}: `force` would leave no tensor{more}; nothing was written")
        return
    kind = Unsupported if unread.unsupported else Findings
    raise kind(f"{url}: the result would hold no tensor{more}; nothing was written")


def _finish(target: Target, found: Destination, result: Conversion, lost: list[LeftOut]) -> None:
    """Say what was written, beside it, and give it its name."""
    if not found.single:
        record = ConvertedRecord(
            source=result.source,
            to=result.to,
            files=tuple(sorted(target.record.files, key=lambda file: file.path)),
            tensors=result.proof,
            proof={"by": result.proven_by, "covers": result.covers},
            left_out=tuple(one.fqn for one in result.left_out),
            lost=tuple(one.fqn for one in lost),
            accepted=result.accepted,
            time=now(),
            actor=actor(),
            tool=f"ckptctl {__version__}",
        )
        target.store.put(join(target.base, CONVERTED), record.encode())
    target.store.make_durable(join(target.base, path) for path in target.done)
    publish(found)


def _fitting(opened: Opened, names: Mapping[str, str], to: str) -> ProofBy:
    """Choose the proof: by digest, unless that would read much of the source once more."""
    if to != "dcp":
        return ProofBy.DIGEST  # whole tensors are read to be written
    entries = (opened.checkpoint.entries[fqn] for fqn in names)
    size = sum(bytes_of(entry) for entry in entries if isinstance(entry, TensorEntry))
    return ProofBy.fitting(committed=_manifest(opened) is not None, size=size)


def _prove(found: Destination, expected: Expected, options: ConvertOptions) -> str:
    """Read the result back and compare each tensor with what was read from the source."""
    written = open_tensors(found.written)
    content, differing = read_back(written, expected, workers=options.workers)
    wrong = [fqn for fqn, _ in differing]
    if wrong or written.serious or bool(content.tensors and not content.tensors_digest):
        raise Findings(
            f"{found.url}: what was written is not what was read ({', '.join(wrong[:4])}): nothing "
            "was made of it; look at the storage"
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
    [Opened, str, Mapping[str, str], ConvertOptions, Reading, list[LeftOut]], Prepared
]

_WRITERS: Mapping[str, Writer] = {
    "safetensors": to_safetensors,
    "torch": to_torch,
    "dcp": to_dcp,
}
