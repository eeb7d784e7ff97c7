"""The companions of a checkpoint that are text: they are read whole, for their form and what they state."""

from __future__ import annotations

from collections.abc import Collection

from ckptctl.checks import COMPANION_CHECKS, Context
from ckptctl.dataclass import replace
from ckptctl.errors import MalformedData, NotFound
from ckptctl.formats.companions import LARGEST, digests_in, read_json
from ckptctl.model.checkpoint import Fault, FaultKind
from ckptctl.model.companion import Companion, Form
from ckptctl.model.finding import Coverage, Gap, GapKind, Location, Stage
from ckptctl.operations.located import Located
from ckptctl.operations.verify.work import Work
from ckptctl.provenance.counters import stamps_beside
from ckptctl.provenance.evidence import Beside


class Companions:
    """Companions that are text: what their form is, and what they state. They have no CRC."""

    def run(self, work: Work) -> Work:
        """Read each of them; what does not fit is a finding, a silent storage a gap."""
        companions = work.context.checkpoint.companions
        chosen = [one for one in companions.values() if one.form is not Form.TORCH]
        if not companions:
            return work
        beside, gaps = Beside(), list[Gap]()
        for one in chosen:
            file = work.context.checkpoint.files[one.path]
            if file.is_file and file.size:
                beside, gap = _read(work.located, one, beside)
                gaps += [] if gap is None else [gap]
        manifest = work.context.seal.manifest
        promised = {record.path for record in manifest.files} if manifest is not None else set()
        loose = [path for path in beside.read if path not in promised]  # else a digest covers it
        gaps += [Gap(GapKind.FORM_ONLY, f"no CRC recorded: {path}") for path in loose]
        total = len(chosen) - (len(beside.read) - len(loose))
        rows = [Coverage(Stage.CONTENT, "texts", 0, total, gaps=tuple(gaps))] if total else []
        context = replace(work.context, beside=_placed(work.context, beside))
        return work.ask(COMPANION_CHECKS, context, rows, examined=True)


def _read(located: Located, one: Companion, beside: Beside) -> tuple[Beside, Gap | None]:
    try:
        with located.open(one.path) as reader:
            if reader.size > LARGEST:
                reason = f"{one.path}: {reader.size} bytes are more than is read of it"
                return beside, Gap(GapKind.NOT_INTERPRETED, reason)
            value = read_json(reader, one)
        if one.form is Form.DIGESTS:
            beside = replace(beside, digests=digests_in(value), source=one.path)
    except NotFound:
        fault = Fault(
            FaultKind.MALFORMED_COMPANION, "it vanished while it was read", Location(file=one.path)
        )
        return replace(beside, faults=(*beside.faults, fault)), None
    except MalformedData as error:
        where = Location(file=one.path)
        fault = Fault(FaultKind.MALFORMED_COMPANION, str(error), where, one.holds)
        return replace(beside, faults=(*beside.faults, fault)), None
    says = (*beside.says, *stamps_beside(one, value))
    return replace(beside, read=(*beside.read, one.path), says=says), None


def _placed(context: Context, beside: Beside) -> Beside:
    """Take digests of files that are there; one of a file that is not there is a fault."""
    files = context.checkpoint.files
    absent = [path for path in beside.digests if path not in files and path not in context.layouts]
    faults = tuple(
        Fault(
            FaultKind.MALFORMED_COMPANION,
            f"it has a digest of {path[:200]}, which is not there",
            Location(file=beside.source),
        )
        for path in absent
    )
    there = {path: digest for path, digest in beside.digests.items() if path in files}
    return replace(beside, digests=there, faults=(*beside.faults, *faults))


def weigh_digests(context: Context, faults: list[Fault], damaged: Collection[str]) -> list[Fault]:
    """Tell what a companion's digests that do not fit mean; ``damaged`` are files with other findings.

    Where they fit no file with tensors, they are of another save. Whoever changes the path in the
    metadata and in the one shard that has it too, as when a run is moved, leaves all CRCs right.
    """
    altered = {fault.where.file for fault in faults if fault.kind is FaultKind.ALTERED_FILE}
    source, hashed = context.beside.source, context.layouts.keys() & context.beside.digests.keys()
    if context.seal.manifest is not None or not altered or not hashed:
        return faults
    if altered >= hashed:
        message = (
            f"none of the {len(hashed)} files with tensors is the one that it has the digest of: it "
            "was written for another save, or they were"
        )
        rest = [fault for fault in faults if fault.where.file not in hashed]
        return [*rest, Fault(FaultKind.ALTERED_FILE, message, Location(file=source))]
    shards = altered & hashed
    metadata = set(context.checkpoint.sources)
    if len(shards) == 1 and altered == shards | metadata and not shards & set(damaged):
        return [
            replace(fault, kind=FaultKind.REWRITTEN_FILE) if fault.where.file in altered else fault
            for fault in faults
        ]
    return faults
