"""What moves between which tokens and other measures of a query, against their definitions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.auditing.weight_moves import (
    KEY_CLASSES,
    MOVES,
    TOKEN_TYPES,
    TokenClasses,
    TokenClassifier,
    TokenTypes,
)
from fenchel.integrations.capture import AttentionCall
from fenchel.integrations.sites import AttentionSite
from fenchel.io.batches import BEGINNING, Batch
from tests.auditing.test_measure import call, measure, problem_of
from tests.normal import drawn

IDS = [[2, 9, 4, 5, 9, 6, 3, 0, 0], [2, 7, 8, 4, 4, 3, 0, 0, 0]]


class Vocabulary:
    """A tokenizer by what each of its tokens decodes to and what it is."""

    def __init__(self, tokens: dict[str, tuple[str, str]]) -> None:
        self._tokens = list(tokens)
        self._texts = [text for text, _ in tokens.values()]
        self.all_special_ids = [place for place, (_, kind) in enumerate(tokens.values()) if kind == "special"]

    def get_vocab(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self._tokens)}

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._texts[number] for number in ids)

    def convert_ids_to_tokens(self, number: int) -> str:
        return self._tokens[number]


WORDS = {
    **{text: (text, "special") for text in ("[PAD]", "[UNK]", "[CLS]", "[SEP]")},
    **{"the": ("the", "word"), "##ing": ("##ing", "piece"), "1957": ("1957", "number")},
    **{".": (".", "punctuation"), "river": ("river", "word"), ",": (",", "punctuation")},
}


def batch(**changes: Any) -> Batch:
    ids = torch.tensor(IDS)
    given: dict[str, Any] = {
        **{"inputs": {"input_ids": ids, "attention_mask": (ids != 0).long()}, "tokenizer": Vocabulary(WORDS)},
        **{"counted": None, "counted_decoder": None, "documents": (1, 2), "windows": (1, 1)},
        **{"tokens": 13, "after": BEGINNING},
    }
    return Batch(**{**given, **changes})


def classes_of(given: AttentionCall, of: Batch | None = None) -> TokenClasses:
    classifier = TokenClassifier()
    classifier.begin_batch(of or batch())
    return classifier.of(given, of or batch())


def class_of(row: int, query: int | None, key: int) -> str:
    """The definition, in the order of the module's table; ``query`` is None for a query of another text."""
    kind = [*WORDS.values()][IDS[row][key]][1]
    if key == 0:
        return "first"
    if kind == "special":
        return "special"
    if query is not None and abs(query - key) <= 1:
        return "itself" if query == key else "neighbour"
    return "punctuation" if kind == "punctuation" else "rest"


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
    """First-order and exact weights of space ``key`` through the public problem."""
    problem = problem_of(given, "key")
    return problem.solve("first_order").weights, problem.solve("exact", tol=1e-12).weights


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
        for name, sign in (("leaves", 1), ("reaches", -1)):
            most = (sign * moved).amax(-1)
            own = (sign * moved).gather(-1, found[name].unsqueeze(-1)).squeeze(-1)
            rows = given.counted.unsqueeze(1).expand_as(most)
            torch.testing.assert_close(found[f"{name}_weight"][rows], most[rows], rtol=1e-7, atol=1e-9)
            torch.testing.assert_close(own[rows], most[rows], rtol=1e-7, atol=1e-9)


def test_entropy_and_output_error_are_those_of_the_weights() -> None:
    given = call("causal padding")
    value = drawn(*given.key.shape[:3], 5)
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


VOCABULARIES = {
    "word pieces": {
        **{"[CLS]": ("[CLS]", "special"), "bank": ("bank", "word"), "##ing": ("##ing", "piece")},
        **{"1957": ("1957", "number"), "3rd": ("3rd", "word"), "...": ("...", "punctuation")},
        **{"##,": ("##,", "punctuation"), "$": ("$", "punctuation"), "é": ("é", "word")},
    },
    "sentence pieces": {
        **{"<s>": ("<s>", "special"), "▁bank": ("bank", "word"), "ing": ("ing", "piece")},
        **{"▁": ("", "punctuation"), "▁19": ("19", "number"), "▁,": (",", "punctuation")},
        **{"7": ("7", "number"), "▁d’": ("d’", "word")},
    },
    "bytes": {
        **{"<|end|>": ("<|end|>", "special"), "Ġbank": (" bank", "word"), "ing": ("ing", "piece")},
        **{"Ċ": ("\n", "punctuation"), "âĢĿ": ("”", "punctuation")},
        "Ã": ("\N{REPLACEMENT CHARACTER}", "piece"),
    },
    "ends of words": {
        **{"bank</w>": ("bank", "word"), "ban": ("ban", "piece"), "king</w>": ("king", "word")},
        **{".</w>": (".", "punctuation"), "w</w>": ("w", "word")},
    },
}


@pytest.mark.parametrize("tokens", VOCABULARIES.values(), ids=VOCABULARIES)
def test_types_follow_the_marks_of_the_vocabulary(tokens: dict[str, tuple[str, str]]) -> None:
    types = TokenTypes(Vocabulary(tokens))
    found = types.of(torch.arange(len(tokens)))
    assert [TOKEN_TYPES[number] for number in found.tolist()] == [kind for _, kind in tokens.values()]
    assert list(types.texts) == list(range(len(tokens)))


def known(found: Any, query: int, key: int) -> str:
    """The class of a key to a query of the first row, as the tensors say it."""
    kinds = found.keys[0, key].clone()
    for place, step in zip(found.beside[0, query].tolist(), range(3), strict=True):
        if place == key and query + step - 1 == key:
            kinds += found.corrections[0, query, step]
    return KEY_CLASSES[int(kinds.argmax())]


def test_classes_of_another_text_of_padding_on_the_left_and_of_what_is_no_text() -> None:
    site = AttentionSite("cross", "cross", 1, 4)
    found = classes_of(replace(call("none"), site=site))
    assert [known(found, 4, key) for key in range(9)] == [class_of(0, None, key) for key in range(9)]
    ids = torch.tensor([row[::-1] for row in IDS])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    found = classes_of(call("none"), batch(inputs=inputs))
    assert found.keys[..., KEY_CLASSES.index("first")].argmax(-1).tolist() == [2, 3]
    found = classes_of(call("none"), batch(inputs={"pixel_values": torch.zeros(2, 3)}, tokenizer=None))
    assert found.types.unique().tolist() == [TOKEN_TYPES.index("other")]
    assert [known(found, 4, key) for key in (0, 3, 6)] == ["first", "neighbour", "rest"]
