"""Abstract closenesses; the Kullback-Leibler divergence, which gives softmax attention; and its limit."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.closeness.sparse_weights import LEAST_LOG_WEIGHT
from fenchel.errors import ProblemError
from fenchel.preference import Discrete
from fenchel.preference.abstract import (
    SMALL,
    Replaceable,
    counted_and_small,
    jacobian_of_gradient,
    near_displacement,
)
from fenchel.tensors import LINEAR, UNIT, checked_argument, column, positive_tensor, values_are_known

Operator = Callable[[Tensor], Tensor]


def checked_positive(
    argument: str, value: Any, form: str = "that broadcasts to (..., m), or a number"
) -> Any:
    """A positive number as a float, or a tensor of positive numbers.

    Raises:
        ProblemError: If the value is invalid for this argument.
    """
    if not isinstance(value, Tensor):
        return float(checked_argument(argument, value))
    return positive_tensor(argument, value, value.device, value.dtype, form)


class AbstractCloseness(Replaceable, ABC):
    r"""A convex function :math:`D(\cdot, u)` of the weights.

    Subclasses implement ``value`` and ``weights`` as functions of the log preference (..., m or 1, n), and ``modulus``,
    the modulus of strong convexity of D, if it is not 1. Parameters that may differ by query are named in ``numbers``.
    ``conjugate`` and ``curvature`` follow from these unless overridden.

    The potential is :math:`f = T\lambda`, shape (..., m, N), with one entry for each of the N templates in the support
    of p: those of the preference (N = n) unless :meth:`support` is overridden.
    """

    numbers: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that are numbers, or tensors that broadcast to (..., m), as in the constructor."""

    def bind(self, preference: Discrete) -> Self:
        """This closeness for the templates of a preference; itself if it does not depend on them."""
        return self

    def support(self, preference: Discrete) -> Tensor:
        """The templates in the support of p, (..., N, d), those of the preference first."""
        return preference.templates

    @abstractmethod
    def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`D(p, u)` for weights (..., m, N), shape (..., m)."""

    def conjugate(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`D^*(f) = \sup_p \langle p, f\rangle - D(p, u)`, shape (..., m), at the maximising weights."""
        p = self.weights(potential, log_preference)
        inside = p > 0
        # A common shift of f shifts D* equally; without it the sum has the size of the differences.
        level = potential.detach().masked_fill(~inside, -torch.inf).amax(-1, keepdim=True)
        pairing = (p * torch.where(inside, potential - level, 0)).sum(-1)
        return level.squeeze(-1) + pairing - self.value(p, log_preference)

    @abstractmethod
    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`\nabla D^*(f)`: the weights that attain the supremum, shape (..., m, N)."""

    def curvature(self, potential: Tensor, log_preference: Tensor) -> Operator:
        r""":math:`\nabla^2 D^*(f)` as a function that multiplies vectors (..., m, N).

        From :meth:`curvature_weights` if ``rowwise`` is true, otherwise by autograd of the weights.
        """
        if self.rowwise:
            q = self.curvature_weights(self.weights(potential, log_preference), log_preference)
            mass = q.sum(-1, keepdim=True)
            return lambda vector: q * (vector - (q * vector).sum(-1, keepdim=True) / mass)
        return jacobian_of_gradient(lambda f: self.weights(f, log_preference), potential)

    def rest(self, log_preference: Tensor) -> Tensor:
        r"""The weights that minimise :math:`D(\cdot, u)`, :math:`\nabla D^*(0)`, shape (..., m or 1, N)."""
        return self.weights(torch.zeros_like(log_preference), log_preference)

    def displacement(self, potential: Tensor, weights: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`\nabla D^*(f) - \nabla D^*(0)` given the weights at f, shape (..., m, N).

        For small f its relative error is some roundings, without cancellation.
        """
        level = SMALL * column(self.modulus)
        # Templates added by support have no log weight.
        masks = log_preference if log_preference.shape[-1] == potential.shape[-1] else None
        small = counted_and_small(potential.detach(), masks, level)[1]
        known, near = values_are_known(small), None
        if not known or bool(small.any()):
            # Clamping does not change small rows.
            near = self.near_displacement(potential.clamp(-level, level), log_preference)
            if near is not None and known and bool(small.all()):
                return near
        difference = weights - self.rest(log_preference)
        return difference if near is None else torch.where(small, near, difference)

    def near_displacement(self, potential: Tensor, log_preference: Tensor) -> Tensor | None:
        r""":math:`\nabla D^*(f) - \nabla D^*(0)` without cancellation for :math:`\lvert f\rvert \le \sigma/2`.

        None if not implemented; bounds at small potentials are then those of a difference.
        """
        return None

    def usable(self, log_preference: Tensor) -> Tensor | None:
        """Which templates may have weight for some query, bool (..., 1, N); None if all may."""
        return None

    def rounding(
        self, mean_error: Tensor, largest_error: Tensor, count: int
    ) -> tuple[Tensor, float | Tensor]:
        r"""A bound on the error of :meth:`weights` evaluated in float64 (for softmax, in the dtype of the errors).

        Args:
            mean_error: Error of the entries of the potential, root mean square under p, (..., m).
            largest_error: The largest error among them, (..., m).
            count: N.

        Returns:
            The relative error of the weights up to a common factor, root mean square under p, (..., m); and the total
            weight that may be lost. By default the relative error is 0, and the loss is the bound from strong convexity
            for the potential's error plus some roundings of each weight.
        """
        return torch.zeros_like(mean_error), largest_error / self.modulus + 16 * count * UNIT

    def pairing_error(self, largest_error: Tensor) -> float | Tensor:
        r"""A bound on :math:`D(p) + D^*(f) - \langle p, f\rangle` at evaluated weights p, (..., m).

        In addition to the effect of :meth:`rounding`; for discontinuous weights, which rounding may replace by equally
        good ones.

        Args:
            largest_error: The largest error of the potential, (..., m).
        """
        return 0.0

    curved: bool = True
    """Whether weights are differentiable almost everywhere; otherwise only first order is available."""

    rowwise: bool = False
    r"""Whether weights depend only on the potential and preference of a query, with a curvature given by weights q."""

    is_softmax: bool = False
    """Whether weights are proportional to the preference times the exponential of the potential."""

    def curvature_weights(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        r"""The q of :math:`\nabla^2 D^* = \operatorname{diag} q - qq^\top/\sum_i q_i` (fact 12), (..., m, n).

        Called if ``rowwise`` is true, with tensors whose rows have been selected by :meth:`rows`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} is rowwise but does not implement curvature_weights"
        )

    def _tensors(self) -> dict[str, Tensor]:
        """The numbers that are tensors, by name."""
        numbers = {name: getattr(self, name) for name in self.numbers}
        return {name: number for name, number in numbers.items() if isinstance(number, Tensor)}

    def with_numbers(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same closeness with ``numbers`` that are tensors changed; itself if there are none."""
        changed = {name: change(tensor) for name, tensor in self._tensors().items()}
        return self._changed(**changed) if changed else self

    def queries(self, part: slice) -> Self:
        """The closeness of some of the m queries; itself if no number has one row per query."""
        return self.with_numbers(lambda x: x if not x.dim() or x.shape[-1] == 1 else x[..., part])

    def heads(self, index: Tensor) -> Self:
        """The closeness of some of the heads, given their indices, where numbers have the shape (..., H, m or 1)."""

        def select(x: Tensor) -> Tensor:
            several = x.dim() > 1 and x.shape[-2] > 1
            return x.index_select(-2, index.to(x.device)) if several else x

        return self.with_numbers(select)

    def rows(self, take: Callable[[Tensor], Tensor]) -> Self:
        """The closeness of the rows of a block; itself if no number has one row per query.

        Args:
            take: Selects (g or 1, r or 1) from a tensor that broadcasts to (..., m).
        """
        return self.with_numbers(lambda x: take(x) if x.dim() else x)

    @property
    def modulus(self) -> float | Tensor:
        """σ > 0, the modulus of strong convexity of D in the 1-norm of the weights, broadcasting to (..., m)."""
        return 1.0

    def query_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes (..., m or 1) of the parameters with one row per query, by name."""
        return {name: tuple(tensor.shape) for name, tensor in self._tensors().items() if tensor.dim()}

    def to(self, dtype: torch.dtype) -> Self:
        """The same closeness in another dtype."""
        return self.with_numbers(lambda x: x.to(dtype))

    def fenchel_young_gap(self, weights: Tensor, potential: Tensor, log_preference: Tensor) -> Tensor:
        r"""The gap of the Fenchel–Young inequality, shape (..., m).

        .. math:: D(p, u) + D^*(f) - \langle p, f\rangle \ge 0,

        zero if and only if :math:`p = \nabla D^*(f)`.

        Example:
            >>> import torch
            >>> from fenchel import KL
            >>> f, log_u = torch.randn(1, 4).double(), torch.zeros(1, 4).double().log_softmax(-1)
            >>> p = KL().weights(f, log_u)
            >>> bool(KL().fenchel_young_gap(p, f, log_u).abs() < 1e-12)
            True
        """
        finite = potential.masked_fill(weights == 0, 0)
        pairing = (weights * finite).sum(-1)
        return self.value(weights, log_preference) + self.conjugate(potential, log_preference) - pairing

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


class KL(AbstractCloseness):
    r"""Kullback-Leibler divergence from the preference to the weights.

    .. math:: K(p, u) = \sum_i p_i \log\frac{p_i}{u_i}, \qquad
              K^*(f) = \log \sum_i u_i e^{f_i}, \qquad \nabla K^*(f)_i \propto u_i e^{f_i}.

    Reference:
        Section 4, eq. (3); Theorem 1, eqs. (8) and (9).

    Example:
        >>> p = torch.tensor([[0.5, 0.5, 0.0]]); log_u = torch.tensor([[0.25, 0.25, 0.5]]).log()
        >>> KL().value(p, log_u)                     # log 2
        tensor([0.6931])
    """

    rowwise = True
    is_softmax = True

    def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        """Divergence, shape (..., m); ``inf`` where p leaves the support of u."""
        # xlogy takes 0 log 0 = 0; 0 · (-inf) must be 0 as well, and p · (-inf) is -inf, which makes D +inf.
        masked_out = torch.where(weights > 0, log_preference, torch.zeros_like(log_preference))
        return (torch.xlogy(weights, weights) - weights * masked_out).sum(-1)

    def conjugate(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r"""The cumulant :math:`\log\sum_i u_i e^{f_i}`, shape (..., m)."""
        return torch.logsumexp(log_preference + potential, -1)

    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r"""The tilted preference :math:`p_i \propto u_i e^{f_i}`, shape (..., m, n)."""
        return torch.softmax(log_preference + potential, -1)

    def rest(self, log_preference: Tensor) -> Tensor:
        """The preference u."""
        return log_preference.softmax(-1)

    def near_displacement(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`u_i\,(e_i - \langle u, e\rangle)/(1 + \langle u, e\rangle)` with e = exp(f) - 1."""
        return near_displacement(potential, self.rest(log_preference))

    def rounding(self, mean_error: Tensor, largest_error: Tensor, count: int) -> tuple[Tensor, float]:
        """The error of exponentials; the root mean square of log p under p is at most about log N."""
        numbers = torch.finfo(mean_error.dtype)
        relative = 2.2 * mean_error + (2 * math.log(count) + 8) * numbers.eps
        lost = count * numbers.tiny
        return relative.masked_fill(~(largest_error <= LINEAR), torch.inf), lost

    def usable(self, log_preference: Tensor) -> Tensor:
        """Templates with a positive preference."""
        return log_preference.amax(-2, keepdim=True) > -torch.inf

    def curvature_weights(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        """The weights p."""
        return weights

    def __repr__(self) -> str:
        return "KL()"


# Roundings of the largest score within which scores count as equal.
TIED = 32


class Hard(AbstractCloseness):
    r"""Closeness to the support of the preference only: the limit of temperature 0.

    .. math:: D(p, u) = \begin{cases}0 & p_i = 0 \text{ wherever } u_i = 0\\ \infty & \text{else}\end{cases}, \qquad
              D^*(f) = \max_{u_i > 0} f_i

    All weight goes to the largest score; equal largest scores share it in proportion to u, as in the limit
    :math:`\theta \to 0` of :math:`\theta K(p, u)` and of every :class:`~fenchel.Tsallis` closeness of the Csiszár form.
    Scores that differ by rounding count as equal. Weights are discontinuous and have no curvature, and the exact
    solution may not be the weights of any dual point: only first order is available. Its bounds on the gap, the mean
    and the dual point hold; total variation has no bound below 1.

    Example:
        >>> from fenchel import Discrete, InferenceProblem
        >>> u = Discrete(torch.eye(3, dtype=torch.float64), torch.tensor([0.2, 0.6, 0.2], dtype=torch.float64).log())
        >>> z = torch.tensor([[1.0, 1.0, 0.5]], dtype=torch.float64)
        >>> InferenceProblem(u, z, closeness=Hard()).solve("first_order").weights
        tensor([[0.2500, 0.7500, 0.0000]], dtype=torch.float64)
    """

    curved = False

    @override
    def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        outside = ((log_preference < LEAST_LOG_WEIGHT) & (weights != 0)).any(-1)
        return torch.zeros_like(weights).sum(-1).masked_fill(outside, torch.inf)

    @override
    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        scores = potential.detach().masked_fill(log_preference < LEAST_LOG_WEIGHT, -torch.inf)
        highest = scores.amax(-1, keepdim=True)
        size = scores.masked_fill(scores == -torch.inf, 0).abs().amax(-1, keepdim=True)
        largest = scores >= highest - TIED * torch.finfo(scores.dtype).eps * size
        return torch.where(largest, log_preference, -torch.inf).softmax(-1)

    @override
    def curvature(self, potential: Tensor, log_preference: Tensor) -> Callable[[Tensor], Tensor]:
        raise ProblemError(
            "closeness is Hard(), whose weights jump and have no curvature; expected the estimator 'first_order', or a "
            "closeness with a small temperature, such as fenchel.Tsallis(2, temperature=0.01)"
        )

    @override
    def usable(self, log_preference: Tensor) -> Tensor:
        return log_preference.amax(-2, keepdim=True) >= LEAST_LOG_WEIGHT

    def rounding(self, mean_error: Tensor, largest_error: Tensor, count: int) -> tuple[Tensor, float]:
        """Weights are exact; for the choice of the largest score see :meth:`pairing_error`."""
        return torch.zeros_like(mean_error), 0.0

    def pairing_error(self, largest_error: Tensor) -> Tensor:
        """Errors may lower the chosen score by twice their size, or more for tied scores."""
        return TIED * largest_error

    @property
    def modulus(self) -> float:
        """0: D is not strongly convex."""
        return 0.0

    def __repr__(self) -> str:
        return "Hard()"
