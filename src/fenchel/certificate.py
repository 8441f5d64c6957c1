r"""What a dual point certifies, and what floating point adds to it.

Facts 1 and 2 bound errors by :math:`\lVert\nabla\mathcal{D}(\lambda)\rVert` in exact arithmetic. Here the gradient is
evaluated in float64 and what is returned is rounded to the problem's dtype, so that every bound also has to hold
what both may have changed. The allowances are derived in ``docs/exact-solver.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from fenchel.family import Block, FunctionFamily, TemplateFamily
from fenchel.problem import Problem
from fenchel.rounding import UNIT, norm, reference_norm

__all__ = ["Certificate", "certify"]

UNDERFLOW = 64 * torch.finfo(torch.float64).tiny
"""What sums of products may lack, in units of what they are made of, since float64 holds no smaller numbers."""

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
        # A gap that float64 does not hold is not 0.
        least = length.clamp(max=torch.finfo(torch.float64).tiny)
        return self.alpha / 2 * length.square() + 8 * self.weights_moved.square() + least

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


def certify(block: Block, dual: Tensor, dtype: torch.dtype) -> Certificate:
    r"""The certificate of a dual point, from the data of its rows alone.

    Args:
        block: The rows, in float64.
        dual: λ in float64, shape (g, r, d).
        dtype: The dtype to which the results are rounded.

    Returns:
        Weights p(λ), their mean, a bound on :math:`\lVert\nabla\mathcal{D}(\lambda)\rVert` and the norm that a relative
        tolerance refers to. Where numbers overflow float64 the bounds are infinite.
    """
    family, evidence, alpha = block.family, block.evidence, block.alpha
    lam = dual
    if isinstance(family, FunctionFamily):
        evidence, alpha = family.problem.evidence, family.problem.alpha_column
        lam = family.whole(dual)
    finite = family.over_templates()
    if finite is not None:
        found = _of_weights(finite, evidence, alpha, lam, dtype)
    else:
        assert isinstance(family, FunctionFamily)  # noqa: S101 -- what is not over templates
        found = _of_means(family.problem, lam, dtype)
    return found.reshaped(dual.shape[:2])


def _of_means(problem: Problem, dual: Tensor, dtype: torch.dtype) -> Certificate:
    """Where p is no list of weights: to what the family says of rounding, else to some roundings of both means."""
    conjugate, alpha = problem.conjugate, problem.alpha.expand(problem.shape)
    shift, at_rest = conjugate.shift(dual), conjugate.rest_mean()
    mean = conjugate.mean_by(dual, shift)
    gradient = problem.evidence - dual / problem.alpha_column - shift
    length = _length(dual)
    of_means = OF_MEANS * UNIT * (mean.norm(dim=-1) + at_rest.norm(dim=-1))
    of_shift = torch.minimum(of_means, OF_MEANS * UNIT * _length(shift)).where(length == 0, of_means)
    known = conjugate.preference.rounding(dual)
    if known is not None:
        of_shift, of_means = known.expand_as(length), of_means + known
    besides = conjugate.preference.mean_rounding()
    if besides is not None:
        of_means = of_means + besides
    rounded_mean, rounded_dual = mean.to(dtype), dual.to(dtype)
    size = _length(gradient) + of_shift + 4 * UNIT * (length / alpha + _length(problem.evidence))
    # What families say of rounding is made of squares.
    size = torch.add(size, dual.any(-1), alpha=torch.finfo(torch.float64).tiny ** 0.5)
    nothing = torch.zeros_like(length)
    return Certificate(
        dual=rounded_dual,
        weights=None,
        mean=rounded_mean,
        gradient_norm=size.nan_to_num(nan=torch.inf, posinf=torch.inf),
        dual_moved=_moved(rounded_dual, dual),
        mean_moved=of_means + _moved(rounded_mean, mean),
        weights_moved=nothing,
        weights_mean_moved=of_means,
        alpha=alpha.clone(),
        modulus=torch.ones_like(length),
        reference=reference_norm(length, _length(problem.alpha_column * problem.evidence)),
    )


def _of_weights(
    family: TemplateFamily, evidence: Tensor, alpha: Tensor, dual: Tensor, dtype: torch.dtype
) -> Certificate:
    """Over templates, in whatever leading shape; p(λ) is a list of weights."""
    point = family.at(dual)
    lost, offset, length = point.lost(), family.rest + point.shift, _length(dual)
    # The mean's shift rather than two means: at λ = 0 it is then exactly zero.
    gradient = evidence - dual / alpha - point.shift
    mean = family.centre + offset
    reference = reference_norm(length, _length(alpha * evidence))
    alpha = alpha.squeeze(-1)
    size = _length(gradient) * (1 + (dual.shape[-1] + 4) * UNIT)
    # Of λ/α, and of two differences, the first as long as the gradient and the shift at most.
    differences = UNIT * (2 * length / alpha + _length(point.shift) + 2 * size)
    gradient_norm = size + lost.shift + differences
    if isinstance(lost.pairing, Tensor):
        # The gap is α/2 times a squared length and this; every bound follows from the gap.
        gradient_norm = torch.hypot(gradient_norm, (2 * lost.pairing / alpha).sqrt())
    gradient_norm = gradient_norm + UNDERFLOW * (1 + family.radius.squeeze(-1)) * dual.any(-1)
    mean_moved = lost.mean + 2 * UNIT * (2 * family.centre.norm(dim=-1) + lost.offset)
    rounded_mean, rounded_dual = mean.to(dtype), dual.to(dtype)
    of_dtype = torch.finfo(dtype).eps / 2 if dtype != torch.float64 else 0.0
    underflow = point.weights.shape[-1] * torch.finfo(dtype).tiny
    lead = gradient.shape[:-1]
    modulus = torch.as_tensor(family.closeness.modulus, dtype=dual.dtype, device=dual.device)
    return Certificate(
        dual=rounded_dual,
        weights=point.weights.to(dtype),
        mean=rounded_mean,
        gradient_norm=gradient_norm.nan_to_num(nan=torch.inf, posinf=torch.inf),
        dual_moved=_moved(rounded_dual, dual),
        mean_moved=mean_moved + _moved(rounded_mean, mean),
        weights_moved=(lost.weights + of_dtype / 2 + underflow).expand(lead).nan_to_num(nan=torch.inf),
        weights_mean_moved=lost.mean + of_dtype * lost.spread + underflow * family.radius.squeeze(-1),
        alpha=alpha.expand(lead).clone(),
        modulus=modulus.expand(lead).clone(),
        reference=reference,
    )


def _length(vectors: Tensor) -> Tensor:
    """Euclidean norms (..., m) of vectors (..., m, d) of any size."""
    return norm(vectors).squeeze(-1)


def _moved(rounded: Tensor, wide: Tensor) -> Tensor:
    """How far rounding moved vectors, (g, r)."""
    if rounded.dtype == wide.dtype:
        return wide.new_zeros(wide.shape[:-1])
    return _length(rounded.double() - wide).nan_to_num(nan=torch.inf, posinf=torch.inf)
