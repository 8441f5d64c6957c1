"""What transport attention is given, checked and brought into one form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fenchel.closeness.optimal_transport import AbstractCost, GivenCost, cost_named, warn_if_moving_is_cheaper
from fenchel.errors import ProblemError
from fenchel.functional.arguments import AttentionArguments, check_some_keys, positive_column
from fenchel.functional.operator import under_autocast, without_autocast
from fenchel.preference.discrete import log_weights
from fenchel.selection import narrowed
from fenchel.tensors import (
    BOOL,
    broadcasts_to,
    check_device,
    check_dtype,
    check_finite,
    check_tensor,
    checked_argument,
    checked_scale,
    values_are_known,
)

__all__ = ["TransportArguments", "checked_transport"]


LOOKED_AT = 1024
"""Templates among which the first call looks for one that is nearer to another than to itself."""

_looked_at: set[str] = set()


@dataclass(frozen=True)
class TransportArguments:
    """Arguments of a call that fit together, in the dtype of the computation.

    Attributes:
        evidence: z, (B, H, m, d).
        templates: All that p may use, (B, H, n + a, d), those with a preference first.
        sources: These, (B, H, n, d).
        values: (B, H, n + a, d_v).
        log_weights: Normalised log u, (B or 1, H or 1, m or 1, n).
        allowed: Bool, (B or 1, H or 1, m or 1, n + a), or None where everything is.
        alpha: α, (B or 1, H or 1, m or 1, 1).
        gamma: γ, (B or 1, H or 1, 1, 1).
        cost: M.
    """

    evidence: Tensor
    templates: Tensor
    sources: Tensor
    values: Tensor
    log_weights: Tensor
    allowed: Tensor | None
    alpha: Tensor
    gamma: Tensor
    cost: AbstractCost

    def narrowed(self, dim: int, span: slice) -> TransportArguments:
        """The arguments of part of the batch (dimension 0) or of the heads (1)."""
        parts: dict[str, Any] = {
            name: None if value is None else narrowed(value, dim, span)
            for name, value in vars(self).items()
            if name != "cost"
        }
        return TransportArguments(**parts, cost=self.cost.narrowed(dim, span))


def checked_transport(
    given: AttentionArguments,
    atoms: Tensor | None,
    atom_values: Tensor | None,
    atom_mask: Tensor | None,
    gamma: float | Tensor,
    cost: str | Tensor,
    scale: float | Tensor,
    dtype: torch.dtype,
    *,
    warn: bool = True,
) -> TransportArguments:
    """The arguments of transport attention, if they fit together.

    Args:
        given: What the door of attention let pass, with scale 1.
        atoms: As all that follow, what it is in :func:`~fenchel.functional.transport_attention`.
        atom_values: (B or 1, H or 1, a, d_v).
        atom_mask: Broadcastable to (B, H, m, a).
        gamma: Broadcastable to (B, H, 1).
        cost: A name or a matrix.
        scale: A number or one tensor element.
        dtype: Of the computation.
        warn: Whether to look for a cost under which moving is cheaper than staying.

    Raises:
        ProblemError: Naming the argument, what it was and what it should be.
    """
    check_some_keys(given.query, given.key, given.value)
    lead = given.query.shape[:2]
    sources, values = given.key.to(dtype), given.value.to(dtype)
    templates = sources
    if atoms is not None or atom_values is not None:
        atoms, atom_values = _checked_atoms(given, atoms, atom_values)
        check_finite(atoms=atoms, atom_values=atom_values)
        further, further_values = (
            under_autocast(x).to(dtype).expand(*lead, -1, -1) for x in (atoms, atom_values)
        )
        templates = torch.cat([sources, further], -2)
        values = torch.cat([values, further_values], -2)
    elif atom_mask is not None:
        raise ProblemError(
            "atom_mask is given without atoms; give atoms and atom_values too, or leave it out"
        )
    n, extra = sources.shape[-2], templates.shape[-2] - sources.shape[-2]
    scale = checked_scale(scale, templates)
    scale = scale.to(templates.dtype) if isinstance(scale, Tensor) else scale
    templates = templates if isinstance(scale, float) and scale == 1.0 else templates * scale
    log_weights, open_keys = _weights(given, dtype)
    evidence = given.query.to(dtype)
    alpha = given.alpha if isinstance(given.alpha, Tensor) else evidence.new_full((1, 1, 1, 1), given.alpha)
    arguments = TransportArguments(
        evidence=evidence,
        templates=templates,
        sources=templates[..., :n, :],
        values=values,
        log_weights=log_weights,
        allowed=_allowed(given, open_keys, atom_mask, extra),
        alpha=alpha.to(dtype),
        gamma=_checked_gamma(gamma, given).to(dtype),
        cost=_checked_cost(cost, (*lead, n + extra), given.query.device),
    )
    if warn:
        _look_at(arguments, cost if isinstance(cost, str) else "a given matrix")
    return arguments


def _checked_atoms(
    given: AttentionArguments, atoms: Tensor | None, atom_values: Tensor | None
) -> tuple[Tensor, Tensor]:
    if atoms is None or atom_values is None:
        missing, present = ("atoms", "atom_values") if atoms is None else ("atom_values", "atoms")
        raise ProblemError(f"{present} are given without {missing}; every atom needs a template and a value")
    lead = given.query.shape[:2]
    for name, tensor, like in (("atoms", atoms, given.key), ("atom_values", atom_values, given.value)):
        width = like.shape[-1]
        check_tensor(name, tensor, "(batch or 1, heads or 1, atoms, dim)", dims=4)
        fits = broadcasts_to(tensor.shape[:2], lead)
        if not fits or tensor.shape[-1] != width:
            of = "key" if name == "atoms" else "value"
            raise ProblemError(
                f"{name} have shape {tuple(tensor.shape)}; expected (batch or 1, heads or 1, atoms, {width}) with "
                f"batch {lead[0]}, heads {lead[1]} and the width of {of}"
            )
        check_device(name, tensor, like.device)
        check_dtype(name, tensor, like.dtype)
    if atoms.shape[-2] != atom_values.shape[-2]:
        raise ProblemError(
            f"there are {atoms.shape[-2]} atoms and {atom_values.shape[-2]} atom_values; expected as many"
        )
    return atoms, atom_values


def _checked_gamma(gamma: float | Tensor, given: AttentionArguments) -> Tensor:
    lead = (*given.query.shape[:2], 1)
    if not isinstance(gamma, Tensor):
        number = checked_argument("gamma", gamma)
        return torch.full((1, 1, 1, 1), number, dtype=torch.float64, device=given.query.device)
    return positive_column("gamma", gamma, "(batch, heads, 1)", lead, given.query)


def _checked_cost(cost: str | Tensor, shape: tuple[int, ...], device: torch.device) -> AbstractCost:
    if not isinstance(cost, Tensor):
        return cost_named(cost)
    # Before its values are looked at, which takes memory for all of them.
    check_tensor("cost", cost, "(..., keys and atoms, keys and atoms), or the name of a cost")
    wanted, given = (*shape, shape[-1]), tuple(cost.shape)
    if not broadcasts_to(given[:-2], wanted[:-2]) or given[-2:] != wanted[-2:]:
        raise ProblemError(
            f"cost has shape {given}; expected one that broadcasts to (batch, heads, keys and atoms, keys and "
            f"atoms) = {wanted}"
        )
    check_device("cost", cost, device)
    return GivenCost(cost.reshape((1,) * (4 - cost.dim()) + given))


def _weights(given: AttentionArguments, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Normalised log u, and which keys may be used."""
    preference, n = given.log_preference, given.key.shape[-2]
    if preference is None:
        return given.query.new_full((1, 1, 1, n), -math.log(n), dtype=dtype), None
    opened = preference if preference.dtype == torch.bool else preference.detach() > -torch.inf
    return log_weights(preference, dtype).log_softmax(-1), None if values_are_known(opened) and bool(
        opened.all()
    ) else opened


def _allowed(
    given: AttentionArguments, keys: Tensor | None, atom_mask: Tensor | None, extra: int
) -> Tensor | None:
    n, shape = given.key.shape[-2], (*given.query.shape[:3], extra)
    if atom_mask is not None:
        form = "that broadcasts to (batch, heads, queries, atoms)"
        check_tensor("atom_mask", atom_mask, form, dtypes=BOOL)
        check_device("atom_mask", atom_mask, given.query.device)
        if not broadcasts_to(atom_mask.shape, shape):
            raise ProblemError(f"atom_mask has shape {tuple(atom_mask.shape)}; expected one {form} = {shape}")
        atom_mask = atom_mask.reshape((1,) * (4 - atom_mask.dim()) + tuple(atom_mask.shape)).expand(
            -1, -1, -1, extra
        )
    if keys is None and atom_mask is None:
        return None
    device = given.query.device
    keys = torch.ones(1, 1, 1, n, dtype=torch.bool, device=device) if keys is None else keys
    if extra == 0:
        return keys
    atoms = torch.ones(1, 1, 1, extra, dtype=torch.bool, device=device) if atom_mask is None else atom_mask
    rows = torch.broadcast_shapes(keys.shape[:-1], atoms.shape[:-1])
    return torch.cat([keys.expand(*rows, -1), atoms.expand(*rows, -1)], -1)


def _look_at(given: TransportArguments, name: str) -> None:
    """Warn of a cost under which staying is dearer than moving, at the first call that could show it."""
    if name in _looked_at or name in ("squared_euclidean", "cosine") or not values_are_known(given.sources):
        return
    _looked_at.add(name)
    with torch.no_grad(), without_autocast(given.sources):
        sources = given.sources[:1, :, :LOOKED_AT]
        if isinstance(given.cost, GivenCost):
            matrix = given.cost.given[..., : given.sources.shape[-2]].to(sources.dtype)
        else:
            matrix = given.cost.matrix(given.templates[:1, :, :LOOKED_AT], sources)
        warn_if_moving_is_cheaper(matrix, name)
