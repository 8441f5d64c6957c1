"""Corruption: how often what is chosen lies within binomial bounds, and it depends on nothing but its numbers."""

from __future__ import annotations

import math

import pytest

from fenchel.data.corruption import Corruption, Shares
from fenchel.errors import InputError

MASK, KNOWN, SIZE = 4, 5, 1000
TEXT = [2, *range(10, 210), 1, 1, 3, 0, 0]


def corruption(shares: str = "80/10/10", rate: float = 0.15) -> Corruption:
    return Corruption(rate, Shares.of(shares), MASK, KNOWN, SIZE)


def within(count: int, total: int, share: float) -> bool:
    """Within four deviations of a binomial distribution."""
    return abs(count - total * share) <= 4 * math.sqrt(total * share * (1 - share)) + 1e-9


@pytest.mark.parametrize(
    "shares", ["80/10/10", "100/0/0", "80/0/20", "80/20/0", "0/20/80", "0/0/100", "33.3/33.3/33.4"]
)
def test_counts_are_those_asked_for(shares):
    drawn = corruption(shares)
    masked = same = exchanged = chosen = 0
    for row in range(200):
        found = drawn.applied(TEXT, "test", 0, row)
        assert all(TEXT[place] >= KNOWN for place in found.places)
        untouched = set(range(len(TEXT))) - set(found.places)
        assert all(found.tokens[place] == TEXT[place] for place in untouched)
        chosen += len(found.places)
        masked += sum(found.tokens[place] == MASK for place in found.places)
        same += sum(found.tokens[place] == TEXT[place] for place in found.places)
        others = [
            found.tokens[place] for place in found.places if found.tokens[place] not in (MASK, TEXT[place])
        ]
        assert all(KNOWN <= token < SIZE for token in others)
        exchanged += len(others)
    wanted = drawn.shares
    assert within(chosen, 200 * 200, 0.15)
    assert within(masked, chosen, wanted.mask)
    # A drawn word is the one that was there once in a thousand times.
    assert within(exchanged, chosen, wanted.random * (1 - 1 / (SIZE - KNOWN)))
    assert masked + same + exchanged == chosen


def test_what_is_drawn_follows_from_numbers_and_place_alone():
    drawn = corruption()
    one = drawn.applied(TEXT, "test", 3, 7)
    assert drawn.applied(TEXT, "test", 3, 7) == one
    assert drawn.applied(TEXT, "test", 3, 8) != one
    assert drawn.applied(TEXT, "train", 3, 7) != one


def test_every_row_has_words_drawn_from_all():
    tokens = {
        token for row in range(400) for token in corruption("0/0/100", 0.9).applied(TEXT, "test", row).tokens
    }
    assert tokens >= set(range(KNOWN, SIZE))


@pytest.mark.parametrize(
    "text", ["", "80/10", "80/10/11", "-10/100/10", "a/b/c", "nan/50/50", "80/10/10/0", "inf/0/0"]
)
def test_shares_that_are_none_are_refused(text):
    with pytest.raises(InputError, match="expected MASK/SAME/RND in per cent"):
        Shares.of(text)
