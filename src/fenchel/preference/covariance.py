r"""Diagonal, full and low-rank covariance matrices; only full ones form a d × d array.

In ``product`` and ``log_density`` the leading dimensions of a covariance are those of the rows, one matrix per row; in
``forms`` and ``combined`` the last of them is that of components, each of which is combined with every row.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
)
from typing_extensions import override

from fenchel.errors import ProblemError
from fenchel.preference.abstract import Convertible, checked_parameter, some_rows
from fenchel.tensors import check_entries, check_tensor, first_index, has, values_are_known

Sizes = tuple[int, ...]

# Selects the entries of a parameter for each row, given its number of trailing dimensions.
Pick = Callable[[Tensor, int], Tensor]


def normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal samples."""
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


def all_rows(tensor: Tensor, dims: int) -> Tensor:
    """The parameter unchanged."""
    return tensor


class AbstractCovariance(Convertible):
    """Symmetric positive semidefinite matrices S, (..., d, d).

    Args:
        name: Name of the first tensor in error messages.
        *tensors: The parameters, in the order of ``dims``.
    """

    # Number of trailing dimensions of each parameter, by name.
    dims: ClassVar[Mapping[str, int]]

    def __init__(self, name: str, *tensors: Tensor) -> None:
        self._name = name
        for name, tensor in zip(self.dims, tensors, strict=True):
            setattr(self, name, tensor)

    @property
    @override
    def lead(self) -> torch.Size:
        return torch.broadcast_shapes(*(getattr(self, name).shape[:-k] for name, k in self.dims.items()))

    @property
    def width(self) -> int:
        """Count of numbers in memory in ``forms`` for one row and one component: the columns of the last matrix."""
        name, dims = list(self.dims.items())[-1]
        return getattr(self, name).shape[-1] if dims == 2 else 1

    @abstractmethod
    def product(self, vectors: Tensor) -> Tensor:
        """Sv for each row, (..., d)."""

    @abstractmethod
    def resolvent(self, alpha: Tensor, vectors: Tensor) -> Tensor:
        r""":math:`(I + \alpha S)^{-1}v` for each row, (..., d), with α that broadcasts to (..., 1)."""

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
        """Traces, (...), which bound the eigenvalues."""

    @abstractmethod
    def noise(self, shape: Sizes, generator: torch.Generator | None, pick: Pick = all_rows) -> Tensor:
        """Samples with mean 0 of a shape (..., d); ``pick`` selects the parameters of each row."""

    def log_density(self, offsets: Tensor) -> Tensor:
        """Log densities at rows (..., d) for mean 0, (...)."""
        return self.normal(torch.zeros_like(offsets)).log_prob(offsets)

    @abstractmethod
    def check_definite(self) -> None:
        """Raise if a matrix is singular, since there is no density.

        Raises:
            ProblemError: If so; the message has the first such matrix.
        """

    @abstractmethod
    def normal(self, mean: Tensor) -> Distribution:
        """The torch distribution with means (..., d) and these covariances, which must not be singular."""

    def map(self, change: Callable[[Tensor, int], Tensor]) -> Self:
        """The same covariance with every parameter changed, given its number of trailing dimensions."""
        return type(self)(self._name, *(change(getattr(self, name), k) for name, k in self.dims.items()))

    @override
    def to(self, dtype: torch.dtype) -> Self:
        return self.map(lambda tensor, dims: tensor.to(dtype))

    def unsqueezed(self, dimension: int) -> Self:
        """The same covariance with one more leading dimension of size 1; -1 is the last."""
        return self.map(lambda tensor, dims: tensor.unsqueeze(dimension - dims))

    def part(self, dimension: int, part: slice) -> Self:
        """A part of a leading dimension, for parameters with more than one entry; -1 is the last."""
        return self.map(lambda tensor, dims: some_rows(tensor, part, dims - dimension - 1))

    @override
    def queries(self, part: slice) -> Self:
        return self.part(-1, part)

    @abstractmethod
    def matrix(self) -> Tensor:
        """The matrices, (..., d, d)."""


def one_for_all(alpha: Tensor) -> Tensor:
    """Alpha (..., 1), with one row if all entries are equal, so only one matrix is factorised."""
    first = alpha.flatten()[:1]
    return first if bool((alpha == first).all()) else alpha


class Diagonal(AbstractCovariance):
    """Variances of uncorrelated coordinates, (..., d)."""

    dims: ClassVar[Mapping[str, int]] = {"variance": 1}
    variance: Tensor

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
    def combined(self, shares: Tensor, vectors: Tensor) -> Tensor:
        return (shares @ self.variance) * vectors

    @override
    def trace(self) -> Tensor:
        return self.variance.sum(-1)

    @override
    def noise(self, shape: Sizes, generator: torch.Generator | None, pick: Pick = all_rows) -> Tensor:
        return pick(standard_deviations(self.variance), 1) * normal(shape, self.variance, generator)

    @override
    def matrix(self) -> Tensor:
        return torch.diag_embed(self.variance)

    @override
    def check_definite(self) -> None:
        check_entries(self._name, self.variance, lambda x: x > 0, "numbers above 0 for a density")

    @override
    def normal(self, mean: Tensor) -> Distribution:
        return Independent(Normal(mean, self.variance.sqrt(), validate_args=False), 1, validate_args=False)


class Full(AbstractCovariance):
    """Matrices, symmetric, (..., d, d)."""

    dims: ClassVar[Mapping[str, int]] = {"dense": 2}
    dense: Tensor

    @override
    def product(self, vectors: Tensor) -> Tensor:
        return rows_times(vectors, self.dense)

    def resolvent(self, alpha: Tensor, vectors: Tensor) -> Tensor:
        """In the eigenbasis of S, which is the same for every α."""
        values, basis = self._eigen
        return rows_times(rows_times(vectors, basis) / (1 + alpha * values.clamp(min=0)), basis.mT)

    @cached_property
    def _eigen(self) -> tuple[Tensor, Tensor]:
        values, basis = torch.linalg.eigh(self.dense.detach())
        return values, basis

    @override
    def forms(self, one: Tensor, other: Tensor) -> Tensor:
        # One product with the concatenated rows of all matrices.
        images = (one @ self.dense.flatten(-3, -2).mT).unflatten(-1, (-1, self.dense.shape[-1]))
        return (images @ other.unsqueeze(-1)).squeeze(-1)

    @override
    def combined(self, shares: Tensor, vectors: Tensor) -> Tensor:
        return (shares.unsqueeze(-1) * vectors.unsqueeze(-2)).flatten(-2) @ self.dense.flatten(-3, -2)

    @override
    def trace(self) -> Tensor:
        return self.dense.diagonal(dim1=-2, dim2=-1).sum(-1)

    @override
    def noise(self, shape: Sizes, generator: torch.Generator | None, pick: Pick = all_rows) -> Tensor:
        return rows_times(normal(shape, self.dense, generator), pick(self.root(), 2).mT)

    def root(self) -> Tensor:
        """Factors F with S = FFᵀ, (..., d, d)."""
        factor, failed = torch.linalg.cholesky_ex(self.dense)
        if bool((failed != 0).any()):
            values, vectors = torch.linalg.eigh(self.dense)
            factor = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
        return factor

    @override
    def check_definite(self) -> None:
        dense = self.dense.detach()
        factor, failed = torch.linalg.cholesky_ex(dense)
        variances, left = (x.diagonal(dim1=-2, dim2=-1) for x in (dense, factor.square()))
        # What the other coordinates leave of a variance may be only rounding, whatever the units.
        rounding = 8 * self.width * torch.finfo(dense.dtype).eps * variances
        singular = (failed != 0) | (left <= rounding).any(-1)
        if bool(singular.any()):
            where = first_index(singular)
            at = f" at index {where}" if where else ""
            raise ProblemError(
                f"{self._name} {has(self._name)} a singular matrix{at} and no density; expected positive definite "
                "matrices: add a small multiple of the identity"
            )

    @override
    def matrix(self) -> Tensor:
        return self.dense

    @override
    def normal(self, mean: Tensor) -> Distribution:
        return MultivariateNormal(mean, scale_tril=torch.linalg.cholesky(self.dense), validate_args=False)


def standard_deviations(variance: Tensor) -> Tensor:
    """Square roots, with gradient 0 where the variance is 0."""
    positive = variance > 0
    return variance.where(positive, 1).sqrt() * positive


class LowRank(Diagonal):
    r"""Diagonal plus low rank, :math:`S = \operatorname{diag} s + FF^\top` with F (..., d, k)."""

    dims: ClassVar[Mapping[str, int]] = {"variance": 1, "factor": 2}
    factor: Tensor

    @override
    def product(self, vectors: Tensor) -> Tensor:
        return super().product(vectors) + rows_times(rows_times(vectors, self.factor), self.factor.mT)

    def resolvent(self, alpha: Tensor, vectors: Tensor) -> Tensor:
        """By the Woodbury formula, with a k × k system."""
        alpha = one_for_all(alpha)
        diagonal = 1 + alpha * self.variance
        scaled, columns = vectors / diagonal, self.factor / diagonal.unsqueeze(-1)
        inner = alpha.unsqueeze(-1) * (self.factor.mT @ columns)
        root = torch.linalg.cholesky(inner + identity_like(inner))
        return scaled - rows_times(rows_solved(alpha * rows_times(scaled, self.factor), root), columns.mT)

    @override
    def forms(self, one: Tensor, other: Tensor) -> Tensor:
        first = self._along(one)
        second = first if other is one else self._along(other)
        return super().forms(one, other) + (first * second).sum(-1)

    @override
    def combined(self, shares: Tensor, vectors: Tensor) -> Tensor:
        along = shares.unsqueeze(-1) * self._along(vectors)
        return super().combined(shares, vectors) + along.flatten(-2) @ self._columns().mT

    def _columns(self) -> Tensor:
        """The concatenated factors of all components, (..., d, K k)."""
        return self.factor.movedim(-2, -3).flatten(-2)

    def _along(self, vectors: Tensor) -> Tensor:
        """Inner products of rows (..., m, d) with the columns of all factors, (..., m, K, k)."""
        return (vectors @ self._columns()).unflatten(-1, (-1, self.factor.shape[-1]))

    @override
    def trace(self) -> Tensor:
        return super().trace() + self.factor.square().sum((-1, -2))

    @override
    def noise(self, shape: Sizes, generator: torch.Generator | None, pick: Pick = all_rows) -> Tensor:
        each = super().noise(shape, generator, pick)
        along = normal((*shape[:-1], self.factor.shape[-1]), self.factor, generator)
        return each + rows_times(along, pick(self.factor, 2).mT)

    @override
    def matrix(self) -> Tensor:
        return super().matrix() + self.factor @ self.factor.mT

    @override
    def normal(self, mean: Tensor) -> Distribution:
        return LowRankMultivariateNormal(mean, self.factor, self.variance, validate_args=False)

    def log_density(self, offsets: Tensor) -> Tensor:
        r"""By the minimum over w of :math:`\lVert s^{-1/2}(v - Fw)\rVert^2 + \lVert w\rVert^2`.

        A sum of squares, unlike the Woodbury formula of torch, a difference that cancels.
        """
        scaled = self.factor.mT @ (self.factor / self.variance.unsqueeze(-1))
        inner = torch.linalg.cholesky(scaled + identity_like(scaled))
        along = rows_solved(rows_times(offsets / self.variance, self.factor), inner)
        rest = offsets - rows_times(along, self.factor.mT)
        square = (rest.square() / self.variance).sum(-1) + along.square().sum(-1)
        logs = self.variance.log().sum(-1) + 2 * inner.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -(square + logs + offsets.shape[-1] * math.log(2 * math.pi)) / 2


def identity_like(matrix: Tensor) -> Tensor:
    """The identity matrix of the size, dtype and device of a matrix."""
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def checked_covariance(
    centers: Tensor, full: Any, variance: Any, factor: Any, *, components: int | None = None
) -> AbstractCovariance:
    """The covariance given by arguments, which determine its structure.

    Args:
        centers: Means, (..., d), with the required dtype and device.
        full: Matrices (..., d, d), or None.
        variance: Variances (..., d), or one for all coordinates, (..., 1) or a number; or None.
        factor: Factors (..., d, k), or None.
        components: Number of components, the last leading dimension of all parameters; arguments then have plural
            names. None for a single Gaussian.

    Raises:
        ProblemError: If an argument is invalid, or arguments exclude each other.
    """
    d, rows = centers.shape[-1], "..., " if components is None else "..., K, "
    of, name_full, name_variance, name_factor = (
        name if components is None else f"{name}s" for name in ("mean", "covariance", "variance", "factor")
    )
    if full is not None:
        if variance is not None or factor is not None:
            other = name_factor if variance is None else name_variance
            raise ProblemError(f"{name_full} and {other} are both given; expected only one of them")
        dense = _checked_matrices(name_full, full, centers, of, name_variance, rows)
        return Full(name_full, _for_all(dense, 2, components, name_full))
    if variance is None and factor is None:
        raise ProblemError(
            f"no covariance is given; expected {name_full} ({rows}d, d), or {name_variance} ({rows}d or 1), which may "
            f"be 0, and {name_factor} ({rows}d, k)"
        )
    value, form = 0.0 if variance is None else variance, f"({rows}{d}) or ({rows}1)"
    remedy = "variances are squares"
    diagonal = checked_parameter(name_variance, value, form, like=centers, of=of, least=0.0, remedy=remedy)
    if diagonal.dim():
        check_tensor(name_variance, diagonal, f"({rows}d or 1)", sizes=(..., (1, d)))
    diagonal = _for_all(diagonal.expand(*diagonal.shape[:-1], d), 1, components, name_variance)
    if factor is None:
        return Diagonal(name_variance, diagonal)
    form = f"({rows}d, k) with k of 1 or more"
    columns = checked_parameter(name_factor, factor, form, dims=2, like=centers, of=of)
    check_tensor(name_factor, columns, form, sizes=(..., d, None))
    return LowRank(name_variance, diagonal, _for_all(columns, 2, components, name_factor))


def _for_all(tensor: Tensor, dims: int, components: int | None, name: str) -> Tensor:
    """A parameter with ``dims`` trailing dimensions, expanded to one entry for each component."""
    if components is None:
        return tensor
    lead = tensor.shape[: tensor.dim() - dims]
    if lead:
        form = f"(..., K, d{', *' * (dims - 1)}), one for each or for all; pass full matrices as covariances="
        sizes = (..., (1, components), *tensor.shape[tensor.dim() - dims :])
        check_tensor(name, tensor, form, sizes=sizes)
    return tensor.expand(*lead[:-1], components, *tensor.shape[tensor.dim() - dims :])


def _checked_matrices(name: str, value: Any, centers: Tensor, of: str, variance: str, rows: str) -> Tensor:
    d = centers.shape[-1]
    form = f"({rows}{d}, {d})"
    if isinstance(value, int | float):
        raise ProblemError(f"{name} is {value}; expected a tensor {form}, or {variance}={value} instead")
    dense = checked_parameter(name, value, form, like=centers, of=of)
    form = f"({rows}d, d); pass a diagonal as {variance}="
    check_tensor(name, dense, form, sizes=(..., d, d))
    eps = torch.finfo(value.dtype).eps

    def is_symmetric(matrices: Tensor) -> Tensor:
        largest = matrices.abs().amax((-1, -2), keepdim=True)
        return (matrices - matrices.mT).abs() <= 8 * eps**0.75 * largest

    check_entries(name, dense, is_symmetric, "symmetric matrices", "give (S + S.mT) / 2")
    if values_are_known(dense) and bool((torch.linalg.cholesky_ex(dense.detach()).info != 0).any()):
        values = torch.linalg.eigvalsh(dense.detach().double())
        least, remedy = -8 * d * eps * values.abs().amax(-1), "add to the diagonal, or give F with S = F F.mT"
        lowest = f"the lowest eigenvalue of {name}"
        check_entries(lowest, values[..., 0], lambda x: x >= least, "numbers of 0 or more", remedy)
    return dense


def rows_times(vectors: Tensor, matrix: Tensor) -> Tensor:
    """Rows (..., m, a) times matrices (..., m or 1, a, b), one per row or a shared one, (..., m, b)."""
    if matrix.dim() == 2:
        return vectors @ matrix
    if matrix.shape[-3] == 1:
        return vectors @ matrix.squeeze(-3)
    return (vectors.unsqueeze(-2) @ matrix).squeeze(-2)


def rows_solved(vectors: Tensor, factor: Tensor) -> Tensor:
    r"""Rows :math:`(LL^\top)^{-1} v` for factors L (..., m or 1, d, d), one per row or one for all, (..., m, d)."""
    if factor.dim() > 2 and factor.shape[-3] > 1:
        return torch.cholesky_solve(vectors.unsqueeze(-1), factor).squeeze(-1)
    return torch.cholesky_solve(vectors.mT, factor if factor.dim() == 2 else factor.squeeze(-3)).mT
