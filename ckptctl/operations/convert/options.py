"""What the ways of converting have in common: options, result, and tensors read once for writing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from threading import Event, Lock

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import Refused
from ckptctl.formats.items.casting import Loss, cast, castable
from ckptctl.formats.safetensors.writer import Line
from ckptctl.hashing import Hasher
from ckptctl.model.acceptance import Acceptance
from ckptctl.model.checkpoint import TensorEntry
from ckptctl.model.dtypes import item_size
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH
from ckptctl.operations.content.open import Opened
from ckptctl.operations.content.proof import Held, ProofBy, pieces_of
from ckptctl.operations.content.segments import Log
from ckptctl.operations.content.selection import Selection
from ckptctl.operations.content.tensors import TensorSource
from ckptctl.operations.progress import Progress
from ckptctl.operations.reshard.target import Target
from ckptctl.operations.verify.accepting import Accepting


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """What is converted and how; ``largest`` is bytes of a safetensors file.

    ``world_size`` is for DCP, ``framework`` the layout of the source where that is to be forced. ``dtype`` is what floats are cast to, the empty string for none. With
    ``force`` tensors that are damaged are left out and named instead of refusing the whole. What there
    is no reader for is left out and named without it; with ``strict`` the whole is refused. ``resume`` goes on from what the same conversion left unfinished, ``overwrite`` begins
    again, and replaces what ``convert`` wrote earlier. ``proof`` is what
    the result is compared by; None chooses.
    """

    selection: Selection = field(default_factory=Selection)
    dtype: str = ""
    largest: int = 5 * 10**9
    strict: bool = False
    world_size: int = 1
    force: bool = False
    resume: bool = False
    overwrite: bool = False
    dry_run: bool = False
    framework: str = ""
    accepting: Accepting = field(default_factory=Accepting)
    workers: int | None = None
    proof: ProofBy | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A key that the result does not have, and why."""

    fqn: str
    reason: str


@dataclass(frozen=True, slots=True)
class CastTensor:
    """A tensor that was cast: its largest absolute error, and values that became infinite."""

    fqn: str
    dtype: str
    target: str
    error: float
    overflowed: int


@dataclass(frozen=True, slots=True)
class Output:
    """One file of the result; ``size`` in bytes."""

    path: str
    size: int
    tensors: int


@dataclass(frozen=True, slots=True)
class Conversion(Answer):
    """What was written and proven; ``shared`` maps tensors kept once to the name they are kept under.

    ``unsafe`` names values that torch loads only with ``weights_only=False``. ``proof`` is the digest
    over all tensors of the result, read back and equal to what was read; ``proven_by`` is what they
    were compared by, and ``covers`` what that is over. ``unchecked`` are keys
    and files for which the source keeps no checksum, so that what was read may not be what was once
    written. ``accepted`` is what a person accepted of the source in spite of a check, ``unmatched``
    what was to be and fits no finding.
    """

    source: str = field(metadata=PATH)
    out: str = field(metadata=PATH)
    to: str
    tensors: int
    values: int
    size: int
    outputs: tuple[Output, ...]
    left_out: tuple[LeftOut, ...] = ()
    casts: tuple[CastTensor, ...] = ()
    shared: Mapping[str, str] = field(default_factory=dict)
    unsafe: tuple[str, ...] = ()
    proof: str = ""
    proven_by: str = ""
    covers: str = ""
    unchecked: tuple[str, ...] = ()
    dry_run: bool = False
    accepted: tuple[Acceptance, ...] = ()
    unmatched: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetTensor(Line):
    """A tensor of the result: where it comes from, and the dtype that it has there."""

    fqn: str = ""
    before: str = ""


@dataclass(slots=True)
class Reading:
    """Tensors read once, for writing: cast on the way, and noted as they are written.

    ``held`` is what each tensor of the result must hold, ``objects`` the digests of objects that
    were written as items of their own. What is cast is compared by its digest, whatever ``by`` is.
    """

    source: TensorSource
    progress: Progress
    by: ProofBy = ProofBy.DIGEST
    held: dict[str, Held] = field(default_factory=dict)
    losses: dict[str, Loss] = field(default_factory=dict)
    objects: dict[str, str] = field(default_factory=dict)
    stopped: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)

    def blocks(self, tensor: TargetTensor) -> Iterator[memoryview]:
        """Yield a tensor's bytes as they are to be written."""
        loss, cut = Loss(), self._by_pieces(tensor)
        hasher = None if cut else Hasher()
        found = self.source.read(tensor.fqn)
        if tensor.before != tensor.dtype:
            found = cast(found, tensor.before, tensor.dtype, loss)
        for block in found:
            if hasher is not None:
                hasher.update(block)
            if self.stopped.is_set():
                raise Refused("stopped")
            with self._lock:
                self.progress.advance(len(block))
            yield block
        if hasher is None:
            self.hold(tensor)
        else:
            self.held[tensor.name] = Held(tensor.dtype, tensor.shape, hasher.text())
        if tensor.before != tensor.dtype:
            self.losses[tensor.name] = loss

    def again(self, tensor: TargetTensor) -> None:
        """Learn what a tensor must hold that an earlier attempt has written."""
        if self._by_pieces(tensor):
            self.hold(tensor)
        else:
            for _ in self.blocks(tensor):
                pass

    def hold(self, tensor: TargetTensor, source: TensorSource | None = None) -> None:
        """Note the CRC-32s of the pieces that a tensor must hold, by what was read of them."""
        source = source or self.source
        pieces = pieces_of(source, source.log or Log(), tensor.fqn)
        self.held[tensor.name] = Held(tensor.dtype, tensor.shape, pieces=pieces)

    def _by_pieces(self, tensor: TargetTensor) -> bool:
        return (
            self.by is ProofBy.CRC
            and tensor.before == tensor.dtype
            and item_size(tensor.dtype) is not None
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """What one format would write, before anything is written.

    ``plan`` names it by a digest, so that an attempt can be told from others; ``files`` are those
    that it makes, and ``write`` makes them. ``single`` is a result that is one file.
    """

    result: Conversion
    tensors: list[TargetTensor]
    plan: str
    files: frozenset[str]
    write: Callable[[Target], Conversion]
    single: bool = False


def source_identity(opened: Opened) -> str:
    """Name a source for a plan: its files with their sizes and times."""
    hasher = hashlib.sha256()
    for path, file in sorted(opened.checkpoint.files.items()):
        hasher.update(f"{path}\0{file.size}\0{file.modified}\n".encode("utf-8", "replace"))
    return f"files:{hasher.hexdigest()}"


def plan_digest(opened: Opened, to: str, *parts: bytes) -> str:
    """Name what is to be written: by its source, and by what stands around the tensors' bytes."""
    hasher = hashlib.sha256(f"{source_identity(opened)}\n{to}\n".encode())
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little") + part)
    return f"sha256:{hasher.hexdigest()}"


def targets(
    opened: Opened,
    names: Mapping[str, str],
    dtype: str,
    writable: frozenset[str],
    left_out: list[LeftOut],
) -> list[TargetTensor]:
    """Return the tensors of the result in the source's order; what cannot be written is left out.

    ``names`` maps keys to the names they get, ``writable`` holds the dtypes of the target format.
    """
    found = []
    for fqn, name in names.items():
        entry = opened.checkpoint.entries[fqn]
        if not isinstance(entry, TensorEntry):
            continue
        target = dtype if dtype and castable(entry.dtype, dtype) else entry.dtype
        width = item_size(target)
        if target not in writable or width is None:
            left_out.append(LeftOut(fqn, f"the format has no dtype {target}"))
            continue
        size = entry.numel * width
        found.append(TargetTensor(name, target, entry.shape, size, fqn, entry.dtype))
    return found
