"""What a closeness must compute; that of Kullback and Leibler, whose weights are softmax attention; and its limit."""

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
from fenchel.preference.abstract import Replaceable, jacobian_of_gradient
from fenchel.preference.discrete import counted_and_small
from fenchel.tensors import (
    LINEAR,
    SMALL,
    UNIT,
    checked_argument,
    near_displacement,
    positive_tensor,
    values_are_known,
)

Operator = Callable[[Tensor], Tensor]


def checked_positive(
    argument: str, value: Any, form: str = "that broadcasts to (..., m), or a number"
) -> Any:
    """A positive number as a float, or a tensor of positive numbers.

    Raises:
        ProblemError: If it breaks the rule that the table of arguments has for it.
    """
    if not isinstance(value, Tensor):
        return float(checked_argument(argument, value))
    return positive_tensor(argument, value, value.device, value.dtype, form)


class AbstractCloseness(Replaceable, ABC):
    r"""A convex function :math:`D(\cdot, u)` of the weights.

    A member writes ``value`` and ``weights`` in terms of the log preference (..., m or 1, n); the modulus by which D is
    strongly convex, if that is not 1; and the names of ``numbers`` of its own that may differ by query. What follows
    from these it may write too, where there are formulas: ``conjugate`` and ``curvature``.

    The potential is :math:`f = T\lambda`, shape (..., m, N), with one entry for each of the N templates that p may
    use: those of the preference, N = n, unless :meth:`support` says more.
    """

    numbers: ClassVar[tuple[str, ...]] = ()
    """Attributes, called as the constructor calls them, that are numbers, or tensors that broadcast to (..., m)."""

    def bind(self, preference: Discrete) -> Self:
        """This closeness, knowing the templates of a preference; itself where templates do not matter to it."""
        return self

    def support(self, preference: Discrete) -> Tensor:
        """The templates that p may use, (..., N, d), those of the preference first."""
        return preference.templates

    @abstractmethod
    def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`D(p, u)` for weights (..., m, N), shape (..., m)."""

    def conjugate(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`D^*(f) = \sup_p \langle p, f\rangle - D(p, u)`, shape (..., m): here at the weights that reach it."""
        p = self.weights(potential, log_preference)
        inside = p > 0
        # A common shift moves f and D* alike; what is added up is then of the size of the differences.
        level = potential.detach().masked_fill(~inside, -torch.inf).amax(-1, keepdim=True)
        pairing = (p * torch.where(inside, potential - level, 0)).sum(-1)
        return level.squeeze(-1) + pairing - self.value(p, log_preference)

    @abstractmethod
    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`\nabla D^*(f)`: the weights that reach the supremum, shape (..., m, N)."""

    def curvature(self, potential: Tensor, log_preference: Tensor) -> Operator:
        r""":math:`\nabla^2 D^*(f)` as a function that multiplies vectors (..., m, N).

        Here by :meth:`curvature_weights` where ``rowwise`` is true, else by autograd of weights.
        """
        if self.rowwise:
            q = self.curvature_weights(self.weights(potential, log_preference), log_preference)
            mass = q.sum(-1, keepdim=True)
            return lambda vector: q * (vector - (q * vector).sum(-1, keepdim=True) / mass)
        return jacobian_of_gradient(lambda f: self.weights(f, log_preference), potential)

    def rest(self, log_preference: Tensor) -> Tensor:
        r"""The weights at which :math:`D(\cdot, u)` is least, :math:`\nabla D^*(0)`, shape (..., m or 1, N)."""
        return self.weights(torch.zeros_like(log_preference), log_preference)

    def displacement(self, potential: Tensor, weights: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`\nabla D^*(f) - \nabla D^*(0)` given the weights at f, shape (..., m, N).

        Where f is small it is right to rounding relative to itself, not to the weights.
        """
        level: Any = SMALL * self._modulus_column()
        # Further templates, as of transport, have no log weight.
        masks = log_preference if log_preference.shape[-1] == potential.shape[-1] else None
        small = counted_and_small(potential.detach(), masks, level)[1]
        known, near = values_are_known(small), None
        if not known or bool(small.any()):
            # Rows that are small are not changed by this.
            near = self.near_displacement(potential.clamp(-level, level), log_preference)
            if near is not None and known and bool(small.all()):
                return near
        apart = weights - self.rest(log_preference)
        return apart if near is None else torch.where(small, near, apart)

    def near_displacement(self, potential: Tensor, log_preference: Tensor) -> Tensor | None:
        r""":math:`\nabla D^*(f) - \nabla D^*(0)` without cancellation for :math:`\lvert f\rvert \le \sigma/2`.

        None where it is not known; bounds at small potentials are then those of a difference.
        """
        return None

    def usable(self, log_preference: Tensor) -> Tensor | None:
        """Which templates weight of some query can reach, bool (..., 1, N); None where that is all of them."""
        return None

    def rounding(
        self, mean_error: Tensor, largest_error: Tensor, count: int
    ) -> tuple[Tensor, float | Tensor]:
        r"""How far at most :meth:`weights`, evaluated in float64, are from :math:`\nabla D^*(f)`.

        Where :attr:`is_softmax`, in the dtype of the errors.

        Args:
            mean_error: Error of the potential's entries, root mean square under p, (..., m).
            largest_error: The largest error among them, (..., m).
            count: N.

        Returns:
            Their relative error up to a factor that all share, root mean square under p, (..., m); and the part of all
            weight that may be lost. Here no error is relative, and what is lost is what strong convexity allows for the
            potential's error and some roundings a weight.
        """
        return torch.zeros_like(mean_error), largest_error / self.modulus + 16 * count * UNIT

    def pairing_error(self, largest_error: Tensor) -> float | Tensor:
        r"""By how much :math:`D(p) + D^*(f) - \langle p, f\rangle` may be above 0 at evaluated weights, (..., m).

        Beyond what :meth:`rounding` says of how far they are from p(f): for weights that jump, to others as good.

        Args:
            largest_error: The largest error of the potential, (..., m).
        """
        return 0.0

    curved: bool = True
    """Whether weights have a derivative almost everywhere, of which steps are made; else there is first order alone."""

    rowwise: bool = False
    r"""Whether weights depend on a query's potential and preference alone, and the curvature is that of weights q."""

    is_softmax: bool = False
    """Whether weights are proportional to the preference times the exponential of the potential."""

    def curvature_weights(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        r"""The q of :math:`\nabla^2 D^* = \operatorname{diag} q - qq^\top/\sum_i q_i` (fact 12), (..., m, n).

        Asked for where ``rowwise`` is true, with tensors whose rows have been taken by :meth:`rows`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} says that it is rowwise and has no curvature_weights"
        )

    def _tensors(self) -> dict[str, Tensor]:
        """The numbers that are tensors, by name."""
        numbers = {name: getattr(self, name) for name in self.numbers}
        return {name: number for name, number in numbers.items() if isinstance(number, Tensor)}

    def with_numbers(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same closeness with the numbers changed that are tensors; itself where none is."""
        changed = {name: change(tensor) for name, tensor in self._tensors().items()}
        return self._changed(**changed) if changed else self

    def queries(self, part: slice) -> Self:
        """The same for some of the m queries; itself where no tensor of its own has rows for queries."""
        return self.with_numbers(lambda own: own if not own.dim() or own.shape[-1] == 1 else own[..., part])

    def heads(self, index: Tensor) -> Self:
        """The same for some of the heads by their indices, where tensors of its own have the shape (..., H, m or 1)."""

        def chosen(own: Tensor) -> Tensor:
            several = own.dim() > 1 and own.shape[-2] > 1
            return own.index_select(-2, index.to(own.device)) if several else own

        return self.with_numbers(chosen)

    def rows(self, take: Callable[[Tensor], Tensor]) -> Self:
        """The same for rows of a block, where tensors of its own have rows for queries; else itself.

        Args:
            take: Gives (g or 1, r or 1) of a tensor that broadcasts to (..., m).
        """
        return self.with_numbers(lambda own: take(own) if own.dim() else own)

    @property
    def modulus(self) -> float | Tensor:
        """σ > 0, by which D is strongly convex in the 1-norm of the weights, broadcasting to (..., m)."""
        return 1.0

    def _modulus_column(self) -> float | Tensor:
        return self.modulus.unsqueeze(-1) if isinstance(self.modulus, Tensor) else self.modulus

    def query_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes (..., m or 1) of what it has for each query, by the name that the constructor gives it."""
        return {name: tuple(tensor.shape) for name, tensor in self._tensors().items() if tensor.dim()}

    def to(self, dtype: torch.dtype) -> Self:
        """The same closeness in another dtype."""
        return self.with_numbers(lambda own: own.to(dtype))

    def fenchel_young_gap(self, weights: Tensor, potential: Tensor, log_preference: Tensor) -> Tensor:
        r"""How far weights and potential are from belonging together, shape (..., m).

        .. math:: D(p, u) + D^*(f) - \langle p, f\rangle \ge 0,

        zero exactly where :math:`p = \nabla D^*(f)` (the Fenchel–Young inequality).

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
    r"""Kullback–Leibler divergence from the preference to the weights.

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
        # xlogy takes 0 log 0 = 0; 0 · (-inf) must be 0 as well, and p · (-inf) is -inf, so that D is +inf.
        masked_out = torch.where(weights > 0, log_preference, torch.zeros_like(log_preference))
        return (torch.xlogy(weights, weights) - weights * masked_out).sum(-1)

    def conjugate(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r"""The cumulant :math:`\log\sum_i u_i e^{f_i}`, shape (..., m)."""
        return torch.logsumexp(log_preference + potential, -1)

    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r"""The tilted preference :math:`p_i \propto u_i e^{f_i}`, shape (..., m, n)."""
        return torch.softmax(log_preference + potential, -1)

    def rest(self, log_preference: Tensor) -> Tensor:
        """U itself."""
        return log_preference.softmax(-1)

    def near_displacement(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`u_i\,(e_i - \langle u, e\rangle)/(1 + \langle u, e\rangle)` with e = exp(f) - 1."""
        return near_displacement(potential, self.rest(log_preference))

    def rounding(self, mean_error: Tensor, largest_error: Tensor, count: int) -> tuple[Tensor, float]:
        """Weights are exponentials; under p the root mean square of log p is at most about log N."""
        numbers = torch.finfo(mean_error.dtype)
        relative = 2.2 * mean_error + (2 * math.log(count) + 8) * numbers.eps
        lost = count * numbers.tiny
        return relative.masked_fill(~(largest_error <= LINEAR), torch.inf), lost

    def usable(self, log_preference: Tensor) -> Tensor:
        """Those with a preference."""
        return log_preference.amax(-2, keepdim=True) > -torch.inf

    def curvature_weights(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        """P itself."""
        return weights

    def __repr__(self) -> str:
        return "KL()"


TIED = 32
"""Roundings of the largest score by which scores are the same."""


class Hard(AbstractCloseness):
    r"""No closeness but to the support of the preference: the limit of temperature 0.

    .. math:: D(p, u) = \begin{cases}0 & p_i = 0 \text{ wherever } u_i = 0\\ \infty & \text{else}\end{cases}, \qquad
              D^*(f) = \max_{u_i > 0} f_i

    All weight goes to the largest score; those that share it get weight in proportion to u, as in the limit
    :math:`\theta \to 0` of :math:`\theta K(p, u)` and of every :class:`~fenchel.Tsallis` closeness in Csiszár's sense,
    and equally where u is uniform. Scores that rounding could have told apart share the largest too. Weights jump, so
    that there is no curvature, and an exact answer need not be the weights of any dual point: first order only. Its
    bounds on the gap, the mean and the dual point hold; total variation has no bound below 1.

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
        most = scores.amax(-1, keepdim=True)
        size = scores.masked_fill(scores == -torch.inf, 0).abs().amax(-1, keepdim=True)
        largest = scores >= most - TIED * torch.finfo(scores.dtype).eps * size
        return torch.where(largest, log_preference, -torch.inf).softmax(-1)

    @override
    def curvature(self, potential: Tensor, log_preference: Tensor) -> Callable[[Tensor], Tensor]:
        raise ProblemError(
            "Hard() has weights that jump, and so no curvature; expected the estimator 'first_order', or a closeness "
            "with a small temperature, such as fenchel.Tsallis(2, temperature=0.01)"
        )

    @override
    def usable(self, log_preference: Tensor) -> Tensor:
        return log_preference.amax(-2, keepdim=True) >= LEAST_LOG_WEIGHT

    def rounding(self, mean_error: Tensor, largest_error: Tensor, count: int) -> tuple[Tensor, float]:
        """Weights are what they are; which score is the largest is in :meth:`pairing_error`."""
        return torch.zeros_like(mean_error), 0.0

    def pairing_error(self, largest_error: Tensor) -> Tensor:
        """The largest of scores that are off may be lower than the largest by twice that, and what is tied by more."""
        return TIED * largest_error

    @property
    def modulus(self) -> float:
        """0: it is not strongly convex."""
        return 0.0

    def __repr__(self) -> str:
        return "Hard()"
