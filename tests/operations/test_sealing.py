"""What a manifest vouches for, and what it does not: files, items and keys that it leaves out."""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckptctl.model.manifest import MANIFEST, Manifest, decode
from ckptctl.operations.publish import commit
from support import damage
from support.publish import Watched, ckptctl, done, errors, findings, refused

Copy = Callable[..., Path]
SHARD = "__1_0.distcp"


@pytest.fixture
def sealed(copy: Copy) -> Path:
    """A committed checkpoint."""
    path = copy("fsdp2/step-12")
    done("commit", path)
    return path


def manifest_of(checkpoint: Path) -> Manifest:
    return decode(Manifest, (checkpoint / MANIFEST).read_bytes())


def rewrite(checkpoint: Path, **changes: Any) -> None:
    """Change a manifest and make its digest fit again, as an attacker or a bug would."""
    document = json.loads((checkpoint / MANIFEST).read_bytes())
    del document["schema"], document["digest"]
    known = {name: getattr(manifest_of(checkpoint), name) for name in document}
    (checkpoint / MANIFEST).write_bytes(Manifest(**{**known, **changes}).encode())


# ---------------------------------------------------------------------------------- what is left out


@pytest.mark.parametrize("name", [SHARD, ".metadata"])
def test_a_manifest_that_leaves_a_file_out_covers_nothing_in_it(sealed: Path, name: str) -> None:
    files = tuple(file for file in manifest_of(sealed).files if file.path != name)
    rewrite(sealed, files=files)
    found = findings(sealed)
    assert errors(found) == {"incomplete-manifest"}
    assert found["incomplete-manifest"][0]["where"]["file"] == name
    assert "incomplete-manifest" in refused("promote", sealed, "--require", "none", code=10)
    assert "incomplete-manifest" in refused("resolve", sealed.parent, "--full", code=10)


def test_damage_in_a_file_that_a_manifest_leaves_out_is_found(sealed: Path) -> None:
    files = tuple(file for file in manifest_of(sealed).files if file.path != SHARD)
    rewrite(sealed, files=files)
    damage.flip_byte(sealed, file=SHARD, at=20000)
    ended = ckptctl("verify", sealed, "--json", "--ignore", "incomplete-manifest")
    (result,) = ended.json()["checkpoints"]
    rows = {row["unit"]: row for row in result["report"]["coverage"]}
    assert ended.code == 10
    assert rows["items"]["examined"] > 0
    assert rows["records"]["examined"] > 0


def test_keys_that_a_reshard_lost_are_never_handed_out(sealed: Path) -> None:
    lost = {"resharded_from": {"checkpoint": "step-11", "lost": ["model.w", "model.b"]}}
    rewrite(sealed, provenance=lost)
    found = findings(sealed)
    assert errors(found) == {"lost-keys"}
    assert "model.b, model.w" in found["lost-keys"][0]["message"]
    assert "lost-keys" in refused("promote", sealed, "--require", "none", code=10)
    assert "lost-keys" in refused("resolve", sealed.parent, code=10)


@pytest.mark.parametrize("lost", [[], None, {}])
def test_a_reshard_that_lost_nothing_is_as_good_as_any(sealed: Path, lost: object) -> None:
    rewrite(sealed, provenance={"resharded_from": {"lost": lost}, "by": "hand"})
    assert findings(sealed) == {}
    done("promote", sealed, "--require", "none")


# ---------------------------------------------------------------------------------- while it is read


def _shows_mapped_writes(place: Path) -> bool:
    """Tell whether this file system changes times for a write through a mapping, once it was synced."""
    probe = place / "probe"
    probe.write_bytes(bytes(8192))
    with probe.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapping:
        mapping[0] = 1
        os.fsync(stream.fileno())
        before = probe.stat().st_ctime_ns
        time.sleep(0.05)
        mapping[0] = 2
        changed = probe.stat().st_ctime_ns != before
    probe.unlink()
    return changed


def test_a_writer_through_a_mapping_is_seen(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copy("fsdp2/step-12")
    if not _shows_mapped_writes(path.parent):
        pytest.skip("this file system does not show writes through a mapping")
    asked = commit.refuse_changes
    with (path / SHARD).open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapping:
        mapping[20000] = mapping[20000]  # the page is dirty before the commit begins

        def late(*args: Any) -> None:
            mapping[20000] ^= 1
            asked(*args)

        monkeypatch.setattr(commit, "refuse_changes", late)
        assert f"{SHARD} changed" in refused("commit", path)
    assert not (path / MANIFEST).exists()


def test_what_only_had_its_change_time_moved_is_read_again(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy("fsdp2/step-12")
    asked, stores = commit.refuse_changes, []

    def late(located: Any, *rest: Any) -> None:
        (path / SHARD).chmod(0o600)
        watched = Watched(str(path.parent))
        stores.append(watched)
        asked(replace(located, store=watched), *rest)

    monkeypatch.setattr(commit, "refuse_changes", late)
    done("commit", path)
    assert stores[0].read == {f"step-12/{SHARD}": (path / SHARD).stat().st_size}
