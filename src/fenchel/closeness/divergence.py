"""A closeness made of one's own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.arguments import shown
from fenchel.arguments.tensor import check_flags, checked_argument, positive_tensor
from fenchel.closeness.abstract import AbstractCloseness
from fenchel.closeness.check import check_closeness
from fenchel.errors import ProblemError
from fenchel.preference import Discrete

__all__ = ["Divergence"]

Map = Callable[[Tensor, Tensor], Tensor]
Operator = Callable[[Tensor], Tensor]

POINTS = 8
"""Random points at which functions are tried when they first meet a preference."""


class Divergence(AbstractCloseness):
    r"""A closeness made of functions: what D is, its conjugate, and the conjugate's two derivatives.

    .. math:: D^*(f) = \sup_p \langle p, f\rangle - D(p, u), \qquad p(f) = \nabla D^*(f), \qquad C(f) = \nabla^2 D^*(f)

    Each takes log u, normalised, (..., m or 1, n), -inf where masked, as its second argument. The first time that it
    meets a preference it is tried at random points, and a function that contradicts another is an error that shows the
    point: :func:`fenchel.check_closeness`.

    Args:
        value: D for weights (..., m, n), shape (..., m).
        conjugate: :math:`D^*` for potentials (..., m, n), shape (..., m).
        weights: :math:`\nabla D^*`, shape (..., m, n).
        curvature: :math:`\nabla^2 D^*`: for a potential, a function that multiplies vectors (..., m, n). Where None
            ``weights`` are differentiated by autograd, which then has to be able to.
        modulus: σ > 0 by which D is strongly convex in the 1-norm, :math:`D \ge \tfrac\sigma2\lVert p - q\rVert_1^2`
            beyond its tangent at q: a number, or a tensor that broadcasts to (..., m). Bounds rest on it.
        check: Whether to try it when it first meets a preference.

    Raises:
        ProblemError: If something is no function, or the modulus is not above 0; when joined to a preference, if the
            functions contradict each other.

    Example:
        Twice Kullback and Leibler's divergence, whose curvature is left to autograd:

        >>> from fenchel import KL, Discrete, InferenceProblem
        >>> hot = Divergence(
        ...     value=lambda p, log_u: 2 * KL().value(p, log_u),
        ...     conjugate=lambda f, log_u: 2 * KL().conjugate(f / 2, log_u),
        ...     weights=lambda f, log_u: KL().weights(f / 2, log_u),
        ...     modulus=2.0,
        ... )
        >>> u, z = Discrete(torch.eye(2, dtype=torch.float64)), torch.tensor([[2.0, 0.0]], dtype=torch.float64)
        >>> InferenceProblem(u, z, closeness=hot).solve("first_order").weights
        tensor([[0.7311, 0.2689]], dtype=torch.float64)
    """

    def __init__(
        self,
        value: Map,
        conjugate: Map,
        weights: Map,
        curvature: Callable[[Tensor, Tensor], Operator] | None = None,
        *,
        modulus: float | Tensor = 1.0,
        check: bool = True,
    ) -> None:
        for name, given in (("value", value), ("conjugate", conjugate), ("weights", weights)):
            _check_function(name, given)
        if curvature is not None:
            _check_function("curvature", curvature)
        check_flags(check=check)
        self._value, self._conjugate, self._weights, self._curvature = value, conjugate, weights, curvature
        self._modulus = _checked_modulus(modulus)
        # Shared by copies, so that one is tried once.
        self._unchecked = [check]

    @override
    def bind(self, preference: Discrete) -> Self:
        if self._unchecked[0] and not torch.compiler.is_compiling():
            self._unchecked[0] = False
            try:
                check_closeness(self, preference.to(torch.float64), points=POINTS)
            except ProblemError:
                self._unchecked[0] = True
                raise
        return self

    @override
    def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        return self._value(weights, log_preference)

    @override
    def conjugate(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        return self._conjugate(potential, log_preference)

    @override
    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        return self._weights(potential, log_preference)

    @override
    def curvature(self, potential: Tensor, log_preference: Tensor) -> Operator:
        if self._curvature is not None:
            return self._curvature(potential, log_preference)
        # The Jacobian of a gradient is symmetric, so that its transpose, which autograd multiplies with, is itself.
        differentiated: Any = torch.func.vjp(lambda f: self._weights(f, log_preference), potential)
        weights, multiplied = differentiated

        def product(vector: Tensor) -> Tensor:
            return multiplied(vector.expand_as(weights))[0]

        return product

    @property
    @override
    def modulus(self) -> float | Tensor:
        return self._modulus

    def __repr__(self) -> str:
        return f"Divergence({getattr(self._value, '__name__', 'value')})"


def _check_function(name: str, given: Any) -> None:
    if not callable(given):
        raise ProblemError(
            f"{name} is {shown(given)}; expected a function of (weights or potential, log_preference), as "
            "help(fenchel.Divergence) says"
        )


def _checked_modulus(modulus: Any) -> float | Tensor:
    if not isinstance(modulus, Tensor):
        return float(checked_argument("positive", modulus, name="modulus"))
    return positive_tensor("positive", modulus, modulus.device, modulus.dtype, "that broadcasts to (..., m)")
