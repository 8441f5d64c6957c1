"""Which modules of a model will call the attention registry, known before anything runs."""

from __future__ import annotations

import inspect
import re
from functools import lru_cache
from importlib.metadata import version

from torch import nn

from fenchel.arguments import shown
from fenchel.errors import ModelError

__all__ = ["attention_modules", "calls_registry", "check_model"]

_DISPATCHES = "get_interface("
_COMPUTES_ITSELF = re.compile(r"\b(softmax|scaled_dot_product_attention)\(")
_ATTENTION_NAME = re.compile(r"Atte?n", re.IGNORECASE)


@lru_cache(maxsize=4096)
def _source(module_type: type[nn.Module]) -> str:
    """Source of the class that defines ``forward`` for ``module_type``; empty where there is none to read."""
    owner = next((base for base in module_type.__mro__ if "forward" in vars(base)), None)
    if owner is None:
        return ""
    try:
        return inspect.getsource(owner)
    except (OSError, TypeError):
        return ""


def _dispatches(module: nn.Module) -> bool:
    from transformers import PreTrainedModel

    return not isinstance(module, PreTrainedModel) and _DISPATCHES in _source(type(module))


def _computes_itself(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return True
    if not _ATTENTION_NAME.search(type(module).__name__) or any(
        _dispatches(below) for below in module.modules()
    ):
        return False
    return _COMPUTES_ITSELF.search(_source(type(module))) is not None


def calls_registry(model: nn.Module) -> bool:
    """Whether any module of a model calls the attention registry; whatever else there is."""
    return any(_dispatches(module) for module in model.modules())


def check_model(model: nn.Module) -> None:
    """Refuse what is no model, such as its name or its class.

    Raises:
        ModelError: If it is none.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"model is {shown(model)}; expected a model of transformers, as AutoModel.from_pretrained gives it"
        )


def attention_modules(model: nn.Module) -> dict[nn.Module, str]:
    """The modules of ``model`` that ask the attention registry for their function, by their qualified names.

    They are recognised by what their class does, not by name or by ``layer_idx``, which many families lack or
    repeat.

    Args:
        model: A transformers model.

    Returns:
        Module to qualified name, in the order in which the model holds them. A module held twice appears
        once.

    Raises:
        ModelError: If there is none, or if the model also has attention that bypasses the registry: its heads
            would be missing from a result without notice.
    """
    check_model(model)
    found = {module: name for name, module in model.named_modules() if _dispatches(module)}
    bypassing = {
        type(module).__name__: name for name, module in model.named_modules() if _computes_itself(module)
    }
    if bypassing:
        classes = ", ".join(f"{kind} (such as {name!r})" for kind, name in bypassing.items())
        raise ModelError(
            f"{type(model).__name__} computes attention in {classes} without the attention registry of "
            "transformers, so those heads cannot be reached. Use a model of a family that sends all of its "
            "attention through the registry (BERT, T5, ViT, GPT-2, Llama, ...), give the submodule that does, or "
            f"install a later release than {version('transformers')}: T5 does from 5.15"
        )
    if not found:
        raise ModelError(
            f"{type(model).__name__} has no module that calls the attention registry of transformers, so no "
            "head can be reached. Use a model of a family that does (BERT, T5, ViT, GPT-2, Llama, ...)"
        )
    return found
