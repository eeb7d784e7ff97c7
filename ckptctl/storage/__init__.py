"""Where the bytes are: stores, and how a path or URL names one."""

from ckptctl.storage.base import (
    Entry,
    Reader,
    Store,
    Upload,
    WritableStore,
    below,
    open_listed,
    walk,
)
from ckptctl.storage.registry import open_store, open_writable

__all__ = [
    "Entry",
    "Reader",
    "Store",
    "Upload",
    "WritableStore",
    "below",
    "open_listed",
    "open_store",
    "open_writable",
    "walk",
]
