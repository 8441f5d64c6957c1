"""The gradient of an op that solves for a dual point of every query, whatever it solves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fenchel.adjoint import DualGradients
from fenchel.blocks import QueryBlock
from fenchel.functional.precision import without_autocast
from fenchel.functional.rowwise import Rowwise, RowwiseGradients
from fenchel.functional.second_derivative import refuse_second_derivative

__all__ = ["register_row_gradients"]


def register_row_gradients(
    operator: Any, name: str, rule: Callable[[QueryBlock, Tensor, Tensor], DualGradients], of: str
) -> None:
    """Register with an operator its shape for ``torch.compile``, its gradient, and that there is no second.

    Args:
        operator: Made by ``torch.library.custom_op``; takes (evidence, templates, log_preference, alpha, *options) and
            returns dual points of the shape of the evidence.
        name: Of the operator.
        rule: Gradients to the data of a block of rows, given their dual points and the gradient of those.
        of: What a second derivative would be of, for the error.
    """

    @torch.library.custom_op(f"{name}_backward", mutates_args=())
    def differentiated(
        gradient: Tensor,
        dual: Tensor,
        evidence: Tensor,
        templates: Tensor,
        log_preference: Tensor | None,
        alpha: Tensor,
        to_preference: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with torch.no_grad(), without_autocast(evidence):
            rowwise = Rowwise(evidence, templates, log_preference, alpha)
            wanted = log_preference if to_preference else None
            gradients = RowwiseGradients(rowwise, evidence, templates, wanted, alpha)
            for block, rows in rowwise.blocks():
                found = rule(rows, rowwise.take(dual, block), rowwise.take(gradient, block))
                gradients.put(block, found)
            return gradients.build()

    @differentiated.register_fake
    def _(gradient, dual, evidence, templates, log_preference, alpha, to_preference):
        like = log_preference if to_preference else templates.new_empty(())
        return (
            torch.empty_like(evidence),
            torch.empty_like(templates),
            torch.empty_like(like, dtype=templates.dtype),
            torch.empty_like(alpha),
        )

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output, *inputs[:4])
        ctx.options = len(inputs) - 4
        ctx.to_preference = ctx.needs_input_grad[2]

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        log_preference = ctx.saved_tensors[3]
        to_evidence, to_templates, found, to_alpha = differentiated(
            gradient, *ctx.saved_tensors, ctx.to_preference
        )
        to_preference = found.to(log_preference.dtype) if ctx.to_preference else None
        return to_evidence, to_templates, to_preference, to_alpha, *(None,) * ctx.options

    operator.register_fake(lambda evidence, *others: torch.empty_like(evidence))
    operator.register_autograd(backward, setup_context=remember)
    refuse_second_derivative(differentiated, of)
