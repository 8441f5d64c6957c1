"""What a mechanism is, seen as inference."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Verdict"]


class Verdict(StrEnum):
    """One inference, several put together, or none.

    Attributes:
        ONE: One inference a query and head, whose distribution is nearly always the first-order answer (14), and the
            output is a mean of values under it, linear maps and residuals aside; other estimators and closenesses
            answer the same question better, or another way.
        COMPOSITION: Several inferences side by side, or whose answers are questions of others, or are added, gated or
            iterated.
        NOT_ONE: What it multiplies values with is no distribution, and is not read as one otherwise; the entry says
            why, and runs as published alone.
    """

    ONE = "one inference"
    COMPOSITION = "a composition"
    NOT_ONE = "not one"
