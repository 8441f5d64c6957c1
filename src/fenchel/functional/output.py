r"""The mean of the values at dual points, by whichever code is fastest for the gradients that are wanted.

That is torch's fused kernels, or the passes below, block by block, which have a gradient to the log-preference and a
second mean:

.. math:: p = \operatorname{softmax}(\log u + s\,\lambda K^\top), \qquad o = p V, \qquad \hat h = p\,(sK)

No (m, n) array outlives its block: the backward pass computes the weights again. With :math:`e = p \circ (g V^\top -
\langle g, o\rangle)` for the gradient g of o, the gradients are e for log u (summed where it was broadcast),
:math:`s\,eK` for λ, :math:`s\,e^\top\lambda` for K and :math:`p^\top g` for V.

These are custom operators, so that ``torch.compile`` takes each for one node instead of unrolling its loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fenchel.estimators.implicit import second_derivative_of
from fenchel.functional.arguments import (
    AttentionArguments,
    compute_dtype,
    dropped,
    mask_dtype,
    without_autocast,
)
from fenchel.functional.exact import Grid, with_gradient
from fenchel.tensors import Box, is_transformed, needs_gradient, part_of

__all__ = [
    "attend",
    "fused_attention",
    "mean_at",
    "output_and_mean_at",
    "output_at",
    "plain_attention",
    "weights_at",
]


def output_and_mean_at(
    given: AttentionArguments, dual: Tensor, dropout_p: float, templates: Tensor, key: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The output, and a mean of what stands for the templates, (B, H, m, c) without gradient.

    Args:
        given: Checked arguments.
        dual: λ, (B, H, m, d), in the dtype in which the weights are to be computed.
        dropout_p: Probability with which a weight of the output is dropped.
        templates: What is averaged, (B, H_kv, n, c) in float32 or float64.
        key: The keys less a vector that those of a head share, which weights do not see; None is those given.
    """
    preference, scale = given.log_preference, given.scale
    key = given.key if key is None else key
    wants_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (dual, given.key, given.value))
    if wants_gradient and not _wants_preference_gradient(given):
        # The fused kernels' backward pass is so much faster that it repays a forward pass over the keys of its own.
        mean = mean_at(given, dual, templates, key)
        output = output_at(given, dual, dropout_p)
    else:
        output, mean = attend(
            dual, key, given.value, preference, scale=scale, dropout_p=dropout_p, templates=templates
        )
        assert mean is not None  # noqa: S101 -- it was asked for
    return output.to(given.query.dtype), mean


@torch.no_grad()
def mean_at(given: AttentionArguments, dual: Tensor, templates: Tensor, key: Tensor) -> Tensor:
    """The mean alone, (B, H, m, c); see :func:`output_and_mean_at`."""
    _, mean = attend(dual, key, key[..., :0], given.log_preference, scale=given.scale, templates=templates)
    assert mean is not None  # noqa: S101 -- it was asked for
    return mean


def _wants_preference_gradient(given: AttentionArguments) -> bool:
    # A graph that is exported has operations of torch alone, which runtimes other than torch have too.
    if given.log_preference is None or not torch.is_grad_enabled() or torch.compiler.is_exporting():
        return False
    return needs_gradient(given.log_preference)


def output_at(given: AttentionArguments, dual: Tensor, dropout_p: float = 0.0) -> Tensor:
    """The output alone, (B, H, m, d_v); see :func:`output_and_mean_at`."""
    preference = given.log_preference
    if given.has_no_evidence:
        return plain_attention(given, dual, dropout_p)
    if _wants_preference_gradient(given):
        output, _ = attend(dual, given.key, given.value, preference, scale=given.scale, dropout_p=dropout_p)
        return output.to(given.query.dtype)
    key, value = given.key.to(dual.dtype), given.value.to(dual.dtype)
    output = fused_attention(dual, key, value, preference, scale=given.scale, dropout_p=dropout_p)
    return output.to(given.query.dtype)


def weights_at(given: AttentionArguments, dual: Tensor) -> Tensor:
    """The weights at dual points, (B, H, m, n) in the dtype of the query."""
    with without_autocast(dual):
        dtype, preference = compute_dtype(dual.dtype), given.log_preference
        logits = (dual.to(dtype) * given.scale) @ given.of_query_heads(given.key.to(dtype)).mT
        if preference is not None:
            allowed = preference if preference.dtype == torch.bool else None
            logits = logits + preference if allowed is None else logits.masked_fill(~allowed, -torch.inf)
        return logits.softmax(-1).to(given.query.dtype)


def plain_attention(given: AttentionArguments, dual: Tensor, dropout_p: float) -> Tensor:
    """The output where nothing can tilt u: there is no query, or a query has no dimension.

    It is joined to everything that it depends on. Kernels disagree on empty arrays; plain operations do not.
    """
    weights = dropped(weights_at(given, dual), dropout_p)
    with without_autocast(weights):
        return weights @ given.of_query_heads(given.value)


SLOW_IN_HALF_BELOW = 256
"""Keys up to which the backward pass of torch's kernel on the CPU takes longer in half types than in float32."""


def fused_attention(
    dual: Tensor,
    key: Tensor,
    value: Tensor,
    log_preference: Tensor | None,
    *,
    scale: float,
    dropout_p: float = 0.0,
) -> Tensor:
    """softmax(log u + λ(scale·K)ᵀ) V by ``scaled_dot_product_attention``.

    In the dtype given; half types that need a backward pass on the CPU, of up to 256 keys, in float32, which is faster.

    Args:
        dual: λ, (B, H, m, d).
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v).
        log_preference: Bool or floating, broadcastable to (B, H, m, n), with something to attend to in every row.
        scale: Multiplies the scores.
        dropout_p: Probability with which a weight is dropped.
    """
    given = dual.dtype
    if _is_slow_in_half(dual, key, value):
        dual, key, value = dual.float(), key.float(), value.float()
    if log_preference is not None and log_preference.is_floating_point():
        log_preference = log_preference.to(mask_dtype(log_preference, dual.dtype))
    # A flag, and not a comparison, which in a graph with open sizes is a symbol.
    grouped = {"enable_gqa": True} if dual.shape[1] != key.shape[1] else {}
    with without_autocast(dual):
        output = scaled_dot_product_attention(
            dual,
            key,
            value,
            attn_mask=log_preference,
            scale=scale,
            dropout_p=dropout_p,
            **grouped,
        )
    return output.to(given)


def _is_slow_in_half(dual: Tensor, key: Tensor, value: Tensor) -> bool:
    half_on_cpu = dual.device.type == "cpu" and dual.dtype in (torch.float16, torch.bfloat16)
    trained = torch.is_grad_enabled() and any(x.requires_grad for x in (dual, key, value))
    return half_on_cpu and trained and key.shape[2] <= SLOW_IN_HALF_BELOW


def attend(
    dual: Tensor,
    key: Tensor,
    value: Tensor,
    log_preference: Tensor | None,
    *,
    scale: float,
    dropout_p: float = 0.0,
    templates: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention at dual points, in memory linear in the tokens.

    Args:
        dual: λ, (B, H, m, d).
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v).
        log_preference: Bool or floating, (B or 1, H or 1, m or 1, n), with something to attend to in every row.
        scale: s, so that templates are s·key.
        dropout_p: Probability with which a weight is dropped; which ones depends on torch's generator.
        templates: (B, H_kv, n, c) in float32 or float64, of which a mean is wanted too, before dropout.

    Returns:
        The output (B, H, m, d_v), and the mean of the templates (B, H, m, c), without gradient, or None.
    """
    seed = torch.randint(2**62, (), device="cpu") if dropout_p else None
    given = (dual, key, value, log_preference, templates, seed)
    call = _computed if _is_plain(*given) else _attend_differentiable
    output, mean = call(*given, scale, dropout_p)
    return output, None if templates is None else mean


def _is_plain(*tensors: Tensor | None) -> bool:
    """Whether nothing but the numbers is wanted: no graph, no gradient, no transform, for which operators are."""
    if torch.compiler.is_compiling() or is_transformed():
        return False
    there = [tensor for tensor in tensors if tensor is not None]
    recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in there)
    return not recorded and all(type(tensor) is Tensor and not tensor.is_meta for tensor in there)


def _dropout_scale(shape: torch.Size, p: float, generator: torch.Generator, like: Tensor) -> Tensor:
    """0 where a weight is dropped, 1/(1 - p) where it is kept."""
    kept = torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device) >= p
    return kept.to(like.dtype).div_(1 - p)


def _generator(seed: Tensor | None, device: torch.device) -> torch.Generator | None:
    return None if seed is None else torch.Generator(device).manual_seed(int(seed))


class _Call:
    """The data of one call, cut by block, in the dtype in which it is computed."""

    def __init__(
        self, dual: Tensor, key: Tensor, value: Tensor, log_preference: Tensor | None, scale: float
    ) -> None:
        self.grid = Grid(dual, key)
        self.dtype = compute_dtype(dual.dtype)
        self._dual, self._key, self._value = (
            self.grid.by_key_head(dual),
            key.to(self.dtype),
            value.to(self.dtype),
        )
        self._preference = None if log_preference is None else self.grid.by_key_head(log_preference)
        self._scale = scale

    def blocks(self) -> Iterator[tuple[Box, Tensor, Tensor, Tensor, Tensor]]:
        """Blocks with keys (b, h, n, d), values (b, h, n, d_v), scaled dual points (b, h, G, r, d) and weights."""
        for box in self.grid.boxes(self._key):
            keys, values = self._key[box[:2]], self._value[box[:2]]
            dual = part_of(self._dual, box).to(self.dtype) * self._scale
            logits = (_rows(dual) @ keys.mT).unflatten(2, dual.shape[2:4])
            if self._preference is not None:
                preference = part_of(self._preference, box)
                if preference.dtype == torch.bool:
                    logits.masked_fill_(~preference, -torch.inf)
                else:
                    logits.add_(preference)
            # In place: a block's worth of new memory costs a twentieth of the pass.
            yield box, keys, values, dual, torch.softmax(logits, -1, out=logits)

    def put(self, into: Tensor, box: Box, part: Tensor) -> None:
        """Write rows (b, h, G·r, c) into a tensor (B, H, m, c)."""
        target = part_of(self.grid.by_key_head(into), box)
        target.copy_(part.view_as(target))


def _rows(part: Tensor) -> Tensor:
    """A block's part (b, h, G, r, ...) with its queries in one dimension, (b, h, G·r, ...)."""
    return part.flatten(2, 3)


def _computed(
    dual: Tensor,
    key: Tensor,
    value: Tensor,
    log_preference: Tensor | None,
    templates: Tensor | None,
    seed: Tensor | None,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    with without_autocast(dual):
        call, generator = _Call(dual, key, value, log_preference, scale), _generator(seed, dual.device)
        output = dual.new_empty(*dual.shape[:3], value.shape[-1])
        mean = dual.new_empty(_shape_of_mean(dual, templates), dtype=call.dtype)
        for box, _, values, _, weights in call.blocks():
            if templates is not None:
                call.put(mean, box, _rows(weights) @ templates[box[:2]])
            if generator is not None:
                weights.mul_(_dropout_scale(weights.shape, dropout_p, generator, weights))
            if values.shape[-1]:
                call.put(output, box, _rows(weights) @ values)
        return output, mean


_attend = torch.library.custom_op("fenchel::attend", _computed, mutates_args=())


def _shape_of_mean(dual: Tensor, templates: Tensor | None) -> tuple[int, ...]:
    return (0,) if templates is None else (*dual.shape[:3], templates.shape[-1])


@_attend.register_fake
def _(dual, key, value, log_preference, templates, seed, scale, dropout_p):
    mean = dual.new_empty(_shape_of_mean(dual, templates), dtype=compute_dtype(dual.dtype))
    return dual.new_empty(*dual.shape[:3], value.shape[-1]), mean


@torch.library.custom_op("fenchel::attend_backward", mutates_args=())
def _attend_backward(
    gradient: Tensor,
    output: Tensor,
    dual: Tensor,
    key: Tensor,
    value: Tensor,
    log_preference: Tensor | None,
    seed: Tensor | None,
    scale: float,
    dropout_p: float,
    to_preference: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with without_autocast(dual):
        call, generator = _Call(dual, key, value, log_preference, scale), _generator(seed, dual.device)
        grid = call.grid
        to_dual = dual.new_empty(dual.shape)
        to_key = key.new_zeros(key.shape, dtype=call.dtype)
        to_value = value.new_zeros(value.shape, dtype=call.dtype)
        shape = log_preference.shape if to_preference and log_preference is not None else (0,)
        to_log_preference = dual.new_zeros(shape, dtype=call.dtype)
        into_preference = grid.by_key_head(to_log_preference) if to_preference else None
        gradients, outputs = grid.by_key_head(gradient), grid.by_key_head(output)
        for box, keys, values, lam, weights in call.blocks():
            g = part_of(gradients, box).to(call.dtype)
            along = (g * part_of(outputs, box)).sum(-1, keepdim=True)
            g = _rows(g)
            logits_gradient = (g @ values.mT).view_as(weights)
            used = weights
            if generator is not None:
                dropped = _dropout_scale(weights.shape, dropout_p, generator, weights)
                used = weights * dropped
                logits_gradient.mul_(dropped)
            to_value[box[:2]].add_(_rows(used).mT @ g)
            logits_gradient.sub_(along).mul_(weights)
            flat = _rows(logits_gradient)
            call.put(to_dual, box, (flat @ keys).mul_(scale))
            to_key[box[:2]].add_(flat.mT @ _rows(lam))
            if into_preference is not None:
                part = part_of(into_preference, box)
                part.add_(logits_gradient.sum_to_size(part.shape))
        return to_dual, to_key.to(key.dtype), to_value.to(value.dtype), to_log_preference


@_attend_backward.register_fake
def _(gradient, output, dual, key, value, log_preference, seed, scale, dropout_p, to_preference):
    shape = log_preference.shape if to_preference else (0,)
    preference = dual.new_empty(shape, dtype=compute_dtype(dual.dtype))
    return *(tensor.new_empty(tensor.shape) for tensor in (dual, key, value)), preference


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    dual, key, value, log_preference, _, seed, ctx.scale, ctx.dropout_p = inputs
    ctx.save_for_backward(output[0], dual, key, value, log_preference, seed)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    output, dual, key, value, log_preference, seed = ctx.saved_tensors
    wanted = ctx.needs_input_grad[3]
    to_dual, to_key, to_value, to_preference = _attend_backward_once(
        gradient, output, dual, key, value, log_preference, seed, ctx.scale, ctx.dropout_p, wanted
    )
    to_preference = to_preference.to(log_preference.dtype) if wanted else None
    return to_dual, to_key, to_value, to_preference, None, None, None, None


_attend_differentiable = with_gradient(_attend, _backward, _remember)
_attend_backward_once = with_gradient(
    _attend_backward, second_derivative_of("attention with a gradient to its preference or a certificate")
)
