"""``ckptctl show``: one of the ways to look at a checkpoint, as one result."""

from __future__ import annotations

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import UsageError
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH
from ckptctl.operations.catalog.show import (
    Description,
    FileRow,
    Layout,
    ObjectRow,
    TensorRow,
    Viewer,
)
from ckptctl.operations.place import Place, address
from ckptctl.storage import Store


@dataclass(frozen=True, slots=True)
class Shown(Answer):
    """What was asked for of one checkpoint; the rest is None."""

    checkpoint: str = field(metadata=PATH)
    description: Description | None = None
    tensors: tuple[TensorRow, ...] | None = None
    objects: tuple[ObjectRow, ...] | None = None
    files: tuple[FileRow, ...] | None = None
    layout: Layout | None = None


def show(
    store: Store,
    place: Place,
    *,
    tensors: bool = False,
    objects: bool = False,
    files: bool = False,
    layout: str | None = None,
    pattern: str = "*",
) -> Shown:
    """Look at a checkpoint: at a glance, or at one of tensors, objects, files and a layout.

    Raises ``UsageError`` for more than one of them, and what opening a ``Viewer`` raises.
    """
    if sum((tensors, objects, files, layout is not None)) > 1:
        raise UsageError("choose one of `tensors`, `objects`, `files` and `layout`")
    url = address(store, place.path)
    viewer = Viewer(store, place)
    if tensors:
        return Shown(url, tensors=tuple(viewer.tensors(pattern)))
    if objects:
        return Shown(url, objects=tuple(viewer.objects(pattern)))
    if files:
        return Shown(url, files=tuple(viewer.files()))
    if layout is not None:
        return Shown(url, layout=viewer.layout(layout))
    return Shown(url, description=viewer.describe())
