"""Reading pickles without running anything.

A pickle is a program. Here it can only build plain containers, numbers and strings, plus what a
table names; every other global becomes an inert ``Opaque`` that keeps its name and what it was
given. Neither table nor stand-ins can be changed from inside a pickle.
"""

from __future__ import annotations

import gc
import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, cast

from ckptctl.errors import MalformedData, UnsafeData
from ckptctl.formats.pickles.opcodes import scan
from ckptctl.model.dtypes import NAMES, canonical

SCAN_LIMIT = 4 << 20
"""Bytes up to which every opcode is looked at first; above, a ceiling on memory stands guard."""

_DEEPEST_ANATOMY = 200
_MOST_UNKNOWN = 10_000

MAX_SIZE = 4 << 30
"""Bytes above which a pickle is refused: 20 million chunks of DCP metadata fit."""

_MODULE_2_TO_3 = {
    "__builtin__": "builtins",
    "copy_reg": "copyreg",
    "UserDict": "collections",
    "UserList": "collections",
    "UserString": "collections",
}

_DANGEROUS_MODULES = frozenset(
    "os posix nt subprocess sys importlib runpy ctypes socket shutil pty pickle _pickle code codeop "
    "webbrowser multiprocessing pip commands popen2 types marshal operator _operator functools "
    "builtins pdb bdb".split()
)
_DANGEROUS_PACKAGES = ("torch.hub", "torch.package", "torch.utils.cpp_extension", "numpy.f2py")
_DANGEROUS_NAMES = frozenset(
    {("torch", "load"), ("torch.serialization", "load"), ("numpy", "load")}
)
_HARMLESS_BUILTINS = frozenset(
    "set frozenset list dict tuple int float complex bool str bytes bytearray object slice range "
    "NoneType Ellipsis NotImplemented "
    # pure functions that people keep as values, and iterators over containers
    "max min sum len abs round sorted any all iter reversed enumerate zip".split()
)


def modern(module: str, name: str) -> tuple[str, str]:
    """Return the Python 3 spelling of a global that protocol 2 spelled the Python 2 way."""
    module = _MODULE_2_TO_3.get(module, module)
    if module == "builtins" and name in ("unicode", "long", "xrange"):
        name = {"unicode": "str", "long": "int", "xrange": "range"}[name]
    return module, name


def is_dangerous(module: str, name: str) -> bool:
    """Tell whether no training state has business naming this global (it is never called anyway)."""
    top = module.partition(".")[0]
    if "." in name and not all(part.lstrip("_")[:1].isupper() for part in name.split(".")):
        return True  # it reaches through a module's or an object's attributes
    if (module, name) in _DANGEROUS_NAMES or module.startswith(_DANGEROUS_PACKAGES):
        return True
    if module in ("functools", "types", "operator") and name in ("partial", "SimpleNamespace"):
        return False
    if top == "builtins":
        return name not in _HARMLESS_BUILTINS and not name.endswith(("Error", "Exception"))
    return top in _DANGEROUS_MODULES


class Sealed(type):
    """A class of classes whose attributes a pickle cannot set."""

    def __setattr__(cls, name: str, value: object) -> NoReturn:
        """Refuse."""
        raise UnsafeData(f"the pickle tries to change {cls.__name__}.{name}")

    def __delattr__(cls, name: str) -> NoReturn:
        """Refuse."""
        raise UnsafeData(f"the pickle tries to delete {cls.__name__}.{name}")


class Function:
    """A callable of ours that a pickle may call and not otherwise touch."""

    __slots__ = ("_call",)
    _call: Callable[..., object]

    def __init__(self, call: Callable[..., object]) -> None:
        """Wrap a function."""
        object.__setattr__(self, "_call", call)

    def __call__(self, *args: object) -> object:
        """Call it."""
        return self._call(*args)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse."""
        raise UnsafeData("the pickle tries to change a reader's function")

    def __setstate__(self, state: object) -> NoReturn:
        """Refuse."""
        raise UnsafeData("the pickle tries to change a reader's function")


def size(numbers: object = ()) -> tuple[object, ...]:
    """Build a ``torch.Size``: a tuple of numbers, as torch pickles it."""
    if type(numbers) is tuple:
        return numbers
    if isinstance(numbers, list) and len(numbers) <= 64:
        return tuple(numbers)
    raise MalformedData("a torch.Size is not made of numbers")


class Opaque(metaclass=Sealed):
    """Stand-in for what a pickle names and this tool does not know; it records and does nothing."""

    __slots__ = ("args", "items", "state")
    module = "?"
    name = "?"

    def __new__(cls, *args: object, **kwargs: object) -> Opaque:
        """Record what the class or function was given."""
        self = object.__new__(cls)
        self.args = args + tuple(kwargs.items())
        self.items = []
        self.state = None
        return self

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Accept anything; ``__new__`` has recorded it."""

    args: tuple[object, ...]
    items: list[object]
    state: object

    def __setstate__(self, state: object) -> None:
        """Record the state."""
        self.state = state

    def __call__(self, *args: object) -> Opaque:
        """Record a call of the result of a call."""
        return Opaque(self, *args)

    def append(self, item: object) -> None:
        """Record an item of a list."""
        self.items.append(item)

    def extend(self, items: list[object]) -> None:
        """Record items of a list."""
        self.items.extend(items)

    def add(self, item: object) -> None:
        """Record an item of a set."""
        self.items.append(item)

    def __setitem__(self, key: object, value: object) -> None:
        """Record an item of a mapping."""
        self.items.append((key, value))

    @classmethod
    def label(cls) -> str:
        """The name of what it stands for."""
        return f"{cls.module}.{cls.name}"

    def __repr__(self) -> str:
        """Name it, without its content."""
        return f"<opaque {self.label()}>"


def attributes_of(stand_in: Opaque) -> object:
    """Return what an object was given, as plain containers; itself where it was given nothing.

    Attributes and members of a mapping or list come from its state and items. An enum's member is
    its value. A node of an OmegaConf tree is what it holds.
    """
    state = stand_in.state
    if isinstance(state, tuple):  # what is kept in slots comes second
        state = {k: v for one in state if isinstance(one, dict) for k, v in one.items()}
    found = state if isinstance(state, dict) else {}
    for holder in ("_content", "_val"):
        if holder in found:
            return found[holder]
    pairs = [one for one in stand_in.items if isinstance(one, tuple) and len(one) == 2]
    if pairs and all(isinstance(pair[0], str) for pair in pairs):
        return {**found, **dict(pairs)}
    if stand_in.items:
        return stand_in.items
    if found:
        return found
    if len(stand_in.args) == 1 and isinstance(stand_in.args[0], str | int | float):
        return stand_in.args[0]
    return stand_in


def anatomy(value: object, depth: int = 0) -> object:
    """Return what can be compared of a value: stand-ins by what they stand for and were given."""
    if depth > _DEEPEST_ANATOMY:
        raise MalformedData("it nests too deeply")
    deeper = depth + 1
    if isinstance(value, Opaque):
        given = (value.args, value.items, value.state)
        return (value.label(), *(anatomy(one, deeper) for one in given))
    if isinstance(value, dict):
        return [(anatomy(k, deeper), anatomy(v, deeper)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(anatomy(one, deeper) for one in value))
    return repr(value)  # of a NaN too, which is unlike itself


def opaque_class(module: str, name: str) -> type[Opaque]:
    """Make the stand-in for one global."""
    stand_in: Any = Sealed("Opaque", (Opaque,), {"__slots__": (), "module": module, "name": name})
    return cast("type[Opaque]", stand_in)


class SafeUnpickler(pickle.Unpickler):
    """An unpickler that builds only what its table names; ``unknown`` lists the other globals."""

    def __init__(
        self,
        file: Any,
        table: Mapping[tuple[str, str], object],
        *,
        persistent: Callable[[object], object] | None = None,
    ) -> None:
        """Read from a binary file; ``persistent`` resolves persistent ids, refused without it."""
        super().__init__(file, encoding="bytes")
        self._table = table
        self._persistent = persistent
        self.unknown: dict[tuple[str, str], type[Opaque]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Resolve a global by the table, a torch dtype by its name, anything else as opaque."""
        key = (module, name)
        found = self._table.get(key)
        if found is None:
            key = modern(module, name)
            found = self._table.get(key)
        if found is None and module == "torch" and name in NAMES:
            found = canonical(name)
        if found is None:
            found = self.unknown.get(key)
        if found is None:
            if len(self.unknown) >= _MOST_UNKNOWN:
                raise UnsafeData(f"it names more than {_MOST_UNKNOWN} different classes")
            found = self.unknown[key] = opaque_class(*key)
        return found

    def persistent_load(self, pid: object) -> object:
        """Resolve a persistent id, where the format has any."""
        if self._persistent is None:
            raise MalformedData("the pickle refers to something outside itself (a persistent id)")
        return self._persistent(pid)

    @property
    def dangerous(self) -> list[str]:
        """The unknown globals that no training state has business naming."""
        return [f"{m}.{n}" for m, n in self.unknown if is_dangerous(m, n)]


def load(
    data: bytes,
    table: Mapping[tuple[str, str], object],
    *,
    persistent: Callable[[object], object] | None = None,
) -> tuple[object, SafeUnpickler, int]:
    """Build what a pickle describes; return it, the unpickler, and the position behind its end.

    Raises ``MalformedData`` for bytes that are no whole pickle and ``UnsafeData`` for those that
    ask for memory or stack out of proportion.
    """
    end = guard(data)
    file = io.BytesIO(data)
    unpickler = SafeUnpickler(file, table, persistent=persistent)
    value = run(unpickler, len(data))
    return value, unpickler, end if end is not None else file.tell()


def guard(data: bytes) -> int | None:
    """Refuse a pickle that is dangerous to load; return its end where it was scanned whole."""
    if len(data) > MAX_SIZE:
        raise UnsafeData(f"a pickle of {len(data)} bytes is refused (the limit is {MAX_SIZE})")
    return scan(data) if len(data) <= SCAN_LIMIT else None


def run(unpickler: pickle.Unpickler, size: int) -> object:
    """Run an unpickler with the garbage collector off, as all it makes stays alive to the end."""
    try:
        with no_collector(), _memory_ceiling(size):
            return unpickler.load()
    except MalformedData:
        raise
    except MemoryError:
        raise UnsafeData(f"loading its {size} bytes would take far more memory than that") from None
    except RecursionError:
        raise UnsafeData("it nests too deeply to be loaded") from None
    except Exception as error:  # a hostile pickle can provoke any exception
        detail = str(error) or type(error).__name__
        raise MalformedData(f"not a readable pickle: {detail[:200]}") from None


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


@contextmanager
def _memory_ceiling(size: int) -> Iterator[None]:
    """Limit the address space while a pickle too large to be scanned is loaded (Linux)."""
    if size <= SCAN_LIMIT:
        yield
        return
    try:
        import resource
        from pathlib import Path

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        ceiling = pages * resource.getpagesize() + 24 * size + (256 << 20)
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    except (ImportError, OSError, ValueError):
        yield
        return
    if soft != resource.RLIM_INFINITY and soft <= ceiling:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (ceiling, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
