"""Arguments of attention that would change scores are refused by name; harmless ones pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fenchel.errors import ModelError
from fenchel.integrations.transformers.arguments import HARMLESS, refuse_unsupported


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("softcap", "squashes the scores"),
        ("s_aux", "attention sinks"),
        ("sinks", "attention sinks"),
        ("indices", "selected keys"),
        ("block_indices", "selected blocks"),
        ("cache", "paged cache"),
        ("mood", "not known here"),
    ],
)
def test_what_changes_scores_is_refused_by_name(name: str, reason: str) -> None:
    with pytest.raises(ModelError, match=f"layers.3 \\(SomeAttention\\) passes '{name}'.*{reason}"):
        refuse_unsupported("layers.3", "SomeAttention", {name: torch.ones(2)})


@pytest.mark.parametrize("nothing", [None, False])
def test_an_argument_that_is_not_set_is_fine(nothing: Any) -> None:
    refuse_unsupported("layers.3", "SomeAttention", {"softcap": nothing, "mood": nothing})


def test_a_softcap_of_zero_is_not_taken_for_none() -> None:
    with pytest.raises(ModelError, match="softcap"):
        refuse_unsupported("layers.3", "SomeAttention", {"softcap": 0.0})


def test_harmless_arguments_pass() -> None:
    refuse_unsupported("layers.3", "SomeAttention", {name: torch.ones(2) for name in HARMLESS})
