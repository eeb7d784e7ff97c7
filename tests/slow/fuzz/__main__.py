"""The fuzzer by itself: ``python -m tests.slow.fuzz --inputs 20000 --seed 1 --target metadata``.

It prints what the inputs of each target came to, and for each kind of fault a seed and a number
with which ``--only`` makes the input again. ``--out`` keeps the inputs, made as small as they go.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[3])]

from slow.fuzz.campaign import SHARES, campaign, kept, show, targets  # noqa: E402
from slow.fuzz.harness import attempt, confine, make  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slow.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--target", action="append", choices=list(SHARES), help="these only")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, help="make and judge the input of this number alone")
    parser.add_argument("--out", type=Path, help="where inputs with faults are kept")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kept", action="store_true", help="judge the kept inputs, as JSON")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.kept:
        print(json.dumps(kept()))
        return 0
    chosen = targets(asked.target or list(SHARES))
    if asked.only is not None:
        confine()
        for target in chosen:
            slot, data = make(target, asked.seed, asked.only)
            print(target.name, slot, len(data), data[:400])
            print(*attempt(target, slot, data), sep="\n")
            if asked.out:
                asked.out.mkdir(parents=True, exist_ok=True)
                (asked.out / f"{slot}--{asked.only}.bin").write_bytes(data)
        return 0
    found = campaign(
        chosen,
        asked.inputs,
        asked.seed,
        workers=asked.workers,
        out=asked.out,
        progress=(lambda _: None) if asked.json else print,
    )
    print(show(found, asked.seed, as_json=asked.json))
    return 1 if any(tally.faults for tally in found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
