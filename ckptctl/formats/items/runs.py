"""Which items of a file are read together, and how much at once, by what a read costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ckptctl.formats.items.bytes import RUN
from ckptctl.model.checkpoint import Item
from ckptctl.storage import Reader

_QUICK_RUN = 256 << 10
_QUICK_ITEM = 16 << 10


def block_of(reader: Reader) -> int:
    """Return the bytes of one read: what the store prefers, where it says so."""
    return int(getattr(reader, "block", RUN))


def is_distant(reader: Reader) -> bool:
    """Tell whether each read is a request, so that it is its number that counts."""
    return hasattr(reader, "block")


def limits_of(reader: Reader, *, content: bool, probe: bool) -> tuple[int, int]:
    """Return the bytes of the largest item that is read whole, and of the longest run.

    Where each read is a request, a quick look sends no more of them than one that reads all; a
    ``probe`` fetches no large item for the sake of its ends.
    """
    if is_distant(reader) and probe:
        return _QUICK_RUN, _QUICK_RUN
    block = block_of(reader)
    return (block, block) if content or is_distant(reader) else (_QUICK_ITEM, _QUICK_RUN)


def runs(
    items: Sequence[Item],
    limits: tuple[int, int],
    *,
    keeps: Callable[[Item], bool] = lambda _: False,
) -> Iterator[list[Item]]:
    """Group items, in the order of their bytes, into neighbours to be read together.

    ``limits`` are the bytes of the largest item that is read whole, and of the longest run.
    """
    largest, longest = limits
    run: list[Item] = []
    for item in items:
        small = item.length <= largest or keeps(item)
        if run and not (
            small and item.offset == run[-1].end and item.end - run[0].offset <= longest
        ):
            yield run
            run = []
        run.append(item)
        if not small:
            yield run
            run = []
    if run:
        yield run
