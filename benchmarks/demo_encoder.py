"""The demo encoder and texts of a given length, for benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fenchel import Discrete, InferenceProblem
from fenchel.auditing.solution import layer_problem
from fenchel.integrations.capture import AttentionCall, Capture
from fenchel.integrations.transformers import load_model

TEXT = Path(__file__).parents[1] / "src" / "fenchel" / "io" / "demo.txt"


def demo() -> tuple[Any, Any]:
    """Model and tokenizer."""
    model, tokenizer, _ = load_model("demo", device="cpu", dtype=torch.float32)
    return model, tokenizer


def token_ids(tokenizer: Any, length: int, documents: int) -> Tensor:
    """Token ids (documents, length) of consecutive pieces of the repository's text, special tokens included."""
    body = tokenizer(TEXT.read_text(), add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
    pieces = []
    for i in range(documents):
        start = i * (length - 2) % max(1, len(body) - length)
        piece = (body * (1 + length // len(body)))[start : start + length - 2]
        pieces.append([tokenizer.cls_token_id, *piece, tokenizer.sep_token_id])
    return torch.tensor(pieces)


def layer_calls(model: Any, ids: Tensor) -> list[AttentionCall]:
    """What every layer's attention is called with, ``space="input"``."""
    calls: list[AttentionCall] = []
    with Capture(model, space="input", consume=calls.append) as capture:
        capture.run({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return calls


def problem_of(call: AttentionCall) -> InferenceProblem:
    """All heads of a layer as one problem through the public interface: evidence (1, heads, m, d)."""
    layer = layer_problem(call, "input")
    assert layer.lift is not None
    evidence = layer.queries @ layer.lift
    return InferenceProblem(Discrete(layer.scaling * layer.vectors.unsqueeze(1)), evidence, 1.0)
