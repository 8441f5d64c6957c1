"""The gradient of an op that solves for a dual point of every query, whatever it solves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fenchel.adjoint import DualGradients, second_derivative_of
from fenchel.blocks import QueryBlock
from fenchel.functional.operator import with_gradient
from fenchel.functional.precision import without_autocast
from fenchel.functional.rowwise import Rowwise, RowwiseGradients

__all__ = ["with_row_gradients"]


def with_row_gradients(
    operator: Any, name: str, rule: Callable[[QueryBlock, Tensor, Tensor], DualGradients], of: str
) -> Callable[..., Tensor]:
    """An operator with its shape for ``torch.compile`` and its gradient, of which there is no second.

    Args:
        operator: Made by ``torch.library.custom_op``; takes (evidence, templates, log_preference, alpha, *options) and
            returns dual points of the shape of the evidence, contiguous.
        name: Of the operator.
        rule: Gradients to the data of a block of rows, given their dual points and the gradient of those.
        of: What a second derivative would be of, for the error.

    Returns:
        What to call in place of the operator.
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
        preference = templates.new_empty(log_preference.shape if to_preference else ())
        to_evidence, to_templates, to_alpha = (x.new_empty(x.shape) for x in (evidence, templates, alpha))
        return to_evidence, to_templates, preference, to_alpha

    operator.register_fake(lambda evidence, *others: evidence.new_empty(evidence.shape))
    differentiated_once = with_gradient(differentiated, second_derivative_of(of))

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output, *inputs[:4])
        ctx.options = len(inputs) - 4

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # Read once: under checkpointing what is saved is computed again when it is read, and is then no longer there.
        saved, wanted = ctx.saved_tensors, ctx.needs_input_grad[2]
        log_preference = saved[3]
        to_evidence, to_templates, found, to_alpha = differentiated_once(gradient, *saved, wanted)
        to_preference = found.to(log_preference.dtype) if wanted else None
        return to_evidence, to_templates, to_preference, to_alpha, *(None,) * ctx.options

    return with_gradient(operator, backward, remember)
