"""How far a verification looks."""

from __future__ import annotations

from ckptctl.completeness.audit import Wanted
from ckptctl.dataclass import dataclass, field, replace
from ckptctl.model.finding import Gap, GapKind, Severity
from ckptctl.operations.verify.accepting import Accepting


@dataclass(frozen=True, slots=True)
class Options:
    """How far to look.

    ``quick`` stops before payload bytes; ``sample`` reads that share of the items' contents,
    ``part`` the k-th of n equal shares. ``select`` and ``ignore`` hold check ids. With
    ``require_manifest`` a checkpoint that was never committed is a finding. ``sizes_only`` trusts
    the sizes of files larger than a megabyte where a manifest states them, and looks no further.
    With ``values`` the numbers in tensors are looked at as their bytes stream by. ``wanted`` says
    which components must be there, ``accepting`` what is accepted in spite of a check. ``workers``
    are as many as suit the store, unless told otherwise.
    """

    quick: bool = False
    sample: float | None = None
    part: tuple[int, int] | None = None
    workers: int | None = None
    select: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()
    fail_on: Severity = Severity.ERROR
    require_manifest: bool = False
    sizes_only: bool = False
    values: bool = False
    wanted: Wanted = field(default_factory=Wanted)
    accepting: Accepting = field(default_factory=Accepting)

    def with_workers(self, workers: int) -> Options:
        """Return the same options with another number of threads."""
        return replace(self, workers=workers)

    def asks(self, check: str) -> bool:
        """Tell whether a check is to be asked."""
        return check not in self.ignore and (not self.select or check in self.select)

    @property
    def left_out(self) -> Gap:
        """Why the content of an item is not read."""
        reason = "outside the sample" if self.sample is not None else "outside the part"
        return Gap(GapKind.LEFT_OUT, "left out by `quick`" if self.quick else reason)
