"""A comparison in a terminal: two sentences and a short table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fenchel.auditing.heads import METRICS, HeadKey
from fenchel.auditing.report.findings import METRIC_NAMES, SHORT_KIND_NAMES
from fenchel.comparing.audited import CONFIDENCE
from fenchel.comparing.interval import Interval
from fenchel.drawing import count, short, titled_table
from fenchel.errors import MissingExtraError
from fenchel.swap.report import signed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from fenchel.comparing.comparison import Comparison

__all__ = ["METRIC", "between", "end", "finding", "terminal_table"]

METRIC = "total_variation"
"""What tells models apart and is asked first: the share of attention's weight that would have to move."""

_MOST = 5


def between(interval: Interval) -> str:
    """An interval in brackets, open where nothing is known.

    Example:
        >>> between(Interval(-0.001, math.inf))
        '[−0.0010, ∞]'
    """
    return f"[{end(interval.low)}, {end(interval.high)}]"


def end(value: float) -> str:
    """One end of an interval, with its sign."""
    return ("∞" if value > 0 else "−∞") if math.isinf(value) else signed(value)


def finding(comparison: Comparison) -> str:
    """What came out for the weight that would have to move, in words that say no more than the intervals do."""
    rose, fell = comparison.directions(METRIC)
    heads = len(comparison.keys)
    kept = comparison.rank_correlation(METRIC)
    moved = (
        f"{_name(METRIC)} rose in {count(rose)} and fell in {count(fell)} of {count(heads)} heads"
        if rose or fell
        else f"{_name(METRIC)} changed in none of {count(heads)} heads by more than the counts can tell"
    )
    order = "" if kept is None else f"; the rank correlation of the heads is {signed(kept)}"
    return (
        f"From {comparison.first.name} to {comparison.last.name}: {moved} (intervals of medians, {CONFIDENCE:.0%} for "
        f"all at once){order}."
    )


def terminal_table(comparison: Comparison) -> RenderableType:
    """How each metric changed, and the heads that moved most, for rich.

    Args:
        comparison: The comparison.

    Returns:
        Something that ``rich.print`` prints. Names in it are never read as markup.

    Raises:
        MissingExtraError: If rich is not installed.
    """
    try:
        from rich.console import Group
        from rich.text import Text
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error

    def table(title: str, *columns: str) -> Table:
        made = titled_table(title)
        for place, words in enumerate(columns):
            made.add_column(words, justify="left" if place == 0 else "right", no_wrap=place > 0)
        return made

    heads = table(
        f"Medians of {count(len(comparison.keys))} heads, last against first",
        "Metric", "rose", "fell", "rank\ncorrelation",
    )  # fmt: skip
    for metric in METRICS:
        kept = comparison.rank_correlation(metric)
        heads.add_row(
            METRIC_NAMES[metric],
            *(count(number) for number in comparison.directions(metric)),
            "–" if kept is None else signed(kept),
        )
    moved = table(
        f"{METRIC_NAMES[METRIC]}: the heads that moved most", "Head", "first", "last", "change", "95 %"
    )
    for key in comparison.moved(METRIC)[:_MOST]:
        moved.add_row(*_row(comparison, key))
    parts: list[Any] = [heads, moved]
    if len(comparison.audits) > 2:
        parts.append(_trajectory(comparison, table))
    parts += [
        Text(f"{audit.name}: {audit.sample} were measured.") for audit in comparison.audits if audit.sample
    ]
    return Group(*parts)


def _row(comparison: Comparison, key: HeadKey) -> list[str]:
    change = comparison.changes[key][METRIC]
    kind = f"{SHORT_KIND_NAMES[key.kind]}, " if len(comparison.kinds) > 1 else ""
    return [
        f"{kind}layer {key.layer}, head {key.head}",
        short(change.first.median),
        short(change.second.median),
        signed(change.median),
        between(change.interval),
    ]


def _trajectory(comparison: Comparison, table: Any) -> Any:
    made = table(
        f"{METRIC_NAMES[METRIC]} by layer, medians",
        "Layer",
        *(str(n + 1) for n in range(len(comparison.audits))),
    )
    for kind, layer in comparison.sites:
        name = f"{SHORT_KIND_NAMES[kind]} {layer}" if len(comparison.kinds) > 1 else str(layer)
        made.add_row(name, *(short(audit.layers[kind, layer][METRIC].median) for audit in comparison.audits))
    return made


def _name(metric: str) -> str:
    return METRIC_NAMES[metric].lower()
