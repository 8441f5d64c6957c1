"""Attention by inference in models of transformers: under registered names, and inside of ``use_backend``.

After ``register()`` every model that dispatches its attention takes ``attn_implementation="fenchel_first_order"``,
``"fenchel_second_order"`` or ``"fenchel_exact"``; and ``"fenchel_sparsemax"`` or ``"fenchel_entmax15"``, whose weights
can be exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final
from weakref import WeakSet

import torch
from torch import Tensor, nn

from fenchel.arguments import ESTIMATORS, checked
from fenchel.closeness import AbstractCloseness, Tsallis
from fenchel.closeness.tsallis import closeness_of
from fenchel.errors import CaptureError, InputError, ModelError
from fenchel.estimators import Estimator
from fenchel.functional import AttentionCertificate
from fenchel.functional.arguments import check_kind, dropped
from fenchel.functional.exact import estimator_object
from fenchel.integrations.masks_and_sinks import (
    FamilyCall,
    LogPreference,
    LogPreferences,
    among_indices,
    call_preference,
    check_against_eager,
    refuse_unsupported,
    sink_logits,
    softmax_attention,
    with_sink,
    with_softcap,
)
from fenchel.integrations.registry import (
    attention_implementation,
    attention_modules,
    register_backend,
    weights_wanted,
)
from fenchel.integrations.sites import AbstractCall
from fenchel.nn.estimator_switch import attributes_set, chosen_layers
from fenchel.nn.inference import Inferred, Problem, averaged, by_heads, of_heads
from fenchel.tensors import check_type, checked_argument, positive_tensor


@dataclass(frozen=True)
class Inference:
    """The inference of heads.

    Attributes:
        estimator: As in :func:`fenchel.functional.attention`, with its options.
        alpha: α, a float or a tensor broadcastable to (B, H, m).
        closeness: D; None is softmax.
    """

    estimator: str | Estimator = "first_order"
    alpha: float | Tensor = 1.0
    closeness: AbstractCloseness | None = None

    @property
    def is_softmax(self) -> bool:
        """Whether this is the attention of models of transformers."""
        first = estimator_object(self.estimator).name == "first_order"
        return first and self.closeness is None and not isinstance(self.alpha, Tensor) and self.alpha == 1


# The attention of models of transformers: first order with α = 1, under softmax.
OWN = Inference()

# Modules whose family was seen to compute softmax(scaling·⟨q, k⟩ + log u)·v.
_checked: WeakSet[nn.Module] = WeakSet()


@dataclass
class Setting:
    """The inference of the heads of an attention module.

    Attributes:
        how: The inference of the chosen heads.
        own: The inference of the others, which is the model's own.
        heads: Numbers of the chosen heads, from 1; None is all.
        site: Qualified name of the module, for messages and for ``certificate``.
        certificate: Called with ``site`` and the certificate of each call, or None.
        handler: In a capture, called in the place of :meth:`ModelCall.infer`.
        preferences: In a capture, the log-preferences of this forward pass.
        checked: Modules that were compared with the attention of their family.
        called: Whether the module has attended.
    """

    how: Inference = OWN
    own: Inference = OWN
    heads: tuple[int, ...] | None = None
    site: str = "an attention module"
    certificate: Callable[[str, AttentionCertificate], object] | None = None
    handler: Callable[[ModelCall], Inferred] | None = None
    preferences: LogPreferences | None = None
    checked: MutableSet[nn.Module] = field(default_factory=lambda: _checked)
    called: bool = False

    @property
    def is_softmax(self) -> bool:
        """Whether all heads attend as in models of transformers."""
        return self.how.is_softmax and (self.heads is None or self.own.is_softmax)


def _alpha_of(how: Inference, head: int) -> float | Tensor:
    alpha = how.alpha
    if not isinstance(alpha, Tensor):
        return alpha
    if alpha.ndim > 1:
        alpha = alpha.select(-2, 0 if alpha.shape[-2] == 1 else head)
    return alpha.unsqueeze(-1)


@dataclass(frozen=True, eq=False)
class ModelCall(AbstractCall):
    """A call of an attention module of transformers.

    Attributes:
        setting: The inference of its heads.
        reduced: The preference without constant dimensions, in a capture.
        need_weights: Whether the model wants the weights.
        sinks: How many of the last templates are attention sinks, whose values are 0.
        omits_sinks: Whether the weights of sinks are left out of the result.
    """

    setting: Setting = field(default_factory=Setting)
    reduced: LogPreference | None = None
    need_weights: bool = False
    sinks: int = 0
    omits_sinks: bool = True

    @property
    def alphas(self) -> list[float | Tensor]:
        """α of every head, a number or a tensor that broadcasts to (B, m, 1)."""
        setting = self.setting
        return [
            _alpha_of(
                setting.how if setting.heads is None or head + 1 in setting.heads else setting.own, head
            )
            for head in range(self.problem.evidence.shape[1])
        ]

    def with_arguments(self, family: FamilyCall) -> ModelCall:
        """The call with a soft cap of the scores, and an attention sink as one more template at the end."""
        call, softcap = self, family.arguments.get("softcap")
        if softcap is not None:
            call = replace(self, preference=with_softcap(self.problem, self.preference, softcap))
        sink = sink_logits(family)
        if sink is None:
            return call
        problem, preference = with_sink(self.problem, call.preference, sink)
        return replace(call, problem=problem, preference=preference, sinks=1)

    def infer(self, *, weights: bool = False, certificate: bool = False) -> Inferred:
        """The inference of the heads, some of which may keep the model's own.

        Args:
            weights: Whether to compute the weights before dropout, too. Where gradients are recorded, the output is
                then a function of them.
            certificate: Whether to certify, too.

        Raises:
            InputError: If a head does not exist.
            ProblemError: If :func:`fenchel.functional.attention` refuses the call.
        """
        weights, values = weights or self.need_weights, self.problem.values
        if self._is_own and not (weights or certificate) and self.reduced is not None:
            return Inferred(softmax_attention(self.problem, self.reduced).transpose(1, 2))
        result = self._by_heads(weights, certificate)
        p = result.weights
        if p is None:
            return result
        if self.sinks and self.omits_sinks:
            p, values = p[..., : -self.sinks], values[..., : -self.sinks, :]
        if not torch.is_grad_enabled():
            return result._replace(weights=p)
        return result._replace(output=averaged(values, dropped(p, self.dropout)), weights=p)

    @property
    def _is_own(self) -> bool:
        """Whether the call is the model's own softmax attention, without dropout."""
        own = self.reduced is not None and self.preference is self.reduced.mask_or_bias
        return own and self.setting.is_softmax and not self.dropout

    def _by_heads(self, weights: bool, certificate: bool) -> Inferred:
        setting, count = self.setting, self.problem.evidence.shape[1]
        missing = sorted(head for head in setting.heads or () if head > count)
        if missing:
            raise InputError(f"heads {missing} do not exist in {setting.site}, which has heads 1 to {count}")

        def of_part(index: Tensor | None, switched: bool) -> Inferred:
            how = setting.how if switched else setting.own
            problem = replace(self.problem, alpha=how.alpha, closeness=how.closeness)
            problem, u = of_heads(problem, self.preference, index)
            shared = problem.templates.shape[1] != problem.evidence.shape[1]
            options = {"estimator": how.estimator, "dropout_p": self.dropout, "enable_gqa": shared}
            result = problem.infer(problem.values, log_preference=u, **options)
            # The certificate first: it may compute the output in the same pass.
            bounds = result.certificate if certificate else None
            return Inferred(result.output, result.weights if weights else None, bounds)

        return by_heads(self.problem.evidence, setting.heads, of_part)


def register(*estimators: str | Estimator) -> None:
    """Register attention by inference for every model of transformers, under five names.

    Thereafter ``attn_implementation`` may be ``"fenchel_first_order"``, ``"fenchel_second_order"`` or
    ``"fenchel_exact"``, in ``from_pretrained``, ``from_config`` and ``model.set_attn_implementation``; α is 1.
    ``"fenchel_sparsemax"`` and ``"fenchel_entmax15"`` are first order under ``fenchel.Tsallis(2)`` and
    ``fenchel.Tsallis(1.5)``: sparse attention, for training and for models that were trained with it. Each name also
    registers a mask function, without which models would pass no mask. The registries are process-wide and entries
    cannot be removed; calling this again changes only the options of the given estimators.

    Args:
        *estimators: Estimators with options, which replace those without: after ``register(fenchel.Exact(tol=1e-3))``
            the name ``"fenchel_exact"`` stands for that.

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
    for solver in [estimator_object(estimator) for estimator in estimators]:
        _registered[f"fenchel_{solver.name}"] = Setting(Inference(solver))
    for name, function in _FUNCTIONS.items():
        register_backend(name, function)


def inference_of(module: nn.Module) -> Inference:
    """The inference of an attention module, by the name in its configuration.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8}
        >>> model = BertModel(BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2))
        >>> inference_of(model.encoder.layer[0].attention.self).estimator
        'first_order'
    """
    name: Any = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return _registered[name].how if name in _registered else OWN


def own_estimators(model: nn.Module) -> dict[str, str]:
    """The estimator of every attention module of a model, by name; inside ``use_backend`` that of chosen heads."""
    return {
        name: estimator_object(setting_of(module).how.estimator).name
        for module, name in attention_modules(model).items()
    }


# Closenesses that names of attention stand for, ``fenchel_NAME``.
CLOSENESSES: Final[Mapping[str, AbstractCloseness]] = {"sparsemax": Tsallis(2.0), "entmax15": Tsallis(1.5)}

# The inference of each name of attention.
_registered = {
    **{f"fenchel_{estimator}": Setting(Inference(estimator)) for estimator in ESTIMATORS},
    **{f"fenchel_{name}": Setting(Inference(closeness=near)) for name, near in CLOSENESSES.items()},
}


def _attention_of(name: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def attention(module: nn.Module, *tensors: Tensor, **arguments: Any) -> tuple[Tensor, Tensor | None]:
        return attend(module, *tensors, setting=_registered[name], **arguments)

    return attention


_FUNCTIONS = {name: _attention_of(name) for name in _registered}


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    setting: Setting,
    scaling: float | Tensor | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    is_causal: bool | None = None,
    **arguments: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend for ``module``, in the form in which transformers calls attention functions.

    The mask and the position bias of the call become log u; the keys times ``scaling`` are the templates, the query is
    the evidence. A scale by which the module has multiplied the query itself is moved to the templates. The first call
    of every module is compared with the attention of its own family.

    Args:
        module: The attention module that calls.
        query: (B, H, m, d), after rotary embeddings.
        key: (B, H_kv, n, d), likewise; H_kv divides H.
        value: (B, H_kv, n, d_v).
        attention_mask: Bool (True = attend) or additive, broadcastable to (B, H, m, n), or None.
        setting: The inference of the heads.
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
        ProblemError: If :func:`fenchel.functional.attention` refuses the call.
    """
    is_causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
    mask = among_indices(attention_mask, arguments.pop("indices", None), key.shape[2])
    certify = setting.certificate is not None and setting.handler is None
    infers = certify or setting.handler is not None or not setting.is_softmax
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if infers and _scales_queries(module, scale):
        own: Any = module.scaling
        query, scale = query / own, own
    problem = Problem(query, key, value, 1.0, scale)
    family = FamilyCall(setting.site, module, problem, mask, position_bias, is_causal, arguments)
    refuse_unsupported(family)
    if query.shape[1] % key.shape[1]:
        raise CaptureError(
            f"{family.name} has {query.shape[1]} query heads, not a multiple of {key.shape[1]} key heads"
        )
    if infers and arguments.get("softcap") is not None:
        raise ModelError(
            f"{family.name} passes 'softcap' to its attention: capped scores are not a preference plus linear "
            "evidence, so only first order with α = 1 and softmax, without a certificate or a capture, is defined. "
            "Use that, or a configuration without the cap"
        )
    reduced = None if setting.preferences is None else setting.preferences(family)
    u = call_preference(family) if reduced is None else reduced.mask_or_bias
    need_weights, dropout = weights_wanted(module, arguments), dropout if module.training else 0.0
    plain = ModelCall(module, problem, u, dropout, setting, reduced, need_weights)
    call = plain.with_arguments(family)
    if not torch.compiler.is_compiling() and module not in setting.checked:
        _check(family, call, plain)
        setting.checked.add(module)
    result = call.infer(certificate=certify) if setting.handler is None else setting.handler(call)
    if certify and setting.certificate is not None and result.certificate is not None:
        setting.certificate(setting.site, result.certificate)
    return result.output.transpose(1, 2).contiguous(), result.weights if need_weights else None


def _scales_queries(module: nn.Module, scale: float | Tensor) -> bool:
    """Whether a module multiplies queries by 1/√d before it calls its attention with scaling 1, as in OPT and Whisper.

    Scores do not depend on which factor has the scale, but inference does: templates are the scaled keys in all models.
    """
    own, width = getattr(module, "scaling", None), getattr(module, "head_dim", None)
    return isinstance(scale, float) and isinstance(own, float) and (scale, own) == (1, (width or 1) ** -0.5)


@torch.no_grad()
def _check(family: FamilyCall, call: ModelCall, plain: ModelCall) -> None:
    """Compare the scores with those of the family's own attention, under softmax, the only one that families know."""
    reduced = LogPreferences()(family) if plain.reduced is None else plain.reduced
    if call is plain:
        output = softmax_attention(plain.problem, reduced)
    else:
        scaled = replace(call.problem, scale=float(plain.problem.scale))
        softmax = replace(
            call, problem=scaled, dropout=0.0, setting=Setting(), reduced=None, need_weights=False
        )
        output = softmax.infer().output.transpose(1, 2)
    check_against_eager(family, output, reduced)


_BACKEND = "fenchel_use_backend"

# The registries know no models, so each attention module carries its own setting, where no other model and no
# other thread's context can reach it.
_SETTING = "_fenchel_setting"


def _attention(module: nn.Module, *tensors: Tensor, **arguments: Any) -> tuple[Tensor, Tensor | None]:
    setting: Setting | None = getattr(module, _SETTING, None)
    if setting is None:
        raise CaptureError(
            f"{type(module).__name__} uses the attention {_BACKEND!r} outside use_backend and captures. Choose "
            "another: model.set_attn_implementation('sdpa')"
        )
    setting.called = True
    return attend(module, *tensors, setting=setting, **arguments)


def setting_of(module: nn.Module) -> Setting:
    """The current inference of an attention module."""
    setting: Setting | None = getattr(module, _SETTING, None)
    own = inference_of(module)
    return Setting(own, own) if setting is None else setting


@contextmanager
def attending_by(model: nn.Module, settings: Mapping[nn.Module, Setting]) -> Iterator[None]:
    """Have attention modules of ``model`` attend by their settings until the block ends. Contexts nest.

    Raises:
        ModelError: If the block ends normally and no attention came through.
    """
    register_backend(_BACKEND, _attention)
    with attributes_set(_SETTING, settings.items()), attention_implementation(model, _BACKEND):
        yield


def attention_names(model: nn.Module) -> tuple[str, ...]:
    """Qualified names of the attention modules of ``model``; number l of ``use_backend(layers=...)`` is the l-th.

    The order is that of ``named_modules``: the encoder first, then the decoder, in each of whose layers
    self-attention comes before cross-attention.

    Raises:
        ModelError: If there are none, or if some attention bypasses the attention registry.

    Example:
        >>> from transformers import T5Config, T5Model
        >>> sizes = {"vocab_size": 9, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
        >>> for name in attention_names(T5Model(T5Config(**sizes))):
        ...     print(name)
        encoder.block.0.layer.0.SelfAttention
        decoder.block.0.layer.0.SelfAttention
        decoder.block.0.layer.1.EncDecAttention
    """
    return tuple(attention_modules(model).values())


@contextmanager
def use_backend(
    model: nn.Module,
    estimator: str | Estimator = "exact",
    *,
    alpha: float | Tensor = 1.0,
    closeness: AbstractCloseness | str | None = None,
    layers: Collection[int | str] | None = None,
    heads: Collection[int] | None = None,
    tol: float | None = None,
    max_steps: int = 50,
    certificate: Callable[[str, AttentionCertificate], object] | None = None,
) -> Iterator[None]:
    r"""Have the attention of ``model`` infer by another estimator until the block ends.

    Each chosen head returns :math:`E_{p(\lambda)}[v]`, where λ is the estimator's for templates scaling·k,
    preference log u = mask + position bias, evidence q and reliability α. Every other head, and every other layer,
    stays first order with α = 1, under the model's own closeness, as in the model itself.

    Each configuration of the model is restored at the end, also after an exception. Contexts nest: only the inner one
    applies, to all layers, until it ends. Other models do not change; one model can be in one thread's context only.

    Args:
        model: A model of transformers whose family calls the attention registry; in eval or training mode.
        estimator: "first_order", "second_order" or "exact"; or an object with its options, such as
            ``fenchel.Exact(tol=1e-6)``.
        alpha: α > 0, a number or a tensor broadcastable to (B, H, m), such as (H, 1) for one a head. It may require a
            gradient.
        closeness: D of the chosen heads, such as ``fenchel.Tsallis(1.5)``; None is the model's own: softmax, unless its
            ``attn_implementation`` is of another closeness. Numbers of its own may differ by head, (H, 1), and require
            a gradient.
        layers: Which attention modules: numbers from 1 in the order of :func:`attention_names`, or qualified names.
            None is all. Layers that share one module (ALBERT) share its number.
        heads: Which heads of those layers, numbers from 1. None is all.
        tol: Tolerance of "exact"; None is the default of :func:`fenchel.functional.attention`.
        max_steps: Steps that "exact" may take.
        certificate: Called with the name of the module and its
            :class:`~fenchel.functional.AttentionCertificate` at every attention call, chosen or not.

    Raises:
        MissingExtraError: If transformers is not installed.
        ModelError: If the model has attention that bypasses the registry, or changes its scores in an unknown way; and
            if no attention was called inside the block, or none of a layer in ``layers``.
        InputError: If the estimator, a layer or a head does not exist.
        ProblemError: If α is not positive.

    Reference:
        Sections 5 and 8, eqs. (7), (9), (13), (14).

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8}
        >>> model = BertModel(BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)).eval()
        >>> tokens = torch.tensor([[1, 2, 3]])
        >>> def show(name, certificate):
        ...     print(name, tuple(certificate.gap.shape))
        >>> with use_backend(model, "exact", layers=[2], certificate=show):
        ...     _ = model(tokens)
        encoder.layer.0.attention.self (1, 2, 3)
        encoder.layer.1.attention.self (1, 2, 3)
    """
    if certificate is not None:
        check_type("certificate", certificate, Callable, "a function of a name and a certificate")
    if not isinstance(estimator, Estimator):
        checked("estimator", estimator)
    solver, asked = estimator_object(estimator, tol, max_steps), closeness_of(closeness)
    check_kind(asked, solver.name)
    if isinstance(alpha, Tensor):
        positive_tensor("alpha", alpha, alpha.device, torch.float32, "that broadcasts to (B, H, m)")
    else:
        checked_argument("alpha", alpha)
    chosen_heads = None if heads is None else checked("heads", heads)
    modules = attention_modules(model)
    chosen = chosen_layers(model, tuple(modules.values()), layers)
    settings: dict[nn.Module, Setting] = {}
    for module, name in modules.items():
        current: Setting | None = getattr(module, _SETTING, None)
        own = replace(OWN, closeness=inference_of(module).closeness) if current is None else current.own
        if name in chosen:
            how = Inference(solver, alpha, own.closeness if closeness is None else asked)
            settings[module] = Setting(how, own, chosen_heads, name, certificate)
        else:
            settings[module] = Setting(own, own, None, name, certificate)
    with attending_by(model, settings):
        yield
    silent = [s.site for s in settings.values() if s.site in chosen and not s.called]
    if silent and layers is not None:  # where all layers are silent, attending_by raises
        raise ModelError(
            f"{silent[0]} of {type(model).__name__} should use the estimator {estimator!r}, but did not attend inside "
            "use_backend. Give the model every input that this layer needs, or leave it out of layers"
        )
