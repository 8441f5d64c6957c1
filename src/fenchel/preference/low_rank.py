"""Covariances of low rank beside a diagonal: d x d matrices that are never made."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.preference.covariance import AbstractCovariance, Pick, all_rows, one_for_all, standard_deviations
from fenchel.preference.parameters import check_entries, normal
from fenchel.preference.rows import rows_solved, rows_times

__all__ = ["LowRank"]


class LowRank(AbstractCovariance):
    r"""Variances plus what few directions add: :math:`S = \operatorname{diag} s + FF^\top`.

    Args:
        name: What the user calls the variances.
        variance: s, (..., d).
        factor: F, (..., d, k).
    """

    def __init__(self, name: str, variance: Tensor, factor: Tensor) -> None:
        self._name, self.variance, self.factor = name, variance, factor

    @property
    @override
    def lead(self) -> torch.Size:
        return torch.broadcast_shapes(self.variance.shape[:-1], self.factor.shape[:-2])

    @property
    @override
    def width(self) -> int:
        return self.factor.shape[-1]

    @override
    def product(self, vectors: Tensor) -> Tensor:
        along = rows_times(vectors, self.factor)
        return self.variance * vectors + rows_times(along, self.factor.mT)

    @override
    def resolvent(self, alpha: Tensor, vectors: Tensor) -> Tensor:
        """Woodbury's formula, with as many unknowns as the factor has columns."""
        alpha = one_for_all(alpha)
        diagonal = 1 + alpha * self.variance
        eased, columns = vectors / diagonal, self.factor / diagonal.unsqueeze(-1)
        inner = alpha.unsqueeze(-1) * (self.factor.mT @ columns)
        root = torch.linalg.cholesky(
            inner + torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)
        )
        half = rows_solved(alpha * rows_times(eased, self.factor), root)
        return eased - rows_times(rows_times(half, torch.linalg.inv(root)), columns.mT)

    @override
    def forms(self, one: Tensor, other: Tensor) -> Tensor:
        first = self._along(one)
        second = first if other is one else self._along(other)
        return (one * other) @ self.variance.mT + (first * second).sum(-1)

    @override
    def combined(self, shares: Tensor, vectors: Tensor) -> Tensor:
        along = shares.unsqueeze(-1) * self._along(vectors)
        return (shares @ self.variance) * vectors + along.flatten(-2) @ self._columns().mT

    def _columns(self) -> Tensor:
        """The factors of all components side by side, (..., d, K k): one product serves them all."""
        return self.factor.movedim(-2, -3).flatten(-2)

    def _along(self, vectors: Tensor) -> Tensor:
        """Inner products of rows (..., m, d) with the columns of all factors, (..., m, K, k)."""
        return (vectors @ self._columns()).unflatten(-1, (-1, self.factor.shape[-1]))

    @override
    def trace(self) -> Tensor:
        return self.variance.sum(-1) + self.factor.square().sum((-1, -2))

    @override
    def noise(
        self, shape: tuple[int, ...], generator: torch.Generator | None, pick: Pick = all_rows
    ) -> Tensor:
        each = pick(standard_deviations(self.variance), 1) * normal(shape, self.variance, generator)
        along = normal((*shape[:-1], self.factor.shape[-1]), self.factor, generator)
        return each + rows_times(along, pick(self.factor, 2).mT)

    @override
    def matrix(self) -> Tensor:
        return torch.diag_embed(self.variance) + self.factor @ self.factor.mT

    def _inner_factor(self) -> Tensor:
        r"""The Cholesky factor of :math:`I + F^\top \operatorname{diag}(s)^{-1} F`."""
        inner = self.factor.mT @ (self.factor / self.variance.unsqueeze(-1))
        identity = torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)
        return torch.linalg.cholesky(identity + inner)

    @override
    def whitened_square(self, vectors: Tensor) -> Tensor:
        r"""The least of :math:`\lVert s^{-1/2}(v - Fw)\rVert^2 + \lVert w\rVert^2`, which Woodbury's w attains.

        A sum of squares, where the difference in Woodbury's formula cancels.
        """
        inner = self._inner_factor()
        half = rows_solved(rows_times(vectors / self.variance, self.factor), inner)
        along = rows_times(half, torch.linalg.inv(inner))
        rest = vectors - rows_times(along, self.factor.mT)
        return (rest.square() / self.variance).sum(-1) + along.square().sum(-1)

    @override
    def log_determinant(self) -> Tensor:
        diagonal = self._inner_factor().diagonal(dim1=-2, dim2=-1)
        return self.variance.log().sum(-1) + 2 * diagonal.log().sum(-1)

    @override
    def check_definite(self) -> None:
        check_entries(
            self._name, self.variance, lambda x: x > 0, "numbers above 0 where a density is asked for"
        )

    @override
    def map(self, change: Callable[[Tensor, int], Tensor]) -> LowRank:
        return LowRank(self._name, change(self.variance, 1), change(self.factor, 2))
