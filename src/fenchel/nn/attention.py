"""Multi-head attention as inference, with the interface of torch's own layer."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments import shown
from fenchel.closeness import AbstractCloseness, Tsallis
from fenchel.closeness.tsallis import closeness_of
from fenchel.errors import NotKeptError, ProblemError
from fenchel.estimators import Estimator, EstimatorName
from fenchel.functional import Relative
from fenchel.functional.arguments import check_kind
from fenchel.functional.certificate import AttentionCertificate
from fenchel.nn.arguments import check_layer, check_positive
from fenchel.nn.calls import (
    AttentionInputs,
    KeyValueCache,
    TorchCall,
    TorchMasks,
    combined,
    nested_self_attention,
    with_added_templates,
)
from fenchel.nn.evidence import AbstractPositionalEvidence, EvidenceOutput, RelativeTemplates, ScaledDot
from fenchel.nn.inference import (
    AttendingLayer,
    Inferred,
    LayerCall,
    Problem,
    has_kernel,
    infer_fused,
    keep_number,
    number_of_heads,
    projected,
    seen,
    shown_number,
)
from fenchel.nn.preference.abstract import AbstractPreference, check_preference, log_preference_of
from fenchel.nn.templates import template_spread
from fenchel.problem import tensors_of
from fenchel.tensors import check_flags, check_tensor, check_type, column

# Results of the last call that a layer may store, and the attributes that hold them.
_KEPT = {name: f"_{name}" for name in ("last_certificate", "last_gap", "last_norm_penalty")}


class MultiheadAttention(AttendingLayer, nn.MultiheadAttention):
    r"""``torch.nn.MultiheadAttention`` with a preference, an estimator and a certificate.

    Every head infers a distribution p over its templates, the scaled keys, from a preference u and evidence z, the
    query; its output is the mean of the values under p:

    .. math:: \min_p\; \tfrac\alpha2\lVert\mu + z - \mathbb{E}_p[t]\rVert^2 + \mathcal{K}(p, u)

    With the defaults (first order, uniform u, α = 1) that is dot-product attention: outputs, returned weights,
    gradients and state dict are those of ``torch.nn.MultiheadAttention``, from which this class derives. It can replace
    ``self_attn`` in torch's own transformer layers. This disables their fused inference path, which uses the weights of
    ``self_attn`` without calling its ``forward``.

    Masks multiply the preference, in torch's sense: a bool mask is True where a key is *masked*, a float mask is added
    to the scores. Three things differ. A query with all keys masked gets zeros, before the output projection, and no
    gradient, where torch gives NaN. ``is_causal`` is a hint without effect: ``attn_mask`` is used. Errors are
    :class:`~fenchel.errors.ProblemError`.

    Args:
        embed_dim: Width E of queries and output, divisible by ``num_heads``.
        num_heads: Heads H; each has head dimension E / H.
        dropout: Probability in [0, 1) with which a weight is dropped in training.
        bias: Whether the projections have a bias.
        add_bias_kv: Whether a learned template and value are added to every sequence.
        add_zero_attn: Whether a template and value of zeros are added. Added templates have preference weight 1,
            independent of masks and preference.
        kdim: Width of keys; ``embed_dim`` if None.
        vdim: Width of values; ``embed_dim`` if None.
        batch_first: Whether batched sequences are (N, L, E) rather than (L, N, E).
        device: Device of the parameters.
        dtype: Dtype of the parameters.
        preference: u, an :class:`~fenchel.nn.preference.AbstractPreference`; None is uniform.
        evidence: Evidence and templates of query and key, a module of :mod:`fenchel.nn.evidence`; None is
            :class:`~fenchel.nn.evidence.ScaledDot`.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``; or an object with its options, such as
            ``fenchel.Exact(tol=1e-6)``.
        closeness: D, such as :class:`fenchel.Tsallis`, under which keys get weights of exactly 0, or its name, such as
            ``"entmax15"``; None is KL, softmax.
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
        max_steps: Maximum number of steps of the exact estimator.

    Raises:
        ProblemError: If an argument is invalid.

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

    alpha: float | Tensor = number_of_heads("alpha")
    """α: a number, or (num_heads,) with gradient if it is learned. It can be assigned."""
    radius: float | Tensor = number_of_heads("radius")
    """Norm of normalised templates: likewise."""
    last_certificate: AttentionCertificate
    """Bounds on the error of the last call: three tensors (N, H, L), or (H, L) unbatched, without gradient.

    For a loss use :attr:`last_gap`, which has a gradient.
    """
    last_gap: Tensor
    """The certificate's gap of the last call, (N, H, L), or (H, L) unbatched, with gradient.

    The graph of that call is kept until the next one.
    """
    last_norm_penalty: Tensor
    r"""Mean of :math:`\frac\alpha2\operatorname{tr}\operatorname{Cov}_u(t)` over the last call, with gradient.

    The graph of that call is kept until the next one.
    """

    log_alpha: nn.Parameter | None
    log_radius: nn.Parameter | None
    raw_order: nn.Parameter | None
    _last_certificate: AttentionCertificate | None = None
    _last_gap: Tensor | None = None
    _last_norm_penalty: Tensor | None = None

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
        estimator: EstimatorName | Estimator = "first_order",
        closeness: AbstractCloseness | str | None = None,
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
        owner = type(self).__name__
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "kdim": kdim, "vdim": vdim}
        check_layer(owner, dropout=dropout, **sizes, **kind)
        _check_problem(preference, evidence)
        self._infer_by(estimator, tol, max_steps)
        closeness = closeness_of(closeness)
        _check_closeness(closeness, learn_order, self.estimator)
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
        _check_radius(radius, learn_radius, normalize_templates)
        shape = (embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first)
        super().__init__(*shape, **kind)
        self.preference = preference
        self.evidence = ScaledDot() if evidence is None else evidence
        self.closeness: AbstractCloseness | str | None = closeness
        self.normalize_templates = normalize_templates
        self.keep_certificate = keep_certificate
        self.keep_gap = keep_gap
        self.keep_norm_penalty = keep_norm_penalty
        self._check_positional()
        keep_number(self, "alpha", alpha, learned=learn_alpha)
        keep_number(self, "radius", radius, learned=learn_radius)
        orders = self.out_proj.weight.new_empty(num_heads) if learn_order else None
        self.register_parameter("raw_order", None if orders is None else nn.Parameter(orders))
        self._reset_order()

    def forget_last_call(self) -> None:
        """Delete the stored results and their graphs."""
        for attribute in _KEPT.values():
            # A layer that stores nothing is unchanged by a call and can be exported.
            if getattr(self, attribute) is not None:
                setattr(self, attribute, None)

    def __getstate__(self) -> dict[str, Any]:
        # A tensor with a graph cannot be copied.
        return {name: value for name, value in super().__getstate__().items() if name not in _KEPT.values()}

    def __getattr__(self, name: str) -> Any:
        if name not in _KEPT:
            return super().__getattr__(name)
        result = getattr(self, _KEPT[name])
        if result is None:
            option, words = name.replace("last_", "keep_"), name.removeprefix("last_").replace("_", " ")
            raise NotKeptError(
                f"there is no {words} of a last call; set {option} = True on the layer, then call it"
            )
        return result

    def _reset_order(self) -> None:
        if self.raw_order is not None and isinstance(self.closeness, Tsallis):
            start = float(self.closeness.order) - 1
            self.raw_order.data.fill_(math.log(start / (1 - start)))

    def reset_parameters(self) -> None:
        """Reset all parameters to their initial values."""
        super().reset_parameters()
        self._reset_order()

    @property
    def effective_closeness(self) -> AbstractCloseness | None:
        """D of the heads: ``closeness``, with the learned orders (num_heads, 1)."""
        closeness = None if self.closeness is None else closeness_of(self.closeness)
        if closeness is None:
            return None
        device = self.out_proj.weight.device
        check_kind(closeness, self.estimator)  # it can be assigned
        closeness = closeness.with_numbers(lambda number: number.to(device))
        if self.raw_order is None or not isinstance(closeness, Tsallis):
            return closeness
        orders = 1 + self.raw_order.sigmoid().unsqueeze(-1)
        return Tsallis(orders, closeness.relative, closeness.temperature)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, **options: Any) -> MultiheadAttention:
        """A layer with the weights and options of a ``torch.nn.MultiheadAttention``.

        Args:
            module: A ``torch.nn.MultiheadAttention``. Its parameters are copied, with their ``requires_grad``.
            **options: Keyword-only arguments of this class: ``preference``, ``estimator``, ``alpha`` and so on.

        Raises:
            ProblemError: If ``module`` is of another class or of this one, or an option is invalid.

        Example:
            >>> encoder = nn.TransformerEncoderLayer(16, 4, batch_first=True)
            >>> encoder.self_attn = MultiheadAttention.from_torch(encoder.self_attn, estimator="exact")
            >>> encoder(torch.randn(2, 5, 16)).shape
            torch.Size([2, 5, 16])
        """
        of_another_kind = isinstance(module, AttendingLayer) and not isinstance(module, MultiheadAttention)
        if isinstance(module, cls) or of_another_kind or not isinstance(module, nn.MultiheadAttention):
            kind = f"{type(module).__module__}.{type(module).__qualname__}"
            raise ProblemError(f"module is a {kind}; expected a torch.nn.MultiheadAttention")
        signature = inspect.signature(cls).parameters
        known = [name for name, argument in signature.items() if argument.kind is argument.KEYWORD_ONLY]
        for name in options:
            if name not in known:
                raise ProblemError(
                    f"{name} is not an option of from_torch; expected some of {', '.join(known)}"
                )
        same = ("embed_dim", "num_heads", "dropout", "add_zero_attn", "kdim", "vdim", "batch_first")
        shape: dict[str, Any] = {name: getattr(module, name) for name in same}
        has_bias = {"bias": module.in_proj_bias is not None, "add_bias_kv": module.bias_k is not None}
        weight = module.out_proj.weight
        layer = cls(**shape, **has_bias, device=weight.device, dtype=weight.dtype, **options)
        parameters = dict(layer.named_parameters())
        for name, parameter in module.named_parameters():
            if name not in parameters:
                raise ProblemError(
                    f"module has a parameter {name!r}, which torch.nn.MultiheadAttention does not have"
                )
            parameters[name].data.copy_(parameter.data)
            parameters[name].requires_grad_(parameter.requires_grad)
        return layer.train(module.training)

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
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The mean of the values and the weights; as in ``torch.nn.MultiheadAttention``.

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
            query_offset: Position of the first query among the keys, for preferences and evidence that depend on
                positions: S - L if keys come from a cache. They require it if L < S (0 in cross-attention of sequences
                that start together); otherwise None is 0.
            cache: Keys and values of earlier calls, to which those of this call are appended. The queries are at the
                positions of the new keys. Masks and returned weights then cover all keys, cached and new.

        Returns:
            The output, of the layout of ``query`` and width E; and None, or the weights p after dropout: (N, L, S), or
            (N, num_heads, L, S) if not averaged, without N if unbatched, with a column for every added template.

        Raises:
            ProblemError: On a wrong shape, dtype or device, ``is_causal`` without ``attn_mask``, a missing
                ``query_offset``, one given together with a cache, or an incompatible cache.
        """
        torch_arguments = (key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
        call = TorchCall(query, key, value, *torch_arguments, self.batch_first, query_offset, cache)
        return self._attended(call)

    def _attended(self, call: TorchCall) -> tuple[Tensor, Tensor | None]:
        query, key, value = call.query, call.key, call.value
        query_offset, cache = call.query_offset, call.cache
        _check_cache(cache, query_offset)
        if any(isinstance(sequence, Tensor) and sequence.is_nested for sequence in (query, key, value)):
            return nested_self_attention(self, call), None
        masks = call.checked_masks(self, ". Or build the layer with preference=Causal()")
        queries, keys, values = (
            call.to_heads(sequence, self.num_heads) for sequence in projected(self, query, key, value)
        )
        key_inputs, dropped = call.to_batch_first(key), 0
        if cache is not None:
            query_offset, dropped = cache.seen, cache.dropped
            keys, values, key_inputs = cache.joined(keys, values, key_inputs, queries.shape[2])
            cache.keep_to(self)
        batch, heads, m, n = *queries.shape[:3], keys.shape[2] + dropped
        if query_offset is None and m >= n and not torch.compiler.is_compiling():
            # User-defined preferences may read the number; in a graph with dynamic sizes it is not known.
            query_offset = 0
        padding = masks.key_padding
        if dropped and padding is not None:
            padding = nn.functional.pad(padding, (dropped, 0))
        place, query_inputs = (queries.device, queries.dtype), call.to_batch_first(query)
        inputs = AttentionInputs(batch, heads, m, n, *place, query_inputs, key_inputs, padding, query_offset)
        self.forget_last_call()
        inferred = self._inferred(call, masks, (queries, keys, values), inputs)
        if inferred.certificate is not None:
            self._last_certificate = AttentionCertificate(*map(call.without_batch, inferred.certificate))
        if inferred.gap is not None:
            self._last_gap = call.without_batch(inferred.gap)
        if cache is not None:
            cache.keep(keys, values, key_inputs)
        weights = None if inferred.weights is None else call.returned_weights(inferred.weights)
        return self.out_proj(call.from_heads(inferred.output)), weights

    def _inferred(
        self,
        call: TorchCall,
        masks: TorchMasks,
        parts: tuple[Tensor, Tensor, Tensor],
        inputs: AttentionInputs,
    ) -> Inferred:
        """The inference of all heads, from their queries, keys and values (B, H, tokens, d)."""
        keys, held = parts[1], parts[1].shape[2]
        problem, tied = self._problem(*parts, inputs)
        problem = self._refined(problem, inputs, call)
        if self.preference is not None and not call.need_weights and self._can_fuse(problem, inputs, masks):
            return infer_fused(problem, self.preference, inputs)
        added = problem.values.shape[2] - held
        log_u = combined([self._log_preference(inputs, held), tied, masks.preference])
        log_u = with_added_templates(log_u, held, added)
        if self.keep_norm_penalty:
            spread = template_spread(problem.templates * problem.scale, log_u)
            self._last_norm_penalty = (problem.alpha / 2 * spread).mean()
        request = LayerCall(problem, log_u, added=added)
        if self.captured:
            request = seen(self, request, keys, inputs)
        return self.infer(
            request,
            dropout=self.dropout if self.training else 0.0,
            need_weights=call.need_weights,
            need_certificate=self.keep_certificate,
            need_gap=self.keep_gap,
        )

    def _log_preference(self, inputs: AttentionInputs, held: int) -> Tensor | None:
        """The output of the preference, at the newest keys only if a cache has dropped the others."""
        prior = None if self.preference is None else log_preference_of(self.preference, inputs)
        return prior[..., inputs.keys - held :] if prior is not None and prior.shape[-1] > held else prior

    def _refined(self, problem: Problem, inputs: AttentionInputs, call: TorchCall) -> Problem:
        """The problem as subclasses change it."""
        return problem

    def _can_fuse(self, problem: Problem, inputs: AttentionInputs, masks: TorchMasks) -> bool:
        """Whether a single kernel, given the preference as functions of indices, computes all that is needed."""
        return (
            self.estimator == "first_order"
            and problem.is_plain
            and problem.templates.shape[2] == inputs.keys
            and not self.captured
            and self.other is None
            and masks.is_key_padding
            and not (self.keep_certificate or self.keep_gap or self.keep_norm_penalty)
            and not (self.training and self.dropout > 0)
            and not (self.add_zero_attn or self.bias_k is not None)
            and has_kernel(problem, self.preference, inputs)
        )

    def _extended(self, sequence: Tensor, bias: Tensor | None) -> Tensor:
        """Keys or values (B, H, n, d) with the additions of add_bias_kv and add_zero_attn."""
        one = (sequence.shape[0], self.num_heads, 1, self.head_dim)
        added = [] if bias is None else [bias.view(1, *one[1:]).expand(one).to(sequence.dtype)]
        if self.add_zero_attn:
            added.append(sequence.new_zeros(one))
        return torch.cat([sequence, *added], 2) if added else sequence

    def _problem(
        self, queries: Tensor, keys: Tensor, values: Tensor, inputs: AttentionInputs
    ) -> tuple[Problem, Tensor | None]:
        """The problem of the heads, and the log-preference that comes with their templates."""
        alpha, radius, evidence = self.alpha, self.radius, self.evidence
        self._check_positional()
        offset = {}
        if isinstance(evidence, AbstractPositionalEvidence):
            offset["query_offset"] = inputs.first_query - (inputs.keys - keys.shape[2])
        keys, values = self._extended(keys, self.bias_k), self._extended(values, self.bias_v)
        z, templates, scale = _checked_evidence(evidence, evidence(queries, keys, **offset))
        relative = tied = None
        if isinstance(templates, RelativeTemplates):
            templates, table, index, tied = templates
            relative = Relative(table, index)
        elif self.normalize_templates:
            radius = radius.view(-1, 1, 1) if isinstance(radius, Tensor) else radius
            templates, scale = (nn.functional.normalize(templates, dim=-1) * radius).to(templates.dtype), 1.0
        closeness = self.effective_closeness
        return Problem(z, templates, values, column(alpha), scale, closeness, relative), tied

    def _check_positional(self) -> None:
        """Raise if an option cannot be combined with evidence that depends on positions."""
        if not isinstance(self.evidence, AbstractPositionalEvidence):
            return
        name = type(self.evidence).__name__
        if self.add_zero_attn or self.bias_k is not None:
            raise ProblemError(
                f"evidence is {name}, which depends on positions, and add_bias_kv or add_zero_attn is True, whose "
                "templates have no position; leave those out"
            )
        for option in ("normalize_templates", "keep_norm_penalty"):
            if self.evidence.differs_by_query and getattr(self, option):
                raise ProblemError(
                    f"{option} is True and evidence is {name}, whose templates differ by query and have no single "
                    f"norm; set {option} to False"
                )

    def extra_repr(self) -> str:
        """Options that the child modules do not show."""
        start = f"{self.embed_dim}, num_heads={self.num_heads}, estimator={self.estimator!r}"
        parts = [f"{start}, alpha={shown_number(self, 'alpha')}"]
        if self.closeness is not None:
            parts.append(f"closeness={self.closeness!r}{', order=learned' * (self.raw_order is not None)}")
        if self.normalize_templates:
            parts.append(f"radius={shown_number(self, 'radius')}")
        if self.preference is None:
            parts.append("preference=None")
        return ", ".join(parts)


def _check_problem(preference: Any, evidence: Any) -> None:
    """Raise unless preference and evidence have the right types."""
    if preference is not None:
        check_preference("preference", preference, "one of fenchel.nn.preference, such as Causal(), or None")
    expected = "a module of fenchel.nn.evidence, or None"
    check_type("evidence", evidence, nn.Module | None, expected)
    if isinstance(evidence, AbstractPreference):
        raise ProblemError(f"evidence is {shown(evidence)}; expected {expected}")


def _check_cache(cache: Any, query_offset: int | None) -> None:
    """Raise unless a cache has the right type and is given without ``query_offset``."""
    if cache is None:
        return
    check_type("cache", cache, KeyValueCache, "a fenchel.nn.KeyValueCache, or None")
    if query_offset is not None:
        raise ProblemError(
            f"query_offset is {query_offset} and a cache is given; expected only one of them, since queries follow the "
            f"{cache.seen} tokens that the cache has seen"
        )


def _check_closeness(closeness: Any, learn_order: Any, estimator: str) -> None:
    """Raise unless the closeness is valid, and its order can be learned if ``learn_order``."""
    check_kind(closeness, estimator)
    if learn_order is True and not isinstance(closeness, Tsallis):
        raise ProblemError(
            f"learn_order is True and closeness is {shown(closeness)}; expected a fenchel.Tsallis, such as "
            "closeness=fenchel.Tsallis(1.5)"
        )
    if closeness is None:
        return
    learned = [name for name, part in tensors_of(closeness) if part.requires_grad]
    if learned:
        raise ProblemError(
            f"{learned[0]} of closeness requires a gradient, but would not be a parameter of the layer; expected a "
            "number, or learn_order=True, which adds a parameter; functional.attention accepts any tensor"
        )
    if learn_order is True and not (isinstance(closeness.order, float) and 1 < closeness.order < 2):
        raise ProblemError(
            f"learn_order is True and closeness is {closeness!r}; expected an initial order strictly between 1 and 2, "
            "one number"
        )


def _check_radius(radius: float, learn_radius: bool, normalize_templates: bool) -> None:
    """Raise unless the radius can be used."""
    check_positive("MultiheadAttention", radius=radius)
    if (learn_radius or radius != 1) and not normalize_templates:
        raise ProblemError(
            f"radius is {radius} and learn_radius is {learn_radius}, but normalize_templates is False; a radius is the "
            "norm of normalised templates: set normalize_templates=True"
        )


def _checked_evidence(evidence: nn.Module, returned: Any) -> EvidenceOutput:
    """The output of a module of evidence, after checking that it is evidence, templates and their scale."""
    if not isinstance(returned, tuple) or len(returned) != 3:
        got = f"{len(returned)} values" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
        raise ProblemError(
            f"evidence {type(evidence).__name__} returned {got}; expected a tuple of three: evidence, templates and "
            "their scale"
        )
    differs = isinstance(evidence, AbstractPositionalEvidence) and evidence.differs_by_query
    if differs is not isinstance(returned[1], RelativeTemplates):
        raise ProblemError(
            f"evidence {type(evidence).__name__} returned templates of type {type(returned[1]).__name__}; expected a "
            "tensor, or RelativeTemplates from an AbstractPositionalEvidence whose differs_by_query is True"
        )
    templates = returned[1].key if isinstance(returned[1], RelativeTemplates) else returned[1]
    for name, tensor in (("evidence", returned[0]), ("templates", templates)):
        check_tensor(
            f"the {name} that {type(evidence).__name__} returned", tensor, "(N, num_heads, L, d)", dims=4
        )
    return returned
