"""The part of a text that is shown around a token: sentences whole if they fit, words whole if they do not."""

import random

import pytest

from fenchel.auditing.example_search import Sentences, passage_around

QUESTION = "Not every question is answered by the one who was asked it"


def pieces_of(text: str) -> tuple[str, ...]:
    words = text.split()
    return tuple(word if i == 0 else f" {word}" for i, word in enumerate(words))


def shown(pieces: tuple[str, ...], position: int, most: int) -> str:
    passage = passage_around(Sentences(pieces), position, most)
    assert position in passage
    assert 0 < len(passage) <= most
    return "".join(pieces[place] for place in passage).strip()


@pytest.mark.parametrize("position", range(2, 14))
def test_a_sentence_that_fits_keeps_its_first_word(position: int) -> None:
    pieces = pieces_of(f"Well . {QUESTION} . So it goes on and on and on for a long time .")
    assert shown(pieces, position, 14).startswith("Not every question")


def test_neighbouring_sentences_come_along_whole() -> None:
    pieces = pieces_of("One two . Three four five . Six . Seven eight nine ten .")
    assert shown(pieces, 4, 6) == "Three four five . Six ."
    assert shown(pieces, 4, 9) == "One two . Three four five . Six ."
    assert shown(pieces, 4, 14) == "One two . Three four five . Six . Seven eight nine ten ."


def test_a_sentence_that_does_not_fit_is_cut_between_words() -> None:
    draw = random.Random(0)  # noqa: S311
    for _ in range(300):
        pieces = ["The"]
        while len(pieces) < 60:
            pieces += [" word", *["ish"] * draw.randrange(4)]
        most, position = draw.randrange(6, 30), draw.randrange(60)
        passage = passage_around(Sentences(pieces[:60]), position, most)
        assert position in passage
        assert len(passage) <= most
        assert passage.start == 0 or pieces[passage.start].startswith(" ")
        assert passage.stop == 60 or pieces[passage.stop].startswith(" ")


def test_a_word_that_does_not_fit_is_cut_anywhere() -> None:
    pieces = ["a", " d", *["o"] * 40, " end"]
    for position in range(len(pieces)):
        passage = passage_around(Sentences(pieces), position, 5)
        assert position in passage
        assert len(passage) <= 5


def test_a_quotation_ends_with_its_mark() -> None:
    pieces = ('"', "No", '."', " She", " left", ".")
    assert passage_around(Sentences(pieces), 4, 3) == range(3, 6)
