"""What the ways of converting have in common: options, result, and tensors read once for writing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock

from ckptctl.formats.items.casting import Loss, cast, castable
from ckptctl.formats.safetensors.writer import Line
from ckptctl.hashing import Hasher
from ckptctl.model.checkpoint import TensorEntry
from ckptctl.model.dtypes import item_size
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH
from ckptctl.operations.content.open import Opened
from ckptctl.operations.content.selection import Selection
from ckptctl.operations.content.tensors import TensorSource
from ckptctl.operations.progress import Progress
from ckptctl.operations.verify.options import Options


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """What is converted and how; ``largest`` is bytes of a safetensors file.

    ``world_size`` is for DCP, ``framework`` the layout of the source where that is to be forced. ``dtype`` is what floats are cast to, the empty string for none. With
    ``force`` damaged tensors are left out and named instead of refusing the whole.
    """

    selection: Selection = field(default_factory=Selection)
    dtype: str = ""
    largest: int = 5 * 10**9
    world_size: int = 1
    force: bool = False
    dry_run: bool = False
    framework: str = ""
    workers: int = field(default_factory=lambda: Options().workers)


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
    over all tensors of the result, read back and equal to what was read.
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
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class TargetTensor(Line):
    """A tensor of the result: where it comes from, and the dtype that it has there."""

    fqn: str = ""
    before: str = ""


@dataclass(slots=True)
class Reading:
    """Tensors read once, for writing: cast on the way, and digested as they are written.

    ``objects`` holds the digests of objects that were written as items of their own.
    """

    source: TensorSource
    progress: Progress
    digests: dict[str, str] = field(default_factory=dict)
    losses: dict[str, Loss] = field(default_factory=dict)
    objects: dict[str, str] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def blocks(self, tensor: TargetTensor) -> Iterator[memoryview]:
        """Yield a tensor's bytes as they are to be written."""
        hasher, loss = Hasher(), Loss()
        found = self.source.read(tensor.fqn)
        if tensor.before != tensor.dtype:
            found = cast(found, tensor.before, tensor.dtype, loss)
        for block in found:
            hasher.update(block)
            with self._lock:
                self.progress.advance(len(block))
            yield block
        self.digests[tensor.name] = hasher.text()
        if tensor.before != tensor.dtype:
            self.losses[tensor.name] = loss


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
