"""Multi-head attention as inference, called as torch's own layer is."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import check_flags
from fenchel.closeness import AbstractCloseness, Tsallis
from fenchel.errors import ProblemError
from fenchel.functional.close_arguments import check_kind, closeness_on
from fenchel.nn.attention_arguments import (
    check_alpha,
    check_closeness,
    check_places,
    check_problem,
    check_radius,
    check_widths,
)
from fenchel.nn.evidence import ScaledDot
from fenchel.nn.head_problems import HeadProblems
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.sizes import check_parameters

__all__ = ["MultiheadAttention"]


class MultiheadAttention(HeadProblems):
    r"""``torch.nn.MultiheadAttention`` with a preference, an estimator and a certificate.

    Every head infers a distribution p over its templates, the scaled keys, from a preference u and evidence z, the
    query, and answers with the mean of the values under p:

    .. math:: \min_p\; \tfrac\alpha2\lVert\mu + z - \mathbb{E}_p[t]\rVert^2 + \mathcal{K}(p, u)

    With the defaults (first order, uniform u, α = 1) that is dot-product attention: outputs, returned weights,
    gradients and state dict are those of ``torch.nn.MultiheadAttention``, from which this class derives. It takes
    the place of ``self_attn`` in torch's own transformer layers. Their fused inference path, which reads the
    weights of ``self_attn`` and passes its ``forward`` by, is never taken with it.

    Masks multiply the preference, in torch's sense: a bool mask is True where a key is *masked*, a float mask is added
    to the scores. Three things differ. A query that may attend to nothing gets zeros, before the output
    projection, and no gradient, where torch gives NaN. ``is_causal`` is a hint that changes nothing: ``attn_mask``
    is what is used. Errors are :class:`~fenchel.errors.ProblemError`.

    Args:
        embed_dim: Width E of queries and output, divisible by ``num_heads``.
        num_heads: Heads H; each has head dimension E / H.
        dropout: Probability in [0, 1) with which a weight is dropped in training.
        bias: Whether the projections have a bias.
        add_bias_kv: Whether a learned template and value are added to every sequence.
        add_zero_attn: Whether a template and value of zeros are added. What is added has preference weight 1: no mask
            and no preference reaches it.
        kdim: Width of keys; ``embed_dim`` where None.
        vdim: Width of values; ``embed_dim`` where None.
        batch_first: Whether batched sequences are (N, L, E) rather than (L, N, E).
        device: Of the parameters.
        dtype: Of the parameters.
        preference: u, an :class:`~fenchel.nn.preference.AbstractPreference`; None is uniform.
        evidence: What a query says of the templates, a module of :mod:`fenchel.nn.evidence`; None is
            :class:`~fenchel.nn.evidence.ScaledDot`.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``.
        closeness: D, such as :class:`fenchel.Tsallis`, under which keys get weights of exactly 0; None is Kullback and
            Leibler's, softmax.
        learn_order: Whether every head learns the order of its :class:`~fenchel.Tsallis`, between 1 and 2, as 1 plus
            the sigmoid of a parameter that starts at the order given.
        alpha: Reliability α > 0 of the evidence.
        learn_alpha: Whether every head learns its α, as the exponential of a parameter that starts at log ``alpha``.
        normalize_templates: Whether templates are scaled to norm ``radius``, the papers' way to keep α small enough.
            Scores are then α · radius · ⟨q, k⟩ / ‖k‖.
        radius: Norm of normalised templates.
        learn_radius: Whether every head learns its radius, as the exponential of a parameter that starts at its log.
        keep_certificate: Whether a call stores :attr:`last_certificate`; may be set at any time.
        keep_gap: Whether a call stores :attr:`last_gap`, the certificate's gap with gradient, for losses; not with
            ``estimator="exact"``, whose gap is 0. May be set at any time.
        keep_norm_penalty: Whether a call stores :attr:`last_norm_penalty`, for :func:`~fenchel.nn.norm_penalty`; may
            be set at any time.
        tol: Tolerance of the exact estimator; None is 1e-5 in float32 and half types, 1e-10 in float64.
        max_steps: Steps of the exact estimator at most.

    Raises:
        ProblemError: On an argument that cannot be used, with its value and what was expected.

    Reference:
        Section 6, eqs. (14) and (16); Vaswani et al., Attention Is All You Need (2017).

    Example:
        >>> from fenchel.nn.preference import Causal
        >>> layer = MultiheadAttention(16, 4, batch_first=True, preference=Causal(), estimator="exact")
        >>> x = torch.randn(2, 5, 16)
        >>> output, weights = layer(x, x, x)
        >>> output.shape, bool((weights.triu(1) == 0).all())
        (torch.Size([2, 5, 16]), True)
    """

    log_alpha: nn.Parameter | None
    log_radius: nn.Parameter | None
    raw_order: nn.Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        preference: AbstractPreference | None = None,
        evidence: nn.Module | None = None,
        estimator: str = "first_order",
        closeness: AbstractCloseness | None = None,
        learn_order: bool = False,
        alpha: float = 1.0,
        learn_alpha: bool = False,
        normalize_templates: bool = False,
        radius: float = 1.0,
        learn_radius: bool = False,
        keep_certificate: bool = False,
        keep_gap: bool = False,
        keep_norm_penalty: bool = False,
        tol: float | None = None,
        max_steps: int = 50,
    ) -> None:
        check_widths(embed_dim, num_heads, kdim, vdim, dropout)
        check_problem(preference, evidence, estimator, tol, max_steps)
        check_alpha(alpha)
        check_closeness(closeness, learn_order, estimator)
        check_flags(
            bias=bias,
            add_bias_kv=add_bias_kv,
            add_zero_attn=add_zero_attn,
            batch_first=batch_first,
            learn_alpha=learn_alpha,
            learn_order=learn_order,
            normalize_templates=normalize_templates,
            learn_radius=learn_radius,
            keep_certificate=keep_certificate,
            keep_gap=keep_gap,
            keep_norm_penalty=keep_norm_penalty,
        )
        check_radius(radius, learn_radius, normalize_templates)
        check_places(
            ScaledDot() if evidence is None else evidence,
            added=add_bias_kv or add_zero_attn,
            normalised=normalize_templates,
            penalised=keep_norm_penalty,
        )
        check_parameters("MultiheadAttention", device, dtype)
        shape = (embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first)
        super().__init__(*shape, device=device, dtype=dtype)
        self.preference = preference
        self.evidence = ScaledDot() if evidence is None else evidence
        self.estimator = estimator
        self.closeness = closeness
        self.normalize_templates = normalize_templates
        self.keep_certificate = keep_certificate
        self.keep_gap = keep_gap
        self.keep_norm_penalty = keep_norm_penalty
        self.tol = tol
        self.max_steps = max_steps
        self._alpha, self._radius = float(alpha), float(radius)
        for name, learned, start in (("log_alpha", learn_alpha, alpha), ("log_radius", learn_radius, radius)):
            logarithms = self.out_proj.weight.new_full((num_heads,), math.log(start))
            self.register_parameter(name, nn.Parameter(logarithms) if learned else None)

        orders = self.out_proj.weight.new_empty(num_heads) if learn_order else None
        self.register_parameter("raw_order", None if orders is None else nn.Parameter(orders))
        self._reset_order()

    def _reset_order(self) -> None:
        if self.raw_order is not None and isinstance(self.closeness, Tsallis):
            start = float(self.closeness.order) - 1
            self.raw_order.data.fill_(math.log(start / (1 - start)))

    def reset_parameters(self) -> None:
        """Draw the weights anew, and put what heads learn of their own back to where it started."""
        super().reset_parameters()
        self._reset_order()

    @property
    def effective_closeness(self) -> AbstractCloseness | None:
        """D of the heads: ``closeness``, with the orders (num_heads, 1) that they have learned."""
        closeness = self.closeness
        if closeness is not None:
            check_kind(closeness, self.estimator)  # it can be assigned
            closeness = closeness_on(closeness, self.out_proj.weight.device)
        if self.raw_order is None or not isinstance(closeness, Tsallis):
            return closeness
        orders = 1 + self.raw_order.sigmoid().unsqueeze(-1)
        return Tsallis(orders, closeness.relative, closeness.temperature)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, **options: Any) -> MultiheadAttention:
        """A layer with the weights of one of torch's, and everything else as it is there.

        Args:
            module: A ``torch.nn.MultiheadAttention``. Its parameters are copied, with their ``requires_grad``.
            **options: Keyword-only arguments of this class: ``preference``, ``estimator``, ``alpha`` and so on.

        Raises:
            ProblemError: If ``module`` is something else, or is of this class already, or an option cannot be used.

        Example:
            >>> encoder = nn.TransformerEncoderLayer(16, 4, batch_first=True)
            >>> encoder.self_attn = MultiheadAttention.from_torch(encoder.self_attn, estimator="exact")
            >>> encoder(torch.randn(2, 5, 16)).shape
            torch.Size([2, 5, 16])
        """
        if isinstance(module, cls) or not isinstance(module, nn.MultiheadAttention):
            kind = f"{type(module).__module__}.{type(module).__qualname__}"
            raise ProblemError(f"module is a {kind}; expected a torch.nn.MultiheadAttention")
        parameters = inspect.signature(cls).parameters
        known = [name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY]
        for name in options:
            if name not in known:
                raise ProblemError(f"{name} is no option of from_torch; expected some of {', '.join(known)}")
        layer = cls(
            module.embed_dim,
            module.num_heads,
            dropout=module.dropout,
            bias=module.in_proj_bias is not None,
            add_bias_kv=module.bias_k is not None,
            add_zero_attn=module.add_zero_attn,
            kdim=module.kdim,
            vdim=module.vdim,
            batch_first=module.batch_first,
            device=module.out_proj.weight.device,
            dtype=module.out_proj.weight.dtype,
            **options,
        )
        own = dict(layer.named_parameters())
        for name, parameter in module.named_parameters():
            if name not in own:
                raise ProblemError(
                    f"module has a parameter {name!r}, which torch.nn.MultiheadAttention has not"
                )
            own[name].data.copy_(parameter.data)
            own[name].requires_grad_(parameter.requires_grad)
        return layer.train(module.training)

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        # False from here on: torch's transformer layers take that for "cannot be fused", and call forward.
        self._qkv_same_embed_dim = False

    @property
    def alpha(self) -> float | Tensor:
        """α: a number, or (num_heads,) with gradient where every head learns its own. It can be assigned."""
        return self._alpha if self.log_alpha is None else self.log_alpha.exp()

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        check_alpha(alpha)
        self._alpha = float(alpha)
        if self.log_alpha is not None:
            self.log_alpha.data.fill_(math.log(alpha))

    @property
    def radius(self) -> float | Tensor:
        """Norm of normalised templates: a number, or (num_heads,) with gradient where every head learns its own."""
        return self._radius if self.log_radius is None else self.log_radius.exp()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        query_offset: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Infer, and answer with the mean of the values; as in ``torch.nn.MultiheadAttention``.

        Args:
            query: (N, L, E) where ``batch_first``, else (L, N, E); or (L, E) unbatched.
            key: (N, S, kdim), (S, N, kdim) or (S, kdim).
            value: (N, S, vdim), (S, N, vdim) or (S, vdim).
            key_padding_mask: (N, S) or (S,). bool, True = padding; or float, added to the scores.
            need_weights: Whether to return the weights, which takes memory for all of them.
            attn_mask: (L, S) or (N * num_heads, L, S). bool, True = masked; or float, added to the scores; or a
                ``CausalBias`` of ``torch.nn.attention.bias``.
            average_attn_weights: Whether returned weights are the mean over heads.
            is_causal: A hint that ``attn_mask``, which has to be given, is causal.
            query_offset: Position of the first query among the keys, for preferences and evidence that look at
                positions: S - L where keys come from a cache. Where L < S these need it (0 between two sequences that
                begin at the same place); None is 0 elsewhere.

        Returns:
            The output, of the layout of ``query`` and width E; and None, or the weights p after dropout: (N, L, S), or
            (N, num_heads, L, S) if not averaged, without N if unbatched, with a column for every added template.

        Raises:
            ProblemError: On a wrong shape, dtype or device, ``is_causal`` without ``attn_mask``, or ``query_offset``
                left out where it is needed.
        """
        return self._attended(
            query,
            key,
            value,
            key_padding_mask,
            need_weights,
            attn_mask,
            average_attn_weights,
            is_causal,
            query_offset=query_offset,
        )

    def extra_repr(self) -> str:
        """What the children do not show."""
        alpha = self._alpha if self.log_alpha is None else "learned"
        parts = [f"{self.embed_dim}, num_heads={self.num_heads}, estimator={self.estimator!r}, alpha={alpha}"]
        if self.closeness is not None:
            parts.append(f"closeness={self.closeness!r}{', order=learned' * (self.raw_order is not None)}")
        if self.normalize_templates:
            parts.append(f"radius={self._radius if self.log_radius is None else 'learned'}")
        if self.preference is None:
            parts.append("preference=None")
        return ", ".join(parts)
