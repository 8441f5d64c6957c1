"""The attention registry of transformers: the modules that call it, registration, and the required release."""

from __future__ import annotations

import inspect
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from importlib.metadata import version
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments import shown
from fenchel.errors import ModelError, require_packages
from fenchel.nn.calls import TorchCall
from fenchel.nn.estimator_switch import attributes_set
from fenchel.nn.inference import attention_layers, projected
from fenchel.tensors import check_type, log_weights

# The first release that makes masks from numbers of queries and returns the weights of every family.
OLDEST = (5, 4)


def require_transformers() -> ModuleType:
    """The module ``transformers``, imported on first use.

    Returns:
        The imported module.

    Raises:
        MissingExtraError: If it is not installed.
        ModelError: If it is older than ``OLDEST``.
    """
    require_packages("hf", "transformers")
    import transformers
    from packaging.version import Version

    if Version(transformers.__version__).release < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ModelError(
            f"transformers {transformers.__version__} is installed; {oldest} or newer is needed, because older "
            f"releases make masks from other arguments. Run: pip install 'transformers>={oldest}'"
        )
    return transformers


# Unless set, transformers asks a service on the hub to convert pickled weights.
_CONVERSION = "DISABLE_SAFETENSORS_CONVERSION"


@contextmanager
def quiet() -> Iterator[None]:
    """Disable logs below errors, progress bars and requests to convert weights until the block ends."""
    transformers = require_transformers()
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from huggingface_hub.utils import logging as hub_logging

    logging, before = transformers.utils.logging, os.environ.get(_CONVERSION)
    with ExitStack() as stack:
        for one in (logging, hub_logging):
            stack.callback(one.set_verbosity, one.get_verbosity())
            one.set_verbosity_error()
        if logging.is_progress_bar_enabled():
            stack.callback(logging.enable_progress_bar)
            logging.disable_progress_bar()
        if not are_progress_bars_disabled():
            stack.callback(enable_progress_bars)
            disable_progress_bars()
        if before is None:
            stack.callback(os.environ.pop, _CONVERSION, None)
        else:
            stack.callback(os.environ.__setitem__, _CONVERSION, before)
        os.environ[_CONVERSION] = "1"
        yield


_DISPATCHES = "get_interface("

_COMPUTES_ITSELF = re.compile(r"\b(softmax|scaled_dot_product_attention)\(")

_ATTENTION_NAME = re.compile(r"Atte?n", re.IGNORECASE)


@lru_cache(maxsize=4096)
def _source(module_type: type[nn.Module]) -> str:
    """Source of the class that defines ``forward`` for ``module_type``; empty if unavailable."""
    owner = next((base for base in module_type.__mro__ if "forward" in vars(base)), None)
    if owner is None:
        return ""
    try:
        return inspect.getsource(owner)
    except (OSError, TypeError):
        return ""


_EAGER = re.compile(r"get_interface\([^,()]*,\s*(\w+)")


def eager_attention(module: nn.Module) -> Callable[..., Any] | None:
    """The eager attention function that a module calls by default; None if there is none."""
    named = _EAGER.search(_source(type(module)))
    name = "eager_attention_forward" if named is None else named[1]
    return inspect.unwrap(type(module).forward).__globals__.get(name)


def _dispatches(module: nn.Module) -> bool:
    from transformers import PreTrainedModel

    return not isinstance(module, PreTrainedModel) and _DISPATCHES in _source(type(module))


def _is_torchs(module: Any) -> bool:
    """Whether a module is torch's own attention, whose forward is replaced as it does not call the registry."""
    own = type(module).forward is nn.MultiheadAttention.forward
    return own and module.bias_k is None and not module.add_zero_attn


def _attends(module: nn.Module) -> bool:
    return _dispatches(module) or _is_torchs(module)


def _bypasses_registry(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return not _is_torchs(module)
    if not _ATTENTION_NAME.search(type(module).__name__) or any(
        _attends(below) for below in module.modules()
    ):
        return False
    return _COMPUTES_ITSELF.search(_source(type(module))) is not None


def calls_registry(model: nn.Module) -> bool:
    """Whether any module of a model calls the attention registry."""
    return any(_dispatches(module) for module in model.modules())


def check_model(model: nn.Module) -> None:
    """Raise unless ``model`` is a module.

    Raises:
        ModelError: If it is something else, such as a name or a class.
    """
    expected = "a model of transformers, such as from AutoModel.from_pretrained"
    check_type("model", model, nn.Module, expected, error=ModelError)


def attention_modules(model: nn.Module) -> dict[nn.Module, str]:
    """The modules of ``model`` that call the attention registry, or are torch's own, by their qualified names.

    They are recognised by the source of their class, not by name or ``layer_idx``, which many families lack or repeat.

    Args:
        model: A transformers model.

    Returns:
        Module to qualified name, in the order of ``named_modules``. A shared module appears once.

    Raises:
        ModelError: If there is none, or if the model also has attention that bypasses the registry: its heads
            would be missing from a result without notice.
    """
    check_model(model)
    result = {module: name for name, module in model.named_modules() if _attends(module)}
    bypassing = {
        type(module).__name__: name for name, module in model.named_modules() if _bypasses_registry(module)
    }
    if bypassing:
        classes = ", ".join(f"{kind} (such as {name!r})" for kind, name in bypassing.items())
        raise ModelError(
            f"{type(model).__name__} computes attention in {classes} without the attention registry of "
            "transformers, so those heads cannot be reached. Use a model of a family that sends all of its "
            "attention through the registry (BERT, T5, ViT, GPT-2, Llama, ...), give the submodule that does, or "
            f"install a later release than {version('transformers')}: T5 does from 5.15"
        )
    if not result:
        raise ModelError(
            f"{type(model).__name__} has no module that calls the attention registry of transformers, so no "
            "head can be reached. Use a model of a family that does (BERT, T5, ViT, GPT-2, Llama, ...)"
        )
    return result


def has_own_layers(model: object) -> bool:
    """Whether the estimator is set in layers of ``fenchel.nn`` and not in the attention registry of transformers."""
    if not isinstance(model, nn.Module) or not attention_layers(model):
        return False
    pretrained = any(base.__name__ == "PreTrainedModel" for base in type(model).__mro__)
    return not pretrained or not calls_registry(model)


def attending_modules(model: Any) -> dict[str, nn.Module]:
    """The attention layers of ``fenchel.nn`` by name, in the order of the model; otherwise those of transformers."""
    if has_own_layers(model):
        layers: dict[str, Any] = attention_layers(model)
        return {name or type(model).__name__: layer for name, layer in layers.items()}
    return {name: module for module, name in attention_modules(model).items()}


AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]

# Private to transformers, but the only handle that sets one configuration and not those below it: T5 keeps a
# copied configuration per stack, and a user may have given each its own implementation.
_SETTING = "_attn_implementation_internal"


@dataclass(eq=False)
class _CallFlag:
    """Whether attention was called during a context.

    The attention function only sets it and never reads it, so that compiled models neither skip it nor recompile, as
    with a count.
    """

    called: bool = False


_call_flags: defaultdict[str, list[_CallFlag]] = defaultdict(list)


def _takes_additive_masks(configuration: Any) -> bool:
    """Whether the model of a configuration is written for masks that are added to scores, as in DeepSeek-V4."""
    from transformers import MODEL_MAPPING

    model = MODEL_MAPPING.get(type(configuration), None)
    return not getattr(model, "_supports_sdpa", True)


def materialised_mask(batch_size: int, q_length: int, **kwargs: Any) -> Tensor:
    """A mask function for the registry that always returns the mask itself, True where a query attends.

    The functions of transformers may return None and leave causality to a flag of their own kernel, which no other
    attention function reads. This one never does: without masking the result is all True. Constant dimensions are
    expanded views (stride 0), so that cost and memory stay small. Models without support for SDPA may add to their
    mask; theirs is 0 where a query attends and -inf elsewhere.

    Args:
        batch_size: B.
        q_length: m.
        **kwargs: Further arguments of a mask function; see ``transformers.masking_utils.sdpa_mask``.
            ``allow_is_causal_skip`` and ``allow_is_bidirectional_skip`` are overridden.

    Returns:
        Bool, (B, 1, m, n), or floating for models without support for SDPA.

    Raises:
        ModelError: If this release of transformers returns no mask after all.
    """
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    kwargs.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    same_for_all_queries = kwargs.get("mask_function") is bidirectional_mask_function
    mask = sdpa_mask(batch_size=batch_size, q_length=1 if same_for_all_queries else q_length, **kwargs)
    if mask is None:
        raise ModelError(
            "transformers.masking_utils.sdpa_mask returned None although both of its shortcuts were switched off; "
            "this release of transformers is not supported, please report its version"
        )
    if _takes_additive_masks(kwargs.get("config")):
        mask = log_weights(mask, kwargs.get("dtype", torch.float32))
    return mask.expand(-1, -1, q_length, -1)


def register_backend(name: str, attention: AttentionFunction) -> None:
    """Register ``attention``, and ``materialised_mask`` beside it, under ``name``.

    Registration is process-wide and transformers cannot undo it; registering another function replaces, the same one
    changes nothing.

    Args:
        name: The value of ``attn_implementation``.
        attention: Called as ``attention(module, query, key, value, attention_mask, *, scaling, **kwargs)``
            with query (B, H, m, d), key and value (B, H_kv, n, d), and returns (output (B, m, H, d)
            contiguous, weights or None).

    Raises:
        MissingExtraError: If transformers is not installed.
    """
    if not isinstance(name, str) or not name:
        raise ModelError(f"name is {shown(name)}; expected a string to pass as attn_implementation")
    check_type("attention", attention, Callable, "an attention function of transformers", error=ModelError)
    transformers = require_transformers()
    registered = transformers.AttentionInterface().get(name)
    same_function = getattr(registered, "__wrapped__", None) is attention
    if same_function and transformers.AttentionMaskInterface().get(name) is materialised_mask:
        return
    flags = _call_flags[name]

    @wraps(attention)
    def counted(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        for call_flag in flags:
            call_flag.called = True
        return attention(*args, **kwargs)

    transformers.AttentionInterface.register(name, counted)
    transformers.AttentionMaskInterface.register(name, materialised_mask)


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
    from transformers.utils.output_capturing import (
        _active_collector,  # pyright: ignore[reportPrivateUsage] -- nothing public says it
    )

    # A context variable cannot be read while compiling, unless the forward itself is compiled.
    if torch.compiler.is_compiling() and not _active_collector.compiling:
        return False
    return any(name.endswith("attentions") for name in _active_collector.get() or ())


def _configurations(model: nn.Module) -> list[Any]:
    """Every distinct configuration that a module of ``model`` reads its implementation from."""
    result: dict[int, Any] = {}

    def visit(configuration: Any) -> None:
        if id(configuration) in result or not hasattr(configuration, _SETTING):
            return
        result[id(configuration)] = configuration
        for key in getattr(configuration, "sub_configs", {}):
            visit(getattr(configuration, key, None))

    for module in model.modules():
        visit(getattr(module, "config", None))
    return list(result.values())


def _torchs_attention(
    layer: nn.MultiheadAttention, name: str, *given: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """The forward of ``nn.MultiheadAttention`` with the attention function ``name``."""
    call = TorchCall(*given, **options, batch_first=layer.batch_first)
    if call.query.is_nested:
        raise ModelError(
            "an nn.MultiheadAttention got a nested tensor, which is not supported. Build the encoder with "
            "enable_nested_tensor=False"
        )
    mask = call.checked_masks(layer).preference
    if mask is not None and mask.dim() == 2:
        mask = mask[None, None]
    parts = [
        call.to_heads(part, layer.num_heads) for part in projected(layer, call.query, call.key, call.value)
    ]
    function = require_transformers().AttentionInterface()[name]
    how = {"scaling": layer.head_dim**-0.5, "dropout": layer.dropout, "is_causal": False}
    output, p = function(layer, *parts, mask, **how, output_attentions=call.need_weights)
    output = layer.out_proj(call.from_heads(output.transpose(1, 2)))
    return output, None if p is None else call.returned_weights(p)


@contextmanager
def attention_implementation(model: nn.Module, name: str) -> Iterator[None]:
    """Have every stack of ``model`` compute attention by the backend ``name`` until the block ends.

    Each configuration (encoder and decoder may differ) is restored at the end, also after an exception.

    Args:
        model: A transformers model.
        name: A name registered by ``register_backend``.

    Raises:
        ModelError: If the block ends normally and no attention came through.
    """
    check_model(model)
    if name not in require_transformers().AttentionInterface().valid_keys():
        raise ModelError(f"name is {name!r}, which is not registered; expected one given to register_backend")
    configurations = _configurations(model)
    layers: list[Any] = [module for module in model.modules() if _is_torchs(module)]
    call_flag = _CallFlag()
    with ExitStack() as stack:
        _call_flags[name].append(call_flag)
        stack.callback(_call_flags[name].remove, call_flag)
        stack.enter_context(attributes_set(_SETTING, [(each, name) for each in configurations]))
        for layer in layers:
            # With a hook, torch's transformer layers call forward instead of a fused kernel.
            stack.callback(layer.register_forward_pre_hook(lambda _layer, _given: None).remove)
        forwards = [(layer, partial(_torchs_attention, layer, name)) for layer in layers]
        stack.enter_context(attributes_set("forward", forwards))
        yield
    if not call_flag.called:
        raise ModelError(
            f"no attention of {type(model).__name__} was reached: either the model was not run in the with block, or "
            "it does not use the attention registry of transformers. Run it in the block; use a model of a family that "
            "does (BERT, T5, ViT, GPT-2, ...)"
        )
