"""The untrained twin of a model, whose measures are a baseline for those of the model."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from fenchel.arguments import reason_of
from fenchel.auditing.inputs import seeded
from fenchel.errors import ModelError
from fenchel.io.runs import ProgressClock
from fenchel.nn.estimator_switch import carry_over
from fenchel.nn.inference import attention_layers


def twin_of_layers(model: nn.Module, seed: int) -> nn.Module:
    """A copy of a model with new random weights, in eval mode; its layers have the same estimators.

    Every module with parameters draws them by its own ``reset_parameters``.

    Args:
        model: The model.
        seed: Of the weights.

    Raises:
        ModelError: If a module with parameters has no ``reset_parameters``.

    Example:
        >>> import torch
        >>> from fenchel.nn import MultiheadAttention
        >>> model = nn.Sequential(nn.Linear(4, 16), MultiheadAttention(16, 2))
        >>> one, same, other = (twin_of_layers(model, seed) for seed in (0, 0, 1))
        >>> torch.equal(one[0].weight, same[0].weight), torch.equal(one[0].weight, other[0].weight)
        (True, False)
    """
    with seeded(seed, model):
        twin = copy.deepcopy(model)
        # Children first: a layer may initialise its children differently.
        for name, module in reversed(list(twin.named_modules())):
            _reset(name, module, type(model).__name__)
    carry_over(model, twin)
    return twin.eval()


def _reset(name: str, module: nn.Module, model: str) -> None:
    own = next((parameter for parameter, _ in module.named_parameters(recurse=False)), None)
    if own is None:
        return
    reset = getattr(module, "reset_parameters", None)
    if not callable(reset):
        raise ModelError(
            f"{name or model} ({type(module).__name__}) has a parameter {own!r} and no method reset_parameters to "
            f"initialise it, so an untrained twin of {model} cannot be built"
        )
    reset()


# Entry of the manifest where the twin was audited.
AUDITED = "audited"

# Entry of the manifest where it was not, followed by the reason if there is one.
NOT_AUDITED = "not audited"

# Entry of the manifest where it cannot be built, followed by the reason.
NOT_BUILT = "not built"

# Longest time of a twin that was not requested explicitly.
LONGEST_SECONDS = 60.0

# Number of parameters above which a twin is only built on request.
MOST_PARAMETERS = 500_000_000

_REMOTE = "transformers_modules"


def untrained_twin(model: Any, seed: int) -> nn.Module:
    """A model of the same class and configuration with freshly initialised weights, in eval mode, where the model is.

    Args:
        model: A model of transformers, or one with attention layers of ``fenchel.nn``.
        seed: Of the weights.

    Raises:
        ModelError: If it cannot be built: remote code is not run, and a module without configuration cannot be built.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
        >>> model = BertModel(BertConfig(**sizes, num_hidden_layers=1)).eval()
        >>> one, same, other = (untrained_twin(model, seed) for seed in (0, 0, 1))
        >>> weight = "encoder.layer.0.attention.self.key.weight"
        >>> torch.equal(one.get_parameter(weight), same.get_parameter(weight))
        True
        >>> torch.equal(one.get_parameter(weight), other.get_parameter(weight))
        False
    """
    made = type(model)
    if not hasattr(model, "config") and attention_layers(model):
        return twin_of_layers(model, seed)
    if made.__module__.partition(".")[0] == _REMOTE:
        raise ModelError(
            f"{made.__name__} is custom code of the model, which is not run to build an untrained twin"
        )
    if not hasattr(made, "base_model_prefix") or not hasattr(model, "config"):
        raise ModelError(
            f"{made.__name__} has no configuration of transformers to build an untrained twin from"
        )
    try:
        with seeded(seed, model):
            twin = made(copy.deepcopy(model.config))
    except Exception as error:  # whatever a class of somebody's own asks for
        raise ModelError(
            f"{made.__name__} cannot be built from its configuration alone: {reason_of(error)}"
        ) from error
    return twin.to(device=model.device, dtype=model.dtype).eval()


def too_large(model: nn.Module) -> str | None:
    """The reason why a twin is not built by default; None where it is."""
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"the model has {count:,} parameters" if count > MOST_PARAMETERS else None


class TwinCost:
    """Estimate, from the batches so far, whether a twin that was not requested takes too long.

    Args:
        now: Gives the time in seconds.

    Example:
        >>> time = iter([0.0, 2.0, 2.0, 4.0])
        >>> cost = TwinCost(now=lambda: next(time))
        >>> for fraction in (0.01, 0.02):
        ...     with cost:
        ...         pass
        ...     print(cost.too_much(fraction))
        None
        it would take about 3 minutes
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._begun = 0.0
        self._spent = 0.0
        # The first batch takes longer, and may begin anywhere in the source.
        self._clock = ProgressClock(now=lambda: self._spent, skip_first=True)

    def __enter__(self) -> None:
        self._begun = self._now()

    def __exit__(self, *_: object) -> None:
        self._spent += self._now() - self._begun

    def too_much(self, fraction: float | None) -> str | None:
        """The reason to stop auditing the twin; None where it continues.

        Args:
            fraction: Share of the source that has been read; None where its length is not known.
        """
        expected = self._spent + (self._clock.progress(0, 1, fraction).seconds_left or 0.0)
        if expected <= LONGEST_SECONDS:
            return None
        minutes = round(expected / 60)
        if fraction is None or minutes < 2:
            return "it takes longer than a minute"
        return (
            f"it would take about {minutes} minutes"
            if minutes < 120
            else f"it would take about {minutes // 60} hours"
        )


def twin_line(manifest: Mapping[str, Any]) -> str:
    """A sentence that says whether the twin was audited, and how to request it.

    Example:
        >>> twin_line({"twin": "not audited: it would take about 4 minutes"})
        'The untrained twin was not audited: it would take about 4 minutes. To include it, pass --baseline twin.'
    """
    outcome = str(manifest.get("twin") or NOT_AUDITED)
    if outcome == AUDITED:
        return (
            "An untrained twin, the same configuration with random weights "
            f"(seed {manifest.get('seed')}), was audited on the same {manifest.get('reads', 'text')} beside the model."
        )
    advice = "" if outcome.startswith(NOT_BUILT) else " To include it, pass --baseline twin."
    return f"The untrained twin was {outcome}.{advice}"
