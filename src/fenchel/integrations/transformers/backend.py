"""Attention that infers, as an attention function of transformers, and the names it goes by.

After ``register()`` every model that dispatches its attention takes ``attn_implementation="fenchel_first_order"``,
``"fenchel_second_order"`` or ``"fenchel_exact"``; and ``"fenchel_sparsemax"`` or ``"fenchel_entmax15"``, whose weights
are exactly zero where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakSet

import torch
from torch import Tensor, nn

from fenchel.arguments import ESTIMATORS
from fenchel.closeness import AbstractCloseness, Tsallis
from fenchel.errors import CaptureError
from fenchel.functional import AttentionCertificate
from fenchel.functional.inference import estimator_object
from fenchel.integrations.transformers.arguments import refuse_unsupported
from fenchel.integrations.transformers.attention_modules import attention_modules
from fenchel.integrations.transformers.call_preference import call_preference
from fenchel.integrations.transformers.eager_check import check_against_eager
from fenchel.integrations.transformers.head_inference import OWN, AttentionProblem, Inference, infer
from fenchel.integrations.transformers.log_preference import LogPreferences
from fenchel.integrations.transformers.registry import register_backend
from fenchel.integrations.transformers.weights_wanted import weights_wanted
from fenchel.solver import Estimator

__all__ = ["CLOSENESSES", "attend", "closeness_of", "inference_of", "own_estimators", "register"]

_checked: WeakSet[nn.Module] = WeakSet()
"""Modules whose family was seen to compute softmax(scaling·⟨q, k⟩ + log u)·v."""


def register(*estimators: str | Estimator) -> None:
    """Make attention that infers available to every model of transformers, under five names.

    Thereafter ``attn_implementation`` may be ``"fenchel_first_order"``, ``"fenchel_second_order"`` or
    ``"fenchel_exact"``, in ``from_pretrained``, ``from_config`` and ``model.set_attn_implementation``; α is 1.
    ``"fenchel_sparsemax"`` and ``"fenchel_entmax15"`` are first order under ``fenchel.Tsallis(2)`` and
    ``fenchel.Tsallis(1.5)``: sparse attention, for training and for models that were trained with it. For each name
    the mask maker is registered with the function: without it models would be given no mask at all. The
    registries are process-wide and forget nothing; calling this again changes nothing but the options of estimators.

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
    _registered.update({**_INFERENCES, **own})
    for name, attention in {**_FUNCTIONS, **{name: _with(how) for name, how in own.items()}}.items():
        register_backend(name, attention)


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
    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **arguments: Any,
    ) -> tuple[Tensor, Tensor | None]:
        return attend(module, query, key, value, attention_mask, how=how, **arguments)

    return attention


CLOSENESSES: Final[Mapping[str, AbstractCloseness]] = {"sparsemax": Tsallis(2.0), "entmax15": Tsallis(1.5)}
"""Closenesses that names of attention stand for, ``fenchel_NAME``."""

_INFERENCES = {f"fenchel_{estimator}": Inference(estimator) for estimator in ESTIMATORS}
_INFERENCES |= {f"fenchel_{name}": Inference(closeness=near) for name, near in CLOSENESSES.items()}
_FUNCTIONS = {name: _with(how) for name, how in _INFERENCES.items()}
_registered = {**_INFERENCES}
"""How a name of attention infers now."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    how: Inference,
    own: Inference = OWN,
    heads: Sequence[int] | None = None,
    site: str | None = None,
    certificate: Callable[[str, AttentionCertificate], object] | None = None,
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
        how: How its heads infer.
        own: How those that are not chosen do.
        heads: Numbers of the heads that do so, from 1; the others stay as they are. None is all.
        site: Qualified name of the module, for messages and for ``certificate``; its class if not known.
        certificate: Called with ``site`` and the certificate of this call.
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
    family = type(module).__name__
    site = "an attention module" if site is None else site
    refuse_unsupported(site, family, arguments)
    if query.shape[1] % key.shape[1]:
        raise CaptureError(
            f"{site} ({family}) has {query.shape[1]} query heads, not a multiple of {key.shape[1]} key heads"
        )
    is_causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
    preference = call_preference(site, query, key, attention_mask, position_bias, is_causal)
    dropout_p = dropout if module.training else 0.0
    problem = AttentionProblem(query, key, value, preference, scaling, dropout_p)
    if not torch.compiler.is_compiling() and module not in _checked:
        _check(problem, module, site, attention_mask, position_bias, is_causal, arguments)
        _checked.add(module)
    inferred = infer(
        problem,
        how,
        heads,
        site=site,
        own=own,
        weights=weights_wanted(module, arguments),
        certificate=certificate is not None,
    )
    if certificate is not None and inferred.certificate is not None:
        certificate(site, inferred.certificate)
    return inferred.output.transpose(1, 2).contiguous(), inferred.weights


@torch.no_grad()
def _check(
    problem: AttentionProblem,
    module: nn.Module,
    site: str,
    attention_mask: Tensor | None,
    position_bias: Tensor | None,
    is_causal: bool | None,
    arguments: dict[str, Any],
) -> None:
    query, key, value = problem.query, problem.key, problem.value
    scale = query.shape[-1] ** -0.5 if problem.scale is None else float(problem.scale)
    preference = LogPreferences()(site, query, key, attention_mask, position_bias, is_causal)
    without_dropout = AttentionProblem(query, key, value, problem.log_preference, scale, 0.0)
    output = infer(without_dropout, OWN, site=site).output.transpose(1, 2)
    check_against_eager(site, module, query, key, value, output, scale, preference, position_bias, arguments)
