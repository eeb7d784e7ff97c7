"""NVIDIA Resiliency Extension: one file per iteration and rank, each rank's in a folder of its own.

``1/iter_0000006_1_local.pt`` is what rank 1 kept of iteration 6, on its own node's disk. A
checkpoint can be loaded where the files of all ranks are there and none is marked as dirty.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckptctl.formats.base import Claim, Folder, Sure
from ckptctl.formats.claims import matches, missing
from ckptctl.formats.companions import Rule
from ckptctl.formats.composite import Composite
from ckptctl.model.companion import Form
from ckptctl.pattern import pattern

_FILE = pattern(r"iter_(\d{7,18})_(\d{1,9})_local\.pt(\.dirty)?")
_MOST_FOLDERS = 4096


class NvrxLocal(Composite):
    """Files that ``LocalCheckpointManager`` writes, of all ranks that lie in one place."""

    name = "nvrx-local"
    title = "NVRx local"
    rules = (
        Rule(
            r"(?:\d+/)?iter_\d{7,18}_(?P<rank>\d{1,9})_local\.pt(?:\.dirty)?",
            Form.TORCH,
            "everything of a rank",
            prefix=(),
        ),
    )

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim the files of one iteration over the folders of all ranks, or those of one rank."""
        found: dict[int, dict[int, str]] = {}
        ranks: set[int] = set()
        for prefix, inside in _places(folder):
            for match in matches(inside.own_files, _FILE):
                iteration, rank = int(match[1]), int(match[2])
                ranks.add(rank)
                found.setdefault(iteration, {})[rank] = prefix + match[0]
        together = "/" in next((one for own in found.values() for one in own.values()), "")
        for iteration, files in found.items():
            dirty = [f"rank {rank}" for rank, name in files.items() if name.endswith(".dirty")]
            stem = f"iter_{iteration:07d}"
            absent = missing(set(files), "{}", max(ranks) + 1) if together else ()
            yield Claim(
                self.name,
                folder.join(stem if together or len(files) > 1 else next(iter(files.values()))),
                Sure.OWN,
                tuple(files[rank] for rank in sorted(files)),
                step=iteration,
                staging=f"the file of {', '.join(dirty[:4])} is marked as dirty" if dirty else "",
                lacks=tuple(f"{rank}/{stem}_{rank}_local.pt" for rank in absent),
                resume=folder.join("{rank}/" + stem + "_{rank}_local.pt") if together else "",
            )


def _places(folder: Folder) -> Iterator[tuple[str, Folder]]:
    """Yield where files may lie: the folders of the ranks, else the directory itself."""
    numbers = [name for name in folder.folders if name.isdigit()]
    if numbers and len(numbers) == len(folder.folders) and not folder.files:
        for name in sorted(numbers, key=int)[:_MOST_FOLDERS]:
            inside = folder.below(name)
            if inside is None or inside.folders:
                return  # steps of something else: one listing is enough to see it
            if not matches(inside.own_files, _FILE) and inside.files:
                return
            yield f"{name}/", inside
    elif not folder.suffixes.isdisjoint(("pt", "dirty")):
        yield "", folder
