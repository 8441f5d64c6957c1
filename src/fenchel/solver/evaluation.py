r"""A dual point seen in float64, and what that certifies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.certificate import LEAST
from fenchel.closeness.rounding import UNIT, summed
from fenchel.native import kernels
from fenchel.solver.coordinates import AbstractCoordinates, GramCoordinates, dot
from fenchel.solver.rows import Rows
from fenchel.solver.served import served, squared_norm

__all__ = ["Evaluated", "certified_error", "evaluated"]

CANCELLATION = 1e-4
"""In Gram coordinates λ/α = z + Tᵀx; where it is this much shorter than z, float64 loses half of its digits."""


@dataclass(frozen=True)
class Evaluated:
    """What float64 sees at a point, all (g, r, ...).

    Attributes:
        potential: The potential over α, in the working dtype, as are the next three.
        residual: ρ.
        lifted: Its lift.
        square: ‖ρ‖², (g, r).
        dual_norm: ‖λ‖/α, float64, (g, r).
        error: Certified relative error of λ, float64, (g, r).
    """

    potential: Tensor
    residual: Tensor
    lifted: Tensor
    square: Tensor
    dual_norm: Tensor
    error: Tensor


@dataclass(frozen=True)
class _Seen:
    """One pass over the templates in float64.

    Attributes:
        potential: The potential over α, in the working dtype, as is ρ, (g, r, n).
        residual: ρ, (g, r, size).
        dual_square: ‖λ/α‖², (g, r).
        size: Of ρ, the sum of its coordinates' sizes in Gram coordinates and ‖ρ‖² in the others, (g, r).
        spread: How far templates are from their mean, (g, r).
    """

    potential: Tensor
    residual: Tensor
    dual_square: Tensor
    size: Tensor
    spread: Tensor


def evaluated(working: AbstractCoordinates, wide: AbstractCoordinates, rows: Rows, x: Tensor) -> Evaluated:
    """A point seen in float64, but for the product of its gradient with the Gram matrix, which is allowed for.

    Args:
        working: Coordinates in the working dtype.
        wide: The same in float64.
        rows: Data of the rows, in float64.
        x: Coordinates of the point, float64, (g, r, size).
    """
    narrow = working.operator.dtype
    lifted = wide.lift(x)
    seen = _seen_natively(wide, rows, x, lifted, narrow)
    if seen is None:
        seen = _seen(wide, rows, x, lifted, narrow)
    dual_norm = seen.dual_square.clamp(min=0).sqrt()
    if isinstance(wide, GramCoordinates):
        lifted = working.lift(seen.residual)
        square = squared_norm(working, seen.residual, lifted)
        unit = torch.finfo(narrow).eps / 2
        allowance = (2 * summed(wide.size) + 8) * unit
        bound = square.double() + allowance * (seen.size * wide.longest).square()
    else:
        lifted, square, bound = working.lift(seen.residual), seen.size, seen.size
    error = certified_error(wide, rows, bound, dual_norm, seen.spread)
    return Evaluated(seen.potential, seen.residual, lifted, square.to(narrow), dual_norm, error)


def _seen(wide: AbstractCoordinates, rows: Rows, x: Tensor, lifted: Tensor, narrow: torch.dtype) -> _Seen:
    potential = wide.scaled_potential(rows, lifted)
    weights = rows.response.at(rows.response.argument(rows.alpha, potential))
    residual = wide.residual(rows, weights - rows.rest, x)
    gram = isinstance(wide, GramCoordinates)
    return _Seen(
        potential.to(narrow),
        residual.to(narrow),
        wide.dual_square(rows, x, lifted),
        residual.abs().sum(-1) if gram else dot(residual, residual),
        wide.spread(weights),
    )


def _seen_natively(
    wide: AbstractCoordinates, rows: Rows, x: Tensor, lifted: Tensor, narrow: torch.dtype
) -> _Seen | None:
    native = served(wide, rows, x, lifted, dtype=torch.float64)
    if native is None or narrow != torch.float32 or not isinstance(wide, GramCoordinates):
        return None
    squares = wide.squares.unsqueeze(1).contiguous()
    potential, residual, sums = kernels.seen(
        rows.evidence, x, lifted, native.log_preference, native.rest, squares, native.alpha
    )
    dual_square, size, spread = sums
    return _Seen(potential, residual, rows.evidence_square.squeeze(-1) + dual_square, size, spread.sqrt())


def certified_error(
    coordinates: AbstractCoordinates, rows: Rows, square: Tensor, dual_norm: Tensor, spread: Tensor
) -> Tensor:
    r"""Relative errors of λ that a float64 evaluation certifies, infinite where nothing is certified, (g, r).

    What computing the gradient may hide is a few roundings of the vectors that are added up in it, λ/α, the evidence
    and the templates, and those of the potentials: relative errors of the weights as large as these, times how far
    templates are from their mean.

    Args:
        coordinates: In float64.
        rows: The rows' data.
        square: At least ‖∇𝒟(λ)‖² as evaluated, (g, r).
        dual_norm: ‖λ‖/α, (g, r).
        spread: How far templates are from their mean under p(λ), (g, r), see
            :meth:`~fenchel.solver.coordinates.AbstractCoordinates.spread`.
    """
    evidence_norm = rows.evidence_square.squeeze(-1).sqrt()
    added = evidence_norm + coordinates.longest
    n, alpha = coordinates.terms, rows.alpha.squeeze(-1)
    hidden = summed(n) * UNIT * (1 + added / dual_norm)
    # A potential is a sum of products of vectors as long as these, and what moves the mean is its spread under p.
    reach = dual_norm
    if isinstance(coordinates, GramCoordinates):
        reach = evidence_norm + 2 * coordinates.longest
    potential = (summed(coordinates.size) + 5) * UNIT * alpha * reach * coordinates.longest
    error = square.sqrt() / dual_norm + hidden + 2.2 * potential * spread / dual_norm
    if isinstance(coordinates, GramCoordinates):
        error = error.masked_fill(~(dual_norm > CANCELLATION * evidence_norm), torch.inf)
    # Squares that underflow say nothing of how large what they are the squares of is.
    error = error.masked_fill(evidence_norm < LEAST, torch.inf)
    # No evidence: λ* = 0 = αz.
    nothing = (square == 0) & (evidence_norm == 0)
    if bool(nothing.any()):
        nothing = nothing & (rows.evidence == 0).all(-1)
    return error.nan_to_num(nan=torch.inf).masked_fill(nothing, 0)
