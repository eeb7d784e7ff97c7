"""What a pickle may call of what this tool does not build itself: a list of what is allowed.

``REDUCE``, ``OBJ`` and ``INST`` call; ``NEWOBJ`` runs a class's ``__new__``. Where torch is
installed, so are Python's own modules and those that torch brings along: of them only what
is listed here, by exact module and name and with arguments of the listed form, may be called. Of
any other package a class may be given plain arguments (members of enums, paths and times are
pickled so) and may be made and filled; its functions and methods may not be called. Nothing is
run here in any case: what is allowed becomes an opaque stand-in.
Source: ``__reduce_ex__`` of Python 3.8 to 3.14, numpy 1.24 to 2.4 and torch 2.0 to 2.13.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeAlias, TypeGuard

from ckptctl.formats.pickles.stand_ins import Function, Opaque

Arguments: TypeAlias = tuple[object, ...]
Form: TypeAlias = Callable[[Arguments], bool]

PLATFORM = sys.stdlib_module_names | frozenset(
    "torch torchgen functorch numpy scipy pandas sympy mpmath networkx jinja2 markupsafe fsspec "
    "filelock typing_extensions setuptools pkg_resources _distutils_hack pip wheel triton yaml "
    "cffi caffe2 nvfuser "
    # modules of older or newer Pythons than the one at hand
    "__builtin__ builtins imp distutils asynchat asyncore smtpd commands popen2 copy_reg exceptions "
    "cPickle StringIO cStringIO tomllib telnetlib pipes crypt cgi cgitb nntplib uu xdrlib imghdr "
    "sndhdr audioop aifc chunk msilib nis ossaudiodev spwd sunau lib2to3 annotationlib compression "
    "_interpreters _interpqueues _interpchannels".split()
)
"""Packages that are importable wherever torch is: nothing unlisted of them may be called."""

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_PURE = frozenset(
    "max min sum len abs round sorted any all int float str bool repr ord chr bin hex oct divmod "
    "tuple list set frozenset dict complex bytes".split()
)
_MOST_ARGUMENTS = 64


def is_scalar(value: object) -> bool:
    """Tell whether a value is a number, text, bytes or None."""
    return type(value) in _SCALARS


def _plain(value: object, depth: int = 0) -> bool:
    if isinstance(value, tuple | list):
        few = depth < 4 and len(value) <= _MOST_ARGUMENTS
        return few and all(_plain(inner, depth + 1) for inner in value)
    return is_scalar(value)


def is_class(value: object) -> TypeGuard[type[Opaque]]:
    """Tell whether a value is a global that the pickle named and nobody called."""
    return isinstance(value, type) and issubclass(value, Opaque)


def looks_like_class(name: str) -> bool:
    """Tell whether a name, with the classes it is nested in, is written as classes' names are."""
    return all(part.lstrip("_")[:1].isupper() for part in name.split("."))


def is_member(value: object) -> bool:
    """Tell whether a value is a named class, a type of Python's, or a member of a class."""
    return isinstance(value, type) and (
        not issubclass(value, Opaque)
        or looks_like_class(value.name)
        or (value.module == "builtins" and value.name in _PURE)
    )


def _scalars(least: int, most: int) -> Form:
    return lambda args: least <= len(args) <= most and all(map(is_scalar, args))


def _types(*kinds: type) -> Form:
    return lambda args: len(args) == len(kinds) and all(map(isinstance, args, kinds))


def _members(args: Arguments) -> bool:
    return all(map(_is_given, args)) and len(args) <= _MOST_ARGUMENTS


def _is_given(value: object) -> bool:
    """Tell whether a value is data: scalars, containers, or objects already made."""
    return is_scalar(value) or not isinstance(value, type | Function)


def _iterates(args: Arguments) -> bool:
    return len(args) == 1 and isinstance(args[0], list | tuple | dict | str | bytes | Opaque)


def _iterated(args: Arguments) -> bool:
    return all(isinstance(one, list | tuple | str | bytes | Opaque | int) for one in args)


def _maps(args: Arguments) -> bool:
    function = args[0] if args else None
    pure = is_class(function) and function.module == "builtins" and function.name in _PURE
    return (pure or function is None) and _iterated(args[1:])


def _partial(args: Arguments) -> bool:
    return len(args) == 1 and (isinstance(args[0], type | Function | Opaque))


def _union(args: Arguments) -> bool:
    """``int | None``: ``functools.reduce(operator.or_, types)``; also of a flag's members."""
    operation, parts = args if len(args) == 2 else (None, ())
    return (
        is_class(operation)
        and operation.label() in ("_operator.or_", "operator.or_")
        and isinstance(parts, tuple | list)
        and all(one is None or is_member(one) or isinstance(one, Opaque) for one in parts)
    )


def _subscript(args: Arguments) -> bool:
    """``list[int]`` and what ``typing`` makes: a class with the classes in its brackets."""
    holder, parts = args if len(args) == 2 else (None, ())
    listed = parts if isinstance(parts, tuple) else (parts,)
    return is_member(holder) and all(
        is_scalar(one) or is_member(one) or isinstance(one, Opaque | list) for one in listed
    )


def _none_type(args: Arguments) -> bool:
    return len(args) == 1 and (
        args[0] is None or (is_class(args[0]) and args[0].name in ("Ellipsis", "NotImplemented"))
    )


def _contained(args: Arguments) -> bool:
    return not args or (len(args) == 1 and type(args[0]) in (list, tuple, set, frozenset))


def _tensor_of_class(args: Arguments) -> bool:
    """``_rebuild_from_type_v2(function, class, arguments, state)`` calls the function."""
    if len(args) != 4 or not is_class(args[1]) or type(args[2]) is not tuple:
        return False
    function, given = args[0], args[2]
    if isinstance(function, Function):
        return True
    return (
        is_class(function)
        and (function.module, function.name) in CALLS
        and may_call(
            function.module,
            function.name,
            given,
        )
    )


def _rebuilt(least: int, most: int) -> Form:
    return lambda args: (
        least <= len(args) <= most and not any(isinstance(one, Function) for one in args)
    )


def _new_class(args: Arguments) -> bool:
    """``copyreg._reconstructor(class, base, state)`` of protocols 0 and 1."""
    return (
        len(args) == 3
        and is_class(args[0])
        and is_member(args[1])
        and _plain(args[2])
        and may_make(args[0].module, args[0].name, ())
    )


def _made(args: Arguments) -> bool:
    return bool(args) and is_class(args[0]) and may_make(args[0].module, args[0].name, args[1:])


_FEW = _scalars(0, 8)
_ARRAY_CORES = ("numpy.core.multiarray", "numpy._core.multiarray")

CALLS: dict[tuple[str, str], Form] = {
    ("builtins", "iter"): _iterates,
    ("builtins", "reversed"): _iterates,
    ("builtins", "enumerate"): _iterated,
    ("builtins", "zip"): _iterated,
    ("builtins", "map"): _maps,
    ("builtins", "filter"): _maps,
    ("builtins", "bytearray"): _scalars(0, 2),
    ("builtins", "type"): _none_type,
    ("builtins", "object"): _scalars(0, 0),
    ("builtins", "int"): _scalars(0, 0),
    ("builtins", "float"): _scalars(0, 0),
    ("builtins", "str"): _scalars(0, 0),
    ("functools", "partial"): _partial,
    ("functools", "reduce"): _union,
    ("_functools", "partial"): _partial,
    ("_functools", "reduce"): _union,
    ("_operator", "getitem"): _subscript,
    ("operator", "getitem"): _subscript,
    **{
        (module, name): _scalars(1, 16)
        for module in ("operator", "_operator")
        for name in ("itemgetter", "attrgetter", "methodcaller")
    },
    ("types", "GenericAlias"): _subscript,
    ("types", "SimpleNamespace"): _rebuilt(0, 1),
    ("builtins", "set"): _contained,
    ("builtins", "frozenset"): _contained,
    ("builtins", "complex"): _scalars(0, 2),
    ("builtins", "bytes"): _scalars(0, 1),
    ("builtins", "slice"): _rebuilt(1, 3),
    ("builtins", "range"): _scalars(1, 3),
    ("_codecs", "encode"): lambda args: (
        args[1:] in ((), ("latin1",), ("latin-1",)) and _scalars(1, 2)(args)
    ),
    ("collections", "deque"): _rebuilt(0, 2),
    ("collections", "Counter"): _rebuilt(0, 1),
    ("collections", "defaultdict"): lambda args: len(args) <= 2,
    ("datetime", "datetime"): _rebuilt(1, 8),
    ("datetime", "date"): _rebuilt(1, 3),
    ("datetime", "timedelta"): _scalars(0, 7),
    ("torch", "device"): _scalars(1, 2),
    ("collections", "ChainMap"): _members,
    ("datetime", "timezone"): _rebuilt(1, 2),
    ("datetime", "time"): _rebuilt(1, 8),
    ("zoneinfo", "ZoneInfo._unpickle"): _scalars(1, 2),
    ("decimal", "Decimal"): _scalars(1, 1),
    ("_decimal", "Decimal"): _scalars(1, 1),
    ("decimal", "Context"): _rebuilt(0, 9),
    ("fractions", "Fraction"): _scalars(1, 2),
    ("re", "_compile"): _rebuilt(1, 2),
    ("random", "Random"): _scalars(0, 0),
    ("logging", "getLogger"): _scalars(0, 1),
    ("array", "_array_reconstructor"): _rebuilt(4, 4),
    ("array", "array"): _rebuilt(2, 2),
    ("time", "struct_time"): _rebuilt(1, 2),
    ("copyreg", "_reconstructor"): _new_class,
    ("copyreg", "__newobj__"): _made,
    ("inspect", "Signature"): _rebuilt(0, 2),
    ("inspect", "Parameter"): _rebuilt(1, 4),
    **{
        ("ipaddress", f"IPv{version}{kind}"): _scalars(1, 1)
        for version in (4, 6)
        for kind in ("Address", "Network", "Interface")
    },
    **{
        (module, name): _scalars(1, 1)
        for module, names in {
            "signal": "Signals Handlers Sigmasks",
            "http": "HTTPStatus HTTPMethod",
            "socket": "AddressFamily SocketKind",
            "re": "RegexFlag",
            "inspect": "_ParameterKind",
            "uuid": "SafeUUID",
            "calendar": "Day Month",
            "torch.distributed.checkpoint.planner": "WriteItemType LoadItemType",
            "torch.distributed.fsdp.api": "ShardingStrategy BackwardPrefetch StateDictType",
            "torch.distributed.fsdp.fully_sharded_data_parallel": "OptimStateKeyType",
            "torch.distributed._shard.sharded_tensor.metadata": "MEM_FORMAT_ENCODING",
            "torch.distributed.checkpoint.metadata": "_MEM_FORMAT_ENCODING",
            "torch.distributed.pipelining.schedules": "_ComputationType",
            "torch.nn.attention": "SDPBackend",
        }.items()
        for name in names.split()
    },
    **{(module, "_reconstruct"): _rebuilt(3, 3) for module in _ARRAY_CORES},
    **{(module, "scalar"): _rebuilt(1, 2) for module in _ARRAY_CORES},
    ("numpy", "dtype"): _rebuilt(1, 3),
    ("numpy.core.numeric", "_frombuffer"): _rebuilt(4, 4),
    ("numpy._core.numeric", "_frombuffer"): _rebuilt(4, 4),
    ("numpy.ma.core", "_mareconstruct"): _rebuilt(4, 4),
    ("numpy.random._pickle", "__bit_generator_ctor"): _rebuilt(0, 1),
    ("numpy.random._pickle", "__generator_ctor"): _rebuilt(0, 2),
    ("numpy.random._pickle", "__randomstate_ctor"): _rebuilt(0, 2),
    ("numpy.random.bit_generator", "__pyx_unpickle_SeedSequence"): _rebuilt(3, 3),
    ("torch", "Generator"): _rebuilt(0, 1),
    ("torch._C", "Generator"): _rebuilt(0, 1),
    ("torch.serialization", "_get_layout"): _scalars(1, 1),
    ("torch._tensor", "_rebuild_from_type_v2"): _tensor_of_class,
    **{
        ("torch._utils", f"_rebuild_{name}"): _rebuilt(least, most)
        for name, least, most in (
            ("tensor", 4, 4),
            ("tensor_v2", 6, 7),
            ("tensor_v3", 7, 8),
            ("parameter", 3, 3),
            ("parameter_with_state", 4, 4),
            ("qtensor", 7, 7),
            ("sparse_tensor", 2, 2),
            ("sparse_csr_tensor", 2, 2),
            ("nested_tensor", 4, 4),
            ("meta_tensor_no_storage", 4, 4),
            ("wrapper_subclass", 5, 8),
            ("device_tensor_from_numpy", 4, 4),
            ("device_tensor_from_cpu_tensor", 4, 4),
        )
    },
}
"""What of the platform's modules may be called, with the form of the arguments."""

_MADE_WITH_ARGUMENTS = frozenset(
    {
        ("torch.distributed.tensor._dtensor_spec", "TensorMeta"),
        ("torch.distributed.tensor._dtensor_spec", "ShardOrderEntry"),
        ("torch.torch_version", "TorchVersion"),
        ("torch.nn.utils.rnn", "PackedSequence"),
        ("torch.nn.utils.rnn", "PackedSequence_"),
        ("torch.nn.modules.module", "_IncompatibleKeys"),
        ("decimal", "DecimalTuple"),
        ("collections", "deque"),
        ("fractions", "Fraction"),
    }
)


def may_call(module: str, name: str, args: Arguments) -> bool:
    """Tell whether an unknown callable may be applied to these arguments."""
    form = CALLS.get((module, name))
    if form is not None:
        return len(args) <= _MOST_ARGUMENTS and form(args)
    if module == "builtins" and name.endswith(("Error", "Exception", "Warning", "Exit")):
        return looks_like_class(name) and "." not in name and all(map(_plain, args))
    if module == "torch.return_types" and "." not in name:
        return len(args) == 2 and isinstance(args[0], tuple | list)
    if is_platform(module):
        return False
    return looks_like_class(name) and len(args) <= _MOST_ARGUMENTS and all(map(_plain, args))


def may_make(module: str, name: str, args: Arguments) -> bool:
    """Tell whether an unknown class may be made with these arguments (``NEWOBJ``)."""
    return (
        not is_platform(module)
        or not args
        or (
            (module, name) in _MADE_WITH_ARGUMENTS
            and not any(isinstance(one, Function) for one in args)
        )
    )


def may_fill(module: str, name: str) -> bool:
    """Tell whether members may be put into an unknown object by its own methods."""
    return not is_platform(module) or (
        module == "collections" and name in ("deque", "defaultdict", "Counter")
    )


def is_platform(module: str) -> bool:
    """Tell whether a module is Python's, torch's, or of a package that comes with torch."""
    return module.partition(".")[0] in PLATFORM or not module.isprintable() or not module
