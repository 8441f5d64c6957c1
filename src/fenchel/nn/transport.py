"""Multi-head attention whose weight reaches templates that are not in the input, through a transport cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fenchel import functional
from fenchel.closeness.optimal_transport import cost_named
from fenchel.errors import ProblemError
from fenchel.estimators import Estimator, EstimatorName
from fenchel.nn.arguments import (
    check_choice,
    check_indices,
    check_parameters,
    check_positive,
    check_widths,
    combined,
    keep_number,
    number_of_heads,
    shown_number,
    with_added_templates,
)
from fenchel.nn.calls import SequenceLayout, TorchCall, checked_call
from fenchel.nn.inference import AttendingLayer, projected
from fenchel.nn.templates import AbstractTemplateBank
from fenchel.tensors import (
    BOOL,
    WHOLE,
    check_dtype,
    check_entries,
    check_flags,
    check_tensor,
    check_type,
    checked_argument,
    values_are_known,
)

EXTRA_PREFERENCES = ("zero", "shared")
"""What u may give to templates that are not in the input."""

_OWNER = "TransportAttention"


class TransportAttention(AttendingLayer, nn.MultiheadAttention):
    r"""Attention as inference kept close to its preference by entropic optimal transport, in every head.

    .. math:: \min_p\; \tfrac\alpha2\lVert\tilde\mu + z - \mathbb{E}_p[t]\rVert^2 + \mathcal{W}_\gamma(p, u; M)

    u lies on the keys of the input. p may also use further templates: ``atoms`` of another input, given with the
    call or taken from the batch with ``partners``, and those of ``memory``. At first order

    .. math:: p(t) = \sum_i u_i\, \frac{\exp\big((\alpha\langle t, z\rangle - M(t, t_i))/\gamma\big)}{Z_i} ,

    so a template t gets part of the weight of the :math:`t_i` to which it is near. Keys, values and atoms go through
    the same projections; parameters have the names and the shapes of ``torch.nn.MultiheadAttention``, whose state
    dict can be loaded, and start from the same draws.

    Args:
        embed_dim: Width E of all inputs and of the output, divisible by ``num_heads``.
        num_heads: Heads H; each has head dimension E / H.
        gamma: γ > 0, the entropy of the transport; √E where None, as in the papers.
        learn_gamma: Whether every head learns its γ, as the exponential of a parameter that starts at log ``gamma``.
        cost: M, ``"dot"`` (C - ⟨a, b⟩), ``"squared_euclidean"``, ``"cosine"``, or a symmetric matrix over the keys,
            then the atoms, the partner's keys and the memory's templates.
        alpha: Reliability α > 0 of the evidence.
        learn_alpha: Whether every head learns its α, as the exponential of a parameter that starts at log ``alpha``.
        scale: Templates are scale · key.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``; or an object with its options, such as
            ``fenchel.Exact(tol=1e-6)``.
        extra_preference: What u gives to atoms: ``"zero"``, weight reaches them through the transport alone; or
            ``"shared"``, they have the same weight before looking as the input's own templates.
        memory: A bank of templates that join the atoms, or None.
        dropout: Probability in [0, 1) with which an element of the output, after its projection, is dropped in
            training. Weights are never dropped.
        bias: Whether the projections have a bias.
        batch_first: Whether batched sequences are (N, L, E) rather than (L, N, E).
        tol: Tolerance of the exact estimator; None is 1e-5 in float32 and half types, 1e-10 in float64.
        max_steps: Steps of the exact estimator at most.
        device: Of the parameters.
        dtype: Of the parameters.

    Raises:
        ProblemError: On an argument that cannot be used, with its value and what was expected.

    Reference:
        Section 9, eq. (22), and appendix D.

    Example:
        >>> layer = TransportAttention(16, 4, cost="squared_euclidean")
        >>> x, of_the_same_class = torch.randn(2, 3, 5, 16)
        >>> layer(x, atoms=of_the_same_class).shape
        torch.Size([3, 5, 16])
    """

    log_gamma: nn.Parameter | None
    log_alpha: nn.Parameter | None
    cost_matrix: Tensor | None
    gamma: float | Tensor = number_of_heads("gamma")
    """γ: a number, or (num_heads,) with gradient where every head learns its own. It can be assigned."""
    alpha: float | Tensor = number_of_heads("alpha")
    """α: likewise."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        gamma: float | None = None,
        learn_gamma: bool = False,
        cost: str | Tensor = "dot",
        alpha: float = 1.0,
        learn_alpha: bool = False,
        scale: float = 1.0,
        estimator: EstimatorName | Estimator = "first_order",
        extra_preference: str = "zero",
        memory: AbstractTemplateBank | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = True,
        tol: float | None = None,
        max_steps: int = 50,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_widths(embed_dim, num_heads, None, None, dropout, owner=_OWNER)
        check_positive(_OWNER, alpha=alpha)
        if gamma is not None:
            check_positive(_OWNER, gamma=gamma)
        checked_argument("scale", scale, name=f"scale of {_OWNER}")
        check_choice(_OWNER, EXTRA_PREFERENCES, extra_preference=extra_preference)
        self._infer_by(estimator, tol, max_steps)
        cost_named(cost)
        check_flags(learn_gamma=learn_gamma, learn_alpha=learn_alpha, bias=bias, batch_first=batch_first)
        check_parameters(_OWNER, device, dtype)
        check_memory(memory, embed_dim)
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(embed_dim, num_heads, dropout, bias, batch_first=batch_first, **kind)
        self.scale, self.extra_preference, self.memory = scale, extra_preference, memory
        self.cost = cost if isinstance(cost, str) else "given"
        self.register_buffer("cost_matrix", cost if isinstance(cost, Tensor) else None)
        keep_number(self, "gamma", math.sqrt(embed_dim) if gamma is None else gamma, learned=learn_gamma)
        keep_number(self, "alpha", alpha, learned=learn_alpha)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool | None = None,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        atoms: Tensor | None = None,
        atom_mask: Tensor | None = None,
        partners: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Infer, and answer with the mean of the values; called as ``torch.nn.MultiheadAttention`` is, or with less.

        Args:
            query: (N, L, E) where ``batch_first``, else (L, N, E); or (L, E) unbatched.
            key: (N, S, E), (S, N, E) or (S, E): the support of u; ``query`` where None.
            value: The same shape; ``key`` where None.
            key_padding_mask: (N, S) or (S,). bool, True = padding; or float, added to log u.
            need_weights: Whether to return the weights too, as torch's layer is asked; None for the output alone.
            attn_mask: (L, S) or (N * num_heads, L, S). bool, True = masked; or float, added to log u. A masked key
                may not be used at all. Neither mask concerns atoms.
            average_attn_weights: Whether returned weights are the mean over heads.
            is_causal: A hint that ``attn_mask``, which has to be given, is causal.
            atoms: Further templates, in the layout of ``key`` with N or 1 for the batch. Their values are projected
                from them too.
            atom_mask: (N or 1, A), or (A,) unbatched; bool, True = may be used. A row may have none.
            partners: int64 (N,), the index in the batch of another input, whose keys and values join the atoms, or -1
                for none. What ``atoms`` of ``key[partners]`` would do, without projecting them a second time.
            labels: Class of each input, int64 (N,), -1 where it is not known. For the memory: whose templates each
                input may use, and in training what a running bank learns from.

        Returns:
            The output, of the layout of ``query`` and width E. A query with nothing to attend to among the keys gets
            zeros before the output projection. Where ``need_weights`` is given, the output, and None or the weights
            (N, L, S + A) of keys, then further templates; (N, num_heads, L, S + A) if not averaged; without N if
            unbatched.

        Raises:
            ProblemError: On a wrong shape, dtype or device, or ``labels`` without a memory.
        """
        key = query if key is None else key
        value = key if value is None else value
        wanted = False if need_weights is None else need_weights
        call = TorchCall(
            query, key, value, key_padding_mask, wanted, attn_mask, average_attn_weights, is_causal
        )
        layout, masks = checked_call(self, call)
        queries, keys, values = (
            layout.to_heads(x, self.num_heads) for x in projected(self, query, key, value)
        )
        batch, n, log_u = queries.shape[0], keys.shape[2], masks.preference
        further = together(
            [
                *self._given(atoms, atom_mask, layout, query),
                *_lent(
                    keys,
                    values,
                    checked_partners(partners, batch=batch, device=query.device),
                    masks.key_padding,
                ),
                *self._remembered(labels, batch),
            ]
        )
        if further is not None and self.extra_preference == "shared":
            log_u = further.after(log_u, n)
            keys, values = (
                torch.cat([own, extra.expand(batch, -1, -1, -1)], 2)
                for own, extra in ((keys, further.keys), (values, further.values))
            )
            further = None
        gamma, alpha = (x.unsqueeze(-1) if isinstance(x, Tensor) else x for x in (self.gamma, self.alpha))
        alpha, solver = self._for_now(alpha)
        variant = functional.Transport(gamma, self.cost if self.cost_matrix is None else self.cost_matrix)
        if further is not None:
            mask = None if further.mask is None else further.mask[:, None, None]
            variant = replace(variant, atoms=further.keys, atom_values=further.values, atom_mask=mask)
        result = functional.infer(
            queries,
            keys,
            values,
            log_preference=log_u,
            alpha=alpha,
            scale=self.scale,
            estimator=solver,
            variant=variant,
        )
        if self.training and self.memory is not None and labels is not None:
            self.memory.update(layout.to_batch_first(key), labels, masks.key_padding)
        output = self.out_proj(layout.from_heads(result.output))
        output = nn.functional.dropout(output, self.dropout, self.training)
        if need_weights is None:
            return output
        return output, layout.weights(result.weights, average=average_attn_weights) if need_weights else None

    def _given(
        self, atoms: Tensor | None, mask: Tensor | None, layout: SequenceLayout, query: Tensor
    ) -> list[Atoms]:
        if atoms is not None:
            check_tensor("atoms", atoms, "in the layout of key")
            atoms = layout.to_batch_first(atoms) if atoms.dim() == query.dim() else atoms
        if isinstance(mask, Tensor) and not layout.batched:
            mask = mask.unsqueeze(0)
        check_atoms(atoms, mask, batch=len(layout.to_batch_first(query)), like=query)
        return [] if atoms is None else [Atoms(*self._projected_atoms(atoms), mask)]

    def _remembered(self, labels: Tensor | None, batch: int) -> list[Atoms]:
        if self.memory is None:
            if labels is not None:
                raise ProblemError(
                    "labels are given, but the layer has no memory that could use them; build it with memory=, or "
                    "leave them out"
                )
            return []
        if labels is not None:
            check_tensor("labels", labels, "(N,)", dtypes=WHOLE, sizes=(batch,))
        templates, mask = self.memory(labels)
        return [Atoms(*self._projected_atoms(templates.unsqueeze(0).to(self.in_proj_weight.dtype)), mask)]

    def _projected_atoms(self, atoms: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = self.in_proj_weight, self.in_proj_bias
        rows = slice(self.embed_dim, None)
        packed = nn.functional.linear(atoms, weight[rows], None if bias is None else bias[rows])
        keys, values = packed.unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return keys, values

    def extra_repr(self) -> str:
        """What the children do not show."""
        gamma, alpha = (shown_number(self, name, "g") for name in ("gamma", "alpha"))
        return (
            f"{self.embed_dim}, num_heads={self.num_heads}, cost={self.cost!r}, gamma={gamma}, alpha={alpha}, "
            f"estimator={self.estimator!r}, extra_preference={self.extra_preference!r}"
        )


def _lent(keys: Tensor, values: Tensor, partners: Tensor | None, padding: Tensor | None) -> list[Atoms]:
    """Keys and values of each input's partner, (N, H, n, d), gathered from the batch."""
    if partners is None:
        return []
    rows = partners.clamp_min(0)
    mask = (partners >= 0).unsqueeze(1).expand(-1, keys.shape[2])
    mask = mask if padding is None else mask & ~padding[rows]
    return [Atoms(keys.index_select(0, rows), values.index_select(0, rows), mask)]


def check_memory(memory: Any, embed_dim: int) -> None:
    """Check that a memory is a bank of templates of this width."""
    expected = "a LearnedTemplateBank, a RunningTemplateBank or None"
    check_type("memory", memory, AbstractTemplateBank | None, expected)
    if memory is not None and memory.embed_dim != embed_dim:
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
    form, sizes = "(N or 1, A, embed_dim), batch first", ((1, batch), None, like.shape[-1])
    check_tensor("atoms", atoms, form, sizes=sizes, device=like.device)
    check_dtype("atoms", atoms, like.dtype)
    if mask is not None:
        form, sizes = "(N or 1, A), True = may be used", ((1, batch), atoms.shape[1])
        check_tensor("atom_mask", mask, form, dtypes=BOOL, sizes=sizes, device=like.device)


@dataclass(frozen=True)
class Atoms:
    """Keys and values of further templates, and who may use them.

    Attributes:
        keys: (N or 1, H, A, d).
        values: (N or 1, H, A, d).
        mask: Bool, (N or 1, A), True = may be used; None where all may be.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor | None

    def usable(self) -> Tensor:
        """The mask, written out."""
        if self.mask is not None:
            return self.mask
        return torch.ones(1, self.keys.shape[2], dtype=torch.bool, device=self.keys.device)

    def after(self, log_u: Tensor | None, keys: int) -> Tensor | None:
        """One preference over keys, then atoms, in which atoms that may be used have weight 1.

        Args:
            log_u: Log weights of the keys, or bool, broadcastable to (N, H, m, keys); None is uniform.
            keys: How many.

        Returns:
            Broadcastable to (N, H, m, keys + A); None for uniform.
        """
        extended = with_added_templates(log_u, keys, self.keys.shape[2])
        mask = None if self.mask is None else nn.functional.pad(self.mask[:, None, None], (keys, 0), value=1)
        return combined([extended, mask])


def together(parts: Sequence[Atoms]) -> Atoms | None:
    """Several sets of atoms as one, in their order; None without any.

    Example:
        >>> one = Atoms(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), None)
        >>> each = Atoms(torch.zeros(5, 2, 1, 4), torch.zeros(5, 2, 1, 4), torch.zeros(5, 1, dtype=torch.bool))
        >>> both = together([one, each])
        >>> both.keys.shape, both.mask.shape
        (torch.Size([5, 2, 4, 4]), torch.Size([5, 4]))
    """
    if len(parts) < 2:
        return parts[0] if parts else None
    return Atoms(
        _joined([part.keys for part in parts], 2),
        _joined([part.values for part in parts], 2),
        _joined([part.usable() for part in parts], 1),
    )


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    batch = max(part.shape[0] for part in parts)
    return torch.cat([part.expand(batch, *part.shape[1:]) for part in parts], dim)


def checked_partners(partners: Tensor | None, *, batch: int, device: torch.device) -> Tensor | None:
    """The partners of a batch, if they fit it.

    Args:
        partners: int64 (N,), the index in the batch of another input, or -1 for none; None is -1 for all.
        batch: N.
        device: Where they have to be.

    Returns:
        The same, or None where no input has one. Under ``torch.compile`` their values are not looked at.

    Raises:
        ProblemError: On a wrong shape, dtype or device, a partner that is not in the batch or is the input itself.

    Example:
        >>> checked_partners(torch.tensor([-1, -1]), batch=2, device=torch.device("cpu")) is None
        True
    """
    if partners is None:
        return None
    form = "(N,), the index in the batch of another input, or -1 for none"
    other = "the inputs"
    check_tensor("partners", partners, form, dtypes=WHOLE, sizes=(batch,), device=device, other=other)
    if not values_are_known(partners) or batch == 0:
        return partners
    check_indices("partners", partners, batch, f"indices 0 to {batch - 1}, or -1 for none")
    own = torch.arange(batch, device=device)
    check_entries("partners", partners, lambda x: x != own, "other inputs than itself, or -1 for none")
    return None if bool((partners < 0).all()) else partners
