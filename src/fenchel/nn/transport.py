"""Multi-head attention with entropic optimal transport as its closeness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fenchel import functional
from fenchel.closeness.optimal_transport import cost_named
from fenchel.errors import ProblemError
from fenchel.estimators import Estimator, EstimatorName
from fenchel.nn.arguments import check_choice, check_layer
from fenchel.nn.calls import TorchCall, combined, with_added_templates
from fenchel.nn.inference import AttendingLayer, keep_number, number_of_heads, projected, shown_number
from fenchel.nn.templates import AbstractTemplateBank
from fenchel.tensors import (
    BOOL,
    WHOLE,
    check_entries,
    check_flags,
    check_indices,
    check_tensor,
    check_type,
    checked_argument,
    column,
    values_are_known,
)

# Preferences of templates from outside the input.
EXTRA_PREFERENCES = ("zero", "shared")

_OWNER = "TransportAttention"


class TransportAttention(AttendingLayer, nn.MultiheadAttention):
    r"""Attention as inference with entropic optimal transport as the closeness of every head.

    .. math:: \min_p\; \tfrac\alpha2\lVert\tilde\mu + z - \mathbb{E}_p[t]\rVert^2 + \mathcal{W}_\gamma(p, u; M)

    u has its support on the keys of the input. p may also use further templates: ``atoms``, given with the call or
    taken from another input of the batch with ``partners``, and the templates of ``memory``. At first order

    .. math:: p(t) = \sum_i u_i\, \frac{\exp\big((\alpha\langle t, z\rangle - M(t, t_i))/\gamma\big)}{Z_i} ,

    so a template t gets part of the weight of the :math:`t_i` near it. Keys, values and atoms share projections;
    parameters have the names, shapes and initialisation of ``torch.nn.MultiheadAttention``, whose state dict can be
    loaded.

    Args:
        embed_dim: Width E of all inputs and of the output, divisible by ``num_heads``.
        num_heads: Heads H; each has head dimension E / H.
        gamma: γ > 0, the strength of the entropy; √E if None, as in the papers.
        learn_gamma: Whether every head learns its γ, as the exponential of a parameter that starts at log ``gamma``.
        cost: M, ``"dot"`` (C - ⟨a, b⟩), ``"squared_euclidean"``, ``"cosine"``, or a symmetric matrix over the keys,
            then the atoms, the partner's keys and the memory's templates.
        alpha: Reliability α > 0 of the evidence.
        learn_alpha: Whether every head learns its α, as the exponential of a parameter that starts at log ``alpha``.
        scale: Templates are scale · key.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``; or an object with its options, such as
            ``fenchel.Exact(tol=1e-6)``.
        extra_preference: Preference of atoms: ``"zero"``: they get weight only through the transport; ``"shared"``:
            they have the same preference as the input's own templates.
        memory: A bank of templates, added to the atoms; or None.
        dropout: Probability in [0, 1) with which an element of the projected output is dropped in training. Weights are
            never dropped.
        bias: Whether the projections have a bias.
        batch_first: Whether batched sequences are (N, L, E) rather than (L, N, E).
        tol: Tolerance of the exact estimator; None is 1e-5 in float32 and half types, 1e-10 in float64.
        max_steps: Maximum number of steps of the exact estimator.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ProblemError: If an argument is invalid.

    Reference:
        Section 9, eq. (22), and appendix D.

    Example:
        >>> layer = TransportAttention(16, 4, cost="squared_euclidean")
        >>> x, of_the_same_class = torch.randn(2, 3, 5, 16)
        >>> layer(x, atoms=of_the_same_class).shape
        torch.Size([3, 5, 16])
    """

    heads_infer_together = True
    log_gamma: nn.Parameter | None
    log_alpha: nn.Parameter | None
    cost_matrix: Tensor | None
    gamma: float | Tensor = number_of_heads("gamma")
    """γ: a number, or (num_heads,) with gradient if it is learned. It can be assigned."""
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
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        check_layer(_OWNER, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout, **kind)
        checked_argument("scale", scale, name=f"scale of {_OWNER}")
        check_choice(_OWNER, EXTRA_PREFERENCES, extra_preference=extra_preference)
        self._infer_by(estimator, tol, max_steps)
        cost_named(cost)
        check_flags(learn_gamma=learn_gamma, learn_alpha=learn_alpha, bias=bias, batch_first=batch_first)
        check_memory(memory, embed_dim)
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
        """The mean of the values; called as ``torch.nn.MultiheadAttention`` is, or with fewer arguments.

        Args:
            query: (N, L, E) where ``batch_first``, else (L, N, E); or (L, E) unbatched.
            key: (N, S, E), (S, N, E) or (S, E): the support of u; ``query`` if None.
            value: The same shape; ``key`` if None.
            key_padding_mask: (N, S) or (S,). bool, True = padding; or float, added to log u.
            need_weights: Whether to return a tuple with the weights, as torch's layer does; None for only the output.
            attn_mask: (L, S) or (N * num_heads, L, S). bool, True = masked; or float, added to log u. A masked key gets
                no weight at all. Neither mask applies to atoms.
            average_attn_weights: Whether returned weights are the mean over heads.
            is_causal: A hint that ``attn_mask``, which has to be given, is causal.
            atoms: Further templates, in the layout of ``key`` with N or 1 for the batch; their values are projected
                from them as well.
            atom_mask: (N or 1, A), or (A,) unbatched; bool, True = may be used. A row may be all False.
            partners: int64 (N,), the index in the batch of another input, whose keys and values are added to the atoms,
                or -1 for none; equivalent to ``atoms`` of ``key[partners]``, without projecting them a second time.
            labels: Class of each input, int64 (N,), -1 if unknown. They select the templates of the memory
                that each input may use, and in training a running bank is updated from them.

        Returns:
            The output, of the layout of ``query`` and width E. A query with all keys masked gets zeros before the
            output projection. If ``need_weights`` is not None, a tuple of the output, and None or the weights
            (N, L, S + A) of keys, then further templates; (N, num_heads, L, S + A) if not averaged; without N if
            unbatched.

        Raises:
            ProblemError: On a wrong shape, dtype or device, no keys, or ``labels`` without a memory.
        """
        key = query if key is None else key
        value = key if value is None else value
        returns_weights = False if need_weights is None else need_weights
        torch_arguments = (key_padding_mask, returns_weights, attn_mask, average_attn_weights, is_causal)
        call = TorchCall(query, key, value, *torch_arguments, self.batch_first)
        masks = call.checked_masks(self)
        queries, keys, values = (call.to_heads(x, self.num_heads) for x in projected(self, query, key, value))
        log_u, padding = masks.preference, masks.key_padding
        further = together(
            [
                *self._given(atoms, atom_mask, call),
                *_of_partners(keys, values, partners, padding),
                *self._remembered(labels, len(keys)),
            ]
        )
        if further is not None and self.extra_preference == "shared":
            log_u = further.after(log_u, keys.shape[2])
            keys, values = (
                torch.cat([inputs, extra.expand(len(inputs), -1, -1, -1)], 2)
                for inputs, extra in ((keys, further.keys), (values, further.values))
            )
            further = None
        gamma, alpha = map(column, (self.gamma, self.alpha))
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
            self.memory.update(call.to_batch_first(key), labels, padding)
        output = self.out_proj(call.from_heads(result.output))
        output = nn.functional.dropout(output, self.dropout, self.training)
        if need_weights is None:
            return output
        return output, call.returned_weights(result.weights) if need_weights else None

    def _given(self, atoms: Tensor | None, mask: Tensor | None, call: TorchCall) -> list[Atoms]:
        """The atoms of a call, after checking them and their mask."""
        if atoms is None:
            if mask is not None:
                raise ProblemError("atom_mask is given without atoms; expected both or neither")
            return []
        check_tensor("atoms", atoms, "in the layout of key")
        query = call.to_batch_first(call.query)
        atoms = call.to_batch_first(atoms) if atoms.dim() == call.query.dim() else atoms
        form, batch = "(N or 1, A, embed_dim), batch first", (1, len(query))
        check_tensor("atoms", atoms, form, sizes=(batch, None, self.embed_dim), like=query)
        if isinstance(mask, Tensor) and not call.batched:
            mask = mask.unsqueeze(0)
        if mask is not None:
            form, sizes = "(N or 1, A), True = may be used", (batch, atoms.shape[1])
            check_tensor("atom_mask", mask, form, dtypes=BOOL, sizes=sizes, device=query.device)
        return [Atoms(*self._projected_atoms(atoms), mask)]

    def _remembered(self, labels: Tensor | None, batch: int) -> list[Atoms]:
        if self.memory is None:
            if labels is not None:
                raise ProblemError(
                    "labels are given, but the layer has no memory; build it with memory=, or omit labels"
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
        """Options that the child modules do not show."""
        gamma, alpha = (shown_number(self, name, "g") for name in ("gamma", "alpha"))
        return (
            f"{self.embed_dim}, num_heads={self.num_heads}, cost={self.cost!r}, gamma={gamma}, alpha={alpha}, "
            f"estimator={self.estimator!r}, extra_preference={self.extra_preference!r}"
        )


def _of_partners(
    keys: Tensor, values: Tensor, partners: Tensor | None, padding: Tensor | None
) -> list[Atoms]:
    """Keys and values (N, H, n, d) of the partner of each input, with checked indices.

    Under ``torch.compile`` the values of ``partners`` are not checked.
    """
    if partners is None:
        return []
    batch, device = keys.shape[0], keys.device
    form = "(N,), the index in the batch of another input, or -1 for none"
    check_tensor("partners", partners, form, dtypes=WHOLE, sizes=(batch,), device=device, other="the inputs")
    if batch and values_are_known(partners):
        check_indices("partners", partners, -1, batch, f"indices 0 to {batch - 1}, or -1 for none")
        itself = torch.arange(batch, device=device)
        check_entries("partners", partners, lambda x: x != itself, "other inputs than itself, or -1 for none")
        if bool((partners < 0).all()):
            return []
    rows = partners.clamp_min(0)
    mask = (partners >= 0).unsqueeze(1).expand(-1, keys.shape[2])
    mask = mask if padding is None else mask & ~padding[rows]
    return [Atoms(keys.index_select(0, rows), values.index_select(0, rows), mask)]


def check_memory(memory: Any, embed_dim: int) -> None:
    """Raise unless a memory is a bank of templates of this width, or None."""
    expected = "a LearnedTemplateBank, a RunningTemplateBank or None"
    check_type("memory", memory, AbstractTemplateBank | None, expected)
    if memory is not None and memory.embed_dim != embed_dim:
        raise ProblemError(
            f"memory has templates of width {memory.embed_dim}; expected embed_dim = {embed_dim}"
        )


class Atoms(NamedTuple):
    """Keys and values of further templates.

    Attributes:
        keys: (N or 1, H, A, d).
        values: (N or 1, H, A, d).
        mask: Bool, (N or 1, A), True = may be used; None if all may be.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor | None

    def after(self, log_u: Tensor | None, keys: int) -> Tensor | None:
        """The preference over keys, then atoms, where atoms that may be used have weight 1.

        Args:
            log_u: Log weights of the keys, or bool, broadcastable to (N, H, m, keys); None is uniform.
            keys: Number of keys.

        Returns:
            Broadcastable to (N, H, m, keys + A); None for uniform.
        """
        extended = with_added_templates(log_u, keys, self.keys.shape[2])
        mask = None if self.mask is None else nn.functional.pad(self.mask[:, None, None], (keys, 0), value=1)
        return combined([extended, mask])


def together(parts: Sequence[Atoms]) -> Atoms | None:
    """Several sets of atoms, concatenated; None if there are none.

    Example:
        >>> one = Atoms(*torch.zeros(2, 1, 2, 3, 4), torch.ones(1, 3, dtype=torch.bool))
        >>> each = Atoms(*torch.zeros(2, 5, 2, 1, 4), torch.zeros(5, 1, dtype=torch.bool))
        >>> both = together([one, each])
        >>> both.keys.shape, both.mask.shape
        (torch.Size([5, 2, 4, 4]), torch.Size([5, 4]))
    """
    if len(parts) < 2:
        return parts[0] if parts else None
    keys, values, masks = zip(*parts, strict=True)
    masks = [
        torch.ones(1, key.shape[2], dtype=torch.bool, device=key.device) if mask is None else mask
        for key, mask in zip(keys, masks, strict=True)
    ]
    batch = max(map(len, [*keys, *masks]))

    def concatenated(tensors: Sequence[Tensor], dim: int) -> Tensor:
        return torch.cat([tensor.expand(batch, *tensor.shape[1:]) for tensor in tensors], dim)

    return Atoms(concatenated(keys, 2), concatenated(values, 2), concatenated(masks, 1))
