"""A run's tokenizer: learned alike from the same text, giving text back, read again as it was, refused when damaged."""

from __future__ import annotations

import json

import pytest

from fenchel.data import Subwords
from fenchel.errors import InputError

TEXTS = [
    "Zwei junge Männer sind im Freien, in der Nähe vieler Büsche.",
    "the dog's bark (loud!) woke the cat",
    "a dog and a cat sleep in the shade",
] * 3


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_the_same_text_teaches_the_same(kind):
    one, other = (Subwords.learned(iter(TEXTS), size=90, kind=kind, special=("[BOS]",)) for _ in range(2))
    assert one.text == other.text
    assert one == other == Subwords(one.text)
    assert one != Subwords.learned(TEXTS[:1] * 3, size=90, kind=kind)
    assert (one.number("[PAD]"), one.number("[UNK]"), one.number("[BOS]")) == (0, 1, 2)
    assert len(one) <= 90


def test_pieces_give_the_text_back():
    subwords = Subwords.learned(TEXTS, size=90, special=("[BOS]", "[EOS]"))
    rows = subwords.encoded(TEXTS[:3])
    assert [subwords.decoded(row) for row in rows] == TEXTS[:3]
    assert subwords.decoded([2, *rows[1], 3, 0, 0]) == TEXTS[1]
    pieces = subwords.pieces(TEXTS[0])
    assert "".join(TEXTS[0][begin:end] for _, (begin, end) in pieces) == TEXTS[0]
    assert [subwords.number(token) for token, _ in pieces] == rows[0]
    assert subwords.special == {0, 1, 2, 3}


def test_what_is_not_known_and_what_is_special():
    subwords = Subwords.learned(TEXTS, size=90, kind="word", lower=True, special=("[MASK]",))
    assert subwords.encoded(["The dog [MASK] quux", ""]) == [
        [subwords.number("the"), subwords.number("dog"), 2, 1],
        [],
    ]
    with pytest.raises(InputError, match="'quux' is no token"):
        subwords.number("quux")


@pytest.mark.parametrize("texts", [[], [""], ["  "]])
def test_nothing_teaches_nothing(texts):
    with pytest.raises(InputError, match="no text to learn"):
        Subwords.learned(texts, size=50)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"model": 3}', "\0"])
def test_damaged_ones_are_refused(text):
    with pytest.raises(InputError, match="is no tokenizer"):
        Subwords(text)


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError, match="kind of tokenizer is 'bytes'; expected one of bpe, word"):
        Subwords.learned(TEXTS, size=50, kind="bytes")


def test_it_is_json_that_the_library_reads():
    assert json.loads(Subwords.learned(TEXTS, size=60).text)["model"]["type"] == "BPE"
