"""The heads that moved most, each with its interval drawn on an axis that all of them share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fenchel.auditing.heads import HeadKey
from fenchel.comparing.comparison import Change
from fenchel.comparing.table import between
from fenchel.drawing import Whisker, WhiskerAxis

if TYPE_CHECKING:
    from fenchel.comparing.comparison import Comparison

__all__ = ["MovedHead", "MovedHeads", "moved_heads"]

_MOST = 12


@dataclass(frozen=True)
class MovedHead:
    """One row.

    Attributes:
        key: The head.
        change: Its two distributions.
        interval: Written.
        whisker: The difference of the medians and its interval, drawn.
    """

    key: HeadKey
    change: Change
    interval: str
    whisker: Whisker


@dataclass(frozen=True)
class MovedHeads:
    """The rows and their axis.

    Attributes:
        heads: In the order of ``Comparison.moved``.
        zero_at: Where 0 stands.
    """

    heads: list[MovedHead]
    zero_at: float


def moved_heads(comparison: Comparison, metric: str) -> MovedHeads:
    """The first twelve of ``Comparison.moved``."""
    keys = comparison.moved(metric)[:_MOST]
    changes = {key: comparison.changes[key][metric] for key in keys}
    ends = [
        end
        for change in changes.values()
        for end in (change.interval.low, change.interval.high, change.median)
    ]
    axis = WhiskerAxis.of(ends, through=0.0)
    rows = [
        MovedHead(
            key=key,
            change=change,
            interval=between(change.interval),
            whisker=axis.whisker(change.median, change.interval.low, change.interval.high),
        )
        for key, change in changes.items()
    ]
    return MovedHeads(rows, axis.place(0.0))
