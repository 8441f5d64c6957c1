"""What moves between which tokens, against the definition summed query by query and key by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import Discrete, InferenceProblem
from fenchel.auditing.capture import AttentionCall
from fenchel.auditing.measure import measure
from fenchel.auditing.pattern import KEY_CLASSES, MOVES, TOKEN_TYPES, TokenClasses, pattern_sums
from fenchel.auditing.token_classes import TokenClassifier
from fenchel.io.batches import Batch, Cursor
from tests.auditing.test_measure import call

IDS = [[2, 9, 4, 5, 9, 6, 3, 0, 0], [2, 7, 8, 4, 4, 3, 0, 0, 0]]
TEXTS = {0: "[PAD]", 2: "[CLS]", 3: "[SEP]", 4: "the", 5: "##ing", 6: "1957", 7: ".", 8: "river", 9: ","}
TYPES = {2: "special", 3: "special", 0: "special", 4: "word", 8: "word", 5: "piece", 6: "number"}


class Words:
    """The few methods of a tokenizer that say what tokens are."""

    all_special_ids = (0, 2, 3)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(TEXTS[number] for number in ids)

    def convert_ids_to_tokens(self, number: int) -> str:
        return TEXTS[number]


def batch(**changes: Any) -> Batch:
    ids = torch.tensor(IDS)
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    given: dict[str, Any] = {
        **{
            "inputs": inputs,
            "counted": None,
            "counted_decoder": None,
            "documents": (1, 2),
            "windows": (1, 1),
        },
        **{"tokens": 13, "after": Cursor(), "tokenizer": Words()},
    }
    return Batch(**{**given, **changes})


def classes_of(given: AttentionCall, of: Batch | None = None) -> TokenClasses:
    classifier = TokenClassifier()
    classifier.begin_batch(of or batch())
    found = classifier.of(given)
    assert found is not None
    return found


def class_of(row: int, query: int | None, key: int) -> str:
    """The definition, in the order of the module's table; ``query`` is None for a query of another text."""
    number = IDS[row][key]
    if key == 0:
        return "first"
    if number in Words.all_special_ids:
        return "special"
    if query is not None and abs(query - key) <= 1:
        return "itself" if query == key else "neighbour"
    return "punctuation" if TEXTS[number] in ".," else "rest"


def slowly(given: AttentionCall, first: Tensor, exact: Tensor) -> tuple[Tensor, Tensor]:
    """Sums by class (B, H, T, C, 3) and by key (B, H, n, 2)."""
    rows, heads, _, n = first.shape
    classes = torch.zeros(rows, heads, len(TOKEN_TYPES), len(KEY_CLASSES), len(MOVES), dtype=torch.float64)
    columns = torch.zeros(rows, heads, n, 2, dtype=torch.float64)
    for b, k in given.counted.nonzero().tolist():
        kind = TOKEN_TYPES.index(TYPES.get(IDS[b][k], "punctuation"))
        for h in range(heads):
            for i in range(n):
                p, q = float(first[b, h, k, i]), float(exact[b, h, k, i])
                moves = torch.tensor([p, max(p - q, 0), max(q - p, 0)], dtype=torch.float64)
                classes[b, h, kind, KEY_CLASSES.index(class_of(b, k, i))] += moves
                columns[b, h, i] += moves[1:]
    return classes, columns


def weights(given: AttentionCall) -> tuple[Tensor, Tensor]:
    """First-order and exact weights of space ``key``, head by head through the public problem."""
    b, h, m, _ = given.query.shape
    n = given.key.shape[2]
    first, exact = torch.zeros(2, b, h, m, n, dtype=torch.float64)
    for i in range(b):
        for j in range(h):
            templates = given.key[i, j // (h // given.key.shape[1])] * given.scaling
            log_u = torch.zeros(m, n, dtype=torch.float64)
            if given.log_preference is not None:
                log_u = given.log_preference.expand(b, h, m, n)[i, j]
            problem = InferenceProblem(Discrete(templates, log_u), given.query[i, j])
            first[i, j] = problem.solve("first_order").weights
            exact[i, j] = problem.solve("exact", tol=1e-12).weights
    return first, exact


@pytest.mark.parametrize("preference", ["none", "padding", "causal padding"])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_an_audit_sums_what_moves_by_definition(preference: str, key_heads: int) -> None:
    given = call(preference, key_heads=key_heads)
    expected = slowly(given, *weights(given))
    for budget in (1 << 29, 40_000):
        found = measure(
            given, space="key", tol=1e-10, tokens=classes_of(given), memory_budget=budget
        ).patterns
        assert found is not None
        assert torch.allclose(found.classes, expected[0], rtol=1e-7, atol=1e-9)
        assert torch.allclose(found.columns, expected[1], rtol=1e-7, atol=1e-9)
        assert found.queries.sum() == given.counted.sum()


def test_what_moves_is_the_total_variation() -> None:
    given = call("padding")
    measured = measure(given, space="input", tokens=classes_of(given))
    assert measured.patterns is not None
    moved = (measured.values["total_variation"] * given.counted[:, None]).sum(-1)
    assert torch.allclose(measured.patterns.classes[..., 1].sum((-1, -2)), moved)
    assert torch.allclose(measured.patterns.classes[..., 2].sum((-1, -2)), moved)
    assert torch.allclose(measured.patterns.columns.sum(-2), moved[..., None].expand(-1, -1, 2))
    attention = measured.patterns.classes[..., 0].sum((-1, -2))
    assert torch.allclose(attention, given.counted.sum(-1, keepdim=True).double().expand(-1, 4))


def drawn(seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    first, exact = torch.rand(2, 2, 4, 9, 9, generator=draw, dtype=torch.float64).pow(3).unbind()
    return first / first.sum(-1, keepdim=True), exact / exact.sum(-1, keepdim=True)


@pytest.mark.parametrize("cut", [1, 4, 8])
def test_sums_are_additive_over_queries_and_over_keys(cut: int) -> None:
    first, exact = drawn()
    whole = classes_of(call("none"))
    assert whole.beside is not None
    assert whole.corrections is not None
    classes, columns = pattern_sums(first, exact, whole)
    of_queries, of_keys = [], []
    for part in (slice(0, cut), slice(cut, 9)):
        some = TokenClasses(
            whole.types[..., part], whole.keys, whole.beside[:, part], whole.corrections[:, part], None
        )
        of_queries.append(pattern_sums(first[:, :, part], exact[:, :, part], some))
        some = TokenClasses(whole.types, whole.keys[:, part], whole.beside, whole.corrections, None)
        of_keys.append(pattern_sums(first[..., part], exact[..., part], some, first_key=part.start))
    assert torch.allclose(of_queries[0][0] + of_queries[1][0], classes)
    assert torch.allclose(of_queries[0][1] + of_queries[1][1], columns)
    assert torch.allclose(of_keys[0][0] + of_keys[1][0], classes)
    assert torch.allclose(torch.cat([of_keys[0][1], of_keys[1][1]], -2), columns)


def test_the_slow_sums_see_a_difference() -> None:
    given = call("none")
    one, other = (slowly(given, *drawn(seed)) for seed in (0, 1))
    assert not torch.allclose(one[0], other[0])
    assert torch.allclose(pattern_sums(*drawn(0), classes_of(given))[0].double(), one[0])
