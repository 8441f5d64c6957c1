"""What moves between which tokens and other measures of a query, against their definitions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import Discrete, InferenceProblem
from fenchel.auditing.moves import KEY_CLASSES, MOVES, TokenClasses, TokenClassifier
from fenchel.integrations.capture import AttentionCall
from fenchel.io.batches import Batch, Cursor
from tests.auditing.test_measure import call, measure

IDS = [[2, 9, 4, 5, 9, 6, 3, 0, 0], [2, 7, 8, 4, 4, 3, 0, 0, 0]]
TEXTS = {0: "[PAD]", 2: "[CLS]", 3: "[SEP]", 4: "the", 5: "##ing", 6: "1957", 7: ".", 8: "river", 9: ","}


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
    return classifier.of(given, of or batch())


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


def slowly(given: AttentionCall, first: Tensor, exact: Tensor) -> Tensor:
    """What is on, leaves and reaches keys of each class, (B, H, m, C, 3), key by key."""
    b_, heads, m, n = first.shape
    found = torch.zeros(b_, heads, m, len(KEY_CLASSES), 3, dtype=torch.float64)
    for b, k in given.counted.nonzero().tolist():
        for h in range(heads):
            for i in range(n):
                p, q = float(first[b, h, k, i]), float(exact[b, h, k, i])
                moves = torch.tensor([p, max(p - q, 0), max(q - p, 0)], dtype=torch.float64)
                found[b, h, k, KEY_CLASSES.index(class_of(b, k, i))] += moves
    return found


def together(values: dict[str, Tensor]) -> Tensor:
    """The columns of classes, (B, H, m, C, 3)."""
    return torch.stack(
        [torch.stack([values[f"{move}_{name}"] for name in KEY_CLASSES], -1) for move in MOVES], -1
    )


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
    first, exact = weights(given)
    expected, counted = slowly(given, first, exact), given.counted[:, None, :, None, None]
    moved = first - exact
    for budget in (1 << 29, 40_000):
        found = measure(given, space="key", tol=1e-10, tokens=classes_of(given), memory_budget=budget).values
        torch.testing.assert_close(together(found) * counted, expected, rtol=1e-7, atol=1e-9)
        for move in (1, 2):
            torch.testing.assert_close(
                together(found)[..., move].sum(-1) * counted[..., 0, 0],
                found["total_variation"] * counted[..., 0, 0],
            )
        for name, sign in (("leaves", 1), ("reaches", -1)):
            most = (sign * moved).amax(-1)
            own = (sign * moved).gather(-1, found[name].unsqueeze(-1)).squeeze(-1)
            rows = given.counted.unsqueeze(1).expand_as(most)
            torch.testing.assert_close(found[f"{name}_weight"][rows], most[rows], rtol=1e-7, atol=1e-9)
            torch.testing.assert_close(own[rows], most[rows], rtol=1e-7, atol=1e-9)


def test_entropy_and_output_error_are_those_of_the_weights() -> None:
    given = call("causal padding")
    value = torch.randn(
        *given.key.shape[:3], 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    first, exact = weights(given)
    found = measure(replace(given, value=value), space="key", tol=1e-10).values
    rows = given.counted.unsqueeze(1).expand(-1, 4, -1)
    entropy = -torch.special.xlogy(first, first).sum(-1)
    before = (first @ value).norm(dim=-1)
    error = ((exact - first) @ value).norm(dim=-1) / before
    torch.testing.assert_close(found["entropy"][rows], entropy[rows], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found["output_error"][rows], error[rows], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found["evidence_norm"][rows], given.query.norm(dim=-1)[rows])
    assert bool((found["dual_error"][rows] <= 1e-10).all())
    assert bool(measure(given, space="key").values["output_error"].isnan().all())
