"""The query that is kept for a head: the worst, the earliest of equals, with the weights that make it so."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.audit.batch import Batch, Cursor
from fenchel.audit.examples import HeadExample, keep_the_worse, worst_queries
from fenchel.audit.heads import HeadKey
from tests.audit.test_windows import word_tokenizer

TOKENS = 5
HEADS = (2, 4)


def batch_of(documents: tuple[int, ...], windows: tuple[int, ...], **more: Any) -> Batch:
    ids = torch.arange(len(documents) * TOKENS).view(len(documents), TOKENS) + 4
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **more}
    return Batch(inputs, None, None, documents, windows, ids.numel(), Cursor(), tokenizer=word_tokenizer())


def measured(variation: Tensor) -> Any:
    deviations = torch.arange(variation.numel(), dtype=torch.float32).view(variation.shape) / 100
    return SimpleNamespace(values={"total_variation": variation, "relative_deviation": deviations})


def call_of(counted: Tensor, kind: str = "encoder_self") -> Any:
    return SimpleNamespace(site=SimpleNamespace(kind=kind, layer=3), counted=counted)


class Weighing:
    """Weights that say which query they belong to."""

    def __init__(self) -> None:
        self.asked: list[list[tuple[int, int, int]]] = []

    def __call__(self, rows: list[tuple[int, int, int]]) -> tuple[Tensor, Tensor]:
        self.asked.append(rows)
        first = torch.tensor([[0.1, 0.4, 0.0, 0.2, 0.3]]).repeat(len(rows), 1)
        return first, torch.tensor([[0.1, 0.2, 0.0, 0.6, 0.1]]).repeat(len(rows), 1)


def test_the_worst_counted_query_is_kept_with_its_heaviest_templates() -> None:
    variation = torch.zeros(2, 2, TOKENS)
    variation[1, 0, 3] = 0.5
    variation[0, 1, 2] = 0.25
    variation[1, 1, 4] = 0.75  # is not counted
    counted = torch.ones(2, TOKENS, dtype=torch.bool)
    counted[1, 4] = False
    weigh = Weighing()
    batch = batch_of((7, 7), (1, 2))
    first, second = worst_queries(call_of(counted), HEADS, measured(variation), batch, weigh, {})
    assert weigh.asked == [[(1, 1, 3), (0, 3, 2)]]
    assert first.key == HeadKey("encoder_self", 3, 2)
    assert (first.document, first.window, first.position, first.total_variation) == (7, 2, 4, 0.5)
    assert first.relative_deviation == pytest.approx(0.13)
    assert first.token == "w8"  # noqa: S105
    assert first.context == "w5 w6 w7 w8 w9"
    shown = [(t.position, t.token, round(t.first_order, 4), round(t.exact, 4)) for t in first.templates]
    assert shown == [(4, "w8", 0.2, 0.6), (2, "w6", 0.4, 0.2), (5, "w9", 0.3, 0.1), (1, "w5", 0.1, 0.1)]
    assert (second.key.head, second.window, second.position, second.token) == (4, 1, 3, "w2")


def test_of_equals_the_earliest_in_the_text_is_kept() -> None:
    counted = torch.ones(3, TOKENS, dtype=torch.bool)
    counted[1, 0] = False
    variation = torch.full((3, 1, TOKENS), 0.5)
    batch = batch_of((9, 2, 2), (1, 1, 2))
    [found] = worst_queries(call_of(counted), (1,), measured(variation), batch, Weighing(), {})
    assert (found.document, found.window, found.position) == (2, 1, 2)


def test_nothing_is_weighed_unless_something_is_worse() -> None:
    counted = torch.ones(1, TOKENS, dtype=torch.bool)
    variation = torch.full((1, 1, TOKENS), 0.5)
    kept: dict[HeadKey, HeadExample] = {}
    keep_the_worse(
        kept,
        worst_queries(call_of(counted), (1,), measured(variation), batch_of((4,), (1,)), Weighing(), kept),
    )
    weigh = Weighing()
    assert worst_queries(call_of(counted), (1,), measured(variation), batch_of((5,), (1,)), weigh, kept) == []
    assert (
        worst_queries(call_of(~counted), (1,), measured(variation), batch_of((1,), (1,)), weigh, kept) == []
    )
    assert weigh.asked == []
    assert worst_queries(call_of(counted), (1,), measured(variation * 1.1), batch_of((5,), (1,)), weigh, kept)
    assert worst_queries(call_of(counted), (1,), measured(variation), batch_of((3,), (1,)), weigh, kept)


def test_batches_in_any_order_keep_the_same_examples() -> None:
    generator = torch.Generator().manual_seed(0)
    counted = torch.ones(1, TOKENS, dtype=torch.bool)
    parts = [
        (batch_of((document,), (1,)), measured(torch.randint(0, 3, (1, 2, TOKENS), generator=generator) / 4))
        for document in range(1, 9)
    ]
    results = []
    for seed in range(5):
        random.Random(seed).shuffle(parts)  # noqa: S311
        kept: dict[HeadKey, HeadExample] = {}
        for batch, measures in parts:
            keep_the_worse(kept, worst_queries(call_of(counted), HEADS, measures, batch, Weighing(), kept))
        results.append(kept)
    assert all(kept == results[0] for kept in results)
    assert len(results[0]) == 2


@pytest.mark.parametrize(
    ("kind", "query", "template"),
    [("encoder_self", "w8", "w8"), ("decoder_self", "w18", "w18"), ("cross", "w18", "w8")],
)
def test_tokens_are_those_of_the_stack_that_they_belong_to(kind: str, query: str, template: str) -> None:
    decoder_ids = torch.arange(TOKENS)[None, :] + 4 + 15
    batch = batch_of((1, 1), (1, 2), decoder_input_ids=decoder_ids.repeat(2, 1))
    variation = torch.zeros(2, 1, TOKENS)
    variation[1, 0, 3] = 0.5
    counted = torch.ones(2, TOKENS, dtype=torch.bool)
    [found] = worst_queries(call_of(counted, kind), (1,), measured(variation), batch, Weighing(), {})
    assert found.token == query
    assert found.templates[0].token == template


def test_a_decoder_alone_reads_the_only_tokens() -> None:
    counted = torch.ones(1, TOKENS, dtype=torch.bool)
    variation = torch.zeros(1, 1, TOKENS)
    [found] = worst_queries(
        call_of(counted, "decoder_self"), (1,), measured(variation), batch_of((1,), (1,)), Weighing(), {}
    )
    assert (found.token, found.position) == ("w0", 1)
