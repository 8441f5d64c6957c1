"""A preference over finitely many templates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.arguments.tensor import check_tensor, check_vectors, values_are_known
from fenchel.errors import ProblemError
from fenchel.preference.abstract import AbstractPreference, Shape
from fenchel.preference.parameters import (
    check_dtype,
    checked_log_weights,
    checked_sample_shape,
    displacement,
    drawn_indices,
    log_mean_exp,
    picked,
    widened,
)

__all__ = ["Discrete"]


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

    def __init__(self, templates: Tensor, log_weights: Tensor | None = None) -> None:
        check_tensor("templates", templates, "(..., n, d)")
        if templates.is_meta:
            raise ProblemError("templates are on meta, which has no values; expected a device that computes")
        if templates.dim() < 2:
            raise ProblemError(f"templates have shape {tuple(templates.shape)}; expected (..., n, d)")
        if templates.shape[-2] == 0:
            raise ProblemError(
                f"templates have shape {tuple(templates.shape)}: there is no template to choose (n = 0)"
            )
        self.templates = widened(templates)
        if values_are_known(templates) and not bool(torch.isfinite(self.templates).all()):
            raise ProblemError(
                "templates contain NaN or infinity; every entry must be finite, masked templates too"
            )
        self.log_weights = self._normalised(log_weights)

    def _normalised(self, log_weights: Tensor | None) -> Tensor:
        n = self.templates.shape[-2]
        if log_weights is None:
            return self.templates.new_zeros(1, n).log_softmax(-1)
        found = checked_log_weights(log_weights, n, self.templates, of="templates", thing="templates")
        return found.log_softmax(-1)

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

    @property
    @override
    def dim(self) -> int:
        """Dimension of a template, d."""
        return self.templates.shape[-1]

    @property
    @override
    def dtype(self) -> torch.dtype:
        """The dtype in which everything is computed: float32 or float64."""
        return self.templates.dtype

    @property
    @override
    def device(self) -> torch.device:
        """Where the templates are."""
        return self.templates.device

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

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        r"""The cumulant :math:`\log M(\lambda) = \log \sum_i u_i e^{\langle t_i, \lambda\rangle}` of eq. (8).

        Shape (..., m) for ``lam`` of shape (..., m, d).
        """
        self.check_point("lam", lam)
        center, templates = self._centred()
        common = (lam @ center.mT).squeeze(-1)
        return log_mean_exp(self.potential(lam), lam @ templates.mT, common, self.log_weights)

    def _centred(self) -> tuple[Tensor, Tensor]:
        """The mean of the templates that count for some query, (..., 1, d), and templates less that."""
        counted = (self.log_weights > -torch.inf).any(-2, keepdim=True).to(self.templates.dtype)
        center = counted @ self.templates / counted.sum(-1, keepdim=True)
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
        return displacement(lam @ templates.mT, self.log_weights) @ templates

    def covariance_product(self, vector: Tensor) -> Tensor:
        r"""The product :math:`\Sigma v` with the covariance of u, shape (..., m, d) for ``vector`` (..., m, d)."""
        self.check_point("vector", vector)
        return self.tilted_covariance(torch.zeros_like(vector))(vector)

    def covariance(self) -> Tensor:
        r"""The covariance :math:`\Sigma = \sum_i u_i (t_i - \mu)(t_i - \mu)^\top`, shape (..., m or 1, d, d)."""
        offsets = self.templates.unsqueeze(-3) - self.mean().unsqueeze(-2)
        return offsets.mT @ (self.weights().unsqueeze(-1) * offsets)

    @override
    def check_point(self, name: str, point: Tensor) -> None:
        """Hold a tensor (..., m, d), such as a dual point, against the templates.

        Raises:
            ProblemError: If it has another dimension, dtype or device.
        """
        check_vectors(name, point, f"(..., m, {self.dim}), in the templates' space", self.dim, self.templates)

    @override
    def tilted(self, lam: Tensor) -> Discrete:
        r"""The same templates with weights that are in proportion to :math:`u_i e^{\langle t_i, \lambda\rangle}`."""
        return self._with(torch.log_softmax(self.log_weights + self.potential(lam), -1))

    @override
    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Templates, shape (\*shape, ..., m or 1, d); which is chosen carries no gradient to the weights.

        Args:
            shape: How many; () is one of each distribution.
            generator: Where randomness comes from; torch's own where None.

        Raises:
            ProblemError: If the shape is none.
        """
        sizes = checked_sample_shape(shape, generator, self.device)
        weights = self.weights().detach().expand(*self.lead, self.support_size)
        index = drawn_indices(weights, sizes, generator)
        return picked(self.templates.unsqueeze(-3), index, 1)

    @override
    def log_density(self, points: Tensor) -> Tensor:
        """Refused: weights say how probable each template is.

        Raises:
            ProblemError: Always.
        """
        raise ProblemError(
            "a Discrete distribution has no density; expected its weights(), which are the templates' probabilities"
        )

    @property
    @override
    def width(self) -> int:
        return max(self.dim, self.support_size)

    def _with(self, log_weights: Tensor) -> Discrete:
        copy = object.__new__(Discrete)
        copy.templates, copy.log_weights = self.templates, log_weights
        return copy

    @override
    def to(self, dtype: torch.dtype) -> Discrete:
        """The same preference in float32 or float64.

        Raises:
            ProblemError: If the dtype is another.
        """
        if dtype == self.dtype:
            return self
        check_dtype(dtype)
        copy = object.__new__(Discrete)
        copy.templates = self.templates.to(dtype)
        copy.log_weights = self.log_weights.to(dtype).log_softmax(-1)
        return copy

    @override
    def queries(self, part: slice) -> Discrete:
        if self.log_weights.shape[-2] == 1:
            return self
        return self._with(self.log_weights[..., part, :])

    def __repr__(self) -> str:
        return (
            f"Discrete(templates={tuple(self.templates.shape)}, log_weights={tuple(self.log_weights.shape)}, "
            f"dtype={self.dtype}, device='{self.device}')"
        )
