"""Words one after another: greedily, by a beam that misses nothing, and drawn."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import decoding
from decoding import BEGIN, END, Attention, State, search
from fenchel.errors import InputError
from fenchel.functional import attention_weights

LIMIT = 4
WORDS = (4, 5)  # what can be said before END


def chain(seed: int, rows: int = 3) -> tuple[Tensor, State]:
    """Log probabilities of each word after each other word (rows, 6, 6), of a model that forgets all but the last."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(rows, 6, 6, generator=generator, dtype=torch.float64)
    return scores, (scores, torch.zeros(rows, 1))


def step(words: Tensor, state: State) -> tuple[Tensor, State]:
    scores, count = state
    assert (count.squeeze(1) == words.shape[1] - 1).all(), "the state does not belong to the words"
    return scores[torch.arange(len(words)), words[:, -1]], (scores, count + 1)


def log_probability(scores: Tensor, said: tuple[int, ...]) -> float:
    """Of some words and END, when nothing but END is said at the limit."""
    allowed = torch.tensor([END, *WORDS])
    found, last = 0.0, BEGIN
    for place, word in enumerate((*said, END)):
        if place + 1 < LIMIT:
            found += float(scores[last, word] - scores[last, allowed].logsumexp(0))
        last = word
    return found


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_a_beam_that_holds_everything_finds_the_best(power: float) -> None:
    scores, state = chain(0)
    found = search(step, state, torch.full((3,), LIMIT), beam=16, length_power=power)
    everything = [said for length in range(LIMIT) for said in itertools.product(WORDS, repeat=length)]
    for own, answer in zip(scores, found, strict=True):
        best = max(everything, key=lambda said: log_probability(own, said) / (len(said) + 1) ** power)
        assert tuple(answer.words) == best
        assert answer.log_probability == pytest.approx(log_probability(own, best))


def test_greedy_words_are_the_likeliest_after_each_other() -> None:
    scores, state = chain(1)
    for own, answer in zip(scores, search(step, state, torch.full((3,), LIMIT)), strict=True):
        said, last = [], BEGIN
        while len(said) < LIMIT - 1:
            last = max((END, *WORDS), key=lambda word: own[last, word])
            if last == END:
                break
            said.append(last)
        assert answer.words == said
        assert answer.log_probability == pytest.approx(log_probability(own, tuple(said)))


def test_a_row_is_no_longer_than_its_limit() -> None:
    scores, _ = chain(2)
    scores[:, :, END] = -50.0
    found = search(step, (scores, torch.zeros(3, 1)), torch.tensor([1, 2, 3]), beam=2)
    assert [len(one.words) for one in found] == [0, 1, 2]


def test_drawn_words_are_as_frequent_as_they_are_likely() -> None:
    scores, _ = chain(3, rows=1)
    many = scores.expand(4000, -1, -1).contiguous()
    torch.manual_seed(0)
    limits = torch.full((4000,), LIMIT)
    found = search(step, (many, torch.zeros(4000, 1)), limits, temperature=2.0)
    expected = (scores[0, BEGIN, [END, *WORDS]] / 2).softmax(0)
    first = torch.tensor([one.words[0] if one.words else END for one in found])
    shares = torch.stack([(first == word).double().mean() for word in (END, *WORDS)])
    torch.testing.assert_close(shares, expected, atol=0.04, rtol=0)
    cold = search(step, (many[:5], torch.zeros(5, 1)), limits[:5], temperature=1e-4)
    assert cold[0].words == search(step, (scores, torch.zeros(1, 1)), limits[:1])[0].words


def test_attention_is_that_of_the_functional_form_and_can_be_watched() -> None:
    torch.manual_seed(0)
    states, z = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    mask[1, ..., 3:] = False
    layer = Attention("exact", 0.7)
    h, weights = layer(states, z, mask, scale=0.5, need_weights=True)
    asked = {"log_preference": mask, "alpha": 0.7, "scale": 0.5, "estimator": "exact"}
    expected = attention_weights(z[:, None], states[:, None], **asked)[:, 0]
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(h, expected @ states)


def test_what_is_searched_for_is_checked() -> None:
    assert decoding.SearchOptions(beam=3).arguments()["beam"] == 3
    wrongs: list[dict[str, Any]] = [{"beam": 0}, {"temperature": -1.0}, {"beam": 2, "temperature": 1.0}]
    for wrong in wrongs:
        with pytest.raises(InputError, match="temperature"):
            decoding.SearchOptions(**wrong).arguments()


def test_the_measures_of_swaps_are_means_of_real_pieces() -> None:
    scores = torch.zeros(2, 3, 8)
    scores[0, 0, 5] = 50.0
    labels = torch.tensor([[5, 6, 0], [7, 4, 3]])
    found = {name: measure(scores) for name, measure in decoding.measures(labels).items()}
    torch.testing.assert_close(found["loss"], torch.tensor([math.log(8) / 2, math.log(8)]))
    torch.testing.assert_close(found["score"], torch.tensor([0.5, 0.0]))
