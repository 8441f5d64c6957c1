"""The translator's search: says what the model says, finds the best of all, and ends."""

from __future__ import annotations

import itertools

import pytest
import torch

from fenchel.models import Translator
from fenchel.models.decoding import Decoded
from fenchel.models.translation import QUERIES
from tests.models.test_translator import SOURCES, translator


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(
    "change", [{}, {"preference": "gaussian"}, {"score": "additive"}, {"attention": "none"}]
)
@torch.no_grad()
def test_decoding_says_what_the_model_says(query, change):
    model = translator(query=query, **change)
    found = model.translated(SOURCES)
    for source, said in zip(SOURCES, found, strict=True):
        source = source[source != 0].unsqueeze(0)
        assert model.translated(source)[0].words == said.words
        probability = 0.0
        for place in range(said.length):
            target = torch.tensor([[model.BEGIN, *said.words[:place]]])
            scores = model(source, target)[0, -1]
            scores[:3] = -torch.inf
            word = int(scores.argmax())
            assert word == (*said.words, model.END)[place]
            probability += float(scores.log_softmax(0)[word])
        assert said.log_probability == pytest.approx(probability, rel=1e-5)
    narrow = model.translated(SOURCES, beam=1)
    assert narrow == found
    wide = [one.score(1.0) for one in model.translated(SOURCES, beam=4)]
    alone = [model.translated(row.unsqueeze(0), beam=4)[0].score(1.0) for row in SOURCES]
    assert wide == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("power", [0.0, 1.0])
@torch.no_grad()
def test_a_beam_of_full_width_is_exhaustive_search(power):
    torch.manual_seed(1)
    model = Translator(6, 6, width=4, longest=3, query="luong").double().eval()
    with torch.no_grad():
        model.decoder.embed.weight.mul_(20)
    sources = torch.tensor([[4, 5, 3], [5, 3, 0]])
    found = model.translated(sources, beam=6**3, length_power=power)
    words = (model.END, 4, 5)
    for source, said in zip(sources, found, strict=True):
        every: list[Decoded] = []
        for length in range(1, 4):
            for sequence in itertools.product(words, repeat=length):
                ended = sequence[-1] == model.END
                if model.END in sequence[:-1] or (length < 3 and not ended):
                    continue
                target = torch.tensor([[model.BEGIN, *sequence[:-1]]])
                scores = model(source[source != 0].unsqueeze(0), target)[0]
                scores[:, :3] = -torch.inf
                each = scores.log_softmax(-1)[torch.arange(length), torch.tensor(sequence)]
                every.append(Decoded(sequence[:-1] if ended else sequence, float(each.sum()), ended))
        total = sum(torch.tensor(one.log_probability).exp() for one in every)
        assert total == pytest.approx(1.0, rel=1e-5)
        best = max(every, key=lambda one: one.score(power))
        assert said.words == best.words
        assert said.log_probability == pytest.approx(best.log_probability, rel=1e-5)


@torch.no_grad()
def test_what_does_not_end_ends_after_twice_the_source_and_ten():
    model = translator(longest=100)
    model.head.bias[model.END] = -50.0
    for beam in (1, 3):
        found = model.translated(SOURCES, beam=beam)
        assert [(len(said.words), said.ended) for said in found] == [(20, True), (16, True), (14, True)]
    model.longest = 6
    assert [(len(said.words), said.ended) for said in model.translated(SOURCES)] == [(6, False)] * 3
