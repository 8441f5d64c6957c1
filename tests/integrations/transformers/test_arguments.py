"""Arguments of attention that would change scores are refused by name; harmless ones pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fenchel.errors import ModelError
from fenchel.integrations.transformers.arguments import HARMLESS, refuse_unsupported


@pytest.mark.parametrize("nothing", [None, False])
def test_an_argument_that_is_not_set_is_fine(nothing: Any) -> None:
    refuse_unsupported("layers.3", "SomeAttention", {"softcap": nothing, "mood": nothing})


@pytest.mark.parametrize("name", ["softcap", "s_aux", "sinks", "indices", "block_indices", "cache", "mood"])
@pytest.mark.parametrize("value", [0.0, torch.ones(2)], ids=["zero", "tensor"])
def test_what_changes_scores_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ModelError, match=f"layers.3 \\(SomeAttention\\) passes '{name}'"):
        refuse_unsupported("layers.3", "SomeAttention", {name: value})


def test_harmless_arguments_pass() -> None:
    refuse_unsupported("layers.3", "SomeAttention", {name: torch.ones(2) for name in HARMLESS})
