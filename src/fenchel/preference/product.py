"""Preferences whose coordinates are independent: everything is computed coordinate by coordinate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.closeness.rounding import UNIT
from fenchel.errors import DomainError, ProblemError
from fenchel.preference.abstract import AbstractPreference, Shape
from fenchel.preference.parameters import (
    check_dtype,
    check_form,
    check_together,
    checked_parameter,
    checked_sample_shape,
)

__all__ = ["ROUNDINGS", "AbstractProduct", "pair"]

ROUNDINGS = 16
"""Roundings that a formula for one coordinate is taken to cost: the longest has ten operations."""


class AbstractProduct(AbstractPreference):
    r"""A distribution of vectors with independent coordinates, :math:`\log M(\lambda) = \sum_j \kappa_j(\lambda_j)`.

    A member names its parameters, all of which broadcast to (..., m or 1, d), and writes the cumulant κ of a
    coordinate, its two derivatives and the shift κ'(λ) - κ'(0), each elementwise.
    """

    resolves_shift = True

    parameters: ClassVar[tuple[str, ...]]
    """The attributes that hold the parameters."""

    def _set(self, **given: Any) -> None:
        """Keep parameters that were checked, numbers and tensors, and refuse those that do not fit together.

        Raises:
            ProblemError: Naming them.
        """
        for name, tensor in given.items():
            if tensor.dim():
                check_form(name, tensor, "(d,) or (..., m, d)", 1)
        if not any(tensor.dim() for tensor in given.values()):
            names = " and ".join(given)
            raise ProblemError(
                f"{names} {'are numbers' if len(given) > 1 else 'is a number'}, which do not say how many "
                "coordinates a "
                "vector has; expected a tensor (d,) or (..., m, d)"
            )
        check_together(**{name: tuple(tensor.shape) for name, tensor in given.items()})
        vars(self).update(given)

    def _like(self, **parameters: Tensor) -> Self:
        made = object.__new__(type(self))
        vars(made).update(parameters)
        return made

    def _all(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.parameters}

    def _first(self) -> Tensor:
        return getattr(self, self.parameters[0])

    @property
    @override
    def dim(self) -> int:
        return max(part.shape[-1] for part in self._all().values() if part.dim())

    @property
    @override
    def dtype(self) -> torch.dtype:
        return self._first().dtype

    @property
    @override
    def device(self) -> torch.device:
        return self._first().device

    @property
    @override
    def lead(self) -> torch.Size:
        return torch.broadcast_shapes((1,), *(part.shape[:-1] for part in self._all().values()))

    @abstractmethod
    def cumulant(self, lam: Tensor) -> Tensor:
        """κ(λ) of every coordinate, (..., m, d)."""

    @abstractmethod
    def variance(self, lam: Tensor) -> Tensor:
        """κ''(λ) of every coordinate, (..., m, d)."""

    @abstractmethod
    def lost(self, lam: Tensor) -> Tensor:
        """How large what is rounded in the shift is, (..., m, d): some roundings of it are the error of the shift."""

    def interval(self) -> tuple[Tensor | None, Tensor | None]:
        """Where κ is finite: between these, elementwise; None where there is no end."""
        return None, None

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        return self.cumulant(lam).sum(-1)

    @override
    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        variance = self.variance(lam)
        return lambda vector: variance * vector

    @override
    def resolvent(self, lam: Tensor, alpha: Tensor, vector: Tensor) -> Tensor:
        return vector / (1 + alpha * self.variance(lam))

    @override
    def rounding(self, lam: Tensor) -> Tensor:
        return ROUNDINGS * UNIT * self.lost(lam).norm(dim=-1)

    @override
    def reach(self, lam: Tensor, direction: Tensor) -> Tensor | None:
        low, high = self.interval()
        if low is None and high is None:
            return None
        upper = torch.inf if high is None else (high - lam) / direction
        lower = torch.inf if low is None else (low - lam) / direction
        reach = torch.where(direction > 0, upper, torch.where(direction < 0, lower, torch.inf))
        return reach.amin(-1)

    @override
    def tilted(self, lam: Tensor) -> AbstractPreference:
        self.check_point("lam", lam)
        inside = self.inside(lam)
        if inside is not None and not bool(inside.all()):
            where = tuple(int(i) for i in (~inside).nonzero()[0])
            raise DomainError(
                f"log M of the {type(self).__name__} preference is infinite at lam of {int((~inside).sum())} of "
                f"{inside.numel()} queries (first at index {where}): there is no such distribution; expected a "
                "smaller lam, or "
                "float64 where rounding put it there",
                query=where,
            )
        return self._tilted(lam)

    @abstractmethod
    def _tilted(self, lam: Tensor) -> AbstractPreference: ...

    @abstractmethod
    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Samples of a shape (..., m or 1, d)."""

    @override
    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        sizes = checked_sample_shape(shape, generator, self.device)
        return self.draw((*sizes, *self.lead, self.dim), generator)

    @abstractmethod
    def log_densities(self, points: Tensor) -> Tensor:
        """Log density or log probability of every coordinate, (..., m, d)."""

    @override
    def log_density(self, points: Tensor) -> Tensor:
        self.check_point("points", points)
        return self.log_densities(points).sum(-1)

    @override
    def to(self, dtype: torch.dtype) -> Self:
        if dtype == self.dtype:
            return self
        check_dtype(dtype)
        return self._like(**{name: part.to(dtype) for name, part in self._all().items()})

    @override
    def queries(self, part: slice) -> Self:
        if self.lead[-1] == 1:
            return self

        def rows(tensor: Tensor) -> Tensor:
            return tensor[..., part, :] if tensor.dim() > 1 and tensor.shape[-2] > 1 else tensor

        return self._like(**{name: rows(tensor) for name, tensor in self._all().items()})

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(queries={tuple(self.lead)}, dim={self.dim}, dtype={self.dtype}, "
            f"device='{self.device}')"
        )


def pair(
    first: tuple[str, Any], second: tuple[str, Any], *, positive: tuple[str, ...] = (), remedy: str = ""
) -> tuple[Tensor, Tensor]:
    """Two parameters of which one may be a number, checked.

    Args:
        first: Name and value.
        second: Likewise.
        positive: The names of those that have to be above 0.
        remedy: What to do where they are not.
    """
    form = "(d,) or (..., m, d), or a number"
    like: Tensor | None = None
    checked: dict[str, Tensor] = {}
    # Tensors first: numbers are made like them.
    for name, value in sorted((first, second), key=lambda part: type(part[1]) in (int, float)):
        other = second[0] if name == first[0] else first[0]
        above = 0.0 if name in positive else None
        checked[name] = checked_parameter(name, value, form, like=like, of=other, above=above, remedy=remedy)
        like = checked[name]
    return checked[first[0]], checked[second[0]]
