"""ckptctl's own records: changed, some with their digests put right again, some without."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import re
import tempfile
import zlib
from pathlib import Path
from typing import Any

import ckptctl
from ckptctl.errors import MalformedData
from ckptctl.model import manifest as model
from ckptctl.model.manifest import Receipt, Record, canonical, decode
from slow.fuzz.cases import Difference, Target, glanced_at, looked_at
from slow.fuzz.metadata import SAVE_ID, SHARD, described, written
from slow.fuzz.mutate import document, flipped, spelled

_FIXED: dict[str, Any] = {
    "time": "2026-01-02T03:04:05Z",
    "actor": "someone@somewhere",
    "tool": "ckptctl",
    "commit_id": SAVE_ID,
}
"""What differs from run to run; an input must not."""


def history() -> dict[str, bytes]:
    """Return a run with every kind of record: committed, promoted, marked, released, in the trash."""
    import torch

    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "run"
        for step in (8, 12):
            values = {"model.w": torch.full((2, 3), float(step)), "step": step}
            state, shard = described(values, f"run/step-{step}")
            folder = root / f"step-{step}"
            written(folder, state, shard)
            digest = f"sha256:{hashlib.sha256(shard).hexdigest()}"
            file = model.FileRecord(SHARD, len(shard), digest, 0, step)
            if step == 12:
                receipt = Receipt(rank=0, world_size=1, step=step, files=(file,), save_id=SAVE_ID)
                (folder / receipt.path).parent.mkdir()
                (folder / receipt.path).write_bytes(receipt.encode())
            ckptctl.commit(folder, workers=1)
            ckptctl.promote(folder, require="none")
        ckptctl.quarantine(root / "step-8", reason="a test")
        ckptctl.release(root / "step-8", reason="a test")
        ckptctl.promote(root / "step-8", rollback=True, reason="back", require="none")
        ckptctl.promote(root / "step-12", reason="on again", require="none")
        trashed = model.TrashRecord(
            number=1,
            path="step-2",
            step=2,
            state="committed",
            contents={"step-2/x": 3},
            reason="old",
        )
        paths = (path for path in root.rglob("*") if path.is_file())
        found = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
    found[trashed.record] = trashed.encode()
    found[f"{trashed.folder}/step-2/x"] = b"abc"
    return _fixed(found)


def _fixed(found: dict[str, bytes]) -> dict[str, bytes]:
    """Put fixed times and ids into all records, and their digests right, also where others name them."""
    digests: dict[bytes, bytes] = {}
    order = sorted(found, key=lambda path: not path.endswith("manifest.json"))
    for _ in range(4):  # manifests name the ones before them
        for path in order:
            if not path.endswith(".json"):
                continue
            data = found[path]
            for old, new in digests.items():
                data = data.replace(old, new)
            body = json.loads(data)
            old = body.pop("digest", None)
            if old is None:
                continue
            for key in _FIXED.keys() & body.keys():
                body[key] = _FIXED[key]
            found[path] = resealed(body)
            new = json.loads(found[path])["digest"]
            if old != new:
                digests[old.encode()] = new.encode()
    return found


def resealed(body: dict[str, Any]) -> bytes:
    """Return a record's bytes with the digest that fits what it says."""
    body = {key: value for key, value in body.items() if key != "digest"}
    digest = "sha256:" + hashlib.sha256(canonical(body)).hexdigest()
    return canonical({**body, "digest": digest})


def kinds(found: type[Record] = Record) -> dict[str, type[Record]]:
    """Return every kind of record by the beginning of its schema."""
    known = {found.SCHEMA.rpartition("/")[0]: found} if found.SCHEMA else {}
    for one in found.__subclasses__():
        known |= kinds(one)
    return known


class RecordTarget(Target):
    """One record of a run whose other files stay as they are."""

    name = "records"

    def __init__(self) -> None:
        self.tree = history()
        self.kinds = kinds()
        self.seeds = {
            path: json.loads(data)
            for path, data in sorted(self.tree.items())
            if re.search(r"(?:^|/)ckptctl\..*\.json$", path) and b'"schema"' in data
        }

    def make(self, rng: random.Random) -> tuple[str, bytes]:
        path = rng.choice(list(self.seeds))
        seed = self.seeds[path]
        how = rng.random()
        if how < 0.1:
            return path, flipped(rng, self.tree[path])
        if how < 0.2:
            other = rng.choice(list(self.seeds))
            return path, self.tree[other]
        changed = document(rng, seed)
        if how < 0.85 and isinstance(changed, dict):
            try:
                return path, resealed(changed)
            except (ValueError, TypeError, RecursionError):
                pass
        return path, spelled(rng, changed)

    def judge(self, slot: str, data: bytes) -> str:
        stem = str(self.seeds[slot]["schema"]).rpartition("/")[0]
        outcome = "accepted"
        try:
            record = decode(self.kinds[stem], data)
        except MalformedData:
            outcome = "refused"
        else:
            self._sound(record, data)
        share = zlib.crc32(data) % 32
        if share == 0 or (share < 8 and outcome == "accepted"):
            looked_at({**self.tree, slot: data})
        elif share < 16:
            glanced_at({**self.tree, slot: data})
        return outcome

    def _sound(self, record: Record, data: bytes) -> None:
        body = json.loads(data)
        stated = body.pop("digest")
        if stated != "sha256:" + hashlib.sha256(canonical(body)).hexdigest():
            raise Difference("accepted, and its digest does not fit")
        again = decode(type(record), record.encode())
        if dataclasses.replace(again, digest="") != dataclasses.replace(record, digest=""):
            raise Difference("it comes back as another", repr(record)[:300])
