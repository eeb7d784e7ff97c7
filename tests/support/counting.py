"""A small S3 that counts: requests by kind, how many are in flight at once, each with a delay.

It is a process of its own and quick, so that what is measured is the client. Run as a program it
serves until it is killed; ``/-/`` leads to its counters.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"


@dataclass(frozen=True)
class Counts:
    """What the server saw since it was last asked; ``most`` is how many were in flight at once."""

    requests: int
    by_kind: dict[str, int]
    most: int
    sent: int

    def of(self, kind: str) -> int:
        """Return the number of requests of a kind: ``GET``, ``HEAD``, ``LIST``, ``PUT`` ..."""
        return self.by_kind.get(kind, 0)


@dataclass(frozen=True)
class CountingServer:
    """The server as a test sees it."""

    address: str

    def _ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            connection.request(method, path, body)
            return connection.getresponse().read()
        finally:
            connection.close()

    @property
    def environment(self) -> dict[str, str]:
        """Return what points clients at it."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.address}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def delay(self, seconds: float, *, only: str = "") -> None:
        """Let every request take so much longer from now on, or those for keys that contain ``only``."""
        self._ask("POST", f"/-/delay?seconds={seconds}&only={quote(only)}")

    def counts(self) -> Counts:
        """Return the counters and begin anew."""
        told = json.loads(self._ask("POST", "/-/counts"))
        return Counts(**told)

    def put(self, key: str, data: bytes) -> None:
        """Store an object, not counted."""
        self._ask("PUT", f"/-/put/{quote(key)}", data)

    def get(self, key: str) -> bytes:
        """Return an object, not counted."""
        return self._ask("GET", f"/-/put/{quote(key)}")

    def fill(self, prefix: str, directory: Path) -> str:
        """Store all files of a directory below a prefix; return the URL."""
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(directory).as_posix()}", path.read_bytes())
        return f"s3://{BUCKET}/{prefix}"


@contextmanager
def counting_server() -> Iterator[CountingServer]:
    """Run a server; yield it."""
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield CountingServer(process.stdout.readline().decode().strip())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# ---------------------------------------------------------------------------------- the server


@dataclass
class _Bucket:
    objects: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    delay: float = 0.0
    only: str = ""
    kinds: Counter[str] = field(default_factory=Counter)
    flying: int = 0
    most: int = 0
    sent: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                method, target, _ = line.decode("latin-1").split(" ", 2)
                headers: dict[str, str] = {}
                while (raw := (await reader.readline()).decode("latin-1").strip()) != "":
                    name, _, value = raw.partition(":")
                    headers[name.lower()] = value.strip()
                if headers.get("expect") == "100-continue":
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await reader.readexactly(int(headers.get("content-length") or 0))
                status, more, data = await self.answer(method, target, headers, body)
                length = more.pop("Content-Length", str(len(data)))
                lines = [f"HTTP/1.1 {status} X", f"Content-Length: {length}"]
                lines += [f"{name}: {value}" for name, value in more.items()]
                head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
                writer.write(head + (b"" if method == "HEAD" else data))
                await writer.drain()
        writer.close()

    async def answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        split = urlsplit(target)
        path, asked = unquote(split.path), parse_qs(split.query, keep_blank_values=True)
        if path.startswith("/-/"):
            return self.control(method, path[3:], asked, body)
        _, _, key = path.lstrip("/").partition("/")
        kind = "LIST" if method == "GET" and not key else method
        self.kinds[kind] += 1
        self.flying += 1
        self.most = max(self.most, self.flying)
        try:
            await asyncio.sleep(self.delay if self.only in key else 0)
            answer = self.act(kind, key, {k: v[0] for k, v in asked.items()}, headers, body)
            self.sent += len(answer[2])
            return answer
        finally:
            self.flying -= 1

    def control(
        self, method: str, what: str, asked: dict[str, list[str]], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        if what.startswith("put/"):
            if method == "PUT":
                self.objects[what[4:]] = body
            return 200, {}, self.objects.get(what[4:], b"")
        if what == "delay":
            self.delay, self.only = float(asked["seconds"][0]), asked["only"][0]
            return 200, {}, b""
        told = {"requests": sum(self.kinds.values()), "by_kind": dict(self.kinds)}
        data = json.dumps({**told, "most": self.most, "sent": self.sent}).encode()
        self.kinds.clear()
        self.most = self.sent = 0
        return 200, {}, data

    def act(
        self, kind: str, key: str, asked: dict[str, str], headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        if kind == "LIST":
            return 200, {"Content-Type": "application/xml"}, self.listing(asked)
        if kind in ("GET", "HEAD"):
            return self.read(key, headers.get("range", ""))
        if kind == "PUT" and "partNumber" in asked:
            self.uploads[asked["uploadId"]][int(asked["partNumber"])] = body
            return 200, {"ETag": _tag(body)}, b""
        if kind == "PUT":
            if headers.get("if-none-match") == "*" and key in self.objects:
                return _refusal(412, "PreconditionFailed")
            self.objects[key] = body
            return 200, {"ETag": _tag(body)}, b""
        if kind == "DELETE":
            self.objects.pop(key, None)
            return 204, {}, b""
        if "uploads" in asked:
            number = str(len(self.uploads))
            self.uploads[number] = {}
            return 200, {}, f"<R><UploadId>{number}</UploadId></R>".encode()
        if "uploadId" in asked:
            parts = self.uploads.pop(asked["uploadId"])
            self.objects[key] = b"".join(parts[number] for number in sorted(parts))
            return 200, {}, f"<R><ETag>{_tag(self.objects[key])}</ETag></R>".encode()
        for name in re.findall(rb"<Key>(.*?)</Key>", body):
            self.objects.pop(name.decode(), None)
        return 200, {}, b"<DeleteResult></DeleteResult>"

    def read(self, key: str, span: str) -> tuple[int, dict[str, str], bytes]:
        data = self.objects.get(key)
        if data is None:
            return _refusal(404, "NoSuchKey")
        head = {"ETag": _tag(data), "Last-Modified": "Mon, 01 Jun 2026 00:00:00 GMT"}
        head["Content-Length"] = str(len(data))
        if not span:
            return 200, head, data
        first, _, last = span.partition("=")[2].partition("-")
        low = int(first) if first else max(0, len(data) - int(last))
        high = min(int(last) + 1, len(data)) if first and last else len(data)
        if low >= len(data):
            return _refusal(416, "InvalidRange")
        head["Content-Range"] = f"bytes {low}-{high - 1}/{len(data)}"
        head["Content-Length"] = str(high - low)
        return 206, head, data[low:high]

    def listing(self, asked: dict[str, str]) -> bytes:
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        after, limit = asked.get("continuation-token", ""), int(asked.get("max-keys") or 1000)
        lines: list[str] = []
        folders: dict[str, None] = {}
        last, cut = "", False
        for key in sorted(self.objects):
            if not key.startswith(prefix) or key <= after:
                continue
            folder, found, _ = (
                key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            )
            name = f"{prefix}{folder}{found}" if found else key
            if found and (name in folders or after.startswith(name)):
                last = key
                continue
            if len(lines) + len(folders) >= limit:
                cut = True
                break
            last = key
            if found:
                folders[name] = None
                continue
            data = self.objects[key]
            lines.append(
                f"<Contents><Key>{escape(quote(key))}</Key><Size>{len(data)}</Size>"
                f"<ETag>{_tag(data)}</ETag><LastModified>2026-06-01T00:00:00.000Z</LastModified>"
                "<StorageClass>STANDARD</StorageClass></Contents>"
            )
        lines += [
            f"<CommonPrefixes><Prefix>{escape(quote(one))}</Prefix></CommonPrefixes>"
            for one in folders
        ]
        more = (
            f"<NextContinuationToken>{escape(quote(last))}</NextContinuationToken>" if cut else ""
        )
        return (
            "<?xml version='1.0'?><ListBucketResult><EncodingType>url</EncodingType>"
            f"<KeyCount>{len(lines)}</KeyCount><IsTruncated>{str(cut).lower()}</IsTruncated>"
            f"{more}{''.join(lines)}</ListBucketResult>"
        ).encode()


def _tag(data: bytes) -> str:
    return f'"{zlib.crc32(data):08x}"'


def _refusal(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"
    return status, {"Content-Type": "application/xml"}, text.encode()


async def _main() -> None:
    server = await asyncio.start_server(_Bucket().serve, "127.0.0.1", 0, limit=1 << 26)
    host, port = server.sockets[0].getsockname()[:2]
    sys.stdout.write(f"{host}:{port}\n")
    sys.stdout.flush()
    parent = os.getppid()
    async with server:
        while os.getppid() == parent:
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    asyncio.run(_main())
