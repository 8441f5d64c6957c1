"""One loop for every iterative solver: it counts, lets converged rows leave, and says what did not converge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from fenchel.selection import rows_where, select, store

__all__ = ["COMPACT_BELOW", "IterationState", "Outcome", "iterate"]


class IterationState(Protocol):
    """What a method carries from step to step: a dataclass of tensors (g, r, ...) with these among them."""

    @property
    def error(self) -> Tensor:
        """Certified relative error of λ, (g, r)."""
        ...

    @property
    def stalled(self) -> Tensor:
        """Rows for which the method can do no more in its precision, bool (g, r)."""
        ...


S = TypeVar("S", bound=IterationState)

COMPACT_BELOW = 0.8
"""Rows that are done are dropped once at most this fraction is left: copying the others costs about an
elementwise pass."""


@dataclass
class Outcome(Generic[S]):
    """Where the loop ended.

    Attributes:
        state: The last state of every row.
        steps: Steps that each row took, int64 (g, r).
        converged: Rows whose error meets the tolerance, bool (g, r).
    """

    state: S
    steps: Tensor
    converged: Tensor


def iterate(
    step: Callable[[S, Tensor], S], state: S, *, tol: float, max_steps: int, selectable: bool = True
) -> Outcome[S]:
    """Step until every row meets the tolerance, stalls, or has taken ``max_steps``.

    Args:
        step: Takes a state and which of its rows are active (g, r), and returns the next state; a row that is not
            active must come back unchanged.
        state: Where to start.
        tol: Relative error at which a row is done.
        max_steps: Steps at most.
        selectable: Whether the state can be restricted to the rows that are left.
    """
    steps = torch.zeros(state.error.shape, dtype=torch.int64, device=state.error.device)
    everything, index = state, None
    for _ in range(max_steps):
        active = (state.error > tol) & ~state.stalled
        most = int(active.sum(-1).max())
        if most == 0:
            break
        if selectable and most <= COMPACT_BELOW * active.shape[1]:
            kept = rows_where(active)
            if index is None:
                everything, index = _copied(state), kept
            else:
                store(everything, state, index)
                index = index.gather(1, kept)
            state, active = select(state, kept), active.gather(1, kept)
        if index is None:
            steps += active
        else:
            steps.scatter_add_(1, index, active.to(steps.dtype))
        state = step(state, active)
    if index is None:
        everything = state
    else:
        store(everything, state, index)
    return Outcome(everything, steps, everything.error <= tol)


def _copied(record: Any) -> Any:
    """A copy that can be written into; data that steps never change is not copied."""
    return type(record)(**{f.name: _own(getattr(record, f.name)) for f in fields(record)})


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
