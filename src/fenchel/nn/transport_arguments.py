"""What a transport-attention layer is built and called with, checked once."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import ESTIMATORS
from fenchel.errors import ProblemError
from fenchel.nn.attention_arguments import check_widths
from fenchel.nn.sizes import check_positive, check_sizes
from fenchel.nn.template_bank import AbstractTemplateBank

__all__ = ["EXTRA_PREFERENCES", "check_atoms", "check_layer", "check_memory"]

EXTRA_PREFERENCES = ("zero", "shared")
"""What u may give to templates that are not in the input."""

_OWNER = "TransportAttention"


def check_layer(
    embed_dim: int,
    num_heads: int,
    *,
    gamma: float | None,
    alpha: float,
    scale: float,
    estimator: str,
    extra_preference: str,
    dropout: float,
    tol: float | None,
    max_steps: int,
) -> None:
    """Check the sizes, the numbers and the names that a layer is built with."""
    check_widths(embed_dim, num_heads, None, None, dropout, owner=_OWNER)
    numbers = {"gamma": gamma, "alpha": alpha, "tol": tol}
    check_positive(_OWNER, **{name: number for name, number in numbers.items() if number is not None})
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise ProblemError(f"{_OWNER} got scale={scale!r}; expected a finite number.")
    check_sizes(_OWNER, max_steps=max_steps)
    for name, given, known in (
        ("estimator", estimator, ESTIMATORS),
        ("extra_preference", extra_preference, EXTRA_PREFERENCES),
    ):
        if given not in known:
            raise ProblemError(f"{name} is {given!r}; expected one of {', '.join(map(repr, known))}")


def check_memory(memory: Any, embed_dim: int) -> None:
    """Check that a memory is a bank of templates of this width."""
    if memory is None:
        return
    if not isinstance(memory, AbstractTemplateBank):
        raise ProblemError(
            f"memory is a {type(memory).__name__}; expected a LearnedTemplateBank, a RunningTemplateBank or None"
        )
    if memory.embed_dim != embed_dim:
        raise ProblemError(
            f"memory has templates of width {memory.embed_dim}; expected embed_dim = {embed_dim}"
        )


def check_atoms(atoms: Tensor | None, mask: Tensor | None, *, batch: int, like: Tensor) -> None:
    """Check further templates, as (N or 1, A, E), and their mask, as (N or 1, A), against the query.

    Raises:
        ProblemError: If anything does not fit, with its name, what was got and what was expected.
    """
    if atoms is None:
        if mask is not None:
            raise ProblemError(
                "atom_mask is given without atoms; expected the atoms that it masks, or neither"
            )
        return
    shape, width = tuple(atoms.shape), like.shape[-1]
    if atoms.dim() != 3 or atoms.shape[0] not in (1, batch):
        raise ProblemError(f"atoms have shape {shape}, batch first; expected (N or 1, A, E) with N = {batch}")
    if atoms.shape[-1] != width:
        raise ProblemError(
            f"atoms have width {atoms.shape[-1]} (shape {shape}); expected embed_dim = {width}"
        )
    _check_kind("atoms", atoms, like)
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ProblemError(f"atom_mask has dtype {mask.dtype}; expected bool, True = may be used")
    if mask.dim() != 2 or mask.shape[0] not in (1, batch) or mask.shape[1] != atoms.shape[1]:
        raise ProblemError(
            f"atom_mask has shape {tuple(mask.shape)}; expected (N or 1, A) = ({batch} or 1, {atoms.shape[1]})"
        )
    if mask.device != like.device:
        raise ProblemError(f"atom_mask is on {mask.device}, query on {like.device}; move one of them")


def _check_kind(name: str, tensor: Tensor, like: Tensor) -> None:
    if tensor.device != like.device:
        raise ProblemError(f"{name} are on {tensor.device}, query on {like.device}; move one of them")
    if tensor.dtype != like.dtype and not torch.is_autocast_enabled(like.device.type):
        raise ProblemError(f"{name} have dtype {tensor.dtype}, query {like.dtype}; convert one of them")
