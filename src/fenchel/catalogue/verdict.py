"""What a mechanism is, seen as inference."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Verdict"]


class Verdict(StrEnum):
    """One inference, several put together, or none.

    Attributes:
        ONE: Weights are the first-order answer (14) of one inference a query and head, and the output is a mean of
            values under them; other estimators and closenesses answer the same question better, or another way.
        COMPOSITION: Inferences whose answers are questions of others, or are added, gated or iterated.
        NOT_ONE: What it computes is no mean under an inferred distribution; the entry says why, and has no estimator.
    """

    ONE = "one inference"
    COMPOSITION = "a composition"
    NOT_ONE = "not one"
