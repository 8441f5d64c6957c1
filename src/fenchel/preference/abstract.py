"""What the dual sees of a preference: its cumulant, and the two derivatives of that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import Self

from fenchel.arguments.tensor import check_vectors

__all__ = ["AbstractPreference"]


class AbstractPreference(ABC):
    r"""A distribution u of vectors t (..., d), known by its cumulant.

    .. math:: \log M(\lambda) = \log \mathbb{E}_u\, e^{\langle t, \lambda\rangle}, \qquad
              \nabla\log M(\lambda) = \mathbb{E}_{p(\lambda)}[t], \qquad
              \nabla^2\log M(\lambda) = \operatorname{Cov}_{p(\lambda)}(t)

    where p(λ), u tilted by λ, has density :math:`e^{\langle t, \lambda\rangle}/M(\lambda)` with respect to u. A member
    writes these three; with :class:`~fenchel.KL` every estimator, bound and gradient follows. Tensors of its own are
    found by themselves where gradients are wanted.

    Reference:
        Section 4, eq. (8); Section 5.
    """

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dimension of a vector, d."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype in which everything is computed: float32 or float64."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where its tensors are."""

    @property
    def lead(self) -> torch.Size:
        """The leading shape (..., m or 1) of one number a query; by default one distribution for all queries."""
        return torch.Size((1,))

    def check_point(self, name: str, point: Tensor) -> None:
        """Hold a tensor (..., m, d), such as a dual point, against the vectors.

        Raises:
            ProblemError: If it has another dimension, dtype or device.
        """
        check_vectors(name, point, f"(..., m, {self.dim}), in the templates' space", self.dim, self)

    @abstractmethod
    def log_mgf(self, lam: Tensor) -> Tensor:
        r"""The cumulant :math:`\log M(\lambda)`, shape (..., m) for ``lam`` (..., m, d)."""

    @abstractmethod
    def tilted_mean(self, lam: Tensor) -> Tensor:
        r"""The mean of p(λ), :math:`\nabla\log M(\lambda)`, shape (..., m, d)."""

    @abstractmethod
    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        r"""The covariance of p(λ), :math:`\nabla^2\log M(\lambda)`, as a function of vectors (..., m, d)."""

    def reach(self, lam: Tensor, direction: Tensor) -> Tensor | None:
        """The largest t for which λ + t·direction is in the domain of log M, (..., m); None where that is all of it."""
        del lam, direction
        return None

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Self:
        """The same preference in another floating-point dtype."""

    def queries(self, part: slice) -> Self:
        """The same for some of the m queries; itself where all queries share one distribution."""
        if self.lead[-1] != 1:
            raise NotImplementedError(
                f"{type(self).__name__} has rows of its own for queries: write queries(part)"
            )
        del part
        return self
