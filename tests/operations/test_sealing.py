"""What a manifest vouches for, and what it does not: files, items and keys that it leaves out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptctl.model.manifest import MANIFEST, Manifest, decode
from support import damage
from support.publish import ckptctl, done, errors, findings, refused

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
