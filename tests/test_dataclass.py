"""Our dataclasses do what those of the standard library do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from ckptctl.dataclass import Field, dataclass

DECORATORS: dict[str, Any] = {"ours": dataclass, "theirs": dataclasses.dataclass}
FIELDS: dict[str, Any] = {"ours": Field, "theirs": dataclasses.field}
FIELD = (Field, dataclasses.Field)


def classes(name: str) -> dict[str, type]:
    """Make one class of each kind with one of the decorators."""
    decorator, field = DECORATORS[name], FIELDS[name]

    class Plain:
        a: int
        b: tuple[int, ...] = ()
        c: dict[str, int] = field(default_factory=dict)
        d: int = field(default=4, compare=False, metadata={"of": "nothing"})
        e: ClassVar[int] = 5

    class One:
        a: int

    class Empty:
        """It has no fields."""

    class Checked:
        a: int
        b: int = 0

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError(self.a)

    class Own:
        a: int
        b: int = 2

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return self is other

        def __hash__(self) -> int:
            return 7

    made: dict[str, type] = {}
    for cls in (Plain, One, Empty, Checked, Own):
        for flags in (
            {"frozen": True, "slots": True},
            {"frozen": True},
            {"slots": True},
            {"frozen": True, "slots": True, "kw_only": True},
            {"frozen": True, "slots": True, "order": True},
        ):
            if cls is Own and "order" in flags:
                continue
            body = {
                key: copy.copy(value) if isinstance(value, FIELD) else value
                for key, value in vars(cls).items()
                if key not in ("__dict__", "__weakref__")
            }
            fresh = type(cls.__name__, (), body)
            key = "_".join([cls.__name__, *flags])
            fresh.__qualname__ = f"{name}_{key}"
            found = decorator(**flags)(fresh)
            globals()[found.__qualname__] = found  # pickle looks there
            made[key] = found

    class Derived(made["One_frozen_slots_kw_only"]):  # type: ignore[misc]
        b: int = 3

    Derived.__qualname__ = f"{name}_Derived"
    made["Derived"] = decorator(frozen=True, slots=True, kw_only=True)(Derived)
    globals()[Derived.__qualname__] = made["Derived"]
    return made


OURS, THEIRS = classes("ours"), classes("theirs")


def told(act: Callable[[], object]) -> object:
    """Return what a call gives, or the error that it raises."""
    try:
        return act()
    except Exception as error:
        return type(error), str(error).replace("ours_", "theirs_")


def behaviour(cls: Any) -> list[object]:
    """Return what can be seen of a class and its objects."""
    fields = dataclasses.fields(cls)
    given: dict[str, Any] = {"a": 1} if fields else {}
    one, same = cls(**given), cls(**given)
    others = [cls(**{**given, "a": 2})] if fields else []
    seen: list[object] = [
        [(field.name, field.type, field.kw_only, dict(field.metadata)) for field in fields],
        str(inspect.signature(cls)),
        cls.__match_args__,
        [getattr(cls.__dataclass_params__, name) for name in ("init", "repr", "eq", "frozen")],
        repr(one).replace("ours_", "theirs_"),
        [one == same, one != same, one == 1, one is copy.copy(one)],
        [one == other for other in others],
        [told(lambda other=other: one < other) for other in others],
        cls.__hash__ is None,
        told(lambda: hash(one) == hash(same)),
        dataclasses.asdict(one),
        told(lambda: dataclasses.replace(one, **({"a": 5} if fields else {})) == one),
        told(lambda: cls(*range(len(fields)))),
        told(lambda: cls(nonsense=1)),
        told(lambda: setattr(one, "a", 3)) if fields else None,
        told(lambda: setattr(one, "nonsense", 3)) is None,  # theirs says so in odd words with slots
        told(lambda: delattr(cls(**given), "a")) if fields else None,
        repr(one).replace("ours_", "theirs_"),
        hasattr(one, "__dict__"),
    ]
    again = [pickle.loads(pickle.dumps(same)), copy.deepcopy(same), copy.copy(same)]
    seen += [repr(other).replace("ours_", "theirs_") for other in again]
    seen += [other == same for other in again]
    return [repr(part).replace("ours_", "theirs_") for part in seen]


@pytest.mark.parametrize("name", OURS)
def test_nothing_differs(name: str) -> None:
    for ours, theirs in zip(behaviour(OURS[name]), behaviour(THEIRS[name]), strict=True):
        assert ours == theirs


@pytest.mark.parametrize("name", OURS)
def test_the_compiled_init_does_what_the_first_ones_do(name: str) -> None:
    """Many objects are made of the class before; a call that is wrong is said in the same words."""
    cls: Any = OURS[name]
    given: dict[str, Any] = {"a": 1} if dataclasses.fields(cls) else {}
    for _ in range(20):
        cls(**given)
    test_nothing_differs(name)


def test_the_first_objects_cost_no_compiling() -> None:
    made = dataclass(frozen=True, slots=True)(type("Few", (), {"__annotations__": {"a": "int"}}))
    first = made.__init__
    assert [made(n).a for n in range(12)] == [*range(12)]
    assert made.__init__ is first
    assert made(12).a == 12
    assert made.__init__ is not first


def test_defaults_are_made_afresh_and_can_be_refused() -> None:
    plain, checked = OURS["Plain_frozen_slots"], OURS["Checked_frozen_slots"]
    assert plain(1).c is not plain(1).c
    with pytest.raises(ValueError, match="-1"):
        checked(-1)


def test_what_holds_itself_can_be_shown() -> None:
    one = OURS["Plain_slots"](1)
    one.b = (one,)
    assert repr(one) == "ours_Plain_slots(a=1, b=(...,), c={}, d=4)"


def test_a_default_that_can_change_is_refused() -> None:
    with pytest.raises(ValueError, match="mutable default"):

        @dataclass(frozen=True, slots=True)
        class Wrong:
            a: list[int] = []  # noqa: RUF012


def test_a_field_of_the_standard_library_is_refused() -> None:
    with pytest.raises(TypeError, match=r"take ckptctl\.dataclass\.field"):

        @dataclass(frozen=True, slots=True)
        class Wrong:
            a: int = dataclasses.field(default=1)
