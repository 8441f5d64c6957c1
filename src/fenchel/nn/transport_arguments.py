"""What a transport-attention layer is built and called with, checked once."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fenchel.arguments import shown
from fenchel.arguments.tensor import BOOL, check_device, check_dtype, check_tensor, checked_argument
from fenchel.errors import ProblemError
from fenchel.functional.arguments import check_estimator
from fenchel.nn.attention_arguments import check_widths
from fenchel.nn.sizes import check_positive
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
    check_estimator(estimator, tol, max_steps)
    check_positive(_OWNER, alpha=alpha)
    if gamma is not None:
        check_positive(_OWNER, gamma=gamma)
    checked_argument("scale", scale, name=f"scale of {_OWNER}")
    if not isinstance(extra_preference, str) or extra_preference not in EXTRA_PREFERENCES:
        known = ", ".join(map(repr, EXTRA_PREFERENCES))
        raise ProblemError(f"extra_preference is {shown(extra_preference)}; expected one of {known}")


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
    check_tensor("atoms", atoms, "(N or 1, A, E)")
    shape, width = tuple(atoms.shape), like.shape[-1]
    if atoms.dim() != 3 or atoms.shape[0] not in (1, batch):
        raise ProblemError(f"atoms have shape {shape}, batch first; expected (N or 1, A, E) with N = {batch}")
    if atoms.shape[-1] != width:
        raise ProblemError(
            f"atoms have width {atoms.shape[-1]} (shape {shape}); expected embed_dim = {width}"
        )
    check_device("atoms", atoms, like.device)
    check_dtype("atoms", atoms, like.dtype)
    if mask is None:
        return
    check_tensor("atom_mask", mask, "(N or 1, A), True = may be used", dtypes=BOOL)
    if mask.dim() != 2 or mask.shape[0] not in (1, batch) or mask.shape[1] != atoms.shape[1]:
        raise ProblemError(
            f"atom_mask has shape {tuple(mask.shape)}; expected (N or 1, A) = ({batch} or 1, {atoms.shape[1]})"
        )
    check_device("atom_mask", mask, like.device)
