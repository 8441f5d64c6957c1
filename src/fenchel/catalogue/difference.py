"""How far what is published is from exact inference, on an entry's example."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fenchel.catalogue.entry import Entry
from fenchel.closeness import AbstractCloseness

__all__ = ["Difference", "difference"]


class Difference(NamedTuple):
    """An estimate beside the exact answer.

    Attributes:
        estimator: Whose estimate.
        gap: Largest duality gap of any query, which bounds how far it is from the optimum.
        total_variation: Largest that any inferred distribution is from the exact one of the same question, from 0 to 1.
        output: Distance of the mechanism's output from that with exact inference, over the latter's norm. In a
            composition it includes what later inferences are asked differently.
    """

    estimator: str
    gap: float
    total_variation: float
    output: float

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return self._asdict()


def difference(
    entry: Entry,
    estimator: str = "first_order",
    *,
    closeness: AbstractCloseness | str | None = None,
    seed: int = 0,
) -> Difference:
    """Compare an estimator with exact inference on an entry's example, in float64.

    Args:
        entry: A mechanism that takes the exact estimator.
        estimator: To compare.
        closeness: In the place of Kullback and Leibler's.
        seed: Of the example.

    Raises:
        InputError: If the mechanism takes no such estimator or closeness, or is not made of inferences.

    Example:
        >>> from fenchel.catalogue import entry
        >>> difference(entry("scaled-dot"), "exact").total_variation < 1e-8
        True
    """
    estimate = entry.run(estimator, closeness=closeness, seed=seed)
    exact = entry.run("exact", closeness=closeness, seed=seed)
    apart = [parts.total_variation(estimator).max() for parts in estimate.inferences]
    found, optimum = estimate.output.detach(), exact.output.detach()
    norm = optimum.norm().clamp_min(torch.finfo(optimum.dtype).tiny)
    return Difference(
        estimator,
        estimate.gap,
        float(torch.stack(apart).max().detach()) if apart else 0.0,
        float((found - optimum).norm() / norm),
    )
