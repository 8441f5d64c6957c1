r"""Covariance matrices by their structure: never a d × d array where fewer numbers say it.

The leading dimensions of a covariance are those of queries, one matrix a row, in ``product`` and ``whitened_square``;
in ``forms`` and ``combined`` the last of them is that of components, each of which meets every row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.errors import ProblemError
from fenchel.preference.parameters import check_entries, has, normal
from fenchel.preference.rows import rows_solved, rows_times

__all__ = ["AbstractCovariance", "Diagonal", "Full", "Pick", "all_rows", "one_for_all", "standard_deviations"]


Pick = Callable[[Tensor, int], Tensor]
"""What rows have of a parameter, given how many of its dimensions are not leading ones."""


def all_rows(tensor: Tensor, own: int) -> Tensor:
    """A parameter as it is."""
    del own
    return tensor


class AbstractCovariance(ABC):
    """Symmetric positive semidefinite matrices S, (..., d, d)."""

    @property
    @abstractmethod
    def lead(self) -> torch.Size:
        """The leading shape."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers that ``forms`` makes for one row and one component."""

    @abstractmethod
    def product(self, vectors: Tensor) -> Tensor:
        """Sv of each row, (..., d)."""

    @abstractmethod
    def resolvent(self, alpha: Tensor, vectors: Tensor) -> Tensor:
        r""":math:`(I + \alpha S)^{-1}v` of each row, (..., d), for α that broadcasts to (..., 1)."""

    @abstractmethod
    def forms(self, one: Tensor, other: Tensor) -> Tensor:
        r""":math:`x^\top S_k y` of rows (..., m, d) with every component, (..., m, K)."""

    def exponents(self, centers: Tensor, rows: Tensor) -> Tensor:
        r""":math:`\langle m_k, x\rangle + \frac12 x^\top S_k x` of rows and centers (..., K, d), (..., m, K)."""
        return rows @ centers.mT + self.forms(rows, rows) / 2

    @abstractmethod
    def combined(self, shares: Tensor, vectors: Tensor) -> Tensor:
        r""":math:`\sum_k r_k S_k x` of shares (..., m, K) and rows (..., m, d), (..., m, d)."""

    @abstractmethod
    def trace(self) -> Tensor:
        """Traces, (...): no eigenvalue is larger."""

    @abstractmethod
    def noise(
        self, shape: tuple[int, ...], generator: torch.Generator | None, pick: Pick = all_rows
    ) -> Tensor:
        """Samples of mean 0 of a shape (..., d), one a row, of what ``pick`` gives the rows."""

    @abstractmethod
    def whitened_square(self, vectors: Tensor) -> Tensor:
        r""":math:`v^\top S^{-1} v` of each row, (...)."""

    @abstractmethod
    def log_determinant(self) -> Tensor:
        """(...)."""

    @abstractmethod
    def check_definite(self) -> None:
        """Refuse singular matrices, under which there is no density.

        Raises:
            ProblemError: Naming the first.
        """

    @abstractmethod
    def map(self, change: Callable[[Tensor, int], Tensor]) -> Self:
        """The same with every tensor changed, given how many of its dimensions are not leading ones."""

    def to(self, dtype: torch.dtype) -> Self:
        """The same in another dtype."""
        return self.map(lambda tensor, own: tensor.to(dtype))

    def unsqueezed(self, dimension: int) -> Self:
        """The same with one more leading dimension of size 1, -1 being the last."""
        return self.map(lambda tensor, own: tensor.unsqueeze(dimension - own))

    def part(self, dimension: int, part: slice) -> Self:
        """Part of a leading dimension, -1 being the last, of the tensors that have more than one there."""

        def cut(tensor: Tensor, own: int) -> Tensor:
            before = own - dimension
            if tensor.dim() < before or tensor.shape[-before] == 1:
                return tensor
            return tensor[(..., part, *[slice(None)] * (before - 1))]

        return self.map(cut)

    @abstractmethod
    def matrix(self) -> Tensor:
        """The matrices themselves, (..., d, d)."""


def one_for_all(alpha: Tensor) -> Tensor:
    """Alpha (..., 1) with one row where all are the same, so that one matrix serves them."""
    first = alpha.flatten()[:1]
    return first if bool((alpha == first).all()) else alpha


class Diagonal(AbstractCovariance):
    """Variances of uncorrelated coordinates.

    Args:
        name: What the user calls the variances.
        variance: (..., d).
    """

    def __init__(self, name: str, variance: Tensor) -> None:
        self._name, self.variance = name, variance

    @property
    @override
    def lead(self) -> torch.Size:
        return self.variance.shape[:-1]

    @property
    @override
    def width(self) -> int:
        return 1

    @override
    def product(self, vectors: Tensor) -> Tensor:
        return self.variance * vectors

    @override
    def resolvent(self, alpha: Tensor, vectors: Tensor) -> Tensor:
        return vectors / (1 + alpha * self.variance)

    @override
    def forms(self, one: Tensor, other: Tensor) -> Tensor:
        return (one * other) @ self.variance.mT

    @override
    def exponents(self, centers: Tensor, rows: Tensor) -> Tensor:
        """One product of twice the width (fact 11)."""
        variance = self.variance.expand(torch.broadcast_shapes(self.variance.shape, centers.shape))
        keys = torch.cat([centers.expand_as(variance), variance], -1)
        return torch.cat([rows, rows.square() / 2], -1) @ keys.mT

    @override
    def combined(self, shares: Tensor, vectors: Tensor) -> Tensor:
        return (shares @ self.variance) * vectors

    @override
    def trace(self) -> Tensor:
        return self.variance.sum(-1)

    @override
    def noise(
        self, shape: tuple[int, ...], generator: torch.Generator | None, pick: Pick = all_rows
    ) -> Tensor:
        return pick(standard_deviations(self.variance), 1) * normal(shape, self.variance, generator)

    @override
    def matrix(self) -> Tensor:
        return torch.diag_embed(self.variance)

    @override
    def whitened_square(self, vectors: Tensor) -> Tensor:
        return (vectors.square() / self.variance).sum(-1)

    @override
    def log_determinant(self) -> Tensor:
        return self.variance.log().sum(-1)

    @override
    def check_definite(self) -> None:
        check_entries(
            self._name, self.variance, lambda x: x > 0, "numbers above 0 where a density is asked for"
        )

    @override
    def map(self, change: Callable[[Tensor, int], Tensor]) -> Diagonal:
        return Diagonal(self._name, change(self.variance, 1))


class Full(AbstractCovariance):
    """Matrices.

    Args:
        name: What the user calls them.
        dense: Symmetric, (..., d, d).
    """

    def __init__(self, name: str, dense: Tensor) -> None:
        self._name, self.dense = name, dense

    @property
    @override
    def lead(self) -> torch.Size:
        return self.dense.shape[:-2]

    @property
    @override
    def width(self) -> int:
        return self.dense.shape[-1]

    @override
    def product(self, vectors: Tensor) -> Tensor:
        return rows_times(vectors, self.dense)

    @override
    def resolvent(self, alpha: Tensor, vectors: Tensor) -> Tensor:
        """In the eigenvectors of S, which serve every α."""
        values, basis = self._eigen
        return rows_times(rows_times(vectors, basis) / (1 + alpha * values.clamp(min=0)), basis.mT)

    @cached_property
    def _eigen(self) -> tuple[Tensor, Tensor]:
        values, basis = torch.linalg.eigh(self.dense.detach())
        return values, basis

    @override
    def forms(self, one: Tensor, other: Tensor) -> Tensor:
        # The rows of all matrices side by side: one product serves them all.
        images = (one @ self.dense.flatten(-3, -2).mT).unflatten(-1, (-1, self.dense.shape[-1]))
        return (images @ other.unsqueeze(-1)).squeeze(-1)

    @override
    def combined(self, shares: Tensor, vectors: Tensor) -> Tensor:
        return (shares.unsqueeze(-1) * vectors.unsqueeze(-2)).flatten(-2) @ self.dense.flatten(-3, -2)

    @override
    def trace(self) -> Tensor:
        return self.dense.diagonal(dim1=-2, dim2=-1).sum(-1)

    @override
    def noise(
        self, shape: tuple[int, ...], generator: torch.Generator | None, pick: Pick = all_rows
    ) -> Tensor:
        return rows_times(normal(shape, self.dense, generator), pick(self.root(), 2).mT)

    def root(self) -> Tensor:
        """Factors F with S = FFᵀ, (..., d, d)."""
        factor, failed = torch.linalg.cholesky_ex(self.dense)
        if bool((failed != 0).any()):
            values, vectors = torch.linalg.eigh(self.dense)
            factor = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
        return factor

    @override
    def whitened_square(self, vectors: Tensor) -> Tensor:
        return rows_solved(vectors, torch.linalg.cholesky(self.dense)).square().sum(-1)

    @override
    def log_determinant(self) -> Tensor:
        return 2 * torch.linalg.cholesky(self.dense).diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @override
    def check_definite(self) -> None:
        failed = torch.linalg.cholesky_ex(self.dense.detach()).info != 0
        if bool(failed.any()):
            where = tuple(int(i) for i in failed.nonzero()[0]) if failed.dim() else ()
            at = f" at index {where}" if where else ""
            raise ProblemError(
                f"{self._name} {has(self._name)} a singular matrix{at}, so that there is no density; expected "
                "positive "
                "definite ones: add a small multiple of the identity"
            )

    @override
    def matrix(self) -> Tensor:
        return self.dense

    @override
    def map(self, change: Callable[[Tensor, int], Tensor]) -> Full:
        return Full(self._name, change(self.dense, 2))


def standard_deviations(variance: Tensor) -> Tensor:
    """Square roots, with gradient 0 where the variance is 0: nothing is random there."""
    positive = variance > 0
    return variance.where(positive, 1).sqrt() * positive
