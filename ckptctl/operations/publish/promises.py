"""What a commit promises of all that lies in a checkpoint's directory, and what it leaves to others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import Findings
from ckptctl.formats.base import Layout
from ckptctl.model.belonging import foreign
from ckptctl.model.checkpoint import Checkpoint, File
from ckptctl.model.manifest import Receipt, Unpromised, is_record

_UNKNOWN = "neither the metadata nor the layout names it"
_MOST_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Promises:
    """The files that are promised, what else is there, and which of the promised are links elsewhere."""

    files: frozenset[str]
    unpromised: tuple[Unpromised, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)


def promises_of(
    url: str, layout: Layout, checkpoint: Checkpoint, receipts: Iterable[Receipt] = ()
) -> Promises:
    """Choose what belongs: metadata, what it refers to, what ranks and layout name.

    Raises ``Findings`` where something else than a file has the place of one that belongs.
    """
    needed = {*checkpoint.sources, *checkpoint.items.paths}
    needed |= {path for path, one in checkpoint.companions.items() if one.known}
    needed |= {record.path for receipt in receipts for record in receipt.files}
    promised: set[str] = set()
    others: list[tuple[File, str]] = []
    for path, file in checkpoint.files.items():
        if is_record(path):
            continue
        if path in needed:
            promised.add(path)
        elif file.behind:
            others.append((file, ""))
        elif not layout.belongs(path):
            others.append((file, _why(file)))
        elif not file.is_file:
            raise Findings(
                f"{url} is not whole, so it was not committed: {path} is no regular file: "
                "a link that leads nowhere, or what is no data at all"
            )
        else:
            promised.add(path)
    there = (checkpoint.files[path] for path in sorted(promised) if path in checkpoint.files)
    links = {
        f"{file.behind}/" if file.behind else file.path: file.link
        for file in there
        if _leads_out(file)
    }
    return Promises(frozenset(promised), tuple(_rows(others)), links)


def _why(file: File) -> str:
    why = foreign(file.path)
    if why or file.is_file:
        return why or _UNKNOWN
    return "a link that is not followed" if file.link else "no regular file"


def _leads_out(file: File) -> bool:
    """Tell whether a file is a link, or behind one, to something outside its checkpoint's directory."""
    if file.behind:
        return True
    if not file.link or file.link.startswith("/"):
        return bool(file.link)
    depth = file.path.count("/")
    for part in file.link.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            return True
    return False


def _rows(others: Iterable[tuple[File, str]]) -> list[Unpromised]:
    """List what is not promised: what lies behind one link, or in one foreign folder, in one row."""
    rows: dict[str, Unpromised] = {}
    for file, why in others:
        name, reason = file.path, why
        if file.behind:
            name, reason = f"{file.behind}/", "a link to a directory, which nothing here refers to"
        elif why.startswith("in "):
            folder = why[3:].partition(",")[0]
            parts = file.path.split("/")
            name = "/".join(parts[: parts.index(folder) + 1]) + "/"
        before = rows.get(name)
        size = file.size + (before.size if before is not None else 0)
        rows[name] = Unpromised(name, size, reason)
    if len(rows) > _MOST_ROWS:
        return _by_folder(rows.values())
    return sorted(rows.values(), key=lambda row: row.path)


def _by_folder(rows: Iterable[Unpromised]) -> list[Unpromised]:
    sizes: dict[str, int] = {}
    for row in rows:
        head, slash, _ = row.path.partition("/")
        name = f"{head}/" if slash else "./"
        sizes[name] = sizes.get(name, 0) + row.size
    return [Unpromised(name, size, _UNKNOWN) for name, size in sorted(sizes.items())]
