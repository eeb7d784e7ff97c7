"""Places to store bytes in, for the contract that every store has to keep; and items to store.

A place is a store under test and another writer: what the writer does goes round the store, as
a training job's writes do.
"""

from __future__ import annotations

import html
import os
import struct
import threading
import urllib.parse
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

from ckptctl.formats.torch import zip as torchzip
from ckptctl.storage import Store


class Place(Protocol):
    """A store and the other writer into it."""

    store: Store

    def put(self, path: str, data: bytes) -> None:
        """Create or replace one object, and the directories above it."""

    def remove(self, path: str) -> None:
        """Delete one object."""


@dataclass
class DirectoryPlace:
    """A store that shows a local directory."""

    store: Store
    directory: Path

    def put(self, path: str, data: bytes) -> None:
        target = self.directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def remove(self, path: str) -> None:
        (self.directory / path).unlink()


@dataclass
class MemoryPlace:
    """A store that shows a part of fsspec's memory."""

    store: Store
    system: Any
    root: str

    def put(self, path: str, data: bytes) -> None:
        self.system.pipe_file(f"{self.root}/{path}", data)

    def remove(self, path: str) -> None:
        self.system.rm_file(f"{self.root}/{path}")


@dataclass
class BucketPlace:
    """A store that shows a prefix of a bucket; the writer is Amazon's own client."""

    store: Store
    client: Any
    bucket: str
    prefix: str

    def put(self, path: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=f"{self.prefix}/{path}", Body=data)

    def remove(self, path: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=f"{self.prefix}/{path}")


def fill(place: Place, directory: Path) -> None:
    """Put all files of a directory into a place."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            place.put(path.relative_to(directory).as_posix(), path.read_bytes())


class _Ranges(SimpleHTTPRequestHandler):
    """Serves files, listings and single byte ranges, as a plain web server does."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Keep quiet."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = Path(self.translate_path(self.path))
        if path.is_dir():
            self._send(200, self._listing(path), body=body, kind="text/html; charset=utf-8")
        elif path.is_file():
            self._send_file(path.read_bytes(), body=body)
        else:
            self._send(404, b"not there", body=body)

    def _listing(self, path: Path) -> bytes:
        lines = []
        for name in sorted(os.listdir(path)):
            shown = f"{name}/" if (path / name).is_dir() else name
            target = urllib.parse.quote(shown, errors="surrogatepass")
            lines.append(f'<li><a href="{target}">{html.escape(shown)}</a></li>')
        return f"<html><body><ul>{''.join(lines)}</ul></body></html>".encode()

    def _send_file(self, data: bytes, *, body: bool) -> None:
        unit, _, span = self.headers.get("Range", "").partition("=")
        if unit != "bytes":
            self._send(200, data, body=body)
            return
        first, _, last = span.partition("-")
        start, stop = int(first or 0), min(int(last or len(data)) + 1, len(data))
        if start >= len(data):
            self._send(416, b"", body=body, extent=f"bytes */{len(data)}")
            return
        extent = f"bytes {start}-{stop - 1}/{len(data)}"
        self._send(206, data[start:stop], body=body, extent=extent)

    def _send(
        self,
        status: int,
        data: bytes,
        *,
        body: bool,
        kind: str = "application/octet-stream",
        extent: str = "",
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        if extent:
            self.send_header("Content-Range", extent)
        self.end_headers()
        if body:
            self.wfile.write(data)


@contextmanager
def web_server(directory: Path) -> Iterator[str]:
    """Serve a directory on this machine; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Ranges, directory=str(directory)))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def torch_zip(
    records: Mapping[str, bytes],
    *,
    root: str = "archive",
    descriptors: bool = False,
    padding: int = 0,
    central_extra: bytes = b"",
    comment: bytes = b"",
    reverse: bool = False,
    crc: bool = True,
) -> bytes:
    """Write an item by hand in the form of ``torch.save``: stored records, zip64 end record.

    ``descriptors`` puts sizes and CRC behind the data instead of before, ``padding`` is a local
    extra field of so many bytes, ``reverse`` lists the records in the directory backwards.
    """
    body = bytearray()
    lines: list[bytes] = []
    flags = 0x0808 if descriptors else 0x0800
    for name, data in records.items():
        raw, start = f"{root}/{name}".encode(), len(body)
        described = descriptors and bool(data)
        own_flags = flags if described else 0x0800
        checked = zlib.crc32(data) if crc else 0
        extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding if padding else b""
        ahead = (0, 0, 0) if described else (checked, len(data), len(data))
        body += struct.pack(
            "<IHHHHHIIIHH", 0x04034B50, 0, own_flags, 0, 0, 0, *ahead, len(raw), len(extra)
        )
        body += raw + extra + data
        if described:
            body += struct.pack("<IIII", 0x08074B50, checked, len(data), len(data))
        sizes = (checked, len(data), len(data), len(raw), len(central_extra), len(comment))
        line = struct.pack(
            "<IHHHHHHIIIHHHHHII", 0x02014B50, 0, 0, own_flags, 0, 0, 0, *sizes, 0, 0, 0, start
        )
        lines.append(line + raw + central_extra + comment)
    directory = b"".join(reversed(lines) if reverse else lines)
    start, count, size = len(body), len(lines), len(directory)
    end = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 0, 0, 0, 0, count, count, size, start)
    end += struct.pack("<IIQI", 0x07064B50, 0, start + size, 1)
    end += struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, size, start, 0)
    return bytes(body) + directory + end


def record_of(data: bytes, name: str) -> bytes:
    """The bytes of one record, found by our own reader: zipfile insists on a CRC."""
    directory = torchzip.read_directory(lambda a, b: data[a:b], len(data))
    (head,) = [head for head in directory.heads if head.name == name]
    start = torchzip.data_start(data[head.header :][: 30 + len(head.raw_name)], head)
    return data[start : start + head.size]
