"""Where the bytes are: stores, and how a path or URL names one."""

from ckptctl.storage.base import Entry, Reader, Store, walk
from ckptctl.storage.locate import open_store

__all__ = ["Entry", "Reader", "Store", "open_store", "walk"]
