"""First-order attention with a preference given as functions of indices: one fused kernel, no m×n tensor."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import config as dynamo_config
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from fenchel.errors import ProblemError
from fenchel.functional.arguments import AttentionArguments, checked, without_autocast
from fenchel.functional.inference import plain_attention
from fenchel.tensors import check_flags, check_type

__all__ = ["ScoreMod", "flex_attention"]


ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function (score, b, h, q, k) -> score, as flex attention takes it."""

SMALLEST_DIM = 16
"""Smallest last dimension of query, key and value that torch's kernel supports."""

_FUSED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# Torch's tracer reads .grad of every tensor that a function captures; tables computed from parameters have none.
_LEAF_WARNING = "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed"

# Numbers that functions capture are constants of their kernel, for example one kernel for each size of a window;
# torch's default limit is 8.
_MOST_KERNELS = 256

_torch_flex: Callable[..., Any] = torch_flex.flex_attention


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    scale: float | Tensor | None = None,
    alpha: float | Tensor = 1.0,
    enable_gqa: bool = False,
    eager: bool = False,
) -> Tensor:
    r"""First-order attention whose log-preference is computed inside the kernel.

    .. math:: o_i = \sum_j p_{ij} v_j, \qquad p_{ij} \propto u_{ij} \exp(\alpha\,\text{scale}\,\langle k_j, q_i\rangle)

    Gradients reach query, key, value, alpha, scale and the tensors that the functions read; the last are summed by
    atomic additions, whose order and rounding vary from run to run.

    Args:
        query: Evidence z, (B, H, m, d), on a GPU.
        key: (B, H_kv, n, d); templates are scale·key.
        value: (B, H_kv, n, d_v).
        score_mod: log u, added: (score, b, h, q, k) -> score, as :meth:`AbstractPreference.score_mod
            <fenchel.nn.preference.AbstractPreference.score_mod>` gives it.
        mask_mod: (b, h, q, k) -> True where k may be attended to. Fully masked blocks of scores are not computed.
        scale: A number or a tensor of one element; None is :math:`1/\sqrt d`.
        alpha: α > 0, broadcastable to (B, H, m).
        enable_gqa: Let heads of the query share heads of the key.
        eager: Whether to run uncompiled, with every score computed and stored: for inspecting small problems, also on
            the CPU.

    Returns:
        (B, H, m, d_v); zeros for a query with nothing to attend to.

    Raises:
        ProblemError: If the arguments are inconsistent; on the CPU unless ``eager``, and there if a gradient is
            required; if there is no kernel for the dtype or a last dimension.

    Example:
        >>> q = torch.randn(1, 2, 5, 16)
        >>> causal = flex_attention(q, q, q, mask_mod=lambda b, h, i, j: j <= i, eager=True)
        >>> bool(torch.allclose(causal[:, :, 0], q[:, :, 0], atol=1e-6))
        True
    """
    arguments = checked(query, key, value, alpha=alpha, scale=scale, enable_gqa=enable_gqa)
    for name, function in (("score_mod", score_mod), ("mask_mod", mask_mod)):
        check_type(name, function, Callable | None, "a function of indices, or None")
    check_flags(eager=eager)
    if arguments.has_no_evidence and arguments.query.shape[-1]:
        with without_autocast(arguments.query):
            return plain_attention(arguments, arguments.query, 0.0)
    _check_kernel(arguments, eager)
    dual, score_scale = arguments.query, arguments.scale
    if isinstance(arguments.alpha, Tensor):
        dual = (dual * arguments.alpha).to(dual.dtype)
    else:
        score_scale = score_scale * arguments.alpha
    with without_autocast(dual):
        blocks = None
        if mask_mod is not None:
            batch, heads, queries, _ = dual.shape
            blocks = block_mask(mask_mod, batch, heads, queries, arguments.key.shape[2], dual.device)
        attend = _eager if eager else _fused
        return attend(
            dual,
            arguments.key,
            arguments.value,
            score_mod=score_mod,
            block_mask=blocks,
            scale=score_scale,
            enable_gqa=enable_gqa,
        )


def _check_kernel(arguments: AttentionArguments, eager: bool) -> None:
    tensors = {"query": arguments.query, "key": arguments.key, "value": arguments.value}
    instead = (
        "use fenchel.functional.attention with the preference's tensor, preference(inputs), as log_preference"
    )
    if arguments.query.device.type == "cpu":
        given = {**tensors, "alpha": arguments.alpha}
        differentiated = [name for name, x in given.items() if isinstance(x, Tensor) and x.requires_grad]
        if differentiated and torch.is_grad_enabled():
            raise ProblemError(
                f"a gradient to {', '.join(differentiated)} is required, but torch's flex attention has no backward "
                f"pass on the CPU; {instead}."
            )
        if not eager:
            raise ProblemError(
                f"query is on the CPU, where flex attention is not fused; {instead}, "
                "or pass eager=True to compute every score in plain operations."
            )
    if eager:
        return
    if arguments.query.dtype not in _FUSED_DTYPES:
        raise ProblemError(
            f"query has dtype {arguments.query.dtype}; "
            f"flex attention has kernels for float32, float16 and bfloat16: {instead}."
        )
    for name, tensor in tensors.items():
        if tensor.shape[-1] < SMALLEST_DIM:
            raise ProblemError(
                f"{name} has shape {tuple(tensor.shape)}; flex attention has kernels for a last dimension of at least "
                f"{SMALLEST_DIM}: {instead}."
            )


def _eager(*tensors: Tensor, **options: Any) -> Tensor:
    if not torch.is_grad_enabled():
        # Torch raises for tensors that require gradients even if none is recorded.
        tensors = tuple(tensor.detach() for tensor in tensors)
    with warnings.catch_warnings():
        # eager=True stores every score on purpose.
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        warnings.filterwarnings("ignore", message=_LEAF_WARNING)
        return _torch_flex(*tensors, **options)


def _fused(*tensors: Tensor, **options: Any) -> Tensor:
    if torch.compiler.is_compiling():
        # The kernel becomes part of the outer graph.
        return _torch_flex(*tensors, **options)
    with warnings.catch_warnings(), dynamo_config.patch(specialize_int=True, recompile_limit=_MOST_KERNELS):
        warnings.filterwarnings("ignore", message=_LEAF_WARNING)
        # fullgraph=True raises, where torch would otherwise fall back to computing every score once there are too many
        # kernels.
        return _compiled(_torch_flex, fullgraph=True)(*tensors, **options)


@cache
def _compiled(function: Callable[..., Any], *, fullgraph: bool = False) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=fullgraph)


# A function of the indices (b, h, q, k), True = attend, as flex attention takes it.
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def block_mask(
    mask_mod: MaskMod, batch: int, heads: int, queries: int, keys: int, device: torch.device
) -> BlockMask:
    """The block mask of a mask function, cached where possible.

    Its size is 1 for examples or heads if the function does not depend on that index. Masks of functions of indices and
    numbers only, such as those of positions, are cached; those of functions that capture a tensor, such as the padding
    of a batch, are not, since the tensor may change.

    Args:
        mask_mod: Function of indices.
        batch: B.
        heads: H.
        queries: m.
        keys: n.
        device: Device of the mask.
    """
    sizes = (*_read(mask_mod, batch, heads, device), queries, keys)
    name = None if torch.compiler.is_compiling() else identity(mask_mod)
    if name is None:
        return _made(mask_mod, sizes, device)
    return _kept(_Named(name, mask_mod), sizes, device)


def _read(mask_mod: MaskMod, batch: int, heads: int, device: torch.device) -> tuple[int, int]:
    """B and H, each 1 if the mask does not depend on that index, from the shape of its values."""
    b = torch.arange(batch, device=device).reshape(-1, 1)
    h = torch.arange(heads, device=device).reshape(1, -1)
    first = torch.zeros(1, 1, dtype=torch.long, device=device)
    shape = mask_mod(b, h, first, first).shape
    return (1, 1, *shape)[-2], (1, 1, *shape)[-1]


def identity(value: Any) -> Hashable | None:
    """A hashable identity of a function: its code and captured values; None if one is a tensor.

    Example:
        >>> def later_than(n):
        ...     return lambda k: k > n
        >>> identity(later_than(2)) == identity(later_than(2)) != identity(later_than(3))
        True
        >>> identity(later_than(torch.tensor(2))) is None
        True
    """
    if isinstance(value, FunctionType):
        captured = [cell.cell_contents for cell in value.__closure__ or ()]
        kind = value.__code__
        parts = [*captured, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    elif isinstance(value, tuple | list):
        kind, parts = type(value), value
    elif value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device):
        # The type is included since True == 1.
        return (type(value), value)
    else:
        return None
    known = tuple(map(identity, parts))
    return None if None in known else (kind, known)


@dataclass(frozen=True)
class _Named:
    name: Hashable
    function: MaskMod = field(compare=False)


@lru_cache(maxsize=64)
def _kept(named: _Named, sizes: tuple[int, int, int, int], device: torch.device) -> BlockMask:
    # A tensor made in inference mode could not be used in training later.
    with torch.inference_mode(False):
        return _made(named.function, sizes, device)


def _made(mask_mod: MaskMod, sizes: tuple[int, int, int, int], device: torch.device) -> BlockMask:
    # Uncompiled, it would evaluate all B·H·m·n entries of the mask at once.
    is_fused = device.type == "cuda" and not torch.compiler.is_compiling()
    create = _compiled(create_block_mask) if is_fused else create_block_mask
    return create(mask_mod, *sizes, device=device)
