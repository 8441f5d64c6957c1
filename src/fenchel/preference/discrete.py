"""A preference over finitely many templates; and weights of finitely many things, normalised, drawn and moved."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from typing_extensions import override

from fenchel.errors import ProblemError
from fenchel.preference.abstract import (
    AbstractPreference,
    Shape,
    checked_parameter,
    checked_sample_shape,
)
from fenchel.tensors import (
    MASK,
    SMALL,
    check_entries,
    check_tensor,
    first_index,
    is_causal_bias,
    log_weights,
    near_displacement,
    values_are_known,
    without_causal_bias,
)


class Discrete(AbstractPreference):
    r"""The distribution u that puts weight :math:`u_i` on template :math:`t_i`.

    .. math:: u = \sum_i u_i \delta_{t_i}, \qquad u_i \propto \exp(\mathtt{log\_weights}_i)

    Weights are normalised here, once; ``-inf`` means masked: that template can never be chosen.

    Args:
        templates: The vectors t that the output is made of, shape (..., n, d). float32 or float64; half types are
            converted to float32, in which everything is then computed and returned.
        log_weights: Log weights, not necessarily normalised, of shape (n,) (shared by all queries), (m, n) (one row a
            query) or (..., m or 1, n); or a bool mask of such a shape, True where a template may be chosen.
            ``None`` is the uniform preference.

    Raises:
        ProblemError: On a wrong shape or dtype, NaN or infinity in the templates, NaN or ``+inf`` in the weights, or
            a query all of whose templates are masked.

    Reference:
        Section 6, eq. (16): support :math:`\{t_i\}` with preference probabilities :math:`\{u_i\}`.

    Example:
        >>> u = Discrete(torch.eye(3, dtype=torch.float64), torch.tensor([0.3, 0.4, 0.6], dtype=torch.float64).log())
        >>> u.mean()                               # 0.3, 0.4, 0.6 sum to 1.3: normalised
        tensor([[0.2308, 0.3077, 0.4615]], dtype=torch.float64)
    """

    rows = ("log_weights", "_given")
    _given: Tensor | None = None

    def __init__(self, templates: Tensor, log_weights: Tensor | None = None) -> None:
        self.templates = checked_parameter(
            "templates", templates, "(..., n, d)", dims=2, remedy="masked ones too"
        )
        n = self.templates.shape[-2]
        if log_weights is None:
            self.log_weights = self.templates.new_zeros(1, n).log_softmax(-1)
            return
        given = checked_log_weights(log_weights, n, self.templates, of="templates", thing="templates")
        self.log_weights = given.log_softmax(-1)
        if self.dtype != torch.float64:
            # Normalising rounds; another dtype begins with what was given.
            self._given = given.detach()

    @property
    @override
    def vectors(self) -> str:
        return "templates"

    @property
    def support_size(self) -> int:
        """Number of templates, n, masked ones included."""
        return self.templates.shape[-2]

    @property
    @override
    def lead(self) -> torch.Size:
        return torch.broadcast_shapes((*self.templates.shape[:-2], 1), self.log_weights.shape[:-1])

    def weights(self) -> Tensor:
        """The probabilities u, shape (..., m or 1, n)."""
        return self.log_weights.exp()

    def mean(self) -> Tensor:
        r"""The mean :math:`\mu = \sum_i u_i t_i`, shape (..., m or 1, d)."""
        return self.weights() @ self.templates

    def potential(self, lam: Tensor) -> Tensor:
        r"""The inner products :math:`(T\lambda)_i = \langle t_i, \lambda\rangle`.

        Shape (..., m, n) for ``lam`` of shape (..., m, d).
        """
        self.check_point("lam", lam)
        return lam @ self.templates.mT

    def log_mgf(self, lam: Tensor) -> Tensor:
        r"""The cumulant :math:`\log M(\lambda) = \log \sum_i u_i e^{\langle t_i, \lambda\rangle}` of eq. (8).

        Shape (..., m) for ``lam`` of shape (..., m, d).
        """
        self.check_point("lam", lam)
        center, templates = self._centred()
        common = (lam @ center.mT).squeeze(-1)
        return log_mean_exp(self.potential(lam), lam @ templates.mT, common, self.log_weights)

    def _centred(self) -> tuple[Tensor, Tensor]:
        """Their centre, (..., 1, d), and templates less that."""
        center = center_of(self.templates, self.log_weights)
        return center, self.templates - center

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        return torch.softmax(self.log_weights + self.potential(lam), -1) @ self.templates

    @override
    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        self.check_point("lam", lam)
        _, templates = self._centred()
        p = torch.softmax(self.log_weights + lam @ templates.mT, -1)
        mean = p @ templates

        def product(vector: Tensor) -> Tensor:
            self.check_point("vector", vector)
            images = vector @ templates.mT
            moved = p * (images - (p * images).sum(-1, keepdim=True))
            # About the mean once more: what is left over lies at the template that has nearly all weight.
            return moved @ templates - moved.sum(-1, keepdim=True) * mean

        return product

    @override
    def tilted_shift(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        _, templates = self._centred()
        exponents = lam @ templates.mT
        r = torch.softmax(self.log_weights + exponents, -1)
        return displacement(exponents, self.log_weights, r) @ templates

    def covariance(self) -> Tensor:
        r"""The covariance :math:`\Sigma = \sum_i u_i (t_i - \mu)(t_i - \mu)^\top`, shape (..., m or 1, d, d)."""
        offsets = self.templates.unsqueeze(-3) - self.mean().unsqueeze(-2)
        return offsets.mT @ (self.weights().unsqueeze(-1) * offsets)

    def tilted(self, lam: Tensor) -> Discrete:
        r"""The same templates with weights that are in proportion to :math:`u_i e^{\langle t_i, \lambda\rangle}`."""
        tilted = torch.log_softmax(self.log_weights + self.potential(lam), -1)
        return self._changed(log_weights=tilted, _given=None)

    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Templates, shape (\*shape, ..., m or 1, d); which is chosen carries no gradient to the weights.

        Args:
            shape: How many; () is one of each distribution.
            generator: Where randomness comes from; torch's own where None.

        Raises:
            ProblemError: If the shape is none.
        """
        index = drawn_indices(self.weights(), self.lead, shape, generator)
        return picked(self.templates.unsqueeze(-3), index, 1)

    def log_density(self, points: Tensor) -> Tensor:
        """Refused: weights say how probable each template is.

        Raises:
            ProblemError: Always.
        """
        raise ProblemError(
            "a Discrete distribution has no density; expected its weights(), which are the templates' probabilities"
        )

    def torch_distribution(self) -> Distribution:
        """Refused: torch has distributions of numbers of templates, and none of the templates.

        Raises:
            ProblemError: Always.
        """
        raise ProblemError(
            "torch.distributions has no distribution of templates; expected that of their numbers, "
            "torch.distributions.Categorical(logits=u.log_weights)"
        )

    @property
    @override
    def width(self) -> int:
        return max(self.dim, self.support_size)

    @override
    def to(self, dtype: torch.dtype) -> Discrete:
        made = super().to(dtype)
        if made is self:
            return self
        log_weights = (
            made.log_weights if made.log_weights.requires_grad or made._given is None else made._given
        )
        return made._changed(log_weights=log_weights.log_softmax(-1), _given=None)

    def __repr__(self) -> str:
        return (
            f"Discrete(templates={tuple(self.templates.shape)}, log_weights={tuple(self.log_weights.shape)}, "
            f"dtype={self.dtype}, device='{self.device}')"
        )


def checked_log_weights(given: Any, n: int, like: Tensor, *, of: str, thing: str) -> Tensor:
    """Log weights (..., m or 1, n), not yet normalised.

    Args:
        given: What the user gave: (n,), (m, n) or (..., m, n), or a bool mask of such a shape, True where
            weight may be.
        n: How many there are.
        like: Whose dtype they take, and on whose device they have to be.
        of: What that is called, such as "templates".
        thing: What has a weight, such as "templates".

    Raises:
        ProblemError: On a wrong shape, NaN or +inf, or rows that are masked throughout.
    """
    if is_causal_bias(given):
        given = without_causal_bias("log_weights", given, given.seq_len_q, n, like.device)
    form = f"(..., n), one for each of the {thing}"
    check_tensor("log_weights", given, form, dtypes=MASK, sizes=(..., n), device=like.device, other=of)
    result = log_weights(given.unsqueeze(0) if given.dim() == 1 else given, like.dtype)
    if not values_are_known(result):
        return result
    expected = "finite log weights, or -inf where masked"
    check_entries("log_weights", result, lambda x: x < torch.inf, expected)
    empty = torch.isneginf(result).all(-1)
    if bool(empty.any()):
        where = first_index(empty)
        raise ProblemError(
            f"all {n} {thing} are masked for {int(empty.sum())} of {empty.numel()} rows of log_weights (first at "
            f"index {where}): such a query has no answer; leave it out, or unmask one of the {thing}"
        )
    return result


def center_of(vectors: Tensor, log_weights: Tensor) -> Tensor:
    """The mean of the vectors (..., n, d) that count for some query, (..., 1, d), without gradient."""
    counted = (log_weights > -torch.inf).any(-2, keepdim=True).to(vectors.dtype)
    return counted @ vectors.detach() / counted.sum(-1, keepdim=True)


def drawn_indices(
    weights: Tensor, lead: torch.Size, shape: Shape, generator: torch.Generator | None
) -> Tensor:
    """Indices drawn with probabilities that broadcast to (*lead, n), (*shape, *lead).

    Raises:
        ProblemError: If the shape is none, or the generator is on another device.
    """
    sizes = checked_sample_shape(shape, generator, weights.device)
    count, n = math.prod(sizes), weights.shape[-1]
    if count == 0:
        return torch.zeros((*sizes, *lead), dtype=torch.int64, device=weights.device)
    rows = weights.detach().expand(*lead, n).reshape(-1, n)
    return torch.multinomial(rows, count, replacement=True, generator=generator).mT.reshape(*sizes, *lead)


def picked(parameter: Tensor, index: Tensor, own: int) -> Tensor:
    """What is at indices (*shape, ..., m) of parameters (..., m or 1, n, *), given how many dimensions * are."""
    at = index.reshape(*index.shape, *[1] * (own + 1))
    padded = parameter.reshape(*[1] * (at.dim() - parameter.dim()), *parameter.shape)
    return torch.take_along_dim(padded, at, -own - 1).squeeze(-own - 1)


def displacement(exponents: Tensor, log_weights: Tensor, r: Tensor) -> Tensor:
    r""":math:`r - w` for :math:`r \propto we^x`, to rounding relative to itself where x is small, (..., m, n)."""
    w = log_weights.exp()
    counted, small = counted_and_small(exponents, log_weights)
    if values_are_known(exponents) and not bool(small.any()):
        return r - w
    return torch.where(small, near_displacement(counted.where(small, 0), w), r - w)


def counted_and_small(
    exponents: Tensor, log_weights: Tensor | None, level: float | Tensor = SMALL
) -> tuple[Tensor, Tensor]:
    """Exponents with 0 where there is no weight, (..., m, n), and which rows are within a level, bool (..., m, 1)."""
    if log_weights is not None:
        masked = torch.isneginf(log_weights)
        if not values_are_known(exponents) or bool(masked.any()):
            exponents = exponents.masked_fill(masked, 0)
    # The largest and the smallest are read; an array of absolute values would be written.
    largest = torch.maximum(exponents.amax(-1, keepdim=True), -exponents.amin(-1, keepdim=True))
    return exponents, largest <= level


def log_mean_exp(plain: Tensor, centred: Tensor, at_center: Tensor, log_weights: Tensor) -> Tensor:
    r""":math:`\log\sum_i w_i e^{x_i}`, (..., m): to rounding relative to itself where x hardly differ.

    Args:
        plain: x, (..., m, n).
        centred: The same less what is common to all, computed without cancellation.
        at_center: What is common, (..., m).
        log_weights: log w, (..., m or 1, n), which sum to one.
    """
    counted, small = counted_and_small(centred, log_weights)
    near = torch.log1p((log_weights.exp() * torch.expm1(counted.where(small, 0))).sum(-1))
    whole, around = torch.logsumexp(log_weights + plain, -1), torch.logsumexp(log_weights + centred, -1)
    # Far out what is common may be much larger than the whole, or nearly all of it.
    far = torch.where(whole.abs() < at_center.abs() / 2, whole, around + at_center)
    return torch.where(small.squeeze(-1), near + at_center, far)
