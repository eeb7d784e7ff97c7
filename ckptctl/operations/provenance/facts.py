"""What is known of the run a checkpoint is of: recorded by frameworks, or given to ``commit``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ckptctl.comparison.consequences import standard_facts
from ckptctl.dataclass import dataclass, field, replace
from ckptctl.errors import MalformedData, Refused
from ckptctl.formats.pickles.unpickler import Opaque, attributes_of
from ckptctl.formats.pickles.values import MAX_VALUE
from ckptctl.formats.sidecars import (
    COUNTED,
    Companion,
    megatron,
    numbers_of,
    read_companions,
    settings_of,
)
from ckptctl.model.checkpoint import Checkpoint, Item, ObjectEntry, TensorEntry
from ckptctl.model.components import component_of, elements
from ckptctl.model.manifest import Manifest
from ckptctl.model.run_facts import CONFIG, CONFIG_DIGEST, Plain, config_digest, flatten, same
from ckptctl.operations.content.value import read_value
from ckptctl.storage import Store

_COUNTERS = {
    "step": "step",
    "global_step": "step",
    "global_steps": "step",
    "iteration": "step",
    "epoch": "epoch",
    "samples": "samples",
    "samples_seen": "samples",
    "global_samples": "samples",
    "consumed_train_samples": "samples",
    "ntokens_seen": "tokens",
    "tokens": "tokens",
    "tokens_seen": "tokens",
    "batches": "batches",
    "accumulation_step": "accumulation",
    "accumulation_position": "accumulation",
    "micro_step": "accumulation",
}
"""Names of counters inside the state dict and the names they are recorded under."""

WRITTEN_BY = "written_by_torch"
_SETTINGS = ("hyper_parameters", "hparams", "args", "config")
_MOST_STEPS = 1 << 63
_LARGEST_COUNTER = 64 << 10
_MOST_COUNTERS = 64
_MOST_OPTIMIZER_STEPS = 4


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts by dotted name, counters by name, where each was found, and what was not readable."""

    identity: Mapping[str, Plain] = field(default_factory=dict)
    progress: Mapping[str, Plain] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def facts_of(
    store: Store, base: str, checkpoint: Checkpoint, manifest: Manifest | None = None
) -> Facts:
    """Gather the facts of the checkpoint at ``base``: from its manifest, else from its files.

    A few small files and items are read, no payload. Raises ``StorageError`` where the storage
    does not answer.
    """
    problems: list[str] = []
    facts = Facts()
    if manifest is None or not manifest.progress:  # else a commit has gathered them already
        facts = _united([*_companions(store, base, checkpoint, problems),
                         *_items(store, base, checkpoint, problems)])  # fmt: skip
    versions = checkpoint.identity.torch_versions
    if versions:
        facts = _with(facts, {WRITTEN_BY: versions}, {}, "the metadata")
    if manifest is not None:
        known = {"world_size": manifest.world_size, "run_id": manifest.run_id}
        identity = {name: value for name, value in known.items() if value is not None}
        identity |= flatten(manifest.identity)
        progress = flatten(manifest.progress)
        if manifest.step is not None:
            progress.setdefault("step", manifest.step)
        facts = _with(facts, identity, progress, "the manifest")
    return replace(facts, problems=tuple(problems))


def facts_of_values(values: Mapping[str, object], source: str) -> Facts:
    """Gather the facts among the decoded values of one ``torch.save`` file."""
    config: dict[str, object] = {}
    progress: dict[str, object] = {}
    for fqn, value in values.items():
        first, _, rest = fqn.partition(".")
        if first in _SETTINGS and rest:
            config[rest] = value
        elif first in _SETTINGS and isinstance(value, Opaque):
            held = attributes_of(value)
            config.update(held if isinstance(held, dict) else {})
        elif fqn in _COUNTERS:
            progress |= numbers_of({fqn: value}, _COUNTERS)
    return _united([Companion(source, settings_of(config), {}, progress)])


def with_given(
    found: Facts, given: Mapping[str, Any], *, step: int | None, world_size: int | None
) -> Facts:
    """Add the facts that a user gives, which outrank what was found.

    ``step`` and ``world_size`` are what the commit itself knows. Raises ``Refused`` where the
    given contradicts what is known of either.
    """
    flat = flatten(given)
    progress = {n.partition(".")[2]: v for n, v in flat.items() if n.startswith("progress.")}
    facts = {n: v for n, v in flat.items() if not n.startswith("progress.")}
    if "step" in facts:
        progress.setdefault("step", facts.pop("step"))
    standard = {name: value for name, (value, _) in standard_facts(facts).items()}
    _refuse_contradiction("step", progress.get("step"), found.progress.get("step"), step)
    wanted = standard.get("world_size")
    counted = found.sources.get("world_size", "").endswith(COUNTED)
    recorded = None if counted else found.identity.get("world_size")
    _refuse_contradiction("world size", wanted, recorded, world_size)
    renamed = {name: value for name, value in standard.items() if name in found.identity}
    united = _with(found, {**renamed, **facts}, progress, "the facts given")
    identity = dict(united.identity)
    identity.pop(WRITTEN_BY, None)  # manifests have a field of their own for it
    if any(name.startswith(f"{CONFIG}.") for name in identity):
        identity[CONFIG_DIGEST] = config_digest(identity)
    return replace(united, identity=identity)


def _refuse_contradiction(what: str, given: Plain, found: Plain, committed: Plain) -> None:
    for value, source in ((found, "the framework recorded"), (committed, "the commit is of")):
        if given is not None and value is not None and not same(given, value):
            raise Refused(
                f"the facts given say {what} {given}, and {source} {value}; nothing was changed"
            )


def _with(
    facts: Facts, identity: Mapping[str, Plain], progress: Mapping[str, Plain], source: str
) -> Facts:
    names = {*identity, *progress}
    return Facts(
        {**facts.identity, **identity},
        {**facts.progress, **progress},
        {**facts.sources, **dict.fromkeys(names, source)},
        facts.problems,
    )


def _united(companions: Iterable[Companion]) -> Facts:
    facts = Facts()
    for one in companions:
        identity = {**flatten(one.config, prefix=CONFIG), **flatten(one.facts)}
        facts = _with(facts, identity, one.progress, one.source)
    standard = standard_facts(facts.identity)
    sources = dict(facts.sources)
    sources.update({n: sources[old] for n, (_, old) in standard.items() if n not in facts.identity})
    identity = {**{n: value for n, (value, _) in standard.items()}, **facts.identity}
    return replace(facts, identity=identity, sources=sources)


def _companions(
    store: Store, base: str, checkpoint: Checkpoint, problems: list[str]
) -> Iterator[Companion]:
    own = {path for path, file in checkpoint.files.items() if file.is_file}
    yield from read_companions(store, base, own, problems)


def _items(
    store: Store, base: str, checkpoint: Checkpoint, problems: list[str]
) -> Iterator[Companion]:
    """Read the counters that lie in the state dict itself, and Megatron's common state."""
    steps: set[float] = set()
    for item, what in _chosen(checkpoint):
        if item.stored is not None:
            continue
        common = what == "common"
        try:
            value = read_value(
                store,
                base,
                checkpoint,
                item,
                limit=MAX_VALUE if common else _LARGEST_COUNTER,
                attributes=common,
            )
        except MalformedData as error:
            problems.append(f"{item.fqn}: {error}")
            continue
        while common and isinstance(value, list | tuple) and len(value) == 1:
            value = value[0]
        if common and isinstance(value, dict):
            yield megatron(item.fqn, {str(key): inner for key, inner in value.items()})
        elif isinstance(value, bool) or not isinstance(value, int | float):
            continue
        elif what == "optimizer_step":
            if abs(value) < _MOST_STEPS:
                steps.add(float(value))
        elif what == "mesh.data":
            yield Companion(item.fqn, facts={what: value})
        else:
            yield Companion(item.fqn, progress=flatten({what: value}))
    if len(steps) == 1:
        step = steps.pop()
        value = int(step) if step.is_integer() else step
        yield Companion("the optimizer's state", progress={"optimizer_step": value})


def _chosen(checkpoint: Checkpoint) -> list[tuple[Item, str]]:
    """Choose the items to read, one of each key, and say what each counts."""
    wanted: dict[str, str] = {}
    optimizer = 0
    for fqn, entry in checkpoint.entries.items():
        if isinstance(entry, TensorEntry) and entry.shape != ():
            continue
        last = fqn.rpartition(".")[2].lower()
        if isinstance(entry, ObjectEntry) and fqn.partition("/")[0] == "common_state":
            wanted[fqn] = "common"
        elif fqn in ("dataloader.world_size", "dataloader.dp_world_size"):
            wanted[fqn] = "mesh.data"
        elif last in ("last_epoch", *_COUNTERS):
            component = component_of(elements(fqn, checkpoint.paths_in_state.get(fqn)))
            if component == "progress" and last in _COUNTERS and len(wanted) < _MOST_COUNTERS:
                wanted[fqn] = _COUNTERS[last]
            elif component == "scheduler" and last == "last_epoch":
                wanted.setdefault(fqn, "scheduler_step")
            elif component == "optimizer" and last == "step" and optimizer < _MOST_OPTIMIZER_STEPS:
                wanted[fqn] = "optimizer_step"
                optimizer += 1
    found: dict[str, tuple[Item, str]] = {}
    for index, fqn in enumerate(checkpoint.items.fqns):
        if fqn in wanted and fqn not in found:
            found[fqn] = (checkpoint.items[index], wanted[fqn])
    return list(found.values())
