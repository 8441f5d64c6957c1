"""The learning rate of each step: linear warm-up, then half a cosine down to zero."""

from __future__ import annotations

import math

__all__ = ["learning_rate_factor"]


def learning_rate_factor(step: int, steps: int, warmup_fraction: float) -> float:
    r"""Share of the largest learning rate at a step.

    .. math::
        \eta_k = \begin{cases} (k + 1) / (w + 1) & k < w \\
        \tfrac12 (1 + \cos(\pi (k - w) / (n - w))) & k \ge w \end{cases}

    with n steps, of which w = ⌊warmup_fraction · n⌋ are warm-up.

    Args:
        step: k, from 0.
        steps: n.
        warmup_fraction: From 0 to below 1.

    Returns:
        A number above 0 and at most 1.

    Example:
        >>> [round(learning_rate_factor(step, 6, 0.34), 3) for step in range(6)]
        [0.333, 0.667, 1.0, 0.854, 0.5, 0.146]
    """
    warmup = int(warmup_fraction * steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
