"""A model whose attention infers otherwise for a while: all of it, or chosen layers and heads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments import checked, shown
from fenchel.closeness import AbstractCloseness
from fenchel.closeness.tsallis import closeness_of as closeness_object
from fenchel.errors import CaptureError, ModelError, ProblemError
from fenchel.estimators import Estimator
from fenchel.functional import AttentionCertificate
from fenchel.functional.arguments import check_kind
from fenchel.functional.inference import estimator_object
from fenchel.integrations.transformers.backend import (
    OWN,
    Inference,
    Setting,
    attend,
    closeness_of,
    inference_of,
)
from fenchel.integrations.transformers.registry import (
    attention_implementation,
    attention_modules,
    count_attention,
    register_backend,
)
from fenchel.nn.estimator_switch import chosen_layers
from fenchel.tensors import checked_argument, positive_tensor

_BACKEND = "fenchel_use_backend"

# The registries know no models, so each attention module carries its own setting, where no other model and no
# other thread's context can reach it.
_SETTING = "_fenchel_setting"


def _attention(module: nn.Module, *tensors: Tensor, **arguments: Any) -> tuple[Tensor, Tensor | None]:
    setting: Setting | None = getattr(module, _SETTING, None)
    if setting is None:
        raise CaptureError(
            f"{type(module).__name__} asked for the attention {_BACKEND!r} outside of use_backend. Choose another: "
            "model.set_attn_implementation('sdpa')"
        )
    setting.called = True
    return attend(module, *tensors, setting=setting, **arguments)


def setting_of(module: nn.Module) -> Setting:
    """How an attention module infers now.

    Who asks attends in the module's place: inside of ``use_backend`` this counts as attention that came through.
    """
    setting: Setting | None = getattr(module, _SETTING, None)
    if setting is None:
        own = inference_of(module)
        return Setting(own, own)
    setting.called = True
    count_attention(_BACKEND)
    return setting


def attention_names(model: nn.Module) -> tuple[str, ...]:
    """Qualified names of the attention modules of ``model``; number l of ``use_backend(layers=...)`` is the l-th.

    The order is that in which the model holds them: the encoder first, then the decoder, in each of whose layers
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


def _inference(
    estimator: str | Estimator,
    alpha: float | Tensor,
    tol: float | None,
    max_steps: int,
    closeness: AbstractCloseness | str | None,
) -> Inference:
    if not isinstance(estimator, Estimator):
        checked("estimator", estimator)
    solver = estimator_object(estimator, tol, max_steps)
    near: AbstractCloseness | None = closeness_object(closeness)
    check_kind(near, solver.name)
    if isinstance(alpha, Tensor):
        positive_tensor("alpha", alpha, alpha.device, torch.float32, "that broadcasts to (B, H, m)")
    else:
        checked_argument("alpha", alpha)
    return Inference(solver, alpha, near)


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

    Each chosen head answers with :math:`E_{p(\lambda)}[v]`, where λ is the estimator's for templates scaling·k,
    preference log u = mask + position bias, evidence q and reliability α. Every other head, and every other layer,
    stays first order with α = 1, under the model's own closeness, which is what the model itself does.

    What each configuration of the model said before is put back at the end, after an exception too. Contexts nest: the
    inner one alone counts, for all layers, until it ends. Other models are not touched; one model can be in one
    thread's context only.

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
            if the block ends without any attention having come through, or none of a layer in ``layers``.
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
    if certificate is not None and not callable(certificate):
        raise ProblemError(
            f"certificate is {shown(certificate)}; expected a function of a name and a certificate"
        )
    how = _inference(estimator, alpha, tol, max_steps, closeness)
    chosen_heads = None if heads is None else checked("heads", heads)
    modules = attention_modules(model)
    chosen = chosen_layers(model, tuple(modules.values()), layers)
    before: dict[nn.Module, Setting | None] = {module: getattr(module, _SETTING, None) for module in modules}
    settings: dict[nn.Module, Setting] = {}
    for module, name in modules.items():
        setting = before[module]
        own = replace(OWN, closeness=closeness_of(module)) if setting is None else setting.own
        near = how if closeness is not None else replace(how, closeness=own.closeness)
        settings[module] = Setting(own, own, None, name, certificate)
        if name in chosen:
            settings[module] = Setting(near, own, chosen_heads, name, certificate)
    register_backend(_BACKEND, _attention)
    try:
        for module, setting in settings.items():
            setattr(module, _SETTING, setting)
        with attention_implementation(model, _BACKEND):
            yield
    finally:
        for module, setting in before.items():
            if setting is None:
                delattr(module, _SETTING)
            else:
                setattr(module, _SETTING, setting)
    silent = [s.site for s in settings.values() if s.site in chosen and not s.called]
    if silent and (layers is not None or len(silent) == len(settings)):
        raise ModelError(
            f"{silent[0]} of {type(model).__name__} was to infer by {estimator!r}, but did not attend inside of "
            "use_backend. Give the model every input that this layer needs, or leave it out of layers"
        )
