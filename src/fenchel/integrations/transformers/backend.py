"""Attention that infers, as an attention function of transformers, and the names it goes by.

After ``register()`` every model that dispatches its attention takes ``attn_implementation="fenchel_first_order"``,
``"fenchel_second_order"`` or ``"fenchel_exact"``; and ``"fenchel_sparsemax"`` or ``"fenchel_entmax15"``, whose weights
are exactly zero where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSet
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakSet

import torch
from torch import Tensor, nn

from fenchel import functional
from fenchel.arguments import ESTIMATORS
from fenchel.closeness import AbstractCloseness, Tsallis
from fenchel.errors import CaptureError, InputError, ModelError
from fenchel.estimators import Estimator
from fenchel.functional import AttentionCertificate
from fenchel.functional.inference import estimator_object
from fenchel.integrations.transformers.masks_and_sinks import (
    SINKS,
    LogPreference,
    LogPreferences,
    among_indices,
    call_preference,
    check_against_eager,
    sink_logits,
    softmax_attention,
    with_sink,
    with_softcap,
)
from fenchel.integrations.transformers.registry import attention_modules, register_backend
from fenchel.nn.inference import Inferred, joined, preference_of_heads

HARMLESS = frozenset(
    {
        # position information that has already acted on queries and keys
        "position_ids",
        "cache_position",
        # what the mask already contains
        "sliding_window",
        "encoder_attention_mask",
        "cu_seq_lens_q",
        "cu_seq_lens_k",
        "max_length_q",
        "max_length_k",
        "seq_idx",
        # where keys and values came from
        "encoder_hidden_states",
        "past_key_values",
        "use_cache",
        # what is returned, and how
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "deterministic",
        # training only
        "num_items_in_batch",
    }
)

"""Keyword arguments that leave softmax(scaling·⟨q, k⟩ + log u) as it is."""

_REFUSED = {
    "block_indices": "sparse attention keeps only selected blocks of keys, and the mask does not say which",
    "cache": "a paged cache holds keys that are not in this call",
}

_KNOWN = HARMLESS | {"softcap", "indices", *SINKS}


def refuse_unsupported(site: str, family: str, arguments: Mapping[str, Any]) -> None:
    """Raise if ``arguments`` holds something that may change the attention scores unseen.

    Args:
        site: Qualified name of the attention module, for the message.
        family: Name of its class, for the message.
        arguments: Keyword arguments of the call, without scaling, position_bias and is_causal.

    Raises:
        ModelError: Naming site, class and argument. An argument that is None or False is absent.
    """
    for name, given in arguments.items():
        if name in _KNOWN or given is None or given is False:
            continue
        reason = _REFUSED.get(name)
        if reason is None:
            raise ModelError(
                f"{site} ({family}) passes {name!r} to its attention, an argument whose effect on the scores "
                "is not known here, so its attention cannot be taken over faithfully. Call the model without "
                "it, or report the family"
            )
        raise ModelError(
            f"{site} ({family}) passes {name!r} to its attention, which is not supported: {reason}. "
            f"Use a model without it, or a configuration that switches it off"
        )


def has_softcap(arguments: Mapping[str, Any]) -> bool:
    """Whether a call caps its scores. What that changes depends on the query: a preference at first order alone."""
    return arguments.get("softcap") is not None


def _gathered() -> Mapping[str, Any]:
    """What the running forward gathers through hooks, by name; empty where this release has no such collector."""
    try:
        from transformers.utils.output_capturing import (
            _active_collector,  # pyright: ignore[reportPrivateUsage] -- nothing public says it
        )
    except ImportError:
        return {}
    # While compiling, a context variable cannot be read, unless the forward itself is being compiled.
    if torch.compiler.is_compiling() and not getattr(_active_collector, "compiling", False):
        return {}
    return _active_collector.get() or {}


def weights_wanted(module: nn.Module, arguments: Mapping[str, Any]) -> bool:
    """Whether the attention function has to return its weights.

    Args:
        module: The attention module that called.
        arguments: The keyword arguments of the call.
    """
    if arguments.get("output_attentions"):
        return True
    if getattr(getattr(module, "config", None), "output_attentions", False):
        return True
    return any(name.endswith("attentions") for name in _gathered())


@dataclass(frozen=True)
class Inference:
    """How heads infer.

    Attributes:
        estimator: As :func:`fenchel.functional.attention` takes it, with its options.
        alpha: α, a float or a tensor broadcastable to (B, H, m).
        closeness: D; None is softmax.
    """

    estimator: str | Estimator = "first_order"
    alpha: float | Tensor = 1.0
    closeness: AbstractCloseness | None = None

    @property
    def is_softmax(self) -> bool:
        """Whether that is what models of transformers do."""
        first = estimator_object(self.estimator).name == "first_order"
        return first and self.closeness is None and not isinstance(self.alpha, Tensor) and self.alpha == 1


OWN = Inference()

"""What a model itself does: first order with α = 1, under softmax."""


@dataclass
class Setting:
    """How the heads of an attention module infer.

    Attributes:
        how: How the chosen heads do.
        own: How the others do, which is what the model itself does.
        heads: Numbers of those that are chosen, from 1; None is all.
        site: Qualified name of the module, for messages and for ``certificate``.
        certificate: Called with ``site`` and the certificate of each call, or None.
        called: Whether the module has attended.
    """

    how: Inference = OWN
    own: Inference = OWN
    heads: tuple[int, ...] | None = None
    site: str = "an attention module"
    certificate: Callable[[str, AttentionCertificate], object] | None = None
    called: bool = False

    @property
    def is_softmax(self) -> bool:
        """Whether all of them infer as models of transformers do."""
        return self.how.is_softmax and (self.heads is None or self.own.is_softmax)

    def alphas(self, heads: int) -> list[float | Tensor]:
        """α of every head, a number or a tensor that broadcasts to (B, m, 1)."""
        return [
            _alpha_of(self.how if self.heads is None or head + 1 in self.heads else self.own, head)
            for head in range(heads)
        ]


def _alpha_of(how: Inference, head: int) -> float | Tensor:
    alpha = how.alpha
    if not isinstance(alpha, Tensor):
        return alpha
    if alpha.ndim > 1:
        alpha = alpha.select(-2, 0 if alpha.shape[-2] == 1 else head)
    return alpha.unsqueeze(-1)


@dataclass(frozen=True, eq=False)
class AttentionProblem:
    """The inference problems of one call.

    Attributes:
        query: (B, H, m, d).
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v).
        log_preference: Broadcastable to (B, H, m, n), or None.
        scale: Multiplies the keys.
        dropout_p: Of the weights.
        sinks: How many of the last templates are attention sinks, whose values are 0 and whose weights models do not
            return.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    log_preference: Tensor | None
    scale: float | Tensor
    dropout_p: float
    sinks: int = 0

    @property
    def heads(self) -> int:
        """H."""
        return self.query.shape[1]

    def with_arguments(self, site: str, arguments: Mapping[str, Any]) -> AttentionProblem:
        """The same with what the call's other arguments do to its scores: a soft cap, and an attention sink.

        A sink is one more template at the end.
        """
        changed = self
        if has_softcap(arguments):
            softcap = arguments["softcap"]
            capped = with_softcap(self.query, self.key, self.log_preference, self.scale, softcap)
            changed = replace(self, log_preference=capped)
        sink = sink_logits(site, self.query, arguments)
        if sink is None:
            return changed
        key, value, preference = with_sink(self.query, self.key, self.value, changed.log_preference, sink)
        return replace(changed, key=key, value=value, log_preference=preference, sinks=1)

    def of_heads(self, index: Tensor) -> AttentionProblem:
        """The problems of some heads, with the keys and values that they share repeated."""
        shared = torch.div(index, self.heads // self.key.shape[1], rounding_mode="floor")
        return replace(
            self,
            query=self.query.index_select(1, index),
            key=self.key.index_select(1, shared),
            value=self.value.index_select(1, shared),
            log_preference=preference_of_heads(self.log_preference, index),
        )


def _infer_alike(problem: AttentionProblem, how: Inference, weights: bool, certificate: bool) -> Inferred:
    result = functional.infer(
        problem.query,
        problem.key,
        problem.value,
        log_preference=problem.log_preference,
        alpha=how.alpha,
        scale=problem.scale,
        closeness=how.closeness,
        estimator=how.estimator,
        dropout_p=problem.dropout_p,
        enable_gqa=problem.key.shape[1] != problem.heads,
    )
    # The certificate first: it may have the output of the same pass.
    bounds = result.certificate if certificate else None
    return Inferred(result.output, result.weights if weights else None, bounds)


def _alpha_of_heads(alpha: float | Tensor, index: Tensor) -> float | Tensor:
    """Rows ``index`` of the head dimension of α, which broadcasts to (B, H, m)."""
    if not isinstance(alpha, Tensor) or alpha.ndim < 2 or alpha.shape[-2] == 1:
        return alpha
    return alpha.index_select(-2, index.to(alpha.device))


def infer(
    problem: AttentionProblem, setting: Setting, *, weights: bool = False, certificate: bool = False
) -> Inferred:
    """Infer, and leave some heads as the model has them if so asked.

    Args:
        problem: The call.
        setting: How its heads infer.
        weights: Whether to work out the weights too.
        certificate: Whether to certify too.

    Returns:
        What came of it, with the weights before dropout and without those of sinks. Where gradients are recorded, the
        output is a function of these weights.

    Raises:
        InputError: If a head does not exist.
        ProblemError: Whatever :func:`fenchel.functional.attention` refuses.
    """
    result = _infer(problem, setting, weights, certificate)
    p, value = result.weights, problem.value
    if p is None:
        return result
    if problem.sinks:
        p, value = p[..., : -problem.sinks], value[..., : -problem.sinks, :]
    if not torch.is_grad_enabled():
        return result._replace(weights=p)
    kept = torch.dropout(p, problem.dropout_p, train=problem.dropout_p > 0)
    value = value.repeat_interleave(problem.heads // value.shape[1], 1)
    return result._replace(output=kept.to(value.dtype) @ value, weights=p)


def _infer(problem: AttentionProblem, setting: Setting, weights: bool, certificate: bool) -> Inferred:
    how, heads = setting.how, setting.heads
    missing = sorted(head for head in heads or () if head > problem.heads)
    if missing:
        raise InputError(
            f"heads {missing} do not exist in {setting.site}, which has heads 1 to {problem.heads}"
        )
    chosen = [head for head in range(problem.heads) if heads is None or head + 1 in heads]
    rest = [head for head in range(problem.heads) if head not in chosen]
    if not rest:
        return _infer_alike(problem, how, weights, certificate)

    device = problem.query.device
    index, others = torch.tensor(chosen, device=device), torch.tensor(rest, device=device)
    closeness = how.closeness and how.closeness.heads(index)
    chosen_how = replace(how, alpha=_alpha_of_heads(how.alpha, index), closeness=closeness)
    parts = (
        _infer_alike(problem.of_heads(index), chosen_how, weights, certificate),
        _infer_alike(problem.of_heads(others), setting.own, weights, certificate),
    )
    return joined(*parts, torch.cat((index, others)).argsort())


_checked: WeakSet[nn.Module] = WeakSet()

"""Modules whose family was seen to compute softmax(scaling·⟨q, k⟩ + log u)·v."""


def register(*estimators: str | Estimator) -> None:
    """Make attention that infers available to every model of transformers, under five names.

    Thereafter ``attn_implementation`` may be ``"fenchel_first_order"``, ``"fenchel_second_order"`` or
    ``"fenchel_exact"``, in ``from_pretrained``, ``from_config`` and ``model.set_attn_implementation``; α is 1.
    ``"fenchel_sparsemax"`` and ``"fenchel_entmax15"`` are first order under ``fenchel.Tsallis(2)`` and
    ``fenchel.Tsallis(1.5)``: sparse attention, for training and for models that were trained with it. For each name
    the mask maker is registered with the function: without it models would be given no mask at all. The
    registries are process-wide and forget nothing; calling this again changes nothing but the options of the
    estimators that are given.

    Args:
        *estimators: Estimators with options, which take the place of those without: after
            ``register(fenchel.Exact(tol=1e-3))`` the name ``"fenchel_exact"`` stands for that.

    Raises:
        ProblemError: If something is no estimator of ops.
        MissingExtraError: If transformers is not installed.
        ModelError: If it is too old.

    Example:
        >>> from transformers import AutoModel, BertConfig
        >>> register()
        >>> sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8}
        >>> config = BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
        >>> model = AutoModel.from_config(config, attn_implementation="fenchel_exact")
        >>> tuple(model(torch.tensor([[1, 2, 3]])).last_hidden_state.shape)
        (1, 3, 8)
    """
    given = [estimator_object(estimator) for estimator in estimators]
    own = {f"fenchel_{estimator.name}": Inference(estimator) for estimator in given}
    missing = {name: how for name, how in _INFERENCES.items() if name not in _registered}
    _registered.update({**missing, **own})
    for name in (*missing, *own):
        register_backend(name, _with(own[name]) if name in own else _FUNCTIONS[name])


def inference_of(module: nn.Module) -> Inference:
    """How an attention module infers, by the name that its configuration has.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8}
        >>> model = BertModel(BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2))
        >>> inference_of(model.encoder.layer[0].attention.self).estimator
        'first_order'
    """
    name: Any = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return _registered.get(name, OWN)


def closeness_of(module: nn.Module) -> AbstractCloseness | None:
    """The closeness that an attention module attends under; None is softmax."""
    return inference_of(module).closeness


def own_estimators(model: nn.Module) -> dict[str, str]:
    """The estimator of every attention module of a model, by qualified name."""
    return {
        name: estimator_object(inference_of(module).estimator).name
        for module, name in attention_modules(model).items()
    }


def _with(how: Inference) -> Callable[..., tuple[Tensor, Tensor | None]]:
    setting = Setting(how)

    def attention(module: nn.Module, *tensors: Tensor, **arguments: Any) -> tuple[Tensor, Tensor | None]:
        return attend(module, *tensors, setting=setting, **arguments)

    return attention


CLOSENESSES: Final[Mapping[str, AbstractCloseness]] = {"sparsemax": Tsallis(2.0), "entmax15": Tsallis(1.5)}

"""Closenesses that names of attention stand for, ``fenchel_NAME``."""

_INFERENCES = {f"fenchel_{estimator}": Inference(estimator) for estimator in ESTIMATORS}

_INFERENCES |= {f"fenchel_{name}": Inference(closeness=near) for name, near in CLOSENESSES.items()}

_FUNCTIONS = {name: _with(how) for name, how in _INFERENCES.items()}

_registered: dict[str, Inference] = {}

"""How a name of attention infers now."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    setting: Setting,
    preferences: LogPreferences | None = None,
    answer: Callable[[AttentionProblem, LogPreference, bool], Inferred] | None = None,
    checked: MutableSet[nn.Module] = _checked,
    scaling: float | Tensor | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    is_causal: bool | None = None,
    **arguments: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend for ``module``, in the form in which transformers calls attention functions.

    The mask and the position bias of the call become log u; the keys times ``scaling`` are the templates, the query is
    the evidence. The first call of every module is compared with the attention of its own family.

    Args:
        module: The attention module that calls.
        query: (B, H, m, d), after rotary embeddings.
        key: (B, H_kv, n, d), likewise; H_kv divides H.
        value: (B, H_kv, n, d_v).
        attention_mask: Bool (True = attend) or additive, broadcastable to (B, H, m, n), or None.
        setting: How its heads infer.
        preferences: The log-preferences of this forward pass, for ``answer``.
        answer: Answers in the place of ``setting``: takes the problem, its preference and whether weights are wanted.
        checked: The modules that were compared; this one is added.
        scaling: Multiplies the scores; None is 1/√d.
        dropout: Of the weights; acts only where the module is in training mode.
        position_bias: Additive, broadcastable to (B, H, m, n), or None; gradients flow to it.
        is_causal: Only consulted where there is no mask; None asks the module.
        **arguments: The family's other keyword arguments.

    Returns:
        The output (B, m, H, d_v), contiguous, and the weights (B, H, m, n) if the model was called with
        ``output_attentions=True``, else None. The weights are those before dropout.

    Raises:
        ModelError: If an argument, or something that no argument shows, changes the scores.
        CaptureError: If the mask does not fit, or causality is in doubt.
        ProblemError: Whatever :func:`fenchel.functional.attention` refuses.
    """
    site, family = setting.site, type(module).__name__
    refuse_unsupported(site, family, arguments)
    if query.shape[1] % key.shape[1]:
        raise CaptureError(
            f"{site} ({family}) has {query.shape[1]} query heads, not a multiple of {key.shape[1]} key heads"
        )
    if has_softcap(arguments) and (not setting.is_softmax or setting.certificate is not None):
        raise ModelError(
            f"{site} ({family}) passes 'softcap' to its attention: what a soft cap changes depends on the query, so "
            "only first order with α = 1 and softmax, without a certificate, is defined. Use that, or a configuration "
            "without the cap"
        )
    is_causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
    attention_mask = among_indices(attention_mask, arguments.pop("indices", None), key.shape[2])
    read = (site, query, key, attention_mask, position_bias, is_causal)
    preference = None if preferences is None else preferences(*read)
    u = call_preference(*read) if preference is None else preference.mask_or_bias
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    plain = AttentionProblem(query, key, value, u, scale, dropout if module.training else 0.0)
    problem = plain.with_arguments(site, arguments)
    if not torch.compiler.is_compiling() and module not in checked:
        seen = LogPreferences()(*read) if preference is None else preference
        _check(site, module, plain, problem, seen, position_bias, arguments)
        checked.add(module)
    weights = weights_wanted(module, arguments)
    if answer is not None and preference is not None:
        inferred = answer(problem, preference, weights)
    else:
        certify = setting.certificate is not None
        inferred = infer(problem, setting, weights=weights, certificate=certify)
        if setting.certificate is not None and inferred.certificate is not None:
            setting.certificate(site, inferred.certificate)
    return inferred.output.transpose(1, 2).contiguous(), inferred.weights if weights else None


@torch.no_grad()
def _check(
    site: str,
    module: nn.Module,
    plain: AttentionProblem,
    problem: AttentionProblem,
    preference: LogPreference,
    position_bias: Tensor | None,
    arguments: Mapping[str, Any],
) -> None:
    """Compare with the family's own attention. Families know softmax alone: what is compared is how scores are made."""
    scale, tensors = float(plain.scale), (plain.query, plain.key, plain.value)
    if problem is plain:
        output = softmax_attention(*tensors, scale, preference)
    else:
        output = infer(replace(problem, scale=scale, dropout_p=0.0), Setting()).output.transpose(1, 2)
    check_against_eager(site, module, *tensors, output, scale, preference, position_bias, arguments)
