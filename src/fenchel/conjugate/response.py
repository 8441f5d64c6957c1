r"""The response of a mean to its dual point: what solvers see where a closeness offers nothing faster.

A conjugate φ is a function of the potential with the identity in the place of the templates, so that
:class:`MeanResponse` takes λ for the potential and answers with :math:`h(\lambda) = \nabla\varphi(\lambda)`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.closeness.response import AbstractResponse
from fenchel.conjugate.abstract import AbstractConjugate

__all__ = ["MeanResponse"]


class MeanResponse(AbstractResponse):
    """h(λ) of all rows of a block at once.

    Args:
        conjugate: φ.
        shape: Of one number a query, (..., r); rows are (g, r, ...) with all leading dimensions in g.
    """

    selectable = False
    bordered = True

    def __init__(self, conjugate: AbstractConjugate, shape: tuple[int, ...]) -> None:
        self._conjugate, self._shape = conjugate, shape

    def _whole(self, rows: Tensor) -> Tensor:
        return rows.reshape(*self._shape, rows.shape[-1])

    @property
    @override
    def rest(self) -> Tensor:
        mean = self._conjugate.rest_mean()
        if self._conjugate.resolves_shift:
            mean = torch.zeros_like(mean)
        return mean.expand(*self._shape, mean.shape[-1]).reshape(-1, self._shape[-1], mean.shape[-1])

    @override
    def argument(self, factor: Tensor, potential: Tensor) -> Tensor:
        return factor * potential

    @override
    def at(self, argument: Tensor) -> Tensor:
        whole = self._whole(argument)
        # Means are only ever compared: their shifts say the same, and do not cancel where the mean at rest is large.
        resolved = self._conjugate.resolves_shift
        mean = self._conjugate.shift(whole) if resolved else self._conjugate.mean(whole)
        return mean.reshape(argument.shape)

    @override
    def curvature(self, argument: Tensor, weights: Tensor) -> Callable[[Tensor], Tensor]:
        product = self._conjugate.curvature(self._whole(argument))
        return lambda vector: product(self._whole(vector)).reshape(vector.shape)

    @override
    def resolvent(self, argument: Tensor, alpha: Tensor, right: Tensor) -> Tensor | None:
        own = alpha.expand(*argument.shape[:2], 1).reshape(*self._shape, 1)
        found = self._conjugate.resolvent(self._whole(argument), own, self._whole(right))
        return None if found is None else found.reshape(right.shape)

    @override
    def reach(self, argument: Tensor, step: Tensor) -> Tensor | None:
        found = self._conjugate.reach(self._whole(argument), self._whole(step))
        return None if found is None else found.reshape(argument.shape[:2])
