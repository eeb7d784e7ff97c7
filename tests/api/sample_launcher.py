"""A launcher in Python: it resumes, starts afresh or stops, and says why; mypy checks it as strictly as can be."""

from __future__ import annotations

import sys

import ckptctl
from ckptctl import Resolution, Verdict, Verifications


def choose(root: str) -> Resolution | None:
    """Return what to resume from, None for a fresh start; anything else ends the job."""
    try:
        return ckptctl.resolve(root)
    except ckptctl.NothingThere:
        return None
    except ckptctl.NoneUsable as error:
        for skip in error.skipped:
            print(f"{skip.name}: {skip.reason}", file=sys.stderr)
        raise SystemExit(int(error.exit_code)) from error
    except ckptctl.StorageError as error:
        raise SystemExit(f"no verdict: {error}") from error


def publish(checkpoint: str, *, step: int, run_id: str) -> str:
    """Commit and promote a checkpoint; return the digest of its manifest."""
    sealed = ckptctl.commit(checkpoint, step=step, run_id=run_id, identity={"seed": 1})
    moved = ckptctl.promote(sealed.checkpoint, quick=True, reason="saved")
    assert moved.exit_code is ckptctl.ExitCode.DONE
    return sealed.manifest


def sound(root: str) -> bool:
    """Tell whether everything in a root is sound, and print what is not."""
    found: Verifications = ckptctl.verify(root, quick=True)
    for finding in found.findings:
        print(finding.check, finding.where.file, finding.message)
    return found.verdict in (Verdict.OK, Verdict.UNVERIFIED)


def cheapest(root: str) -> list[str]:
    """Name what a policy would delete."""
    plan = ckptctl.prune(root, keep_last=2, dry_run=True)
    return [fate.name for fate in plan.doomed]


def main(root: str) -> None:
    """Resume or start."""
    found = choose(root)
    print("start" if found is None else f"resume {found.path} at step {found.step}")


if __name__ == "__main__":
    main(sys.argv[1])
