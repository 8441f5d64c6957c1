"""What a saved swap has to be: each part by itself, and every part with the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from fenchel.io.schema import (
    Field,
    Mismatch,
    Name,
    OpenRecord,
    Place,
    Positive,
    Record,
    Seed,
    Shown,
    TensorSchema,
    Whole,
    check_tensors,
)

__all__ = ["SavedSwap", "check_measured", "check_place"]

_EMBEDDING = "embedding"
_EXAMPLES = "examples"
_PLACES = {
    True: frozenset({"sentence"}),
    False: frozenset({"document", "window", "tokens", "documents", "unit"}),
}


class _SavedManifest(OpenRecord):
    model: Name
    model_class: Name
    task: Literal["masked", "causal", "seq2seq", "embedding", "examples"]
    estimators: Annotated[list[Name], Field(min_length=1)]
    alphas: Annotated[list[Positive], Field(min_length=1)]
    bootstrap: Place
    batch_size: Place
    tol: Positive | None
    seed: Seed
    per_layer: bool
    per_head: bool
    layers: list[Place] | None
    heads: list[Place] | None
    documents: Whole = 0
    tokens: Whole = 0
    sentences: Whole = 0
    truncated: Whole = 0
    scored_pairs: Whole = 0
    ranked_pairs: Whole = 0
    max_length: Place | None = None
    stride: Place | None = None
    max_tokens: Place | None = None
    mask_probability: Annotated[float, Field(gt=0, le=1)] = 1.0
    stacks: dict[str, Whole] = Field(default_factory=dict)
    unit: Name = ""
    trained_with: Name = ""
    measures: dict[str, Name] = Field(default_factory=dict)


class SavedSwap(Record):
    """What is saved of a swap besides tensors."""

    manifest: _SavedManifest
    place: dict[str, Whole]
    documents: Whole
    tokens: Whole
    finished: bool


def check_place(place: Mapping[str, int], task: str) -> None:
    """See that a place is one of the task, or the beginning.

    Raises:
        Mismatch: If it is not.
    """
    if place and set(place) != _PLACES[task == _EMBEDDING]:
        raise Mismatch("place", dict(place), f"{', '.join(sorted(_PLACES[task == _EMBEDDING]))}, or nothing")


def check_measured(tensors: Mapping[str, Tensor], saved: Mapping[str, Any]) -> None:
    """See that the tensors are what the steps up to the place can have measured.

    Args:
        tensors: What was measured, the units in order; none before the first step.
        saved: What ``SavedSwap`` let pass.

    Raises:
        Mismatch: If they are not.
    """
    manifest, place = saved["manifest"], saved["place"]
    if not tensors:
        if place or saved["finished"]:
            raise Mismatch("the list of tensors", Shown("empty"), "what was measured before the place")
        return
    embedding = manifest["task"] == _EMBEDDING
    check_tensors(
        tensors,
        _tensors_of_embeddings()
        if embedding
        else _tensors_of_examples(manifest.get("measures", {}))
        if manifest["task"] == _EXAMPLES
        else _tensors_of_language(),
        {
            "stacks": len(manifest.get("stacks", {})),
            "layers": sum(manifest.get("stacks", {}).values()),
            "estimators": len(manifest["estimators"]),
            "model and controls": 1 + len(manifest["alphas"]),
        },
    )
    units = tensors["units"]
    done = place.get("sentence" if embedding else "unit", 0)
    if len(units) != done:
        raise Mismatch("tensor units", Shown(f"of length {len(units)}"), f"{done}, as many as were done")
    # Windows are done in order, sentences the shortest first.
    bound = manifest.get("sentences", 0) if embedding else done
    if int(units[-1]) >= bound or (embedding and saved["finished"] and done != bound):
        raise Mismatch("tensor units", Shown(f"up to {int(units[-1])}"), f"the numbers of {bound} units")


_DISTANCES = TensorSchema(
    (torch.float32,), ("units", "estimators", "model and controls"), least=0, finite=False
)


def _tensors_of_both() -> dict[str, TensorSchema]:
    return {
        "units": TensorSchema((torch.int64,), ("units",), least=0, rising=True),
        "tokens": TensorSchema((torch.float64,), ("units", "stacks"), least=0),
        "labels": TensorSchema((torch.float64,), ("units",), least=0),
        "hidden": TensorSchema((torch.float32,), ("units", "arms", "layers"), least=0, finite=False),
    }


def _tensors_of_language() -> dict[str, TensorSchema]:
    return {
        **_tensors_of_both(),
        "losses": TensorSchema((torch.float64,), ("units", "arms"), least=0, finite=False),
        "distances": _DISTANCES,
    }


def _tensors_of_examples(measures: Mapping[str, Any]) -> dict[str, TensorSchema]:
    own = TensorSchema((torch.float64,), ("units", "arms"), finite=False)
    columns = {"loss": "losses", "score": "scores"}
    return {
        **_tensors_of_both(),
        **{column: own for name, column in columns.items() if name in measures},
        "distances": _DISTANCES,
    }


def _tensors_of_embeddings() -> dict[str, TensorSchema]:
    return {
        **_tensors_of_both(),
        "embeddings": TensorSchema((torch.float32,), ("units", "arms", "width")),
    }
