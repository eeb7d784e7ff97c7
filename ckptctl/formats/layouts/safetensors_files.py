"""Safetensors: a directory with the files of one model, or files that each are one checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ckptctl.dataclass import replace
from ckptctl.formats.base import Claim, Folder, Layout, Reads, Sure
from ckptctl.formats.claims import directory, file, is_checkpoint, missing_of_sets
from ckptctl.formats.torch.layout import SUFFIXES
from ckptctl.model.checkpoint import Checkpoint, File
from ckptctl.pattern import pattern
from ckptctl.storage import Store

_SUFFIX = ".safetensors"
_INDEX = ".safetensors.index.json"
_WHOLE = frozenset(("model.safetensors", "consolidated.safetensors"))
_OF_A_SET = pattern(r".*-\d+-of-\d+\.safetensors|shard-\d+.*")
_SIDE = pattern(r"(?:.*[-_.])?(?:optimizer|optim|scheduler|rng|random|tokenizer)(?:[-_.].*)?")


class SafetensorsFiles(Layout):
    """Safetensors files that no other layout knows more of."""

    name = "safetensors"
    title = "safetensors"
    reads = Reads.WHOLE

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim files with steps in their names one by one, else the directory as one."""
        index = "json" in folder.suffixes and any(name.endswith(_INDEX) for name in folder.files)
        if "safetensors" not in folder.suffixes and not index:
            return
        names = [n for n in sorted(folder.own_files) if n.endswith(_SUFFIX)]
        if folder.asked.endswith(_SUFFIX) and folder.asked in folder.files:
            yield file(self.name, folder, folder.asked, Sure.SUFFIX)
            return
        if folder.asked.endswith(_INDEX) and folder.asked in folder.files:
            members = sorted({folder.asked, *_named_in(folder)})
            yield replace(
                file(self.name, folder, folder.asked, Sure.SUFFIX), members=tuple(members)
            )
            return
        steps = [n for n in names if folder.named[n].recognised and not _OF_A_SET.fullmatch(n)]
        if steps and not is_checkpoint(folder):
            for name in steps:
                if not _SIDE.fullmatch(name):
                    yield file(self.name, folder, name, Sure.SUFFIX)
        elif not folder.checkpoints and not _holds_others(folder):
            lacks = missing_of_sets(folder.files)
            yield directory(self.name, folder, Sure.SUFFIX, lacks=lacks)

    def metadata(self, files: Iterable[str]) -> list[str]:
        """Return what makes a directory one model: its index, or the file with a model's own name."""
        return sorted(name for name in files if name.endswith(_INDEX) or name in _WHOLE)

    def read(self, store: Store, base: str, files: Mapping[str, File]) -> Checkpoint:
        """Read the headers of all files; damage becomes faults."""
        from ckptctl.formats.safetensors import reader

        return reader.read(store, base, files)


def _named_in(folder: Folder) -> set[str]:
    """Return the files in the same directory that the index names which a user named."""
    from ckptctl.formats.safetensors import reader

    found = reader.weights(folder.store, folder.join(folder.asked))
    names = found.values() if isinstance(found, dict) else ()
    return {name for name in names if isinstance(name, str) and "/" not in name}


def _holds_others(folder: Folder) -> bool:
    """Tell whether files of another kind in the directory are checkpoints by themselves."""
    return any(
        folder.named[name].recognised for name in folder.files if name.endswith(SUFFIXES)
    ) and not is_checkpoint(folder)
