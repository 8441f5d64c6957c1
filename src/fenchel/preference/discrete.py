"""A preference over finitely many templates; and checks, sampling and displacements of finitely many weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from typing_extensions import override

from fenchel.arguments import shown
from fenchel.errors import ProblemError
from fenchel.preference.abstract import (
    AbstractWeighted,
    Shape,
    checked_parameter,
    counted_and_small,
    near_displacement,
)
from fenchel.tensors import (
    MASK,
    centre,
    check_entries,
    check_tensor,
    check_type,
    first_index,
    is_causal_bias,
    log_weights,
    values_are_known,
    without_causal_bias,
)


class Discrete(AbstractWeighted):
    r"""The distribution u with weight :math:`u_i` on template :math:`t_i`.

    .. math:: u = \sum_i u_i \delta_{t_i}, \qquad u_i \propto \exp(\mathtt{log\_weights}_i)

    Weights are normalised; ``-inf`` masks a template, which then has no weight.

    Args:
        templates: The vectors t, shape (..., n, d), float32 or float64; half types are converted to float32, the dtype
            of all results.
        log_weights: Log weights, not necessarily normalised, with shape (n,) (shared by all queries), (m, n) (one row
            per query) or (..., m or 1, n); or a bool mask of such a shape, True where a template may have weight.
            ``None`` is the uniform preference.

    Raises:
        ProblemError: On a wrong shape or dtype, NaN or infinity in the templates, NaN or ``+inf`` in the weights, or a
            query with all templates masked.

    Reference:
        Section 6, eq. (16): support :math:`\{t_i\}` with preference probabilities :math:`\{u_i\}`.

    Example:
        >>> u = Discrete(torch.eye(3, dtype=torch.float64), torch.tensor([0.3, 0.4, 0.6], dtype=torch.float64).log())
        >>> u.mean()                               # 0.3, 0.4, 0.6 sum to 1.3: normalised
        tensor([[0.2308, 0.3077, 0.4615]], dtype=torch.float64)
    """

    def __init__(self, templates: Tensor, log_weights: Tensor | None = None) -> None:
        self.templates = checked_parameter(
            "templates", templates, "(..., n, d)", dims=2, remedy="including masked ones"
        )
        n = self.templates.shape[-2]
        if log_weights is None:
            self.log_weights = self.templates.new_zeros(1, n).log_softmax(-1)
            return
        original = checked_log_weights(log_weights, n, self.templates, of="templates", thing="templates")
        self._set_weights(original)

    @property
    @override
    def vectors(self) -> str:
        return "templates"

    @property
    def support_size(self) -> int:
        """Number of templates, n, including masked ones."""
        return self.templates.shape[-2]

    @property
    @override
    def lead(self) -> torch.Size:
        return torch.broadcast_shapes((*self.templates.shape[:-2], 1), self.log_weights.shape[:-1])

    def weights(self) -> Tensor:
        """The probabilities u, shape (..., m or 1, n)."""
        return self.log_weights.exp()

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
        """The centre of the templates, (..., 1, d), and the templates minus it."""
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
            # The sum of moved, a rounding error, is assigned to the template with nearly all weight.
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
        r"""The same templates with weights proportional to :math:`u_i e^{\langle t_i, \lambda\rangle}`."""
        tilted = torch.log_softmax(self.log_weights + self.potential(lam), -1)
        return self._changed(log_weights=tilted, _original=None)

    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Sampled templates, shape (\*shape, ..., m or 1, d); the choice has no gradient with respect to the weights.

        Args:
            shape: Shape of the samples; () is one of each distribution.
            generator: Source of randomness; torch's default generator if None.

        Raises:
            ProblemError: If the shape is invalid.
        """
        index = drawn_indices(self.weights(), self.lead, shape, generator)
        return picked(self.templates.unsqueeze(-3), index, 1)

    def log_density(self, points: Tensor) -> Tensor:
        """Not defined: templates have probabilities, see :meth:`weights`.

        Raises:
            ProblemError: Always.
        """
        raise ProblemError(
            "a Discrete distribution has no density; use weights(), the probabilities of the templates"
        )

    def torch_distribution(self) -> Distribution:
        """Not defined: torch has distributions of indices, not of templates.

        Raises:
            ProblemError: Always.
        """
        raise ProblemError(
            "torch.distributions has no distribution of templates; use that of their indices, "
            "torch.distributions.Categorical(logits=u.log_weights)"
        )

    def __repr__(self) -> str:
        return self._described(f"templates={tuple(self.templates.shape)}")


def checked_log_weights(given: Any, n: int, like: Tensor, *, of: str, thing: str) -> Tensor:
    """Log weights (..., m or 1, n), not yet normalised.

    Args:
        given: The argument: (n,), (m, n) or (..., m, n), or a bool mask of such a shape, True for unmasked entries.
        n: Number of weights.
        like: Tensor with the dtype of the result and the required device.
        of: Name of that tensor, such as "templates".
        thing: Name of the weighted objects, such as "templates".

    Raises:
        ProblemError: On a wrong shape, NaN or +inf, or fully masked rows.
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
            f"all {n} {thing} are masked for {int(empty.sum())} of {empty.numel()} rows of log_weights (first at index "
            f"{where}): such a query has no solution; omit it, or unmask one of the {thing}"
        )
    return result


def center_of(vectors: Tensor, log_weights: Tensor) -> Tensor:
    """The centre of the vectors that are not masked for all queries, without gradient."""
    return centre(vectors.detach(), (log_weights > -torch.inf).any(-2, keepdim=True))


def checked_sample_shape(shape: Any, generator: Any, device: torch.device) -> tuple[int, ...]:
    """The shape of samples as a tuple.

    Raises:
        ProblemError: If it is not a shape, or the generator is not one of the device.
    """
    expected = "a torch.Generator, such as torch.Generator().manual_seed(0)"
    check_type("generator", generator, torch.Generator | None, expected)
    if generator is not None and generator.device.type != device.type:
        raise ProblemError(
            f"generator is on {generator.device}, but the distribution is on {device}; make one with "
            f"torch.Generator({str(device)!r})"
        )
    sizes = (shape,) if isinstance(shape, int) and not isinstance(shape, bool) else shape
    if not isinstance(sizes, tuple | list) or not all(
        isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes
    ):
        raise ProblemError(
            f"shape is {shown(shape)}; expected a number of samples, or a tuple such as (100, 2)"
        )
    return tuple(sizes)


def drawn_indices(
    weights: Tensor, lead: torch.Size, shape: Shape, generator: torch.Generator | None
) -> Tensor:
    """Indices drawn with probabilities that broadcast to (*lead, n), (*shape, *lead).

    Raises:
        ProblemError: If the shape is invalid, or the generator is on another device.
    """
    sizes = checked_sample_shape(shape, generator, weights.device)
    count, n = math.prod(sizes), weights.shape[-1]
    if count == 0:
        return torch.zeros((*sizes, *lead), dtype=torch.int64, device=weights.device)
    rows = weights.detach().expand(*lead, n).reshape(-1, n)
    return torch.multinomial(rows, count, replacement=True, generator=generator).mT.reshape(*sizes, *lead)


def picked(parameter: Tensor, index: Tensor, dims: int) -> Tensor:
    """Entries at indices (*shape, ..., m) of a parameter (..., m or 1, n, *), in which * are ``dims`` dimensions."""
    at = index.reshape(*index.shape, *[1] * (dims + 1))
    padded = parameter.reshape(*[1] * (at.dim() - parameter.dim()), *parameter.shape)
    return torch.take_along_dim(padded, at, -dims - 1).squeeze(-dims - 1)


def displacement(exponents: Tensor, log_weights: Tensor, r: Tensor) -> Tensor:
    r""":math:`r - w` for :math:`r \propto we^x`, (..., m, n), without cancellation where x is small."""
    w = log_weights.exp()
    counted, small = counted_and_small(exponents, log_weights)
    if values_are_known(exponents) and not bool(small.any()):
        return r - w
    return torch.where(small, near_displacement(counted.where(small, 0), w), r - w)


def log_mean_exp(plain: Tensor, centred: Tensor, at_center: Tensor, log_weights: Tensor) -> Tensor:
    r""":math:`\log\sum_i w_i e^{x_i}`, (..., m), without cancellation if all x are nearly equal.

    Args:
        plain: x, (..., m, n).
        centred: x minus a common number, computed without cancellation.
        at_center: The common number, (..., m).
        log_weights: log w, (..., m or 1, n), which sum to one.
    """
    counted, small = counted_and_small(centred, log_weights)
    near = torch.log1p((log_weights.exp() * torch.expm1(counted.where(small, 0))).sum(-1))
    whole, around = torch.logsumexp(log_weights + plain, -1), torch.logsumexp(log_weights + centred, -1)
    # The common number may be much larger than the result, or nearly equal to it.
    far = torch.where(whole.abs() < at_center.abs() / 2, whole, around + at_center)
    return torch.where(small.squeeze(-1), near + at_center, far)
