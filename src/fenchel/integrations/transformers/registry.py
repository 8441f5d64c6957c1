"""An attention function and a mask function under one name, and a model switched to that name for a while.

transformers keeps two registries. With an attention function registered alone, models hand it
``attention_mask=None``: padding and causality vanish without an error. Registering both together is therefore
the only thing this module offers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

from torch import Tensor, nn

from fenchel.arguments import shown
from fenchel.errors import ModelError
from fenchel.integrations.transformers.attention_modules import check_model
from fenchel.integrations.transformers.requirement import require_transformers

__all__ = ["attention_implementation", "count_attention", "materialised_mask", "register_backend"]

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]

# Private to transformers, but the only handle that sets one configuration and not those below it: T5 keeps a
# copied configuration per stack, and a user may have given each its own implementation.
_SETTING = "_attn_implementation_internal"


@dataclass
class _Witness:
    """Whether attention came through while somebody watched.

    Set and never read by the attention function, so that compiled models neither skip it nor compile again
    because of it, as a count would make them.
    """

    called: bool = False


_witnesses: defaultdict[str, list[_Witness]] = defaultdict(list)


def materialised_mask(batch_size: int, q_length: int, **kwargs: Any) -> Tensor:
    """A mask maker for the registry that always answers with the mask itself, True where a query attends.

    The makers that come with transformers may answer None and leave causality to a flag of their own kernel,
    which no other attention function reads. This one never does: where nothing is masked the answer is all
    True. Dimensions along which the mask is constant are expanded views (stride 0), so that cost and memory
    stay small.

    Args:
        batch_size: B.
        q_length: m.
        **kwargs: What else a mask maker is called with; see ``transformers.masking_utils.sdpa_mask``.
            ``allow_is_causal_skip`` and ``allow_is_bidirectional_skip`` are overruled.

    Returns:
        Bool, (B, 1, m, n).

    Raises:
        ModelError: If this release of transformers does not make the mask after all.
    """
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    kwargs.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    same_for_all_queries = kwargs.get("mask_function") is bidirectional_mask_function
    mask = sdpa_mask(batch_size=batch_size, q_length=1 if same_for_all_queries else q_length, **kwargs)
    if mask is None:
        raise ModelError(
            "transformers.masking_utils.sdpa_mask answered None although both of its shortcuts were "
            "switched off; this release of transformers is not supported, please report its version"
        )
    return mask.expand(-1, -1, q_length, -1)


def register_backend(name: str, attention: AttentionFunction) -> None:
    """Register ``attention``, and ``materialised_mask`` beside it, under ``name``.

    Registration is process-wide and cannot be undone (transformers has no way to); registering another
    function replaces, the same one changes nothing.

    Args:
        name: The value that ``attn_implementation`` then takes.
        attention: Called as ``attention(module, query, key, value, attention_mask, *, scaling, **kwargs)``
            with query (B, H, m, d), key and value (B, H_kv, n, d), and answers (output (B, m, H, d)
            contiguous, weights or None).

    Raises:
        MissingExtraError: If transformers is not installed.
    """
    _check_name(name)
    if not callable(attention):
        raise ModelError(f"attention is {shown(attention)}; expected an attention function of transformers")
    transformers = require_transformers()
    registered = transformers.AttentionInterface().get(name)
    same_function = getattr(registered, "__wrapped__", None) is attention
    if same_function and transformers.AttentionMaskInterface().get(name) is materialised_mask:
        return
    witnesses = _witnesses[name]

    @wraps(attention)
    def counted(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        for witness in witnesses:
            witness.called = True
        return attention(*args, **kwargs)

    transformers.AttentionInterface.register(name, counted)
    transformers.AttentionMaskInterface.register(name, materialised_mask)


def count_attention(name: str) -> None:
    """Count as attention by the backend ``name`` what another one computes in its place."""
    for witness in _witnesses[name]:
        witness.called = True


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name:
        raise ModelError(f"name is {shown(name)}; expected a name for attn_implementation to take")


def _configurations(model: nn.Module) -> list[Any]:
    """Every distinct configuration that a module of ``model`` reads its implementation from."""
    found: dict[int, Any] = {}

    def visit(configuration: Any) -> None:
        if id(configuration) in found or not hasattr(configuration, _SETTING):
            return
        found[id(configuration)] = configuration
        for key in getattr(configuration, "sub_configs", {}):
            visit(getattr(configuration, key, None))

    for module in model.modules():
        visit(getattr(module, "config", None))
    return list(found.values())


@contextmanager
def attention_implementation(model: nn.Module, name: str) -> Iterator[None]:
    """Have every stack of ``model`` compute attention by the backend ``name`` until the block ends.

    What each configuration said before (encoder and decoder may differ) is put back at the end, after an
    exception too.

    Args:
        model: A transformers model.
        name: A name given to ``register_backend``.

    Raises:
        ModelError: If the block ends normally and no attention came through.
    """
    check_model(model)
    _check_name(name)
    if name not in require_transformers().AttentionInterface().valid_keys():
        raise ModelError(f"name is {name!r}, which is not registered; expected one given to register_backend")
    configurations = _configurations(model)
    before = [getattr(configuration, _SETTING) for configuration in configurations]
    witness = _Witness()
    _witnesses[name].append(witness)
    try:
        for configuration in configurations:
            setattr(configuration, _SETTING, name)
        yield
    finally:
        _witnesses[name][:] = [other for other in _witnesses[name] if other is not witness]
        for configuration, setting in zip(configurations, before, strict=True):
            setattr(configuration, _SETTING, setting)
    if not witness.called:
        raise ModelError(
            f"{type(model).__name__} was switched to attention {name!r}, yet none of its attention came "
            "through: either it was not run, or it computes attention itself, not through the attention registry of "
            "transformers. Run it inside of the block; use a model of a family that does (BERT, T5, ViT, GPT-2, ...)"
        )
