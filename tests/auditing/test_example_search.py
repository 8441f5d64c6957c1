"""What is kept of a head: its farthest queries with the weights and the sentence that make them so, and a sentence."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.auditing.example_search import ExampleSearch
from fenchel.auditing.examples import AttentionMatrix, FarQueries, HeadExample, Packing, unpacked
from fenchel.auditing.heads import HeadKey
from fenchel.auditing.measure import OF_A_WINDOW, FarthestQueries, Measures
from fenchel.auditing.moves import TokenClasses, TokenClassifier, moves_by_class
from fenchel.auditing.solution import Solving
from fenchel.integrations.capture import AttentionCall
from fenchel.integrations.sites import AttentionSite
from fenchel.io.batches import Batch, Cursor
from tests.io.test_windows import word_tokenizer

TOKENS = 5
HEADS = (2, 4)


def batch_of(documents: tuple[int, ...], windows: tuple[int, ...], **more: Any) -> Batch:
    ids = torch.arange(len(documents) * TOKENS).view(len(documents), TOKENS) + 4
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **more}
    return Batch(inputs, None, None, documents, windows, ids.numel(), Cursor(), tokenizer=word_tokenizer())


FIRST_ORDER, EXACT = [0.1, 0.45, 0.0, 0.2, 0.25], [0.1, 0.2, 0.0, 0.6, 0.1]


def measured(variation: Tensor, counted: Tensor, classes: TokenClasses) -> Measures:
    """Measures with that total variation and weights that do not depend on the query."""
    deviations = torch.arange(variation.numel(), dtype=torch.float32).view(variation.shape) / 100
    values, order = variation.masked_fill(~counted[:, None], -1).sort(dim=-1, descending=True, stable=True)
    positions = order.masked_fill(values < 0, -1)[..., :OF_A_WINDOW]
    first_order, exact = (torch.tensor(w).expand(*positions.shape, TOKENS) for w in (FIRST_ORDER, EXACT))
    every_first, every_exact = (
        torch.tensor(w).expand(*variation.shape, TOKENS) for w in (FIRST_ORDER, EXACT)
    )
    values = {"total_variation": variation, "relative_deviation": deviations}
    values |= moves_by_class(every_first, every_exact, classes)
    return Measures(values, variation, variation > 0, FarthestQueries(positions, first_order, exact))


def call_of(counted: Tensor, kind: str = "encoder_self") -> AttentionCall:
    """A call in which query, key and input are told by their numbers: row, head and position are their digits."""
    site = AttentionSite("attention", kind, layer=3, num_heads=4)  # pyright: ignore[reportArgumentType]
    batch, length = counted.shape
    rows = torch.arange(batch)[:, None, None, None] * 100.0
    keys = torch.arange(length)[:, None] + rows
    return AttentionCall(
        site=site,
        query=keys + torch.arange(4)[:, None, None] * 10.0,
        key=keys + torch.arange(2)[:, None, None] * 10.0,
        scaling=1.0,
        preference=rows + torch.zeros(batch, 1, 1, length),
        counted=counted,
        inputs=keys[:, 0],
        key_weight=torch.arange(2.0)[:, None, None],
        key_bias=torch.arange(2.0)[:, None],
    )


SOLVING = Solving("key", alpha=1.0, tol=1e-6, memory_budget=2**24)


def search_of(examples: FarQueries | None = None) -> ExampleSearch:
    return ExampleSearch({} if examples is None else examples, {}, SOLVING)


def look(
    search: ExampleSearch,
    counted: Tensor,
    variation: Tensor,
    batch: Batch,
    heads: tuple[int, ...] = (1,),
    kind: str = "encoder_self",
) -> None:
    """Have a search look at a call with these counted queries and total variations."""
    classifier, call = TokenClassifier(), call_of(counted, kind)
    classifier.begin_batch(batch)
    classes = classifier.of(call, batch)
    search.look(call, heads, measured(variation, counted, classes), batch, classes)


def searched(
    *batches: tuple[Tensor, Tensor, Batch], heads: tuple[int, ...] = (1,), kind: str = "encoder_self"
) -> ExampleSearch:
    """What is kept after batches of (counted, total variation, batch)."""
    search = search_of()
    for counted, variation, batch in batches:
        search.begin_batch()
        look(search, counted, variation, batch, heads, kind)
        search.end_batch()
    return search


def found_in(
    *batches: tuple[Tensor, Tensor, Batch], heads: tuple[int, ...] = (1,), kind: str = "encoder_self"
) -> dict[HeadKey, HeadExample]:
    """The farthest query of every head after batches of (counted, total variation, batch)."""
    return {key: some[0] for key, some in searched(*batches, heads=heads, kind=kind).examples.items()}


def test_the_farthest_counted_query_is_kept_with_its_heaviest_templates() -> None:
    variation = torch.zeros(2, 2, TOKENS)
    variation[1, 0, 3] = 0.5
    variation[0, 1, 2] = 0.25
    variation[1, 1, 4] = 0.75  # is not counted
    counted = torch.ones(2, TOKENS, dtype=torch.bool)
    counted[1, 4] = False
    examples = found_in((counted, variation, batch_of((7, 7), (1, 2))), heads=HEADS)
    assert list(examples) == [HeadKey("encoder_self", 3, 2), HeadKey("encoder_self", 3, 4)]
    first, second = examples.values()
    assert (first.document, first.window, first.position, first.total_variation) == (7, 2, 4, 0.5)
    assert first.relative_deviation == pytest.approx(0.13)
    assert first.token == "w8"  # noqa: S105
    assert first.context == "w5 w6 w7 w8 w9"
    assert first.context[slice(*(first.context_token or ()))] == "w8"
    assert first.passage is not None
    assert first.passage.pieces == ("w5", " w6", " w7", " w8", " w9")
    assert unpacked(first.passage.exact, Packing.FINE) == pytest.approx(EXACT, abs=1e-5)
    # Most leaves the second token, which is neither the first nor beside the fourth, and reaches the query's own.
    assert first.pattern == ("rest", "rest", "itself")
    shown = [(t.position, t.token, round(t.first_order, 4), round(t.exact, 4)) for t in first.templates]
    assert shown == [(4, "w8", 0.2, 0.6), (2, "w6", 0.45, 0.2), (5, "w9", 0.25, 0.1), (1, "w5", 0.1, 0.1)]
    assert (second.key.head, second.window, second.position, second.token) == (4, 1, 3, "w2")


def test_of_equals_the_earliest_in_the_text_is_kept() -> None:
    counted = torch.ones(3, TOKENS, dtype=torch.bool)
    counted[1, 0] = False
    variation = torch.full((3, 1, TOKENS), 0.5)
    batch = batch_of((9, 2, 2), (1, 1, 2))
    [found] = found_in((counted, variation, batch)).values()
    assert (found.document, found.window, found.position) == (2, 1, 2)


def test_only_a_farther_query_takes_the_place_of_the_one_kept() -> None:
    counted = torch.ones(1, TOKENS, dtype=torch.bool)
    search = searched((counted, torch.full((1, 1, TOKENS), 0.5), batch_of((4,), (1,))))
    [key] = search.examples
    for where, value, document in [(5, 0.5, 4), (3, 0.4, 4), (5, 0.6, 5), (3, 0.6, 3)]:
        search.begin_batch()
        variation = torch.full((1, 1, TOKENS), value)
        look(search, ~counted, variation, batch_of((1,), (1,)))
        look(search, counted, variation, batch_of((where,), (1,)))
        search.end_batch()
        assert search.examples[key][0].document == document


def test_queries_of_different_patterns_are_kept() -> None:
    counted = torch.ones(1, TOKENS, dtype=torch.bool)
    variation = torch.tensor([[[0.3, 0.5, 0.4, 0.9, 0.1]]])
    [some] = searched((counted, variation, batch_of((1,), (1,)))).examples.values()
    # The third is not half as far as the fourth.
    assert [(one.position, one.pattern) for one in some] == [
        (4, ("rest", "rest", "itself")),
        (2, ("rest", "itself", "rest")),
    ]


def test_a_batch_that_does_not_end_leaves_nothing() -> None:
    counted = torch.ones(1, TOKENS, dtype=torch.bool)
    search = search_of()
    search.begin_batch()
    look(search, counted, torch.full((1, 1, TOKENS), 0.5), batch_of((4,), (1,)))
    search.begin_batch()
    search.end_batch()
    assert search.examples == search.matrices == {}


def test_the_attention_of_the_earliest_long_window_is_kept_whole() -> None:
    counted = torch.ones(2, TOKENS, dtype=torch.bool)
    variation = torch.rand(2, 2, TOKENS, generator=torch.Generator().manual_seed(0))
    short = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    batches = [
        (counted * short.bool(), variation, batch_of((1, 7), (1, 1), attention_mask=short)),
        (counted, variation, batch_of((6, 5), (1, 1))),
    ]
    for order in (batches, batches[::-1]):
        matrices = searched(*order, heads=HEADS).matrices
        assert list(matrices) == [HeadKey("encoder_self", 3, 2), HeadKey("encoder_self", 3, 4)]
        found: AttentionMatrix = matrices[HeadKey("encoder_self", 3, 4)]
        assert (found.document, found.window, found.window_tokens) == (5, 1, 5)
        assert found.queries == found.keys == ("w5", " w6", " w7", " w8", " w9")
        call = call_of(counted)
        scores = (call.query[1, 3] @ call.key[1, 1].mT) + call.log_preference[1, 0]  # pyright: ignore[reportOptionalSubscript]
        first_order = torch.tensor(unpacked(found.first_order, Packing.ROUGH)).view(TOKENS, TOKENS + 1)
        torch.testing.assert_close(first_order[:, :-1], scores.softmax(-1), atol=0.003, rtol=0)
        assert float(first_order[:, -1].max()) < 1e-3


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
    [found] = found_in((counted, variation, batch), kind=kind).values()
    assert found.token == query
    assert found.templates[0].token == template


def test_a_decoder_alone_reads_the_only_tokens() -> None:
    counted = torch.ones(1, TOKENS, dtype=torch.bool)
    variation = torch.zeros(1, 1, TOKENS)
    [found] = found_in((counted, variation, batch_of((1,), (1,))), kind="decoder_self").values()
    assert (found.token, found.position) == ("w0", 1)
