"""The heads that moved most, each with its interval drawn on an axis that all of them share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fenchel.auditing.heads import HeadKey
from fenchel.comparing.comparison import Change
from fenchel.comparing.table import between

if TYPE_CHECKING:
    from fenchel.comparing.comparison import Comparison

__all__ = ["MovedHead", "MovedHeads", "moved_heads"]

_MOST = 12
_MARGIN = 4.0  # of 100, so that what leaves the axis is seen to


@dataclass(frozen=True)
class MovedHead:
    """One row; places are from 0 to 100 along the axis.

    Attributes:
        key: The head.
        change: Its two distributions.
        interval: Written.
        low_at: Where its interval begins, at the axis' end if nothing is known there.
        high_at: Where it ends.
        at: Where the difference of the medians stands; None where there is none.
    """

    key: HeadKey
    change: Change
    interval: str
    low_at: float
    high_at: float
    at: float | None


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
    changes = [comparison.changes[key][metric] for key in keys]
    ends = [
        end
        for change in changes
        for end in (change.interval.low, change.interval.high, change.median or 0.0)
        if math.isfinite(end)
    ]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    width = high - low or 1.0

    def place(value: float) -> float:
        if math.isinf(value):
            return 0.0 if value < 0 else 100.0
        return round(_MARGIN + (100 - 2 * _MARGIN) * (value - low) / width, 2)

    rows = [
        MovedHead(
            key=key,
            change=change,
            interval=between(change.interval),
            low_at=place(change.interval.low),
            high_at=place(change.interval.high),
            at=None if change.median is None else place(change.median),
        )
        for key, change in zip(keys, changes, strict=True)
    ]
    return MovedHeads(rows, place(0.0))
