"""Reading pickles without running anything.

A pickle is a program. Here it can only build plain containers, numbers and strings, plus what a
table names; every other global becomes an inert ``Opaque`` that keeps its name and what it was
given. What is called must be in the table or on the list of ``allowed``.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from ckptctl.errors import TooLarge
from ckptctl.formats.budget import Budget
from ckptctl.formats.pickles.machine import Machine
from ckptctl.formats.pickles.shortcuts import Shortcuts
from ckptctl.formats.pickles.stand_ins import (
    Function,
    Opaque,
    Ordered,
    Sealed,
    Stateful,
    anatomy,
    attributes_of,
    opaque_class,
    ordered,
    size,
)

__all__ = [
    "Function",
    "Opaque",
    "Ordered",
    "Sealed",
    "Stateful",
    "anatomy",
    "attributes_of",
    "load",
    "no_collector",
    "opaque_class",
    "ordered",
    "size",
]

MAX_SIZE = 4 << 30
"""Bytes above which a pickle is refused: 20 million chunks of DCP metadata fit."""


def load(
    data: bytes,
    table: Mapping[tuple[str, str], object],
    *,
    persistent: Callable[[object], object] | None = None,
    budget: Budget | None = None,
    opcodes: frozenset[int] | None = None,
    foreign: bool = False,
    unsafe: list[str] | None = None,
    shortcuts: Callable[[Machine], Shortcuts] | None = None,
) -> tuple[object, Machine, int]:
    """Build what a pickle describes; return it, the machine, and the position behind its end.

    ``persistent`` resolves persistent ids, refused without it. Only ``opcodes`` may occur, if
    given. With ``foreign``, functions of packages other than torch's may be called and are noted.
    What is called and must not be is noted in ``unsafe``, if given, and becomes a stand-in.
    With ``shortcuts``, ``Detour`` and any error but those of a bound say only: read it without them.
    Raises ``MalformedData`` for bytes that are no whole pickle, ``RunsCode`` for those that call
    what is not allowed, ``TooLarge`` and ``TooDeep`` for those out of all proportion.
    """
    if len(data) > MAX_SIZE:
        raise TooLarge(f"a pickle of {len(data)} bytes is refused (the limit is {MAX_SIZE})")
    machine = Machine(
        data,
        table,
        budget=Budget(len(data)) if budget is None else budget,
        persistent=persistent,
        opcodes=opcodes,
        foreign=foreign,
    )
    machine.unsafe = unsafe
    if shortcuts is not None:
        machine.shortcuts = shortcuts(machine)
    with no_collector():
        value = machine.run()
    return value, machine, machine.end


@contextmanager
def no_collector() -> Iterator[None]:
    """Keep the garbage collector off: it would walk millions of new objects, all of them alive."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
