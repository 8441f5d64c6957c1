"""The covariance that a user gave: one of three structures, and errors that name the entry with which it is none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.arguments.tensor import values_are_known
from fenchel.errors import ProblemError
from fenchel.preference.covariance import AbstractCovariance, Diagonal, Full
from fenchel.preference.low_rank import LowRank
from fenchel.preference.parameters import checked_parameter, has

__all__ = ["checked_covariance"]


def checked_covariance(
    centers: Tensor,
    of: str,
    *,
    full: tuple[str, Any],
    variance: tuple[str, Any],
    factor: tuple[str, Any],
    rows: str,
    components: int | None = None,
) -> AbstractCovariance:
    """The covariance that a user gave, by the one of three structures for which there are arguments.

    Args:
        centers: Means, (..., d), whose dtype and device everything has.
        of: What they are called.
        full: Name and value of the matrices (..., d, d), or of None.
        variance: Of the variances: (..., d), or (..., 1) or a number where all coordinates have one.
        factor: Of the factors (..., d, k).
        rows: What the leading dimensions are, in words such as "..., " or "..., K, ".
        components: The size of the last leading dimension, to which what has one for all is expanded.

    Raises:
        ProblemError: Naming the argument, the entry and what to do.
    """
    d = centers.shape[-1]
    if full[1] is not None:
        if variance[1] is not None or factor[1] is not None:
            other = variance[0] if variance[1] is not None else factor[0]
            raise ProblemError(f"{full[0]} and {other} are both given; expected one of them")
        return Full(
            full[0],
            _for_all(_checked_matrices(*full, centers, of, variance[0], rows), 2, components, full[0]),
        )
    if variance[1] is None and factor[1] is None:
        raise ProblemError(
            f"no covariance is given; expected {full[0]} ({rows}d, d), or {variance[0]} ({rows}d or 1), which may be "
            f"0, and {factor[0]} ({rows}d, k)"
        )
    given = 0.0 if variance[1] is None else variance[1]
    diagonal = checked_parameter(
        variance[0],
        given,
        f"({rows}{d}) or ({rows}1)",
        like=centers,
        of=of,
        least=0.0,
        remedy="variances are squares",
    )
    if diagonal.dim() and diagonal.shape[-1] not in (1, d):
        raise ProblemError(
            f"{variance[0]} {has(variance[0])} shape {tuple(diagonal.shape)}, but {of} shape {tuple(centers.shape)}; "
            f"expected ({rows}{d}), or ({rows}1) for one variance in all directions"
        )
    diagonal = _for_all(diagonal.expand(*diagonal.shape[:-1], d), 1, components, variance[0])
    if factor[1] is None:
        return Diagonal(variance[0], diagonal)
    columns = checked_parameter(factor[0], factor[1], f"({rows}{d}, k)", like=centers, of=of)
    if columns.dim() < 2 or columns.shape[-2] != d or columns.shape[-1] == 0:
        raise ProblemError(
            f"{factor[0]} {has(factor[0])} shape {tuple(columns.shape)}; expected ({rows}{d}, k) with k of 1 or more"
        )
    return LowRank(variance[0], diagonal, _for_all(columns, 2, components, factor[0]))


def _for_all(tensor: Tensor, own: int, components: int | None, name: str) -> Tensor:
    """A parameter with one entry for each component, given how many dimensions of its own it has."""
    if components is None:
        return tensor
    lead = tensor.shape[: tensor.dim() - own]
    if lead and lead[-1] not in (1, components):
        raise ProblemError(
            f"{name} {has(name)} shape {tuple(tensor.shape)}, which is {lead[-1]} for K = {components} components; "
            "expected one for each, or one for all; full matrices are given as covariances="
        )
    return tensor.expand(*lead[:-1], components, *tensor.shape[tensor.dim() - own :])


def _checked_matrices(name: str, value: Any, centers: Tensor, of: str, variance: str, rows: str) -> Tensor:
    d = centers.shape[-1]
    form = f"({rows}{d}, {d})"
    if isinstance(value, int | float):
        raise ProblemError(f"{name} is {value}; expected a tensor {form}, or {variance}={value} in its place")
    dense = checked_parameter(name, value, form, like=centers, of=of)
    if dense.dim() < 2 or tuple(dense.shape[-2:]) != (d, d):
        raise ProblemError(
            f"{name} {has(name)} shape {tuple(dense.shape)}; expected {form}; a diagonal alone is given as "
            f"{variance}="
        )
    if not values_are_known(dense):
        return dense
    given, dense = dense, dense.detach()
    apart = (dense - dense.mT).abs()
    largest = dense.abs().amax((-1, -2), keepdim=True)
    crooked = apart > 8 * torch.finfo(value.dtype).eps ** 0.75 * largest
    if bool(crooked.any()):
        where = tuple(int(i) for i in crooked.nonzero()[0])
        turned = (*where[:-2], where[-1], where[-2])
        raise ProblemError(
            f"{name} {has(name)} {float(dense[where]):.6g} at index {where} and {float(dense[turned]):.6g} at "
            f"{turned}; expected symmetric matrices: give (S + S.mT) / 2"
        )
    _check_semidefinite(name, dense, torch.finfo(value.dtype).eps)
    return given


def _check_semidefinite(name: str, dense: Tensor, eps: float) -> None:
    failed = torch.linalg.cholesky_ex(dense).info != 0
    if not bool(failed.any()):
        return
    values = torch.linalg.eigvalsh(dense.double())
    size = values.abs().amax(-1)
    negative = values[..., 0] < -(8 * dense.shape[-1] * eps) * size
    if bool(negative.any()):
        where = tuple(int(i) for i in negative.nonzero()[0]) if negative.dim() else ()
        lowest = float(values[(*where, 0)])
        at = f" at index {where}" if where else ""
        raise ProblemError(
            f"{name} {has(name)} the eigenvalue {lowest:.6g}{at}; expected symmetric positive semidefinite matrices: "
            f"add {-lowest:.2g} or more to the diagonal, or give a factor F with S = F F.mT"
        )
