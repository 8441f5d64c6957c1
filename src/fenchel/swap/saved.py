"""What a saved swap has to be: each part by itself, and every part with the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fenchel.io.schema import (
    Mismatch,
    Shown,
    TensorSchema,
    check_tensors,
    listing,
    mapping,
    number,
    optional,
    record,
    text,
    truth,
    whole,
)

__all__ = ["STATE_SCHEMA", "check_measured", "check_place"]

_NAME = text(pattern=".+", called="a text that is not empty")
_EMBEDDING = "embedding"
_EXAMPLES = "examples"
_TASKS = ("masked", "causal", "seq2seq", _EMBEDDING, _EXAMPLES)
_PLACES = {
    True: frozenset({"sentence"}),
    False: frozenset({"document", "window", "tokens", "documents", "unit"}),
}

_MANIFEST_SCHEMA = record(
    {
        "model": _NAME,
        "model_class": _NAME,
        "task": text(among=_TASKS),
        "estimators": listing(_NAME, least=1),
        "alphas": listing(number(above=0), least=1),
        "bootstrap": whole(1),
        "batch_size": whole(1),
        "tol": optional(number(above=0)),
        "seed": whole(-(2**63), 2**64 - 1),
        **dict.fromkeys(("per_layer", "per_head"), truth()),
        **dict.fromkeys(("layers", "heads"), optional(listing(whole(1)))),
    },
    {
        **dict.fromkeys(("documents", "tokens", "sentences", "truncated"), whole()),
        **dict.fromkeys(("scored_pairs", "ranked_pairs"), whole()),
        **dict.fromkeys(("max_length", "stride", "max_tokens"), optional(whole(1))),
        "mask_probability": number(above=0, most=1),
        "stacks": mapping(whole()),
        "unit": _NAME,
        "trained_with": _NAME,
        "measures": mapping(_NAME),
    },
    others=True,
)

STATE_SCHEMA = record(
    {
        "manifest": _MANIFEST_SCHEMA,
        "place": mapping(whole()),
        "documents": whole(),
        "tokens": whole(),
        "finished": truth(),
    }
)
"""What is saved of a swap besides tensors."""


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
        saved: What ``STATE_SCHEMA`` let pass.

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
