"""How the time of a command grows with the number of checkpoints: it must stay linear."""

from __future__ import annotations

from measure import Goal, Row, Settings, Usage, interleave, made, script


def growing(settings: Settings) -> list[Row]:
    """Resolve where every candidate fails, for a number of them and for four times as many."""
    few = settings.scaled(150, 5)
    many = 4 * few
    roots = [made(settings, "steps-damaged", count) for count in (many, few)]
    single = Settings(settings.cache, settings.full, 1)
    more, less = interleave([script("inside.py", "our-resolve", root) for root in roots], single)

    def each(runs: list[Usage], count: int) -> float:
        return float(runs[0].output) / count * 1000

    ours, peer = each(more, many), each(less, few)
    title = f"resolve, {many} candidates that all fail, each / of {few}"
    return [Row(title, "CPU ms", ours, peer, ours / peer, Goal(1.25))]
