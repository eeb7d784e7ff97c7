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

from ckptctl.formats.pickles.forms import (
    MOST_ARGUMENTS,
    PURE,
    Arguments,
    Form,
    contained,
    is_class,
    is_member,
    is_plain,
    iterated,
    iterates,
    joined,
    looks_like_class,
    maps,
    members,
    none_type,
    partial_of,
    rebuilt,
    scalars,
    subscript,
    union_of,
)
from ckptctl.formats.pickles.stand_ins import Function, Opaque

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


def _new_class(args: Arguments) -> bool:
    """``copyreg._reconstructor(class, base, state)`` of protocols 0 and 1."""
    if len(args) != 3:
        return False
    made, base, state = args
    if not is_class(made):
        return False
    return may_make(made.module, made.name, ()) and (
        (is_class(base) and base.label() == "builtins.object" and state is None)
        or (is_member(base) and (contained((state,)) or is_plain(state)))
        or (isinstance(base, Function) and type(state) is bytes)  # a subclass of bytes
    )


def _made(args: Arguments) -> bool:
    return bool(args) and is_class(args[0]) and may_make(args[0].module, args[0].name, args[1:])


_FEW = scalars(0, 8)
_ARRAY_CORES = ("numpy.core.multiarray", "numpy._core.multiarray")

CALLS: dict[tuple[str, str], Form] = {
    ("builtins", "iter"): iterates,
    ("builtins", "reversed"): iterates,
    ("builtins", "enumerate"): iterated,
    ("builtins", "zip"): iterated,
    ("builtins", "map"): maps,
    ("builtins", "filter"): maps,
    ("builtins", "bytearray"): scalars(0, 2),
    ("builtins", "type"): none_type,
    ("builtins", "object"): scalars(0, 0),
    ("builtins", "int"): scalars(0, 0),
    ("builtins", "float"): scalars(0, 0),
    ("builtins", "str"): scalars(0, 0),
    ("functools", "partial"): partial_of,
    ("functools", "reduce"): union_of,
    ("_functools", "partial"): partial_of,
    ("_functools", "reduce"): union_of,
    ("_operator", "or_"): joined,
    ("operator", "or_"): joined,
    ("_operator", "getitem"): subscript,
    ("operator", "getitem"): subscript,
    **{
        (module, name): scalars(1, 16)
        for module in ("operator", "_operator")
        for name in ("itemgetter", "attrgetter", "methodcaller")
    },
    ("types", "GenericAlias"): subscript,
    ("types", "SimpleNamespace"): rebuilt(0, 1),
    ("builtins", "set"): contained,
    ("builtins", "frozenset"): contained,
    ("builtins", "complex"): scalars(0, 2),
    ("builtins", "bytes"): scalars(0, 1),
    ("builtins", "slice"): rebuilt(1, 3),
    ("builtins", "range"): scalars(1, 3),
    ("_codecs", "encode"): lambda args: (
        len(args) > 0 and type(args[0]) is str and args[1:] in ((), ("latin1",), ("latin-1",))
    ),
    ("collections", "deque"): rebuilt(0, 2),
    ("collections", "Counter"): rebuilt(0, 1),
    ("collections", "defaultdict"): lambda args: len(args) <= 2,
    ("datetime", "datetime"): rebuilt(1, 8),
    ("datetime", "date"): rebuilt(1, 3),
    ("datetime", "timedelta"): scalars(0, 7),
    ("torch", "device"): scalars(1, 2),
    ("collections", "ChainMap"): members,
    ("collections", "UserString"): scalars(0, 1),
    ("collections.abc", "_CallableGenericAlias"): subscript,
    **{
        ("itertools", name): members
        for name in "count cycle repeat chain islice zip_longest product permutations "
        "combinations combinations_with_replacement pairwise".split()
    },
    **{
        (module, name): scalars(0, 256)
        for module in ("pathlib", "pathlib._local")
        for name in ("Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath".split())
    },
    ("datetime", "timezone"): rebuilt(1, 2),
    ("datetime", "time"): rebuilt(1, 8),
    ("zoneinfo", "ZoneInfo._unpickle"): scalars(1, 2),
    ("decimal", "Decimal"): scalars(1, 1),
    ("_decimal", "Decimal"): scalars(1, 1),
    ("decimal", "Context"): rebuilt(0, 9),
    ("fractions", "Fraction"): scalars(1, 2),
    ("re", "_compile"): rebuilt(1, 2),
    ("random", "Random"): scalars(0, 0),
    ("logging", "getLogger"): scalars(0, 1),
    ("array", "_array_reconstructor"): rebuilt(4, 4),
    ("array", "array"): rebuilt(2, 2),
    ("time", "struct_time"): rebuilt(1, 2),
    ("copyreg", "_reconstructor"): _new_class,
    ("copyreg", "__newobj__"): _made,
    ("inspect", "Signature"): rebuilt(0, 2),
    ("inspect", "Parameter"): rebuilt(1, 4),
    **{
        ("ipaddress", f"IPv{version}{kind}"): scalars(1, 1)
        for version in (4, 6)
        for kind in ("Address", "Network", "Interface")
    },
    **{
        (module, name): scalars(1, 1)
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
    **{(module, "_reconstruct"): rebuilt(3, 3) for module in _ARRAY_CORES},
    **{(module, "scalar"): rebuilt(1, 2) for module in _ARRAY_CORES},
    ("numpy", "dtype"): rebuilt(1, 3),
    ("numpy.core.numeric", "_frombuffer"): rebuilt(4, 4),
    ("numpy._core.numeric", "_frombuffer"): rebuilt(4, 4),
    ("numpy.ma.core", "_mareconstruct"): rebuilt(4, 4),
    ("numpy.random._pickle", "__bit_generator_ctor"): rebuilt(0, 1),
    ("numpy.random._pickle", "__generator_ctor"): rebuilt(0, 2),
    ("numpy.random._pickle", "__randomstate_ctor"): rebuilt(0, 2),
    ("numpy.random.bit_generator", "__pyx_unpickle_SeedSequence"): rebuilt(3, 3),
    ("torch", "Generator"): rebuilt(0, 1),
    ("torch._C", "Generator"): rebuilt(0, 1),
    ("torch.serialization", "_get_layout"): scalars(1, 1),
    ("torch._tensor", "_rebuild_from_type_v2"): _tensor_of_class,
    **{
        ("torch._utils", f"_rebuild_{name}"): rebuilt(least, most)
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
        ("collections", "UserString"),
        ("fractions", "Fraction"),
    }
)


_SMALL_CLASSES = frozenset(
    "autocast context detect_anomaly device device_index device_of dual_level emit_itt emit_nvtx "
    "enable_grad graph group immutable_dict immutable_list inference_mode lazy_property no_grad "
    "profile record_function safe_globals save_on_cpu saved_tensors_hooks set_detect_anomaly "
    "set_grad_enabled set_multithreading_enabled skip_data strict_fusion structseq verbose "
    "_initial_mode _enable_get_lr_call _node_list _reduce_op _remote_device".split()
)
"""Classes of torch's that are written as functions are; whatever else is so written is one."""


def _is_small_class(module: str, name: str) -> bool:
    return name == "object" or (
        name in _SMALL_CLASSES and module.partition(".")[0] == "torch" and module != "torch"
    )


def may_call(module: str, name: str, args: Arguments) -> bool:
    """Tell whether an unknown callable may be applied to these arguments."""
    form = CALLS.get((module, name))
    if form is not None:
        return len(args) <= MOST_ARGUMENTS and form(args)
    if module == "builtins" and name.endswith(("Error", "Exception", "Warning", "Exit")):
        return looks_like_class(name) and "." not in name and all(map(is_plain, args))
    if module == "torch.return_types" and "." not in name:
        return len(args) == 2 and isinstance(args[0], tuple | list)
    if is_platform(module):
        return False
    return looks_like_class(name) and len(args) <= MOST_ARGUMENTS and all(map(is_plain, args))


def may_make(module: str, name: str, args: Arguments) -> bool:
    """Tell whether an unknown class may be made with these arguments (``NEWOBJ``)."""
    return (
        not is_platform(module)
        or (not args and (looks_like_class(name) or _is_small_class(module, name)))
        or (
            (module, name) in _MADE_WITH_ARGUMENTS
            and not any(isinstance(one, Function) for one in args)
        )
    )


def may_name(holder: object, name: object) -> tuple[str, str] | None:
    """Return what ``getattr`` of these names, or None where it must not be asked.

    A member of a class has the class's name and its own. What hangs on an object may be anything
    that the pickle put there: it is named so that it looks like no class, and so is never called.
    """
    if type(name) is not str or not name.isidentifier():
        return None
    if is_class(holder):
        builtin = holder.module == "builtins" and holder.name in PURE
        own = name == "__new__" and not is_platform(holder.module)
        if (builtin or looks_like_class(holder.name)) and (own or not name.startswith("__")):
            return holder.module, f"{holder.name}.{name}"
    elif (
        isinstance(holder, Opaque) and not is_platform(holder.module) and not name.startswith("__")
    ):
        return holder.module, f"{holder.name}.(bound){name}"
    return None


def makes(function: Opaque) -> bool:
    """Tell whether a partial makes an object: so protocol 2 spells keyword arguments of one."""
    state = function.state
    if function.label() not in ("functools.partial", "_functools.partial"):
        return False
    if type(state) is not tuple or len(state) != 4 or type(state[1]) is not tuple:
        return False
    maker, given = state[0], state[1]
    return (
        is_class(maker)
        and bool(given)
        and is_class(given[0])
        and not is_platform(maker.module)
        and (maker.module, maker.name) == (given[0].module, f"{given[0].name}.__new__")
    )


def makes_first(module: str, name: str, args: Arguments) -> Opaque | None:
    """Return the object that a helper of ``copyreg`` makes of the class that it is given first."""
    made = args[0] if module == "copyreg" and args else None
    if not is_class(made):
        return None
    given = args[1:] if name == "__newobj__" else args[2:]
    return made(*(one for one in given if name == "__newobj__" or one is not None))


def may_fill(module: str, name: str) -> bool:
    """Tell whether members may be put into an unknown object by its own methods."""
    return not is_platform(module) or (
        module == "collections" and name in ("deque", "defaultdict", "Counter")
    )


def is_platform(module: str) -> bool:
    """Tell whether a module is Python's, torch's, or of a package that comes with torch."""
    return module.partition(".")[0] in PLATFORM or not module.isprintable() or not module
