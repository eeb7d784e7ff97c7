"""verl: a directory per step with one for each role in it, each rank's tensors in files of its own.

``actor/model_world_size_2_rank_0.pt`` holds one rank's pieces of DTensors. The pointer has the same
file name as Megatron's; its number is that of a ``global_step_N``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckptctl.formats.base import Claim, Folder, PointerRule, Sure
from ckptctl.formats.claims import directory, matches
from ckptctl.formats.companions import Rule
from ckptctl.formats.composite import Composite
from ckptctl.model.companion import Form
from ckptctl.pattern import pattern

_FILE = pattern(r"(model|optim|extra_state)_world_size_(\d{1,6})_rank_(\d{1,6})\.pt")
_KINDS = ("model", "optim", "extra_state")
_ROLES = ("actor", "critic", "reward", "ref")


_ROLE = r"(?:(?P<role>\w+)/)?"
_SET = r"_world_size_(?P<world>\d{1,6})_rank_(?P<rank>\d{1,6})\.pt"


class Verl(Composite):
    """Directories that verl's trainers and ``FSDPCheckpointManager`` write."""

    name = "verl"
    title = "verl"
    rules = (
        Rule(_ROLE + "model" + _SET, Form.TORCH, "weights of the model", prefix=("{role}",)),
        Rule(
            _ROLE + "optim" + _SET,
            Form.TORCH,
            "the optimizer's state",
            prefix=("{role}", "optimizer"),
        ),
        Rule(
            _ROLE + "extra_state" + _SET,
            Form.TORCH,
            "the schedule and the random state of a rank",
            prefix=("{role}", "extra_state"),
        ),
        Rule(r"data\.pt", Form.TORCH, "the place in the data", prefix=("data",)),
        Rule(_ROLE + r"fsdp_config\.json", Form.JSON, "the number of ranks", state=False),
        Rule(
            _ROLE + r"huggingface/[\w.-]+\.json",
            Form.JSON,
            "the configuration of the model or the tokenizer",
            state=False,
        ),
    )
    pointers = (PointerRule("latest_checkpointed_iteration.txt"),)

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a step with its roles, or a directory with the files of one role."""
        if "pt" in folder.suffixes and any(map(_FILE.fullmatch, folder.files)):
            yield directory(self.name, folder, Sure.MARKED, lacks=_missing(folder, ""))
            return
        roles = sorted(folder.folders.intersection(_ROLES))
        if not re.fullmatch(r"global_step_\d+", folder.name.text):
            return
        if roles:
            yield directory(self.name, folder, Sure.MARKED, lacks=_missing_of_roles(folder, roles))
        elif folder.files == {"data.pt"}:
            yield directory(self.name, folder, Sure.MARKED, lacks=["actor/"])


def _missing_of_roles(folder: Folder, roles: list[str]) -> Iterator[str]:
    if "data.pt" not in folder.files:
        yield "data.pt"
    for role in roles:
        inside = folder.below(role)
        if inside is None or not inside.names:
            yield f"{role}/"
        else:
            yield from _missing(inside, f"{role}/")


def _missing(folder: Folder, prefix: str) -> Iterator[str]:
    """Yield the files of ranks and kinds that are not there, by the world size in the names."""
    found = matches(folder.files, _FILE)
    sizes = {int(match[2]) for match in found}
    for size in sorted(sizes):
        there = {(match[1], int(match[3])) for match in found if int(match[2]) == size}
        for kind in _KINDS:
            for rank in range(size):
                if (kind, rank) not in there:
                    yield f"{prefix}{kind}_world_size_{size}_rank_{rank}.pt"
