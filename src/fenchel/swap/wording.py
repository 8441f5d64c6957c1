"""What a swap's numbers are called, which depends on what the model was asked to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Wording", "wording"]


@dataclass(frozen=True)
class Wording:
    """Words for the numbers of a swap.

    Attributes:
        qualities: What says whether an arm is better or worse, in words for axes, by its name in the records.
        sentences: The same in the middle of a sentence.
        tiles: The same as a heading of few words.
        output: What changes at the model's output.
        change: The same as a heading of few words.
        formula: How that change is measured.
        read: What the model read, after "the same weights".
        labels: What the source of it is called, by its name in the manifest.
        multiplied: Whether the control's α multiplies one that layers have of their own.
    """

    qualities: Mapping[str, str]
    sentences: Mapping[str, str]
    tiles: Mapping[str, str]
    output: str = "last hidden states"
    change: str = "hidden change"
    formula: str = "‖h′ − h‖ / ‖h‖ of a token at the output, on average"
    read: str = "read the same text"
    labels: Mapping[str, str] | None = None
    multiplied: bool = False


_OF_TEXT = Wording(
    qualities={
        "loss": "loss per token, nats",
        "score_correlation": "Spearman's correlation with the scores",
    },
    sentences={
        "loss": "the loss per token",
        "score_correlation": "Spearman's correlation with the scores",
    },
    tiles={"loss": "Loss per token", "score_correlation": "Correlation with scores"},
    labels={"texts": "Text", "pairs": "Pairs"},
)


def wording(manifest: Mapping[str, Any]) -> Wording:
    """The words for a swap.

    Example:
        >>> wording({"task": "masked"}).qualities["loss"]
        'loss per token, nats'
        >>> wording({"task": "examples", "unit": "images", "measures": {"score": "accuracy"}}).tiles["score"]
        'Accuracy'
    """
    if manifest.get("task") != "examples":
        return _OF_TEXT
    names = manifest.get("measures", {})
    return Wording(
        qualities=names,
        sentences={name: f"the {words}" for name, words in names.items()},
        tiles={name: words[:1].upper() + words[1:] for name, words in names.items()},
        output="outputs",
        change="output change",
        formula="‖y′ − y‖ / ‖y‖ of an output, on average",
        read=f"read the same {manifest.get('unit', 'examples')}",
        multiplied=True,
        labels={"texts": "Images" if manifest.get("reads") == "images" else "Inputs"},
    )
