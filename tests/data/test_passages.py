"""Passages: nothing is lost, none is too long, and parts begin where sentences do."""

from __future__ import annotations

import random

import pytest

from fenchel.data.passages import packed_passages, paired_passages, single_passages


def articles(seed: int = 0) -> list[list[list[int]]]:
    drawn = random.Random(seed)  # noqa: S311 - nothing secret
    return [
        [[drawn.randint(5, 99) for _ in range(drawn.randint(1, 25))] for _ in range(drawn.randint(1, 12))]
        for _ in range(20)
    ]


@pytest.mark.parametrize("longest", [2, 7, 30, 1000])
def test_every_token_is_in_one_passage_of_its_article(longest):
    text = articles()
    found = packed_passages(text, longest)
    for number, sentences in enumerate(text):
        mine = [token for one in found if one.article == number for token in one.first + one.second]
        assert mine == [token for sentence in sentences for token in sentence]
    assert all(len(one.first) >= 1 and len(one.first + one.second) <= longest for one in found)
    keys = [key for one in found for key in one.keys]
    assert len(set(keys)) == len(keys)


def test_the_second_part_begins_with_a_sentence():
    found = packed_passages([[[1] * 4, [2] * 3, [3] * 4]], longest=20)
    assert found[0].second == (2, 2, 2, 3, 3, 3, 3)
    assert packed_passages([[[1, 2, 3, 4]]], longest=9)[0].second == (3, 4)
    assert packed_passages([[[1]]], longest=9)[0].second == ()
    assert packed_passages([[[], [7]]], longest=9)[0].first == (7,)


def test_pairs_side_by_side_and_apart_have_the_same_keys():
    pairs = [[[7, 8], [9]], [[5], [6, 7, 8]]]
    together, apart = paired_passages(pairs, 2), single_passages(pairs, 2)
    assert [(part, key) for pair in together for part, key in zip(pair[:2], pair.keys, strict=True)] == [
        (one.first, one.keys[0]) for one in apart
    ]
    assert [one.languages for one in apart] == [(0, 0), (1, 1)] * 2
