"""Saying by name that a second derivative is not there."""

from __future__ import annotations

from typing import Any, Protocol

from fenchel.errors import ProblemError

__all__ = ["refuse_second_derivative"]


class _Operator(Protocol):
    """What ``torch.library.custom_op`` makes."""

    def register_autograd(self, backward: Any, /) -> None: ...


def refuse_second_derivative(backward_op: _Operator, of: str) -> None:
    """Have the derivative of ``backward_op`` raise, saying of what the second derivative was wanted.

    Raises:
        ProblemError: When the derivative is asked for.
    """

    def refuse(ctx: Any, *gradients: Any) -> Any:
        raise ProblemError(
            f"the second derivative of {of} is not implemented; fenchel.functional.reference.attention is "
            "differentiable any number of times"
        )

    backward_op.register_autograd(refuse)
