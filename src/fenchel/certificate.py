r"""What a dual point certifies, and what floating point adds to it.

Facts 1 and 2 bound errors by :math:`\lVert\nabla\mathcal{D}(\lambda)\rVert` in exact arithmetic. Here the gradient is
evaluated in float64 and what is returned is rounded to the problem's dtype, so that every bound also has to hold
what both may have changed. The allowances are derived in ``docs/exact-solver.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from fenchel.blocks import AbstractBlock, QueryBlock
from fenchel.closeness import AbstractCloseness
from fenchel.rounding import SMALL, UNIT, summed

__all__ = ["LEAST", "Certificate", "certify", "reference_norm"]

UNDERFLOW = torch.finfo(torch.float64).tiny ** 0.5
"""What a norm may lack for each root of a coordinate, since float64 does not hold smaller squares."""

LEAST = UNDERFLOW / torch.finfo(torch.float64).eps
"""Size of evidence from which float64 holds its square and the square of what rounding leaves of it."""

OF_MEANS = 64
"""Roundings that computing a mean is taken to cost where the preference does not say how it does so."""


@dataclass(frozen=True)
class Certificate:
    r"""A dual point of a block of rows, rounded to the problem's dtype, and what it certifies, (g, r, ...).

    Attributes:
        dual, weights, mean: As they are returned, in the problem's dtype; weights are None where p is no list of them.
        gradient_norm: At least :math:`\lVert\nabla\mathcal{D}(\lambda)\rVert` at λ before rounding, float64.
        dual_moved: How far rounding moved ``dual``, float64.
        mean_moved: How far at most ``mean`` is from h(λ), float64.
        weights_moved: How far at most ``weights`` are from p(λ) in total variation, float64.
        weights_mean_moved: How far at most the mean of ``weights``, normalised, is from h(λ), float64.
        alpha: α, float64.
        modulus: σ, by which D is strongly convex in the 1-norm of the weights.
        reference: What a relative tolerance is relative to, float64.
    """

    dual: Tensor
    weights: Tensor | None
    mean: Tensor
    gradient_norm: Tensor
    dual_moved: Tensor
    mean_moved: Tensor
    weights_moved: Tensor
    weights_mean_moved: Tensor
    alpha: Tensor
    modulus: Tensor
    reference: Tensor

    @property
    def dual_error(self) -> Tensor:
        r"""Fact 2: :math:`\lVert\lambda-\lambda^\star\rVert \le \alpha\lVert\nabla\mathcal{D}(\lambda)\rVert`."""
        return self.alpha * self.gradient_norm + self.dual_moved

    @property
    def mean_error(self) -> Tensor:
        r"""Fact 2: :math:`\lVert h(\lambda)-h^\star\rVert \le \lVert\nabla\mathcal{D}(\lambda)\rVert`."""
        return self.gradient_norm + self.mean_moved

    @property
    def gap(self) -> Tensor:
        r"""Fact 1, for the weights that are returned.

        .. math:: P(w) - \mathcal{D}(\lambda) = \tfrac\alpha2\lVert\nabla\mathcal{D}(\lambda) + h(\lambda) -
            \mathbb{E}_w[t]\rVert^2 + K(w, p(\lambda)), \qquad K(w, p) \le \log(1 + \chi^2(w, p))
        """
        length = self.gradient_norm + self.weights_mean_moved
        return self.alpha / 2 * length.square() + 8 * self.weights_moved.square()

    @property
    def total_variation_error(self) -> Tensor:
        r"""Fact 2: total variation is at most :math:`\sqrt{\mathrm{gap}/2\sigma}`, here of p(λ)."""
        of_solution = (self.alpha / self.modulus).sqrt() * self.gradient_norm / 2
        # Where nothing is strongly convex nothing is known but that it is 1 at most.
        return of_solution.nan_to_num(nan=1.0).clamp(max=1) + self.weights_moved

    def reshaped(self, lead: torch.Size) -> Certificate:
        """The same with other leading dimensions, as many."""
        vectors = ("dual", "weights", "mean")
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        shaped = {
            name: None if part is None else part.reshape(*lead, *part.shape[-1:] * (name in vectors))
            for name, part in parts.items()
        }
        return replace(self, **shaped)

    def meets(self, tol: float) -> Tensor:
        """Where the relative tolerance on λ is met, bool (g, r)."""
        return self.dual_error <= tol * self.reference


def certify(block: AbstractBlock, dual: Tensor, dtype: torch.dtype) -> Certificate:
    r"""The certificate of a dual point, from the data of its rows alone.

    Args:
        block: The rows, in float64.
        dual: λ in float64, shape (g, r, d).
        dtype: The dtype to which the results are rounded.

    Returns:
        Weights p(λ), their mean, a bound on :math:`\lVert\nabla\mathcal{D}(\lambda)\rVert` and the norm that a relative
        tolerance refers to. Where numbers overflow float64 the bounds are infinite.
    """
    templates = block.over_templates()
    if templates is None:
        return _of_means(block, dual, dtype)
    return _of_weights(templates, dual.reshape(templates.evidence.shape), dtype).reshaped(dual.shape[:2])


def _of_means(block: AbstractBlock, dual: Tensor, dtype: torch.dtype) -> Certificate:
    """Where p is no list of weights: to what the family says of rounding, else to some roundings of both means."""
    shift, at_rest = block.shift(dual), block.rest_mean()
    mean = block.mean_by(dual, shift)
    gradient = block.evidence - dual / block.alpha - shift
    alpha = block.alpha.squeeze(-1).expand(dual.shape[:2])
    length = dual.norm(dim=-1)
    of_means = OF_MEANS * UNIT * (mean.norm(dim=-1) + at_rest.norm(dim=-1))
    of_shift = torch.minimum(of_means, OF_MEANS * UNIT * shift.norm(dim=-1)).where(length == 0, of_means)
    known = block.rounding(dual)
    if known is not None:
        of_shift, of_means = known, of_means + known
    besides = block.mean_rounding()
    if besides is not None:
        of_means = of_means + besides
    rounded_mean, rounded_dual = mean.to(dtype), dual.to(dtype)
    norm = gradient.norm(dim=-1) + of_shift + 4 * UNIT * (length / alpha + block.evidence.norm(dim=-1))
    norm = _with_underflow(norm, gradient, dual)
    nothing = torch.zeros_like(length)
    return Certificate(
        dual=rounded_dual,
        weights=None,
        mean=rounded_mean,
        gradient_norm=norm.nan_to_num(nan=torch.inf, posinf=torch.inf),
        dual_moved=_moved(rounded_dual, dual),
        mean_moved=of_means + _moved(rounded_mean, mean),
        weights_moved=nothing,
        weights_mean_moved=of_means,
        alpha=alpha.clone(),
        modulus=torch.ones_like(length),
        reference=reference_norm(length, (block.alpha * block.evidence).norm(dim=-1)),
    )


def _of_weights(block: QueryBlock, dual: Tensor, dtype: torch.dtype) -> Certificate:
    """Over templates, in whatever leading shape; p(λ) is a list of weights."""
    closeness = block.closeness
    preference = block.log_preference
    # A common vector changes neither weights nor gradient (fact 3), only rounding.
    usable = closeness.usable(preference)
    centre = _centre(block.templates, usable)
    templates = block.templates - centre
    rounding = _Rounding(templates, usable, closeness, dual)
    potential = dual @ templates.mT
    weights = closeness.weights(potential, preference)
    at_rest = closeness.rest(preference)
    moved = weights - at_rest
    if bool(rounding.near.any()):
        near = rounding.near.unsqueeze(-1)
        precise = closeness.near_displacement(potential.where(near, 0), preference)
        if precise is None:
            rounding.near = torch.zeros_like(rounding.near)
        else:
            moved = torch.where(near, precise, moved)
    # The mean's shift rather than two means: at λ = 0 it is then exactly zero.
    start, shift = at_rest @ templates, moved @ templates
    offset = start + shift
    gradient = block.evidence - dual / block.alpha - shift
    mean = centre + offset
    rounding.at((weights, offset), (at_rest, start))
    alpha = block.alpha.squeeze(-1)
    size = gradient.norm(dim=-1) * (1 + (templates.shape[-1] + 4) * UNIT)
    # Of λ/α, and of two differences, the first as long as the gradient and the shift at most.
    differences = UNIT * (2 * rounding.length / alpha + shift.norm(dim=-1) + 2 * size)
    gradient_norm = size + rounding.shift + differences
    pairing = closeness.pairing_error(rounding.of_potential)
    if isinstance(pairing, Tensor):
        # The gap is α/2 times a squared length and this; every bound follows from the gap.
        gradient_norm = (gradient_norm.square() + 2 * pairing / alpha).sqrt()
    gradient_norm = _with_underflow(gradient_norm, gradient, dual)
    mean_moved = rounding.mean + 2 * UNIT * (2 * centre.norm(dim=-1) + rounding.offset_length)
    rounded_mean, rounded_dual = mean.to(dtype), dual.to(dtype)
    of_dtype = torch.finfo(dtype).eps / 2 if dtype != torch.float64 else 0.0
    underflow = templates.shape[-2] * torch.finfo(dtype).tiny
    lead = gradient.shape[:-1]
    modulus = torch.as_tensor(closeness.modulus, dtype=dual.dtype, device=dual.device)
    return Certificate(
        dual=rounded_dual,
        weights=weights.to(dtype),
        mean=rounded_mean,
        gradient_norm=gradient_norm.nan_to_num(nan=torch.inf, posinf=torch.inf),
        dual_moved=_moved(rounded_dual, dual),
        mean_moved=mean_moved + _moved(rounded_mean, mean),
        weights_moved=(rounding.weights + of_dtype / 2 + underflow).expand(lead).nan_to_num(nan=torch.inf),
        weights_mean_moved=rounding.mean + of_dtype * rounding.spread + underflow * rounding.largest,
        alpha=alpha.expand(lead).clone(),
        modulus=modulus.expand(lead).clone(),
        reference=reference_norm(rounding.length, (block.alpha * block.evidence).norm(dim=-1)),
    )


def reference_norm(dual_norm: Tensor, first_order_norm: Tensor) -> Tensor:
    r"""What a relative tolerance is relative to: ‖λ‖, or ‖αz‖ where λ is zero to rounding."""
    rounding = 16 * torch.finfo(dual_norm.dtype).eps
    return torch.where(dual_norm > rounding * first_order_norm, dual_norm, first_order_norm)


def _with_underflow(norm: Tensor, gradient: Tensor, dual: Tensor) -> Tensor:
    """A gradient's norm (..., m) and what may be missing of it: nothing where gradient and dual point are 0."""
    something = gradient.any(-1) | dual.any(-1)
    return torch.add(norm, something, alpha=UNDERFLOW * gradient.shape[-1] ** 0.5)


def _moved(rounded: Tensor, wide: Tensor) -> Tensor:
    """How far rounding moved vectors, (g, r)."""
    if rounded.dtype == wide.dtype:
        return wide.new_zeros(wide.shape[:-1])
    return (rounded.double() - wide).norm(dim=-1).nan_to_num(nan=torch.inf, posinf=torch.inf)


def _centre(templates: Tensor, usable: Tensor | None) -> Tensor:
    """The mean of the templates that some query may use, (..., 1, d)."""
    if usable is None:
        return templates.mean(-2, keepdim=True)
    some = usable.to(templates.dtype)
    return some @ templates / some.sum(-1, keepdim=True)


class _Rounding:
    r"""How far rounding in float64 may have moved what :func:`certify` evaluates.

    Args:
        templates: Centred, (..., N, d).
        usable: Which of them weight can reach, (..., 1, N), or None.
        closeness: D.
        dual: λ, (..., m, d).

    Attributes:
        near: Where potentials are small, and the displacement of the weights is right relative to itself, (..., m).
        weights: Bound on the total variation between p(λ) and what was evaluated, (..., m).
        shift: Bound on the error of Σ (p - p(0)) t, (..., m).
        mean: Bound on the error of the mean less the centre, (..., m).
        spread: √Σ p ‖t - h‖², (..., m).
        length: ‖λ‖, (..., m).
        offset_length: Norm of the mean less the centre, (..., m).
        largest: Largest norm of a template that can be used, (..., 1).
        of_potential: The largest error of the potential, (..., m).
    """

    def __init__(
        self, templates: Tensor, usable: Tensor | None, closeness: AbstractCloseness, dual: Tensor
    ) -> None:
        self._count, self._dim = templates.shape[-2:]
        self._closeness = closeness
        self._squares = templates.square().sum(-1)
        counted = self._squares if usable is None else self._squares.masked_fill(~usable.squeeze(-2), 0)
        self.largest = counted.amax(-1, keepdim=True).sqrt()
        self.length = dual.norm(dim=-1)
        self._reach = self.length * self.largest
        self.near = self._reach <= SMALL * closeness.modulus

    def at(self, now: tuple[Tensor, Tensor], at_rest: tuple[Tensor, Tensor]) -> None:
        """Take account of the weights and their mean less the centre, at λ and at 0."""
        length, count = self.length, self._count
        moment, self.offset_length, self.spread = self._moments(*now)
        moment_at_rest, _, spread_at_rest = self._moments(*at_rest)
        # Errors of <t, λ>, and of adding to it a log u that is as large.
        each = (summed(self._dim) + 3) * UNIT * length
        adding = 2 * UNIT * self._reach
        self.of_potential = each * self.largest + adding
        relative, lost = self._closeness.rounding(each * moment + adding, self.of_potential, count)
        nothing = torch.zeros_like(length)
        at_zero, _ = self._closeness.rounding(nothing, nothing, count)
        of_sums = (2 * summed(count) + 8) * UNIT
        whole = self.largest * lost
        general = (
            relative * self.spread + at_zero * spread_at_rest + of_sums * (moment + moment_at_rest) + whole
        )
        curved = moment_at_rest.square() * (at_zero + 2 * of_sums + 2 * (summed(self._dim) + 15) * UNIT)
        near = 3 * length / self._closeness.modulus * (curved + self.largest * whole)
        self.shift = torch.where(self.near, near, general)
        self.mean = self.shift + at_zero * spread_at_rest + of_sums * moment_at_rest + whole
        self.weights = (relative / 2 + (summed(count) + 4) * UNIT + lost).clamp(max=1)

    def _moments(self, weights: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """√Σ p ‖t‖², ‖Σ p t‖ and √Σ p ‖t - h‖², (..., m), the first and last rounded up."""
        moment = (weights @ self._squares.unsqueeze(-1)).squeeze(-1)
        length = mean.norm(dim=-1)
        lost = (2 * summed(self._count) + self._dim + 4) * UNIT
        spread = (moment - length.square()).clamp(min=0) + 2 * lost * moment
        return (moment * (1 + lost)).sqrt(), length, spread.sqrt()
