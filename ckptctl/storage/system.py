"""The few calls that writing to a file system takes, as a seam for tests that crash between them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class System(Protocol):
    """What ``PosixStore`` does to a file system; failures are ``OSError``."""

    def make_directory(self, path: Path) -> None:
        """Make one directory; its parent must exist."""

    def write(self, path: Path, data: bytes) -> None:
        """Make a new file with this content, not yet durable."""

    def sync_file(self, path: Path) -> None:
        """Make a file's content durable."""

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, or raise ``FileExistsError``."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or directory another name, in one step."""

    def unlink(self, path: Path) -> None:
        """Take a file's name away."""

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""


class RealSystem:
    """The operating system."""

    def make_directory(self, path: Path) -> None:
        """Make one directory; its parent must exist."""
        path.mkdir()

    def write(self, path: Path, data: bytes) -> None:
        """Make a new file with this content, not yet durable."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)

    def sync_file(self, path: Path) -> None:
        """Make a file's content durable."""
        self._sync(path, os.O_RDONLY)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        self._sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def _sync(self, path: Path, flags: int) -> None:
        fd = os.open(path, flags | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, or raise ``FileExistsError``."""
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or directory another name, in one step."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Take a file's name away."""
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()
