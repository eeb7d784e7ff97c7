"""Measure ckptctl: ``python tests/benchmarks/run.py [NAME ...] [--size small|full] [--keep]``.

Generated data goes below the system's directory for temporary files (20 GB for a full run, with
as much memory needed to build the largest metadata) and is removed in the end unless kept.
The exit code is 1 if a goal of a full run is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from diffing import diffing
from listing import listing
from measure import Row, Settings, table
from publishing import publishing
from reading import reading
from transforming import transforming
from valuing import valuing
from verifying import content, quick

BENCHMARKS: dict[str, Callable[[Settings], list[Row]]] = {
    "list": listing,
    "metadata": reading,
    "content": content,
    "quick": quick,
    "publishing": publishing,
    "transforming": transforming,
    "values": valuing,
    "diff": diffing,
}


def main() -> int:
    """Run what is asked for and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all without any"
    )
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each command")
    parser.add_argument("--keep", action="store_true", help="leave the generated data there")
    parser.add_argument(
        "--below", type=Path, default=Path(tempfile.gettempdir()), help="where data is generated"
    )
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    full = options.size == "full"
    cache = options.below.resolve() / "ckptctl-benchmarks"
    cache.mkdir(mode=0o700, exist_ok=True)
    if cache.stat().st_uid != os.getuid():  # pickles are loaded from it
        parser.error(f"{cache} belongs to someone else")
    settings = Settings(cache, full, options.rounds)
    rows: list[Row] = []
    try:
        for name in options.names or BENCHMARKS:
            rows += BENCHMARKS[name](settings)
    finally:
        if not options.keep:
            shutil.rmtree(cache)
        sys.stdout.write(table(rows, judged=full))
    return int(full and any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
