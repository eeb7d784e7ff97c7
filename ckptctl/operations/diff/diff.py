"""``ckptctl diff``: what tells two checkpoints apart, and what that means for a restart."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

from ckptctl.comparison.consequences import standard_facts
from ckptctl.comparison.difference import Diff, FailOn, SideSeen
from ckptctl.dataclass import dataclass, replace
from ckptctl.errors import MalformedData, UsageError
from ckptctl.model.manifest import Manifest
from ckptctl.model.names import parse_name
from ckptctl.model.run_facts import Plain
from ckptctl.operations.content.open import Opened, open_tensors
from ckptctl.operations.content.selection import need_matches
from ckptctl.operations.content.unread import files_apart
from ckptctl.operations.diff.content import Comparer, ContentSide, trusted_digests
from ckptctl.operations.diff.files import compare_files
from ckptctl.operations.diff.structure import compare_facts, compare_progress, compare_structure
from ckptctl.operations.place import split
from ckptctl.operations.progress import Progress
from ckptctl.operations.provenance.facts import Facts, facts_of, facts_of_values
from ckptctl.protocol import read_manifest


@dataclass(frozen=True, slots=True)
class DiffOptions:
    """How far to compare: ``only`` keys and facts of these patterns, ``quick`` without payload.

    With ``values`` the numbers of tensors that are not equal are compared as well. ``fail_on`` is the
    least difference that makes the verdict ``findings``.
    """

    only: tuple[str, ...] = ()
    quick: bool = False
    values: bool = False
    fail_on: FailOn = FailOn.ANY
    framework: str = ""
    workers: int | None = None

    def with_workers(self, workers: int) -> DiffOptions:
        """Return the same options with another number of threads."""
        return replace(self, workers=workers)

    @classmethod
    def of(
        cls, *, only: Iterable[str], quick: bool, values: bool, fail_on: str, framework: str
    ) -> DiffOptions:
        """Check what a user asked for; raises ``UsageError`` for what makes no sense."""
        if quick and values:
            raise UsageError("`values` reads payload and `quick` does not: choose one")
        known = [one.value for one in FailOn]
        if fail_on not in known:
            raise UsageError(f"`fail_on` takes one of {', '.join(known)}, not {fail_on!r}")
        return cls(tuple(only), quick, values, FailOn(fail_on), framework)

    def wants(self, name: str) -> bool:
        """Tell whether a key or a fact was asked for."""
        return not self.only or any(fnmatch.fnmatchcase(name, one) for one in self.only)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: opened, with its manifest and what is known of its run."""

    opened: Opened
    manifest: Manifest | None
    facts: Facts
    progress: dict[str, Plain]
    problems: tuple[str, ...]


def open_side(url: str, framework: str = "") -> Side:
    """Open a checkpoint of any format that is read, and gather what is known of its run.

    Raises ``NothingThere`` where there is none, ``MalformedData`` where its metadata is damaged.
    """
    opened = open_tensors(url, framework)
    if opened.serious:
        first = opened.serious[0]
        raise MalformedData(
            f"{url}: {first.where.file or 'its metadata'}: {first.message}; `ckptctl verify "
            f"{url}` says more"
        )
    problems: list[str] = []
    manifest: Manifest | None = None
    try:
        place = opened.place
        records = opened.base if place is None else place.records
        manifest = read_manifest(opened.store, records)
    except MalformedData as error:
        problems.append(f"it counts as not committed: {error}")
    facts = _facts(opened, manifest)
    progress = dict(facts.progress)
    step = parse_name(split(url)[1]).step
    if step is not None:
        progress.setdefault("step", step)
    return Side(opened, manifest, facts, progress, (*problems, *facts.problems))


def _facts(opened: Opened, manifest: Manifest | None) -> Facts:
    if opened.checkpoint.values:
        return facts_of_values(opened.checkpoint.values, "the file itself")
    return facts_of(opened.store, opened.base, opened.checkpoint, manifest)


def diff(
    a: str, b: str, *, options: DiffOptions | None = None, progress: Progress | None = None
) -> Diff:
    """Compare two checkpoints, of whatever formats and shardings.

    Raises ``NothingThere``, ``MalformedData`` or ``StorageError`` where one cannot be opened;
    damage of a single key is part of the answer.
    """
    options = options or DiffOptions()
    sides = [open_side(a, options.framework), open_side(b, options.framework)]
    one, other = sides
    need_matches(options.only, (name for side in sides for name in _names(side)))
    identity, compared = compare_facts(one.facts, other.facts, options.wants)
    structure, pairs = compare_structure(
        one.opened.checkpoint, other.opened.checkpoint, options.wants
    )
    with ExitStack() as stack:
        left, right = (_content(side, stack) for side in sides)
        comparer = Comparer(
            left, right, quick=options.quick, values=options.values, progress=progress
        )
        content = comparer.run(pairs, workers=options.workers)
    files = compare_files(one.opened, other.opened, options.wants, quick=options.quick)
    structure = replace(
        structure,
        removed=(*structure.removed, *files.removed),
        added=(*structure.added, *files.added),
        keys=structure.keys + len(files.removed) + len(files.rows) + files.equal,
        same=structure.same + len(files.rows) + files.equal,
    )
    content = replace(
        content,
        rows=(*content.rows, *files.rows),
        equal_objects=content.equal_objects + files.equal,
        objects=content.objects + len(files.rows) + files.equal,
    )
    seen_a, seen_b = _seen(sides)
    return Diff(
        a=seen_a,
        b=seen_b,
        identity=tuple(identity),
        compared_facts=compared,
        progress=tuple(compare_progress(one.progress, other.progress, options.wants)),
        structure=structure,
        content=content,
        quick=options.quick,
        fail_on=options.fail_on,
        not_compared=files.apart,
    )


def _names(side: Side) -> Iterator[str]:
    """Yield all names that a pattern may mean: keys, facts, counters, files."""
    yield from side.opened.checkpoint.entries
    yield from side.facts.identity
    yield from (name for name, _ in standard_facts(side.facts.identity).items())
    yield from side.progress
    yield from files_apart(side.opened)


def _content(side: Side, stack: ExitStack) -> ContentSide:
    source = stack.enter_context(side.opened.source())
    digests = trusted_digests(side.opened.checkpoint, side.manifest)
    return ContentSide(source, digests, side.opened.checkpoint.values)


def _seen(sides: Sequence[Side]) -> tuple[SideSeen, SideSeen]:
    def seen(side: Side) -> SideSeen:
        step = side.progress.get("step")
        checkpoint = side.opened.checkpoint
        return SideSeen(
            side.opened.url,
            checkpoint.format,
            step if isinstance(step, int) else None,
            side.manifest is not None,
            len(checkpoint.entries),
            side.problems,
        )

    return seen(sides[0]), seen(sides[1])
