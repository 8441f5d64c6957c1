"""What tokens are, by the marks of several kinds of tokenizers, and what keys are to queries."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from fenchel.auditing.moves import KEY_CLASSES, TOKEN_TYPES, TokenTypes
from fenchel.integrations.sites import AttentionSite
from tests.auditing.test_measure import call
from tests.auditing.test_moves import IDS, batch, class_of, classes_of


class Vocabulary:
    """A tokenizer by its tokens and what each decodes to."""

    def __init__(self, tokens: dict[str, str], special: Sequence[str] = ()) -> None:
        self._tokens = list(tokens)
        self._texts = list(tokens.values())
        self.all_special_ids = [self._tokens.index(token) for token in special]

    def get_vocab(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self._tokens)}

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._texts[number] for number in ids)

    def convert_ids_to_tokens(self, number: int) -> str:
        return self._tokens[number]


WORD_PIECE = {
    **{"[CLS]": "[CLS]", "bank": "bank", "##ing": "##ing", "1957": "1957", "3rd": "3rd", "...": "..."},
    **{"##,": "##,", "$": "$", "é": "é"},
}
SENTENCE_PIECE = {
    "<s>": "<s>",
    "▁bank": "bank",
    "ing": "ing",
    "▁": "",
    "▁19": "19",
    "▁,": ",",
    "7": "7",
    "▁d’": "d’",
}
BYTES = {
    "<|end|>": "<|end|>",
    "Ġbank": " bank",
    "ing": "ing",
    "Ċ": "\n",
    "âĢĿ": "”",
    "Ã": "\N{REPLACEMENT CHARACTER}",
}
ENDINGS = {"bank</w>": "bank", "ban": "ban", "king</w>": "king", ".</w>": ".", "w</w>": "w"}


@pytest.mark.parametrize(
    ("tokens", "special", "expected"),
    [
        (
            WORD_PIECE,
            ["[CLS]"],
            [
                "special",
                "word",
                "piece",
                "number",
                "word",
                "punctuation",
                "punctuation",
                "punctuation",
                "word",
            ],
        ),
        (
            SENTENCE_PIECE,
            ["<s>"],
            ["special", "word", "piece", "punctuation", "number", "punctuation", "number", "word"],
        ),
        (BYTES, ["<|end|>"], ["special", "word", "piece", "punctuation", "punctuation", "piece"]),
        (ENDINGS, [], ["word", "piece", "word", "punctuation", "word"]),
    ],
)
def test_types_follow_the_marks_of_the_vocabulary(
    tokens: dict[str, str], special: list[str], expected: list[str]
) -> None:
    types = TokenTypes(Vocabulary(tokens, special))
    found = types.of(torch.arange(len(tokens)))
    assert [TOKEN_TYPES[number] for number in found.tolist()] == expected
    assert list(types.texts) == list(range(len(tokens)))


def test_without_a_tokenizer_a_token_is_its_number() -> None:
    types = TokenTypes(None)
    assert {TOKEN_TYPES[number] for number in types.of(torch.tensor([[4, 7]])).flatten().tolist()} == {
        "other"
    }
    assert types.texts == {4: "4", 7: "7"}


def known(found: Any, row: int, query: int, key: int) -> str:
    """The class of a key to a query, as the tensors say it."""
    kinds = found.keys[row, key].clone()
    if found.beside is not None:
        for place, step in zip(found.beside[row, query].tolist(), range(3), strict=True):
            if place == key and abs(query + step - 1 - key) == 0:
                kinds += found.corrections[row, query, step]
    return KEY_CLASSES[int(kinds.argmax())]


def test_keys_are_what_the_table_says() -> None:
    given = call("none")
    found = classes_of(given)
    for row, query in given.counted.nonzero().tolist():
        for key in range(9):
            assert known(found, row, query, key) == class_of(row, query, key)


def test_between_two_texts_nothing_is_itself_or_a_neighbour() -> None:
    site = AttentionSite("cross", "cross", 1, 4)
    found = classes_of(replace(call("none"), site=site))
    assert found.beside is None
    assert [known(found, 0, 4, key) for key in range(9)] == [class_of(0, None, key) for key in range(9)]


def test_the_first_token_is_the_first_that_is_not_padding() -> None:
    ids = torch.tensor([row[::-1] for row in IDS])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    found = classes_of(call("none"), batch(inputs=inputs))
    first = found.keys[..., KEY_CLASSES.index("first")].argmax(-1)
    assert first.tolist() == [2, 3]


def test_what_is_no_text_has_a_first_position_and_neighbours() -> None:
    found = classes_of(call("none"), batch(inputs={"pixel_values": torch.zeros(2, 3)}, tokenizer=None))
    assert found.types.unique().tolist() == [TOKEN_TYPES.index("other")]
    assert known(found, 0, 4, 0) == "first"
    assert known(found, 0, 4, 3) == "neighbour"
    assert known(found, 0, 4, 6) == "rest"


def test_a_query_has_a_type_and_a_class_of_its_own() -> None:
    found = classes_of(call("none"))
    types = [[TOKEN_TYPES[number] for number in row] for row in found.types.tolist()]
    assert types[0][:6] == ["special", "punctuation", "word", "piece", "punctuation", "number"]
    classes = [[KEY_CLASSES[number] for number in row] for row in found.classes.tolist()]
    assert classes[0][:7] == ["first", "punctuation", "rest", "rest", "punctuation", "rest", "special"]
