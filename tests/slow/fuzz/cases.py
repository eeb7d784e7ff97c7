"""What a target of the fuzzer is, and what an input may come to."""

from __future__ import annotations

import io
import random
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ckptctl.errors import CkptctlError
from ckptctl.exit_codes import ExitCode
from ckptctl.formats.pickles.tensors import TensorRef
from ckptctl.model.finding import Severity
from ckptctl.operations.catalog.list import list_checkpoints
from ckptctl.operations.catalog.resolve import ResolveOptions, resolve
from ckptctl.operations.find import find
from ckptctl.operations.verify.verify import Options, Verdict, Verification, verify
from slow.fuzz.guard import LAST, MODULE, Guard, Refuses
from slow.fuzz.memory import MemoryStore

MOST = 1 << 20
"""Bytes of a tensor above which its values are not compared."""

OPTIONS = Options(workers=1, values=True)


class Difference(Exception):
    """The tool was silent where torch or a library does otherwise; ``kind`` is what to count by."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind


class Target:
    """One kind of input: seeds, how they are changed, and what is asked of the tool and the oracle.

    ``judge`` returns a word for what an input came to. It raises ``Difference`` for a fault; any
    other exception, a signal, or a limit on processor time or memory that is reached, is one too.
    """

    name = ""

    def make(self, rng: random.Random) -> tuple[str, bytes]:
        """Return one input: which seed it was made of, and the bytes."""
        raise NotImplementedError

    def judge(self, slot: str, data: bytes) -> str:
        """Ask the tool, and the oracle where the tool is content."""
        raise NotImplementedError

    def pieces(self, data: bytes) -> tuple[list[bytes], Any]:
        """Take an input apart for minimising: pieces, and what puts some of them together."""
        return [data[at : at + 1] for at in range(len(data))], b"".join


def verified(files: Mapping[str, bytes]) -> list[Verification]:
    """Verify everything that is found in a tree."""
    store = MemoryStore(files)
    return [verify(store, place, options=OPTIONS) for place in find(store)]


def objections(found: Iterable[Verification], least: Severity = Severity.WARNING) -> list[str]:
    """Return why a reader would not take the checkpoints for good."""
    said: list[str] = []
    for one in found:
        said += [f"{f.check}: {f.message}" for f in one.report.findings if f.severity >= least]
        if one.verdict not in (Verdict.OK, Verdict.UNVERIFIED):
            said.append(str(one.verdict))
    return said


def gaps(found: Iterable[Verification]) -> list[str]:
    """Return what the tool says it did not look at."""
    rows = (row for one in found for row in one.report.coverage)
    return [f"{gap.kind.value}: {gap.reason}" for row in rows for gap in row.gaps]


def looked_at(files: Mapping[str, bytes]) -> list[Verification]:
    """Ask every question of a tree that a launcher or a person on call would ask of it."""
    store = MemoryStore(files)
    found = [verify(store, place, options=OPTIONS) for place in find(store)]
    for options in (ResolveOptions(workers=1), ResolveOptions(workers=1, allow_uncommitted=True)):
        try:
            resolve(store, options=options)
        except CkptctlError as error:
            _must_have_code(error)
    try:
        list_checkpoints(store, check=True)
    except CkptctlError as error:
        _must_have_code(error)
    return found


def glanced_at(files: Mapping[str, bytes]) -> None:
    """Ask what costs little: what there is, by listing it."""
    try:
        list_checkpoints(MemoryStore(files), check=True)
    except CkptctlError as error:
        _must_have_code(error)


def _must_have_code(error: CkptctlError) -> None:
    if error.exit_code == ExitCode.FAILED:
        raise Difference("an error without an exit code", repr(error))


def torch_loads(data: bytes, *, weights_only: bool) -> tuple[object, Guard | None]:
    """Return what torch makes of a file, nothing foreign being imported or called."""
    LAST.clear()
    if b"constants.pkl" in data and not weights_only:
        raise Refuses("a TorchScript archive, which torch hands to its own loader")
    if weights_only:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True), None
    options: dict[str, Any] = {"pickle_module": MODULE, "weights_only": False}
    found = torch.load(io.BytesIO(data), map_location="cpu", **options)
    return found, LAST[-1] if LAST else None


def refusal(error: Exception) -> Difference:
    """Return the difference that torch refuses what the tool takes; its kind has no particulars."""
    words = str(error).strip().replace("\n", " ")
    if "WeightsUnpickler error: " in words:
        words = words.partition("WeightsUnpickler error: ")[2].strip()
    words = words.partition(" This is an internal miniz")[0].partition("] . ")[2] or words
    kind = " ".join(re.sub(r"[^a-zA-Z_]+", " ", words).split()[:3])
    return Difference(f"torch refuses: {type(error).__name__}: {kind}", words[:200])


def numbers_of(tensor: torch.Tensor) -> bytes | None:
    """Return the row-major bytes of a tensor, None where there are too many to compare."""
    if tensor.layout is not torch.strided or tensor.numel() * tensor.element_size() > MOST:
        return None
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if not plain.numel():
        return b""
    flat = torch.empty(plain.numel(), dtype=plain.dtype).copy_(plain.reshape(-1))
    return booleans(bytes(flat.view(torch.uint8).numpy()), str(tensor.dtype))


def booleans(data: bytes, dtype: str) -> bytes:
    """Return the bytes with one spelling of what is true; of other dtypes as they are."""
    return bytes(map(bool, data)) if dtype.endswith("bool") else data


def same(
    ours: object, theirs: object, depth: int = 0, seen: set[tuple[int, int]] | None = None
) -> bool:
    """Tell whether a value that the tool shows is torch's; what it only describes is any."""
    if type(ours).__name__ in ("Described", "Opaque") or depth > 60:
        return True
    seen = set() if seen is None else seen
    if (id(ours), id(theirs)) in seen:
        return True
    if isinstance(ours, dict | list | tuple):
        seen.add((id(ours), id(theirs)))
    if isinstance(theirs, torch.Tensor):
        if isinstance(ours, TensorRef):  # of a tuple, which is not taken apart
            return ours.shape == tuple(theirs.shape)
        return type(ours) in (int, float, bool) and theirs.numel() == 1
    if isinstance(ours, float) and isinstance(theirs, float):
        return struct.pack("<d", ours) == struct.pack("<d", theirs) or ours != ours != theirs
    if isinstance(ours, dict) and isinstance(theirs, dict):
        # a key that is only described may stand for any
        if any(type(key).__name__ == "Described" for key in ours) or len(ours) != len(theirs):
            return len(ours) <= len(theirs)
        return all(
            same(a, b, depth + 1, seen) and same(ours[a], theirs[b], depth + 1, seen)
            for a, b in zip(ours, theirs, strict=True)
        )
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(
            same(a, b, depth + 1, seen) for a, b in zip(ours, theirs, strict=True)
        )
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    if isinstance(ours, int | str | bytes | None) and isinstance(theirs, int | str | bytes | None):
        return type(ours) is type(theirs) and ours == theirs
    return True  # of kinds that have no plain form
