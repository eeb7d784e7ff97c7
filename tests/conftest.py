"""What all tests share: real checkpoints to look at, and copies of them to damage."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from support.shared import built_once

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
SHARED = Path(os.environ.get("CKPTCTL_SHARED", ROOT.parent / "shared"))
"""More samples than fit into the repository; tests that need them are skipped without."""

# how long one example takes depends on what else the machine does
settings.register_profile("ckptctl", deadline=None)
settings.load_profile("ckptctl")


@pytest.fixture
def samples() -> Path:
    """The directory of further real checkpoints, where it is there."""
    if not (SHARED / "samples").is_dir():
        pytest.skip("no further samples beside the checkout")
    return SHARED / "samples"


@pytest.fixture
def copy(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a fixture (``fsdp2/step-12``) to where it may be damaged."""

    def make(case: str, name: str | None = None) -> Path:
        target = tmp_path / "run" / (name or Path(case).name)
        shutil.copytree(FIXTURES / case, target)
        return target

    return make


@pytest.fixture(scope="session")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One state that torch saved on one to four ranks and cut in many ways, and ``full.pt``."""
    from support.gloo import LAYOUTS, run_ranks

    return built_once(tmp_path_factory, "layouts", lambda out: run_ranks(4, out, LAYOUTS))


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the reported cases, saved at steps 900 and 1000, and another run's step 1000."""
    from support.reported import build

    return built_once(tmp_path_factory, "reported", build)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of four ranks in several layouts, saved at steps 90, 99 and 100."""
    from support.mixing import build_runs

    return built_once(tmp_path_factory, "runs", build_runs)
