"""What an object store is asked: requests, how many at once, and the time at 50 ms for each.

The server is a small one of the tests that counts and waits; it is a process of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from measure import HERE, Goal, Row, Settings, ckptctl, made, run

sys.path.insert(0, str(HERE.parent))
from support.counting import BUCKET, CountingServer, Counts, counting_server

_DELAY = 0.05


def remote(settings: Settings) -> list[Row]:
    """Verify, digest and reshard 13 MB in four files; verify many small files."""
    keys, many = settings.scaled(50, 10), settings.scaled(512, 64)
    four = made(settings, "content", 4, keys, 64, 256)
    small = made(settings, "content", many, 1, 16, 64)
    with counting_server() as server:
        before = dict(os.environ)
        os.environ.update(server.environment)
        try:
            return _rows(server, settings, four, small, many)
        finally:
            os.environ.clear()
            os.environ.update(before)


def _rows(
    server: CountingServer, settings: Settings, four: Path, small: Path, many: int
) -> list[Row]:
    url = server.fill("four/step-1000", four)
    others = server.fill("many/step-1000", small)
    out = f"s3://{BUCKET}/out/step-1000"
    whole, _ = _asked(server, settings, ["verify", url])
    quick, quick_s = _asked(server, settings, ["verify", "--quick", url])
    digest, digest_s = _asked(server, settings, ["digest", url])
    reshard, reshard_s = _asked(
        server, settings, ["reshard", url, "--world-size", "8", "--out", out, "--yes"]
    )
    verify, verify_s = _asked(server, settings, ["verify", others])
    files = f"4 files x {settings.scaled(50, 10)} items"
    ratio = quick.requests / whole.requests
    return [
        Row(
            f"S3 at 50 ms: verify --quick / verify, {files}",
            "requests",
            quick.requests,
            whole.requests,
            ratio,
            Goal(1),
            before="415",
        ),
        Row("  the same", "s", quick_s, before="14.7"),
        Row("S3: digest of them", "requests", digest.requests, goal=Goal(40), before="612"),
        Row("  the same", "s", digest_s, before="19.7"),
        Row("S3: reshard to 8", "requests", reshard.requests, goal=Goal(300), before="4,346"),
        Row("  the same", "s", reshard_s, before="76"),
        Row(
            f"S3: verify, {many} small files",
            "requests",
            verify.requests,
            goal=Goal(many + 18),
            before="1,035",
        ),
        Row("  the same", "at once", verify.most, goal=Goal(32, at_least=True), before="2"),
        Row("  the same", "s", verify_s, goal=Goal(2), before="33"),
    ]


def _asked(
    server: CountingServer, settings: Settings, words: Sequence[str]
) -> tuple[Counts, float]:
    """Run a command while each request takes 50 ms; return what was counted, and the seconds."""
    server.delay(_DELAY)
    try:
        server.counts()
        usage = run(ckptctl(*words), settings.cache)
        return server.counts(), usage.wall
    finally:
        server.delay(0)
