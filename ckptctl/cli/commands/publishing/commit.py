"""``ckptctl commit``."""

import sys
from pathlib import Path
from typing import Annotated

from ckptctl import api
from ckptctl.cli.commands.publishing.promote import render_promote
from ckptctl.cli.options import (
    Accept,
    AllowMissing,
    Checkpoint,
    DryRun,
    Format,
    Framework,
    Json,
    Mapped,
    Quiet,
    Required,
    Workers,
    Yes,
    chosen,
    components,
)
from ckptctl.cli.output.accepted import accepted, unmatched
from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.progress import progress
from ckptctl.cli.output.text import Screen, plural, safe, size
from ckptctl.cli.parameters import Option
from ckptctl.dataclass import replace
from ckptctl.errors import CkptctlError, UsageError
from ckptctl.results import Committed
from ckptctl.words import listed

_MOST_ROWS = 16
_MOST_NAMED = 4


def commit_command(
    checkpoint: Checkpoint = None,
    publish_as: Annotated[
        str | None,
        Option("--as", metavar="NAME", help="Publish a temporary directory as NAME."),
    ] = None,
    step: Annotated[
        int | None, Option(min=0, help="The step, where neither name nor receipts say it.")
    ] = None,
    run_id: Annotated[str | None, Option(help="The run that the checkpoint is of.")] = None,
    world_size: Annotated[
        int | None, Option(min=1, help="Ranks that saved it, where receipts do not say.")
    ] = None,
    identity: Annotated[
        Path | None,
        Option(metavar="FILE", help="Facts about the run: a JSON, YAML or TOML file."),
    ] = None,
    digest: Annotated[str, Option(help="xxh3-128 or sha256.")] = "xxh3-128",
    workers: Workers = None,
    amend: Annotated[
        bool, Option("--amend", help="Say more of what is committed; its bytes stay.")
    ] = False,
    accept: Accept = None,
    reason: Annotated[str, Option(help="Why it is amended or accepted, for the history.")] = "",
    also_promote: Annotated[
        bool, Option("--promote", help="Move the pointer to it as well.")
    ] = False,
    require: Required = "resume",
    allow_missing: AllowMissing = None,
    mapping: Mapped = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    quiet: Quiet = False,
    framework: Framework = "",
    output_format: Format = "text",
    json: Json = False,
) -> int:
    """Verify a checkpoint, hash all its files in the same pass, and seal it with a manifest.

    Creating the manifest is the commit: of two that try, one wins. What is not whole is not
    committed (10). The same commit again exits 0, another one 5; --amend adds what was not known.
    """
    if also_promote and dry_run:
        raise UsageError("--dry-run of --promote needs a committed checkpoint: run them in turn")
    if not also_promote and (require != "resume" or allow_missing):
        raise UsageError("--require and --allow-missing are for --promote: a commit takes it all")
    output = chosen(output_format, json=json)
    mapped = components(mapping)
    result = api.commit(
        checkpoint,
        publish_as=publish_as,
        step=step,
        run_id=run_id,
        world_size=world_size,
        identity=identity,
        algorithm=digest,
        mapping=mapped,
        workers=workers,
        amend=amend,
        accept=accept or (),
        reason=reason,
        dry_run=dry_run,
        framework=framework,
        progress=progress(quiet=quiet or output != "text"),
    )
    if not also_promote:
        unmatched(result.unmatched)
        return emit(result, output, command="commit", quiet=quiet)
    if output == "text":  # said at once: it stays true whatever comes of the promotion
        emit(result, output, command="commit", quiet=quiet)
    try:
        moved = api.promote(
            result.checkpoint,
            framework=framework,
            accept=accept or (),
            reason=reason or "committed",
            quick=True,
            require=require,
            allow_missing=allow_missing or (),
            mapping=mapped,
        )
    except CkptctlError as error:
        error.result = result
        raise
    unmatched([one for one in result.unmatched if one in moved.unmatched])
    if output != "text":
        return emit(replace(result, promoted=moved), output, command="commit", quiet=quiet)
    if not quiet:
        render_promote(moved, Screen(sys.stdout))
    return int(moved.exit_code)


@render.register
def render_commit(result: Committed, screen: Screen) -> None:
    """Print what was sealed."""
    if result.amendment and (result.changed or result.dry_run):
        verb = "would amend" if result.dry_run else "amended"
        screen.line(
            f"{screen.paint(verb, 'green', 'bold')} {safe(result.checkpoint)}: {_as_what(result)}; its "
            f"{plural(result.files, 'file')} are promised as before"
        )
        accepted(result.accepted, screen)
        screen.line(f"manifest {result.manifest}, amendment {result.amendment}")
        return
    if not result.changed:
        known = "is committed already, with the same bytes" if result.checked else "says so already"
        screen.line(
            f"{safe(result.checkpoint)} {known}: {_as_what(result)}, {plural(result.files, 'file')}, {size(result.size)}; by "
            f"{safe(result.by)} at {safe(result.time)}"
        )
        accepted(result.accepted, screen)
        screen.line(f"manifest {result.manifest}")
        return
    verb = "would commit" if result.dry_run else "committed"
    screen.line(
        f"{screen.paint(verb, 'green', 'bold')} {safe(result.checkpoint)}: {_step(result)}, "
        f"{plural(result.files, 'file')}, {size(result.size)}, every byte hashed; "
        f"{_checked(result)}"
    )
    accepted(result.accepted, screen)
    if result.lost:
        screen.line(f"lost to damage when it was made: {safe(listed(result.lost, _MOST_NAMED))}")
    for path, link in list(result.links.items())[:_MOST_ROWS]:
        screen.line(
            f"{safe(path)} is a link, {safe(link)}: its content is promised, wherever it lies"
        )
    rows = result.unpromised
    for row in rows[:_MOST_ROWS]:
        screen.line(f"not promised: {safe(row.path)}, {size(row.size)}: {safe(row.why)}")
    if len(rows) > _MOST_ROWS:
        screen.line(f"not promised: {len(rows) - _MOST_ROWS} more, which the manifest lists")
    screen.line(f"manifest {result.manifest}")


def _as_what(result: Committed) -> str:
    run = f" of run {safe(result.run_id)}" if result.run_id else ""
    ranks = f", {plural(result.world_size, 'rank')}" if result.world_size else ""
    return f"{_step(result)}{run}{ranks}"


def _step(result: Committed) -> str:
    return "no step" if result.step is None else f"step {result.step}"


def _checked(result: Committed) -> str:
    """Say against what the files were checked, and name those of which nothing told anything."""
    words = {
        "receipt": "by receipts",
        "crc": "by CRCs",
        "crc in part": "by CRCs in part",
        "digest": "by digests beside them",
    }
    said = [
        f"{result.checked[by]} checked {word}" for by, word in words.items() if by in result.checked
    ]
    names = [safe(path) for path in result.unchecked]
    if names:
        said.append(f"{len(names)} against nothing ({listed(names, _MOST_NAMED)})")
    return ", ".join(said)
