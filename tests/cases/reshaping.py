"""Reshaping: what `reshard`, `convert`, `diff` and `digest` vouch for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cases.frame import (
    Build,
    Case,
    committed,
    cuts,
    each,
    flips,
    links,
    ran,
    removes,
    saved,
    writes,
)
from ckptctl.sharding.record import staging_name

SOURCE = "fsdp2/step-12"
TWO = ("reshard", "{root}/step-12", "--out", "{root}/new/step-12", "--world-size", "2", "--yes")
DROP = ("--rng", "drop", "--data", "drop")
FORCE = (*TWO, *DROP, "--force")
STAGED = staging_name("step-12")
POSITION = "dataloader.dp_rank_1.position"


def whole(root: Path) -> None:
    """A checkpoint with a model, an optimizer and states of each rank."""
    saved(12, source=SOURCE)(root)


def tensors(name: str, **held: Any) -> Build:
    """Save a state by ``torch.save``; values are called to make them."""

    def build(root: Path) -> None:
        import torch

        torch.save({key: make() for key, make in held.items()}, root / name)

    return build


def arange(size: int) -> Callable[[], Any]:
    """Make a tensor whose bytes can be found."""

    def make() -> Any:
        import torch

        return torch.arange(1.0, size + 1)

    return make


def views(root: Path) -> None:
    """Two tensors that are views of one storage, with one CRC over both."""
    import torch

    big = torch.arange(1.0, 2001.0)
    torch.save({"a": big[:1000], "b": big[1000:]}, root / "v.pt")


def flipped(path: str, number: float) -> Build:
    """Turn over a bit of a number where it stands in a file."""
    import struct

    def build(root: Path) -> None:
        data = bytearray((root / path).read_bytes())
        data[data.index(struct.pack("<f", number)) + 3] ^= 0x40
        (root / path).write_bytes(data)

    return build


def with_attribute() -> Any:
    """A tensor that its program hung something on."""
    import torch

    made = torch.ones(3)
    made.scale = 2.0  # type: ignore[attr-defined]
    return made


def parameter() -> Any:
    """A parameter with an attribute, as frameworks mark them."""
    import torch

    made = torch.nn.Parameter(torch.ones(3))
    made.partition_dim = 0  # type: ignore[attr-defined]
    return made


def module() -> Any:
    """A model that was pickled as a whole."""
    import torch

    return torch.nn.Linear(2, 2)


def safetensors(path: str, **held: int) -> Build:
    """Save tensors of so many elements."""

    def build(root: Path) -> None:
        from safetensors.torch import save_file

        (root / path).parent.mkdir(parents=True, exist_ok=True)
        save_file({key: arange(size)() for key, size in held.items()}, root / path)

    return build


def index(path: str, **files: str) -> Build:
    """Write an index: which file holds which tensor."""
    import json

    return writes(path, json.dumps({"weight_map": files}))


def without(prefix: str) -> Build:
    """Cut keys out of the metadata; the shards stay as they are."""
    from support.damage import drop_keys

    return lambda root: drop_keys(root / "step-12", prefix=prefix)


def cut_to_nothing(path: str) -> Build:
    """Leave a file without a byte."""
    return lambda root: (root / path).write_bytes(b"")


def copied(name: str, other: str) -> Build:
    """Copy a checkpoint with all its records."""
    return lambda root: shutil.copytree(root / name, root / other)


def cut_metadata(path: str) -> Build:
    """Leave only the beginning of a metadata file."""
    return lambda root: (root / path).write_bytes((root / path).read_bytes()[:100])


def unfinished(root: Path) -> None:
    """What a reshard leaves that was killed before anything was written."""
    from ckptctl.sharding.record import RESHARD, ReshardRecord

    record = ReshardRecord(plan="sha256:" + "0" * 64, save_id="x", time="t", actor="a").encode()
    writes(f"new/{STAGED}/{RESHARD}", record)(root)


def to(kind: str, source: str = "x.pt", out: str = "out", *more: str) -> tuple[str, ...]:
    """The words that convert one thing beside the other."""
    return ("convert", f"{{root}}/{source}", "--to", kind, "--out", f"{{root}}/{out}", *more)


def flipped_item(fqn: str) -> Build:
    """Turn over a bit in the first piece of a tensor."""
    from support.damage import flip_field

    return lambda root: flip_field(
        root / "step-12", fqn=fqn, origin=(0,), part="data", record="data/0"
    )


def flipped_value(fqn: str) -> Build:
    """Turn over a bit in a value that is no tensor."""
    from support.damage import flip_field

    return lambda root: flip_field(root / "step-12", fqn=fqn, part="data", record="data.pkl")


def flipped_pickle(path: str, text: bytes) -> Build:
    """Turn over a bit of a file where some text stands."""

    def build(root: Path) -> None:
        data = bytearray((root / path).read_bytes())
        data[data.index(text)] ^= 1
        (root / path).write_bytes(data)

    return build


STATE = tensors("x.pt", a=arange(4), b=arange(3), rate=lambda: "slow")
ODD = each(
    tensors("odd.pt", a=with_attribute, b=arange(3)),
    tensors("par.pt", a=parameter, b=arange(3)),
    tensors("mod.pt", net=module, b=arange(3)),
    tensors("tup.pt", pair=lambda: (arange(2)(), arange(3)()), b=arange(3)),
    tensors("only.pt", pair=lambda: (arange(2)(), arange(3)())),
    tensors("none.pt", rate=lambda: 1.5),
)
SETS = each(
    safetensors("two/model.safetensors", x=2),
    safetensors("two/adapter_model.safetensors", y=3),
    safetensors("cons/model-00001-of-00002.safetensors", x=2),
    safetensors("cons/model-00002-of-00002.safetensors", y=3),
    index(
        "cons/model.safetensors.index.json",
        x="model-00001-of-00002.safetensors",
        y="model-00002-of-00002.safetensors",
    ),
    safetensors("cons/consolidated.safetensors", x=2, y=3),
    safetensors("apart/model.safetensors", x=2),
    safetensors("apart/adapter/adapter_model.safetensors", y=3),
    safetensors("numbered/part_0.safetensors", x=2),
    safetensors("numbered/part_1.safetensors", y=3),
    safetensors("ranks/rank_0.safetensors", x=2),
    safetensors("ranks/rank_1.safetensors", x=2),
)
LOSSY = each(whole, flipped_item("model.scale"), ran(*FORCE))
BROKEN = each(STATE, flipped("x.pt", 3.0), ran(*to("dcp", "x.pt", "step-3", "--force")))
WRITTEN = each(STATE, ran(*to("safetensors")))
AGAIN = to("safetensors", "x.pt", "out", "--overwrite")


def lossy_of_lossy(root: Path) -> None:
    """What was lost stays lost when the result is resharded once more."""
    from ckptctl.protocol import read_manifest
    from ckptctl.storage.posix import PosixStore

    manifest = read_manifest(PosixStore(root), "again/step-12")
    assert manifest is not None
    assert manifest.provenance["resharded_from"]["lost"] == ["model.scale"]


CASES: list[Case] = [
    # --- a CRC that covers more than the tensor
    *(
        Case(
            f"a flipped bit in a storage that two tensors view: {name}",
            each(views, flipped("v.pt", 5.0)),
            command,
            10,
            says=("CRC-32",),
            untouched=True,
        )
        for name, command in (
            ("digest", ("digest", "{root}/v.pt")),
            ("safetensors", to("safetensors", "v.pt")),
            ("dcp", to("dcp", "v.pt")),
            ("torch", to("torch", "v.pt", "out.pt")),
            ("the view that is sound", ("digest", "{root}/v.pt", "--only", "b")),
        )
    ),
    Case(
        "legal: two tensors that view one storage", views, to("safetensors", "v.pt"), made=("out",)
    ),
    Case(
        "a flipped bit in the pickle of a torch.save file",
        each(STATE, flipped_pickle("x.pt", b"slow")),
        to("torch", "x.pt", "out.pt"),
        10,
        says=("data.pkl", "CRC-32"),
        untouched=True,
    ),
    # --- force leaves out what is touched, and nothing else
    Case(
        "a flipped bit in one tensor stops a reshard",
        each(whole, flipped_item("model.scale")),
        (*TWO, *DROP),
        10,
        says=("model.scale", "--force"),
        untouched=True,
    ),
    Case(
        "a flipped bit in one tensor, left out by force",
        each(whole, flipped_item("model.scale")),
        FORCE,
        says=("lost to damage: model.scale\n",),
        facts={"lost": ["model.scale"]},
    ),
    Case(
        "what is damaged and left out as asked is no loss",
        each(whole, flipped_value(POSITION)),
        FORCE,
        silent=("lost to damage",),
        facts={"lost": [], "dropped": lambda keys: POSITION in keys and len(keys) == 20},
    ),
    Case(
        "nor does it keep the result from being used",
        each(whole, flipped_value(POSITION), ran(*FORCE)),
        ("resolve", "{root}/new"),
        facts={"name": "step-12"},
    ),
    Case(
        "what is damaged and was to be kept is lost",
        each(whole, flipped_value(POSITION)),
        (*TWO, "--rng", "drop", "--data", "keep", "--force"),
        facts={"lost": [POSITION]},
    ),
    Case(
        "damage of one rank does not make the rest fit fewer ranks",
        each(whole, *(flipped_value(f"dataloader.dp_rank_3.{n}") for n in ("position", "shard"))),
        (
            "reshard",
            "{root}/step-12",
            "--out",
            "{root}/new/step-12",
            "--world-size",
            "3",
            "--mesh",
            "dp=3",
            "--rng",
            "drop",
            "--force",
            "--yes",
        ),
        5,
        says=("of 4 ranks is there and 3 ranks will look for it",),
        untouched=True,
    ),
    Case(
        "what force left is no state to resume from",
        LOSSY,
        ("verify", "{root}/new/step-12", "--require", "resume"),
        10,
        says=("lost-keys", "model.scale"),
    ),
    Case("what force left is not promoted", LOSSY, ("promote", "{root}/new/step-12"), 10),
    Case(
        "what was lost stays lost",
        LOSSY,
        (
            "reshard",
            "{root}/new/step-12",
            "--out",
            "{root}/again/step-12",
            "--world-size",
            "3",
            "--yes",
            "--force",
        ),
        then=lossy_of_lossy,
    ),
    Case(
        "keys cut out of the metadata: the rest is kept, and the loss recorded",
        each(whole, without("optimizer")),
        FORCE,
        says=("lost to damage: ",),
        facts={"tensors": lambda found: found > 5, "lost": lambda found: "bytes" in "".join(found)},
    ),
    Case(
        "keys cut out of the metadata stop a reshard",
        each(whole, without("model.scale")),
        (*TWO, *DROP),
        10,
        says=("does not verify", "--force"),
        untouched=True,
    ),
    Case(
        "force that would leave nothing is refused",
        each(
            whole,
            *(cut_to_nothing(f"step-12/__{rank}_0.distcp") for rank in range(4)),
        ),
        FORCE,
        5,
        says=("no key",),
        untouched=True,
    ),
    Case(
        "convert by force leaves out what damage touches",
        each(whole, flipped_item("model.scale")),
        to("safetensors", "step-12", "out", "--force", "--only", "model.*"),
        says=("left out: model.scale",),
    ),
    Case(
        "convert of what is damaged leaves not even a directory",
        each(STATE, flipped("x.pt", 3.0)),
        to("safetensors", "x.pt", "new/out"),
        10,
        says=("CRC-32",),
        untouched=True,
    ),
    Case(
        "a commit says what convert left out by force",
        BROKEN,
        ("commit", "{root}/step-3"),
        says=("lost to damage when it was made: a\n",),
        facts={"lost": ["a"]},
        made=("step-3/ckptctl.manifest.json",),
    ),
    Case(
        "which keeps it from being promoted",
        each(BROKEN, ran("commit", "{root}/step-3")),
        ("promote", "{root}/step-3", "--require", "none"),
        10,
        says=("lost-keys", "converted from a damaged checkpoint", "1 key "),
    ),
    Case(
        "a reshard of it says so too",
        BROKEN,
        ("reshard", "{root}/step-3", "--out", "{root}/new/step-3", "--world-size", "2", "--yes"),
        facts={"lost": ["a"]},
    ),
    Case(
        "a commit of what convert made by force of what was whole",
        each(STATE, ran(*to("dcp", "x.pt", "step-3", "--force"))),
        ("commit", "{root}/step-3"),
        silent=("lost",),
        facts={"lost": []},
    ),
    Case(
        "a record of convert that cannot be read stops a commit",
        each(BROKEN, cuts("step-3/ckptctl.converted.json")),
        ("commit", "{root}/step-3"),
        10,
        says=("ckptctl.converted.json",),
        untouched=True,
    ),
    # --- tensors that cannot be read
    *(
        Case(
            f"tensors inside of objects are read: {name}, {kind}",
            ODD,
            to(kind, f"{name}.pt", "out.pt" if kind == "torch" else "out"),
            says=("proof: read back and equal",),
            silent=("left out",),
            facts={"tensors": 3 if name == "mod" else 2},
        )
        for name, kind in (
            ("odd", "safetensors"),
            ("odd", "torch"),
            ("odd", "dcp"),
            ("par", "safetensors"),
            ("mod", "safetensors"),
        )
    ),
    Case(
        "tensors in a tuple are named",
        ODD,
        to("safetensors", "tup.pt"),
        says=("left out: pair: it holds 2 tensors in a tuple",),
    ),
    *(
        Case(
            f"a result without any tensor: {name}",
            ODD,
            to("safetensors", f"{name}.pt"),
            10,
            says=("would hold no tensor",),
            untouched=True,
        )
        for name in ("only", "none")
    ),
    # --- several sets
    *(
        Case(
            f"two sets of safetensors are never one: {name}, {command[0]}",
            SETS,
            tuple(word.replace("NAME", name) for word in command),
            5,
            says=("sets of safetensors", "consolidated" if name == "cons" else "adapter_model"),
            untouched=True,
        )
        for name in ("two", "cons")
        for command in (
            ("digest", "{root}/NAME"),
            to("torch", "NAME", "out.pt"),
            ("diff", "{root}/NAME", "{root}/NAME"),
        )
    ),
    Case("files of ranks with one tensor are no set", SETS, ("digest", "{root}/ranks"), 5),
    Case(
        "legal: numbered files are one set",
        SETS,
        ("digest", "{root}/numbered"),
        says=("2 tensors",),
    ),
    Case(
        "a set is chosen by its index",
        SETS,
        to("torch", "cons/model.safetensors.index.json", "out.pt"),
        facts={"tensors": 2},
        made=("out.pt",),
    ),
    Case(
        "a set is chosen by its file",
        SETS,
        to("torch", "two/model.safetensors", "out.pt"),
        facts={"tensors": 1},
    ),
    Case(
        "files that are not read are named",
        SETS,
        to("torch", "apart", "out.pt"),
        says=("left out: adapter/adapter_model.safetensors",),
    ),
    # --- diff and digest
    Case(
        "legal: a copy is the same",
        each(whole, copied("step-12", "b")),
        ("diff", "{root}/step-12", "{root}/b"),
        says=("the same\n",),
    ),
    Case(
        "an optimizer file is gone on one side",
        each(
            SETS,
            tensors("apart/optim_state.pt", a=arange(3)),
            copied("apart", "b"),
            removes("b/optim_state.pt"),
        ),
        ("diff", "{root}/apart", "{root}/b"),
        10,
        says=("optim_state.pt",),
        silent=("the same\n",),
    ),
    Case(
        "an optimizer file is another",
        each(
            SETS,
            tensors("apart/optim_state.pt", a=arange(3)),
            copied("apart", "b"),
            flips("b/optim_state.pt", 200),
        ),
        ("diff", "{root}/apart", "{root}/b"),
        10,
        says=("optim_state.pt",),
    ),
    Case(
        "keys are gone on one side",
        each(whole, copied("step-12", "b"), without("optimizer")),
        ("diff", "{root}/b", "{root}/step-12"),
        10,
    ),
    Case(
        "a copy of a committed checkpoint, with a flipped bit",
        each(committed(12, source=SOURCE), copied("step-12", "b"), flips("b/__0_0.distcp", 13600)),
        ("diff", "{root}/step-12", "{root}/b"),
        4,
        silent=("the same\n",),
    ),
    Case(
        "a pattern that matches nothing",
        whole,
        ("diff", "{root}/step-12", "{root}/step-12", "--only", "nope"),
        4,
        silent=("the same",),
    ),
    Case(
        "one of the patterns matches nothing",
        whole,
        ("diff", "{root}/step-12", "{root}/step-12", "--only", "model.*", "--only", "nope"),
        2,
        says=("nope",),
    ),
    Case(
        "digest of a pattern that matches nothing",
        whole,
        ("digest", "{root}/step-12", "--only", "nope"),
        4,
    ),
    Case(
        "digest where one pattern matches nothing",
        whole,
        ("digest", "{root}/step-12", "--only", "model.*", "--only", "nope"),
        2,
    ),
    *(
        Case(
            f"metadata that cannot be read is no empty place: {command[0]}",
            each(whole, copied("step-12", "b"), cut_metadata("step-12/.metadata")),
            command,
            10,
            untouched=True,
        )
        for command in (
            ("digest", "{root}/step-12"),
            ("diff", "{root}/b", "{root}/step-12"),
            to("safetensors", "step-12"),
            (*TWO, *DROP),
        )
    ),
    # --- temporary until proven
    Case(
        "an unfinished reshard is something: no fresh start",
        unfinished,
        ("resolve", "{root}/new"),
        10,
        untouched=True,
    ),
    Case(
        "an unfinished reshard is no newer state",
        each(committed("new/step-12", source=SOURCE), unfinished),
        ("resolve", "{root}/new", "--max-loss", "1"),
        silent=("LOST",),
        facts={"name": "step-12"},
        untouched=True,
    ),
    Case(
        "an unfinished reshard is kept while it is young",
        each(committed("new/step-8", "new/step-12", source=SOURCE), unfinished),
        ("prune", "{root}/new", "--keep-last", "1", "--yes"),
        left=(f"new/{STAGED}", "new/step-8", "new/step-12"),
    ),
    Case(
        "a link is no destination",
        each(whole, writes("elsewhere/.ckptctl-mine.tmp"), links("new", "{root}/elsewhere")),
        (
            "reshard",
            "{root}/step-12",
            "--out",
            "{root}/new",
            "--world-size",
            "2",
            *DROP,
            "--resume",
        ),
        5,
        says=("is a link",),
        untouched=True,
    ),
    Case(
        "convert by force that would leave no tensor is refused",
        each(whole, *(cut_to_nothing(f"step-12/__{rank}_0.distcp") for rank in range(4))),
        to("torch", "step-12", "out.pt", "--force"),
        5,
        says=("would leave no tensor",),
        untouched=True,
    ),
    Case("an unfinished reshard is listed", unfinished, ("list", "{root}/new"), says=("staging",)),
    Case(
        "an unfinished reshard is not gone on from by itself",
        each(whole, unfinished),
        (*TWO, *DROP),
        5,
        says=("--resume", "--overwrite"),
        untouched=True,
    ),
    Case(
        "an unfinished reshard of another plan is not gone on from",
        each(whole, unfinished),
        (*TWO, *DROP, "--resume"),
        5,
        says=("another plan",),
        untouched=True,
    ),
    Case(
        "an unfinished reshard is begun again",
        each(whole, unfinished),
        (*TWO, *DROP, "--overwrite"),
        made=("new/step-12",),
        gone=(f"new/{STAGED}",),
    ),
    Case(
        "a committed result is never overwritten",
        each(whole, ran(*TWO, *DROP)),
        (*TWO, *DROP, "--overwrite"),
        5,
        untouched=True,
    ),
    Case(
        "what convert wrote is not replaced by itself",
        WRITTEN,
        to("safetensors"),
        5,
        untouched=True,
    ),
    Case(
        "what convert wrote is replaced when asked", WRITTEN, AGAIN, made=("out/model.safetensors",)
    ),
    Case(
        "what somebody added to is not replaced",
        each(WRITTEN, writes("out/notes.txt")),
        AGAIN,
        5,
        says=("notes.txt",),
        untouched=True,
    ),
    Case(
        "what was changed is not replaced",
        each(WRITTEN, writes("out/model.safetensors")),
        AGAIN,
        5,
        untouched=True,
    ),
    Case(
        "what a pointer names is not replaced",
        each(WRITTEN, writes("latest", "out\n")),
        AGAIN,
        5,
        says=("latest",),
        untouched=True,
    ),
    Case(
        "what a user made is not replaced",
        each(STATE, writes("out/mine")),
        AGAIN,
        5,
        untouched=True,
    ),
    Case(
        "a file that a user made is not replaced",
        each(STATE, tensors("out.pt", a=arange(2))),
        to("torch", "x.pt", "out.pt", "--overwrite"),
        5,
        untouched=True,
    ),
    Case(
        "a file that convert wrote is replaced when asked",
        each(STATE, ran(*to("torch", "x.pt", "out.pt"))),
        to("torch", "x.pt", "out.pt", "--overwrite"),
        made=("out.pt",),
    ),
    # --- what nothing proves is named
    Case(
        "safetensors keep no checksum",
        SETS,
        to("torch", "two/model.safetensors", "out.pt"),
        says=("not checked", "x"),
    ),
    Case("metadata keeps no checksum", whole, (*TWO, *DROP), says=("not checked", ".metadata")),
    Case(
        "digests of a manifest prove all of it",
        committed(12, source=SOURCE),
        (*TWO, *DROP),
        silent=("not checked",),
    ),
]
