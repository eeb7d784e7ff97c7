"""What ``ckptctl verify`` says of step and run in its last line, where no manifest proves them."""

from __future__ import annotations

from ckptctl.cli.output.text import plural, safe
from ckptctl.operations.verify.verify import Verification
from ckptctl.provenance.evidence import Source

_MOST_NAMED = 4
_DOUBTS = {
    "newer-than-metadata": "their times do not fit one save",
    "odd-time": "their times do not fit one save",
    "odd-counter": "a counter is out of line",
    "shared-shard": "some are equal in another checkpoint",
}
"""Notes with which a checkpoint is not called good on its files' word alone."""


def why_unverified(result: Verification) -> str:
    """Say what is missing for a file's step to be known; empty where every file says one step."""
    identity = result.identity
    if not identity.standings:
        return "nothing says which step it is of"
    odd = identity.of(Source.AT_ODDS)
    if odd:
        steps = sorted(
            {one.steps[0] for one in identity.standings if one.file in odd and one.steps}
        )
        said = f" step {', '.join(map(str, steps))}" if steps else " another step"
        rest = "" if identity.step is None else f" and the others {identity.step}"
        return f"{_listed(odd)} {_says(odd)}{said}{rest}"
    silent = identity.of(Source.NONE)
    if silent:
        return f"nothing says which step {_listed(silent)} {_is(silent)} of"
    peers = identity.of(Source.PEERS)
    if peers:
        return f"only data positions say which step {_listed(peers)} {_is(peers)} of"
    if result.step is not None and identity.step != result.step:
        return f"every file says step {identity.step} and the name {result.step}"
    if len(identity.runs) > 1:
        return f"every file says step {identity.step}, but they name {len(identity.runs)} runs"
    doubts = {_DOUBTS[f.check] for f in result.report.findings if f.check in _DOUBTS}
    if doubts:
        return f"every file says step {identity.step}, but {' and '.join(sorted(doubts))}"
    return ""


def run_caveat(result: Verification) -> str:
    """Say that nothing names the run, where several files might be of several."""
    return "" if result.identity.one_run else " and none its run"


def _is(files: tuple[str, ...]) -> str:
    return "is" if len(files) == 1 else "are"


def _says(files: tuple[str, ...]) -> str:
    return "says" if len(files) == 1 else "say"


def _listed(files: tuple[str, ...]) -> str:
    if len(files) > _MOST_NAMED:
        return f"{safe(files[0])} and {plural(len(files) - 1, 'other file')}"
    return ", ".join(map(safe, files))
