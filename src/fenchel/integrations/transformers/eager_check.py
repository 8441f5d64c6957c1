"""Does softmax(scaling·⟨q, k⟩ + log u) say what the family's own attention says? Asked once of every module.

Each modeling file carries a plain ``eager_attention_forward``. Comparing with it on a few queries catches a
family that changes its scores in a way that no argument of the call shows.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.errors import ModelError
from fenchel.integrations.transformers.log_preference import LogPreference

__all__ = ["check_against_eager"]

_QUERIES = 16
_SMALLEST_STEPS = 4
"""By how many times the smallest number of a dtype two sums may differ."""


def _one_sequence(tensor: Tensor | None, batch: int, queries: Tensor) -> Tensor | None:
    """Row ``batch`` and the given queries of a tensor that broadcasts to (B, H, m, n)."""
    if tensor is None:
        return None
    tensor = tensor[batch : batch + 1] if tensor.shape[0] > 1 else tensor
    return tensor[:, :, queries] if tensor.shape[2] > 1 else tensor


def _tolerance(query: Tensor, largest: float) -> float:
    """For values of up to ``largest``. Many families take their softmax in float32 whatever their dtype.

    Where values are not far above the smallest numbers of a half type, some steps between these are rounding too.
    """
    if query.dtype == torch.float32 and query.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        return 2.0**-5 * largest
    dtypes = {query.dtype, torch.float32}
    if torch.is_autocast_enabled(query.device.type):
        dtypes.add(torch.get_autocast_dtype(query.device.type))
    kinds = [torch.finfo(dtype) for dtype in dtypes]
    smallest = max(kind.smallest_normal * kind.eps for kind in kinds)
    return max(max(kind.eps for kind in kinds) ** 0.5 * largest, _SMALLEST_STEPS * smallest)


def check_against_eager(
    site: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    scaling: float,
    preference: LogPreference,
    position_bias: Tensor | None,
    arguments: Mapping[str, Any],
) -> None:
    """Compare ``output`` with the eager attention of the module's own family, on a few queries.

    Args:
        site: Qualified name of the module, for the message.
        module: The attention module.
        query: (B, H, m, d).
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v).
        output: What we computed, (B, m, H, d_v).
        scaling: As in the call.
        preference: Its mask is given to the family's attention; queries that see nothing are not compared.
        position_bias: As in the call.
        arguments: The other keyword arguments of the call.

    Raises:
        ModelError: If they differ by more than rounding explains.
    """
    eager = inspect.unwrap(type(module).forward).__globals__.get("eager_attention_forward")
    live = torch.ones(output.shape[:2], dtype=torch.bool, device=query.device)
    if preference.empty_rows is not None:
        live &= ~preference.empty_rows.any(1).squeeze(-1)
    batch = int(live.sum(-1).argmax())
    queries = live[batch].nonzero().flatten()
    if eager is None or not len(queries):
        return
    chosen = torch.linspace(0, len(queries) - 1, min(_QUERIES, len(queries)), device=query.device)
    queries = queries[chosen.long()]

    mask = _one_sequence(preference.family_mask, batch, queries)
    if mask is not None and mask.dtype == torch.bool:
        blank = torch.zeros((), dtype=query.dtype, device=query.device)
        mask = torch.where(mask, blank, torch.finfo(query.dtype).min)
    bias = {} if position_bias is None else {"position_bias": _one_sequence(position_bias, batch, queries)}
    one = slice(batch, batch + 1)
    expected, _ = eager(
        module,
        query[one, :, queries],
        key[one],
        value[one],
        mask,
        scaling=scaling,
        dropout=0.0,
        **bias,
        **arguments,
    )
    found, family = output[batch, queries], type(module).__name__
    if not bool(found.isfinite().all()):
        raise ModelError(
            f"{site} ({family}) has NaN or infinity in its attention output on this batch. Check the model's "
            "weights, and its dtype: float16 overflows where bfloat16 and float32 do not"
        )
    difference = float((expected[0] - found).abs().max())
    allowed = _tolerance(query, float(value[batch].abs().max()))
    if not difference <= allowed:
        raise ModelError(
            f"{site} ({family}): attention of the form softmax(scaling·⟨q, k⟩ + log u)·v is off by "
            f"{difference:.1e} (expected at most {allowed:.1e}) from what eager_attention_forward of its "
            "family computes: it changes its scores in a way that is not known here, so its attention cannot be "
            "taken over faithfully. Use a model of another family, or report this one"
        )
