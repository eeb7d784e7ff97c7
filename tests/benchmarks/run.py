"""Measure ckptctl: ``python tests/benchmarks/run.py [NAME ...] [--size small|full] [--keep]``.

Generated data goes below the system's directory for temporary files (20 GB at most) and is removed
when it has been measured, unless it is kept. Times mean something on idle cores only.
The exit code is 1 if a goal of a full run is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from diffing import diffing
from growing import growing
from listing import listing
from measure import Row, Settings, markdown, precompile, put, table
from publishing import publishing
from reading import reading
from remote import remote
from starting import starting
from transforming import cutting, transforming
from valuing import valuing
from verifying import content, items, quick

BENCHMARKS: dict[str, Callable[[Settings], list[Row]]] = {
    "start": starting,
    "list": listing,
    "growth": growing,
    "metadata": reading,
    "quick": quick,
    "items": items,
    "content": content,
    "publishing": publishing,
    "values": valuing,
    "diff": diffing,
    "transforming": transforming,
    "cuts": cutting,
    "remote": remote,
}


def main() -> int:
    """Run what is asked for and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all without any"
    )
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each command")
    parser.add_argument("--keep", action="store_true", help="leave the generated data there")
    parser.add_argument(
        "--below", type=Path, default=Path(tempfile.gettempdir()), help="where data is generated"
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="PAGE", help="put the table into this page"
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
    precompile()
    settings = Settings(cache, full, options.rounds)
    rows: list[Row] = []
    failed = []
    try:
        for name in options.names or BENCHMARKS:
            start = time.monotonic()
            try:
                rows += BENCHMARKS[name](settings)
            except RuntimeError as error:  # the others are measured all the same
                failed.append(f"{name}: {error}")
            sys.stderr.write(f"{name}: {time.monotonic() - start:.0f} s\n")
            if not options.keep:
                _empty(cache)
    finally:
        if not options.keep:
            shutil.rmtree(cache)
        sys.stdout.write(table(rows, judged=full))
    if options.markdown is not None:
        put(options.markdown, markdown(rows, judged=full))
    sys.stderr.write("".join(f"{text}\n" for text in failed))
    return int(bool(failed) or (full and any(row.met is False for row in rows)))


def _empty(cache: Path) -> None:
    for path in cache.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


if __name__ == "__main__":
    sys.exit(main())
