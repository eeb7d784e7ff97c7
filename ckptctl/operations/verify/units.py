"""The units of work of a verification: what one worker reads of one file, and why not the rest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from ckptctl.checks import Context
from ckptctl.dataclass import dataclass, field, replace
from ckptctl.hashing import algorithm_of
from ckptctl.model.checkpoint import Item
from ckptctl.model.companion import Form
from ckptctl.model.finding import Coverage, Gap, GapKind, Stage
from ckptctl.operations.verify.options import Options

SMALL_FILE = 1 << 20
"""Bytes up to which a file is hashed even by a quick look, where a manifest has its digest."""

_UNIT = 64 << 20


@dataclass(frozen=True, slots=True)
class Unit:
    """What one worker does: look at neighbouring items of a file, hash the file, or both at once.

    Without ``algorithm`` nothing is hashed. ``expected`` is the digest to compare with, and
    ``promised`` what promises it. ``within`` is how many items lie in the one that is looked at.
    """

    path: str
    items: tuple[Item, ...] = ()
    content: bool = False
    algorithm: str = ""
    expected: str = ""
    size: int = 0
    promised: str = ""
    within: int = 0

    @property
    def bytes(self) -> int:
        """Bytes that the worker reports as it goes."""
        if not self.items:
            return self.size
        return sum(item.length for item in self.items) if self.content else 0


@dataclass(frozen=True, slots=True)
class ToRead:
    """What is read, and an account of what is not; ``astray`` are items that a digest alone covers."""

    units: list[Unit]
    rows: list[Coverage]
    astray: list[Item] = field(default_factory=list)


def to_read(context: Context, options: Options) -> ToRead:
    """Choose what is read, and account for what is not: digests cover it, or it was left out."""
    manifest = context.seal.manifest
    if options.sample is not None or options.part is not None:
        return ToRead(item_units(context, options), [])
    if manifest is None:
        return _without_manifest(context, options)
    if not options.quick:
        if options.values:
            return _hashed_and_seen(context, options)
        units = [*_hashing_units(context), *_unpromised_items(context, options)]
        return ToRead(units, [_covered(context, "by file digests")])
    units = _hashing_units(context, largest=SMALL_FILE)
    omitted = len(manifest.files) - len(units)
    gap = replace(options.left_out, count=omitted)
    rows = [Coverage(Stage.CONTENT, "files", 0, omitted, gaps=(gap,))] if omitted else []
    if options.sizes_only:
        units += _unpromised_items(context, options)
        return ToRead(units, [*rows, _covered(context, "by sizes in the manifest")])
    return ToRead(units + item_units(context, options), rows)


def _without_manifest(context: Context, options: Options) -> ToRead:
    """Look at all items; where a companion has digests of files, hash these on the way."""
    if not context.beside.digests:
        return ToRead(item_units(context, options), [])
    if not options.quick:
        return _hashed_and_seen(context, options)
    units = _hashing_units(context, largest=SMALL_FILE)
    rows = []
    omitted = len(context.beside.digests) - len(units)
    if omitted > 0:
        gap = replace(options.left_out, count=omitted)
        rows.append(Coverage(Stage.CONTENT, "files", 0, omitted, gaps=(gap,)))
    return ToRead(units + item_units(context, options), rows)


def item_of(path: str, size: int) -> Item:
    """Describe a companion that ``torch.save`` wrote as what it is: one item that fills its file."""
    return Item("", None, path, 0, size)


def _companion_units(context: Context, options: Options) -> list[Unit]:
    """Return one unit for each companion that ``torch.save`` wrote and that has bytes."""
    files = context.checkpoint.files
    content = not options.quick and options.sample is None
    if options.part is not None:  # whoever does the first part does all of them
        content = options.part[0] == 1
    return [
        Unit(path, (item_of(path, files[path].size),), content, within=_within(context, path))
        for path, one in context.checkpoint.companions.items()
        if one.form is Form.TORCH and files[path].is_file and files[path].size
    ]


def _within(context: Context, path: str) -> int:
    """Count the items that lie in a file which is looked at as a whole."""
    layout = context.layouts.get(path) if context.checkpoint.enclosed(path) else None
    return 0 if layout is None else len(layout.indices)


def item_units(context: Context, options: Options) -> list[Unit]:
    """Cut the items that lie inside their files into units of work; companions are one each.

    Items of a file whose content is read make units of their own, in the order of their bytes: a
    sample would otherwise be cut into as many pieces as it has items.
    """
    units: list[Unit] = []
    chosen = _chooser(context, options)
    for path, size in context.present.items():
        if context.checkpoint.enclosed(path):
            continue  # with the companions
        runs: dict[bool, list[Item]] = {True: [], False: []}  # of which the content is read, or not
        lengths = {True: 0, False: 0}
        for index in context.layouts[path].indices:
            item = context.checkpoint.items[index]
            if item.end > size:
                continue
            content = chosen(index)
            if lengths[content] >= _UNIT:
                units.append(Unit(path, tuple(runs[content]), content))
                runs[content], lengths[content] = [], 0
            runs[content].append(item)
            lengths[content] += item.length
        units += [Unit(path, tuple(run), content) for content, run in runs.items() if run]
    return units + _companion_units(context, options)


def _hashing_units(context: Context, *, largest: int | None = None) -> list[Unit]:
    """Return one unit for each file of which a digest is promised and that has its size."""
    files, found = context.checkpoint.files, []
    for path, size, digest, by in _promises(context):
        file = files.get(path)
        if file is None or not file.is_file or size not in (None, file.size):
            continue
        if largest is None or file.size <= largest:
            algorithm = algorithm_of(digest)
            found.append(
                Unit(path, algorithm=algorithm, expected=digest, size=file.size, promised=by)
            )
    return found


def _promises(context: Context) -> Iterator[tuple[str, int | None, str, str]]:
    """Yield path, size and digest of files, and what promises them: a manifest or a companion."""
    manifest = context.seal.manifest
    for record in manifest.files if manifest else ():
        yield record.path, record.size, record.digest, "the manifest"
    for path, digest in context.beside.digests.items() if manifest is None else ():
        yield path, None, digest, context.beside.source


def _promised(context: Context) -> frozenset[str]:
    manifest = context.seal.manifest
    return frozenset(record.path for record in manifest.files) if manifest else frozenset()


def _unpromised_items(context: Context, options: Options) -> list[Unit]:
    """Return the items of files that the manifest leaves out: no digest covers them."""
    promised = _promised(context)
    if promised.issuperset(context.layouts):
        return []
    return [unit for unit in item_units(context, options) if unit.path not in promised]


def sealing_units(
    context: Context, options: Options, algorithm: str, files: Collection[str]
) -> list[Unit]:
    """Return one unit for each file, in which it is hashed and its items looked at in one pass.

    A file that holds more than its items is hashed by itself.
    """
    items: dict[str, list[Item]] = {}
    for unit in item_units(context, options):
        items.setdefault(unit.path, []).extend(unit.items)
    units: list[Unit] = []
    for path, file in context.checkpoint.files.items():
        if path in files:
            own = tuple(items.get(path, ()))
            within = _within(context, path)
            unit = Unit(path, own, content=True, algorithm=algorithm, size=file.size, within=within)
            if own and not _filled(context, unit):
                units.append(replace(unit, algorithm=""))
                unit = replace(unit, items=())
            units.append(unit)
    return units + _hashing_units(context)  # what a companion promises is compared as well


def _filled(context: Context, unit: Unit) -> bool:
    """Tell whether the items of a file are all of its bytes: then whoever reads them hashes it."""
    layout = context.layouts.get(unit.path)
    if layout is not None and not context.checkpoint.enclosed(unit.path):
        return layout.contiguous and layout.end == unit.size
    return len(unit.items) < 2 and sum(item.length for item in unit.items) in (0, unit.size)


def _hashed_and_seen(context: Context, options: Options) -> ToRead:
    """Hash files and look at their items in one pass.

    Where the metadata does not place items all over a file, the file is only hashed; what no
    digest is promised for is looked at without one.
    """
    items: dict[str, list[Item]] = {}
    loose = item_units(context, options)
    for unit in loose:
        items.setdefault(unit.path, []).extend(unit.items)
    units: list[Unit] = []
    astray: list[Item] = []
    hashed = _hashing_units(context)
    for unit in hashed:
        own = tuple(items.get(unit.path, ()))
        if _filled(context, replace(unit, items=own)):
            within = _within(context, unit.path)
            units.append(replace(unit, items=own, content=bool(own), within=within))
        else:
            units.append(unit)
            astray += own
    paths = {unit.path for unit in hashed}
    gap = Gap(GapKind.COVERED, "covered by file digests", len(astray))
    rows = [Coverage(Stage.ITEMS, "items", 0, len(astray), gaps=(gap,))] if astray else []
    return ToRead(units + [unit for unit in loose if unit.path not in paths], rows, astray)


def _chooser(context: Context, options: Options) -> Callable[[int], bool]:
    """Return what decides for each item, by its number, whether its content is read."""
    if options.sample is None and options.part is None:
        return lambda _: not options.quick
    order = [i for path in sorted(context.layouts) for i in context.layouts[path].indices]
    picked: set[int] = set()
    if options.sample is not None and order:
        count = max(1, round(options.sample * len(order)))
        import random

        picked.update(random.sample(order, min(count, len(order))))
    elif options.part is not None:
        number, parts = options.part
        lengths = context.checkpoint.items.lengths
        total, position = sum(lengths[i] for i in order), 0
        low, high = total * (number - 1) // parts, total * number // parts
        for index in order:
            if low <= position < high:
                picked.add(index)
            position += lengths[index]
    return picked.__contains__


def _covered(context: Context, how: str) -> Coverage:
    promised = _promised(context)
    count = context.structure.within_files(promised)
    gaps = (Gap(GapKind.COVERED, f"covered {how}", count),) if count else ()
    return Coverage(Stage.ITEMS, "items", 0, count, gaps=gaps)
