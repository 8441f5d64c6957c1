"""Greedy search and beams: against exhaustive search, row by row, and at their limits."""

from __future__ import annotations

import itertools

import pytest
import torch

from fenchel.errors import ProblemError
from fenchel.models.decoding import Decoded, beam_search, greedy_search

BEGIN, END, WORDS, LONGEST = 0, 1, 4, 4


class Remembering:
    """Next words that depend on all words before, and differ from row to row."""

    def __init__(self, rows: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tables = torch.randn(rows, WORDS**LONGEST, WORDS, generator=generator, dtype=torch.float64)
        self.tables = 2 * self.tables
        self.tables[..., BEGIN] = -torch.inf
        self.tables = self.tables.log_softmax(-1)
        self.state = (torch.arange(rows), torch.zeros(rows, dtype=torch.int64))

    def __call__(self, last: torch.Tensor, state: tuple[torch.Tensor, ...]):
        row, seen = state
        seen = (seen * WORDS + last) % WORDS**LONGEST
        return self.tables[row, seen], (row, seen)

    def every(self, row: int) -> list[Decoded]:
        """Every sequence with its probability."""
        found: list[Decoded] = []
        for length in range(1, LONGEST + 1):
            words_before = itertools.product(range(2, WORDS), repeat=length - 1)
            found += [self.said(row, (*words, END)) for words in words_before]
        found += [self.said(row, words) for words in itertools.product(range(2, WORDS), repeat=LONGEST)]
        return found

    def said(self, row: int, words: tuple[int, ...]) -> Decoded:
        seen, likely = 0, 0.0
        for before, word in zip((BEGIN, *words), words, strict=False):
            seen = (seen * WORDS + before) % WORDS**LONGEST
            likely += self.tables[row, seen, word].item()
        ended = words[-1] == END
        return Decoded(words[:-1] if ended else words, likely, ended)


LIMITS = {"begin": BEGIN, "end": END, "longest": LONGEST}


@pytest.mark.parametrize("power", [0.0, 0.6, 1.0, 2.0])
def test_a_beam_of_full_width_is_exhaustive_search(power):
    model = Remembering(6)
    found = beam_search(model, model.state, **LIMITS, width=WORDS**LONGEST, length_power=power)
    for row, one in enumerate(found):
        best = max(model.every(row), key=lambda said: said.score(power))
        assert (one.words, one.ended) == (best.words, best.ended)
        assert one.log_probability == pytest.approx(best.log_probability)


def test_all_sequences_are_those_that_there_are():
    model = Remembering(1)
    assert sum(torch.tensor(said.log_probability).exp() for said in model.every(0)) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_of_one_is_greedy_and_the_power_chooses(seed):
    model = Remembering(8, seed)
    greedy = greedy_search(model, model.state, **LIMITS)
    narrow = beam_search(model, model.state, **LIMITS, width=1)
    assert [one.words for one in greedy] == [one.words for one in narrow]
    for one, other in zip(greedy, narrow, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability)
    for row, one in enumerate(greedy):
        said = model.said(row, (*one.words, END) if one.ended else one.words)
        assert one.log_probability == pytest.approx(said.log_probability)
    wide = [
        beam_search(model, model.state, **LIMITS, width=WORDS**LONGEST, length_power=power)
        for power in (0.0, 3.0)
    ]
    assert sum(one.length for one in wide[0]) < sum(one.length for one in wide[1])


@pytest.mark.parametrize("width", [1, 2, 3])
def test_rows_do_not_depend_on_each_other(width):
    model = Remembering(5)
    together = beam_search(model, model.state, **LIMITS, width=width)
    for row, one in enumerate(together):
        alone = beam_search(model, tuple(part[[row]] for part in model.state), **LIMITS, width=width)[0]
        assert alone == one
    assert (
        greedy_search(model, tuple(part[[3]] for part in model.state), **LIMITS)
        == greedy_search(model, model.state, **LIMITS)[3:4]
    )


def test_what_does_not_end_is_cut():
    stubborn = torch.tensor([-torch.inf, -torch.inf, 0.0, -torch.inf], dtype=torch.float64)

    def step(last: torch.Tensor, state: tuple[torch.Tensor, ...]):
        return stubborn.expand(len(last), -1), state

    wanted = [Decoded((2,) * LONGEST, 0.0, False)] * 2
    assert greedy_search(step, (torch.zeros(2),), **LIMITS) == wanted
    assert beam_search(step, (torch.zeros(2),), **LIMITS, width=3) == wanted


@pytest.mark.parametrize("wrong", [{"longest": 0}, {"width": 0}, {"length_power": -1.0}])
def test_wrong_arguments_are_named(wrong):
    model = Remembering(1)
    (name,) = wrong
    with pytest.raises(ProblemError, match=name.replace("_", " ")):
        beam_search(model, model.state, **{**LIMITS, "width": 2, **wrong})
