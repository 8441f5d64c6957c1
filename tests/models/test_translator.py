"""The translator: recomputed word by word from its parts, under every option; padding, search and refusals."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel import InferenceProblem
from fenchel.closeness.named import closeness_named
from fenchel.errors import ProblemError
from fenchel.models import Translator, build
from fenchel.models.translation import PREFERENCES, QUERIES, SCORES, Encoder, Head
from fenchel.models.translation.sentence_dropout import SentenceDropout
from fenchel.nn import use_estimator
from fenchel.nn.attending import LayerCall
from fenchel.nn.preference import AbstractPreference, Additive, AttentionInputs, KeyPadding
from fenchel.preference import Discrete
from fenchel.train.precision import has_bfloat16_lstm

WIDTH, SOURCE, TARGET = 8, 11, 9
SOURCES = torch.tensor([[4, 7, 9, 5, 3], [5, 10, 3, 0, 0], [6, 3, 0, 0, 0]])
TARGETS = torch.tensor([[2, 5, 4, 8], [2, 8, 0, 0], [2, 4, 7, 0]])


def translator(**changes: Any) -> Translator:
    torch.manual_seed(0)
    options = {"width": WIDTH, "longest": 6, "length_ratio": 1.3, "spread": 2.0, **changes}
    model = Translator(SOURCE, TARGET, **options).double().eval()
    with torch.no_grad():  # what starts at 0 or small would hide mistakes
        for name, parameter in model.named_parameters():
            if "preference" in name or name.endswith("bias"):
                parameter.add_(0.5 * torch.randn_like(parameter))
            elif "embed" in name:
                parameter.mul_(3)
    return model


# The slow twin: one sentence without padding, one word at a time, every equation as it is written.


def dual_by_hand(templates: Tensor, u: Tensor, z: Tensor, alpha: float, estimator: str) -> Tensor:
    if estimator == "first_order":
        return alpha * z
    identity, mean = torch.eye(len(z), dtype=z.dtype), u @ templates

    def covariance(p: Tensor) -> Tensor:
        spread = templates - p @ templates
        return spread.T @ (p.unsqueeze(1) * spread)

    if estimator == "second_order":
        return torch.linalg.solve(identity + alpha * covariance(u), alpha * z)
    dual = alpha * z.detach()
    for step in range(60):  # Newton on λ/α + E_p[t] = μ + z; the last step carries the gradient
        last = step == 59
        with torch.set_grad_enabled(last):
            p = (u.log() + templates @ dual.detach()).softmax(0)
            residual = mean + z - dual.detach() / alpha - p @ templates
            curvature = (identity / alpha + covariance(p)).detach()
            dual = dual.detach() + torch.linalg.solve(curvature, residual)
    return dual


def mean_by_hand(model: Translator, reading: Any, query: Tensor, place: int) -> Tensor:
    templates = reading.templates[0]
    assert model.inference is not None
    assert model.evidence is not None
    assert model.preference is not None
    inputs = AttentionInputs(
        1,
        1,
        1,
        len(templates),
        query.device,
        query.dtype,
        query_inputs=query.view(1, 1, -1),
        key_inputs=reading.templates,
        key_padding=reading.padding,
        query_offset=place,
    )
    log_u = model.preference(inputs)
    assert log_u is not None
    if log_u.dtype == torch.bool:
        log_u = torch.zeros(log_u.shape, dtype=query.dtype)
    u = log_u.expand(1, 1, 1, len(templates)).reshape(-1).softmax(0)
    z, alpha, estimator = model.evidence(query), model.inference.alpha, model.inference.estimator
    if model.inference.closeness is not None:
        near = closeness_named(model.inference.closeness)
        asked = InferenceProblem(Discrete(templates, u.log()), z.unsqueeze(0), alpha, near)
        return (asked.solve(estimator).weights @ templates)[0]
    dual = dual_by_hand(templates, u, z, alpha, estimator)
    return (u.log() + templates @ dual).softmax(0) @ templates


def scores_by_hand(model: Translator, source: Tensor, target: Tensor) -> Tensor:
    reading = model.templates(source.unsqueeze(0))
    begun, depth = model.begun(reading), model.decoder.depth
    hidden, cell = list(begun[0 : 2 * depth : 2]), list(begun[1 : 2 * depth : 2])
    fed, found = torch.zeros_like(hidden[0]), []
    query = type(model.decoder).__name__.lower()

    def look(state: Tensor, place: int) -> Tensor:
        if model.inference is None:
            return reading.last
        return mean_by_hand(model, reading, state[0], place).unsqueeze(0)

    for place, word in enumerate(target.tolist()):
        seen = model.decoder.embed.weight[word].unsqueeze(0)
        before = hidden[-1]
        if query == "bahdanau":
            context = look(before, place)
            seen = torch.cat((seen, context), 1)
        elif query == "luong":
            seen = torch.cat((seen, fed), 1)
        for number, layer in enumerate(model.decoder.layers):
            weights = list(layer.parameters())
            gates = nn.functional.linear(seen, weights[0], weights[2])
            gates = gates + nn.functional.linear(hidden[number], weights[1], weights[3])
            enter, forget, new, leave = gates.chunk(4, 1)
            cell[number] = forget.sigmoid() * cell[number] + enter.sigmoid() * new.tanh()
            hidden[number] = seen = leave.sigmoid() * cell[number].tanh()
        if query != "bahdanau":
            context = look(seen, place)
        fed = model.head.joined(context, seen)  # pyright: ignore[reportPossiblyUnboundVariable]
        weight = model.decoder.embed.weight if model.head.weight is None else model.head.weight
        found.append((fed @ weight.T + model.head.bias)[0])
    return torch.stack(found)


CASES: list[dict[str, Any]] = [
    {"query": query, "score": score, "preference": preference}
    for query in QUERIES
    for score, preference in [*zip(SCORES, PREFERENCES, strict=False), ("dot", "gaussian")]
]
CASES += [
    {"query": query, "preference": "gaussian", "place": "predicted", "estimator": estimator, "alpha": 0.6}
    for query, estimator in zip(QUERIES, ("exact", "second_order", "first_order"), strict=True)
]
CASES += [
    {"query": query, "estimator": estimator, "preference": "context", "score": "dot"}
    for query in QUERIES
    for estimator in ("second_order", "exact")
]
CASES += [{"attention": "none", "query": query, "head": "add", "bidirectional": False} for query in QUERIES]
CASES += [
    {"head": "add", "tied": False, "start": "zero", "depth": 1, "preference": "relative"},
    {"query": "bahdanau", "head": "add", "tied": False, "depth": 3, "bidirectional": False},
    {"closeness": "tsallis:1.5", "score": "general"},
    {"closeness": "tsallis:1.5", "estimator": "exact", "query": "luong"},
    {"closeness": "tsallis:2", "score": "additive", "query": "bahdanau"},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_it_is_what_its_parts_say_word_by_word(case):
    model = translator(**case)
    found = model(source=SOURCES, target=TARGETS)
    assert found.shape == (*TARGETS.shape, TARGET)
    weigh = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=found.dtype)
    weigh *= (TARGETS != 0).unsqueeze(-1)
    ours = torch.autograd.grad((found * weigh).sum(), list(model.parameters()))
    slow = torch.zeros_like(found)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        target = target[target != 0]
        slow[row, : len(target)] = scores_by_hand(model, source[source != 0], target)
    theirs = torch.autograd.grad((slow * weigh).sum(), list(model.parameters()), allow_unused=True)
    torch.testing.assert_close(found * weigh, slow * weigh, rtol=1e-7, atol=1e-8)
    for name, own, other in zip(dict(model.named_parameters()), ours, theirs, strict=True):
        other = torch.zeros_like(own) if other is None else other
        torch.testing.assert_close(
            own, other, rtol=1e-5, atol=1e-6, msg=lambda said, name=name: f"{name}: {said}"
        )


@pytest.mark.parametrize("query", QUERIES)
def test_every_option_changes_what_is_said(query):
    plain = translator(query=query)
    changes: list[dict[str, Any]] = [
        {"score": "dot"},
        {"score": "additive"},
        {"preference": "context"},
        {"preference": "relative"},
        {"preference": "gaussian"},
        {"preference": "gaussian", "spread": 0.5},
        {"preference": "gaussian", "length_ratio": 0.5},
        {"preference": "gaussian", "place": "predicted"},
        {"head": "add"},
        {"tied": False},
        {"start": "zero"},
        {"attention": "none"},
        {"estimator": "exact"},
        {"alpha": 4.0},
        {"closeness": "sparsemax"},
        {"bidirectional": False},
        {"depth": 1},
    ]
    said = [plain(SOURCES, TARGETS)]
    for change in changes:
        model = translator(query=query, **change)
        other = build("translator", **model.configuration()).double().eval()
        other.load_state_dict(model.state_dict())
        again = other(source=SOURCES, target=TARGETS)
        said.append(model(SOURCES, TARGETS))
        assert torch.equal(again, said[-1]), change
    for one, other in itertools.combinations(said, 2):
        assert not torch.allclose(one, other)


def test_the_encoder_is_torchs():
    encoder = Encoder(SOURCE, WIDTH, depth=2).double()
    both = nn.LSTM(WIDTH, WIDTH // 2, 2, batch_first=True, bidirectional=True).double()
    state = {}
    for layer in range(2):
        for part, end in ((encoder.forwards, ""), (encoder.backwards, "_reverse")):
            for name, value in part[layer].state_dict().items():
                state[name.replace("_l0", f"_l{layer}{end}")] = value
    both.load_state_dict(state)
    lengths = (SOURCES != 0).sum(1)
    packed = nn.utils.rnn.pack_padded_sequence(
        encoder.embed(SOURCES), lengths, batch_first=True, enforce_sorted=False
    )
    states, (last, _) = both(packed)
    states = nn.utils.rnn.pad_packed_sequence(states, batch_first=True)[0]
    reading = encoder(SOURCES)
    real = (SOURCES != 0).unsqueeze(-1)
    torch.testing.assert_close(reading.templates * real, states * real)
    torch.testing.assert_close(reading.last, torch.cat((last[-2], last[-1]), 1))


@pytest.mark.parametrize("query", QUERIES)
def test_the_paper_asks_once_and_never_sees_h(query):
    model = translator(query=query)
    calls: list[LayerCall] = []
    assert model.inference is not None
    model.inference.onlooker = lambda _, call: calls.append(call)
    found = model(SOURCES, TARGETS)
    assert len(calls) == 1  # others ask word by word, and are told of at once
    assert calls[0].problem.evidence.shape == (3, 1, 4, WIDTH)
    assert calls[0].problem.templates is calls[0].problem.values
    model.inference.alpha = 9.0
    other = model(SOURCES, TARGETS)
    assert not torch.allclose(found, other)
    same = torch.equal(calls[0].problem.evidence, calls[1].problem.evidence)
    assert same == (query == "paper")


class Echo(AbstractPreference):
    """A reader's own: what a word is like itself, and like the query."""

    def forward(self, inputs: AttentionInputs) -> Tensor:
        x, y = (inputs.required(name, reader="Echo") for name in ("query_inputs", "key_inputs"))
        return (x.tanh() @ y.mT).unsqueeze(1)


@pytest.mark.parametrize("query", QUERIES)
def test_a_reader_swaps_one_part(query):
    model = translator(query=query)
    model.preference = KeyPadding() * Echo() * Additive(1, WIDTH).double()
    found = model(SOURCES, TARGETS)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        target = target[target != 0]
        slow = scores_by_hand(model, source[source != 0], target)
        torch.testing.assert_close(found[row, : len(target)], slow, rtol=1e-7, atol=1e-8)


def test_it_is_found_by_those_who_switch():
    model = translator()
    with use_estimator(model, "exact"):
        switched = model(SOURCES, TARGETS)
    torch.testing.assert_close(switched, translator(estimator="exact")(SOURCES, TARGETS))


@pytest.mark.skipif(
    not has_bfloat16_lstm(torch.device("cpu")), reason="torch runs no bfloat16 LSTM on this processor"
)
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("change", [{}, {"start": "zero", "score": "additive"}, {"estimator": "exact"}])
def test_autocast_multiplies_in_bfloat16_and_hardly_changes_anything(query, change):
    model = translator(query=query, **change).float()
    with torch.autocast("cpu", torch.bfloat16):
        found = model(SOURCES, TARGETS)
    assert found.dtype == torch.bfloat16
    found.float().square().sum().backward()
    assert all(
        parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None
    )
    expected = model(SOURCES, TARGETS)
    assert (found - expected).norm() < 0.05 * expected.norm()


def test_a_draw_of_dropout_is_a_sentences():
    dropout = SentenceDropout(0.5)
    dropped = dropout(torch.ones(200, 3, 40))
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.05)
    assert torch.equal(dropout.eval()(torch.ones(1, 2, 3)), torch.ones(1, 2, 3))


@pytest.mark.parametrize("query", QUERIES)
def test_dropout_is_drawn_in_training_alone(query):
    model = translator(query=query, dropout=0.5)
    assert torch.equal(model(SOURCES, TARGETS), model(SOURCES, TARGETS))
    model.train()
    assert not torch.allclose(model(SOURCES, TARGETS), model(SOURCES, TARGETS))


def test_the_head_adds_or_reads_both():
    h, state = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    assert torch.equal(Head(5, 4, "add").joined(h, state), h + state)
    head = Head(5, 4, "concat")
    assert head.join is not None
    expected = torch.tanh(h @ head.join.weight[:, :4].T + state @ head.join.weight[:, 4:].T)
    torch.testing.assert_close(head.joined(h, state), expected)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"query": "attention"},
            "query of Translator is 'attention'; expected one of paper, bahdanau, luong",
        ),
        ({"score": "cosine"}, "score of Translator is 'cosine'"),
        ({"preference": "position"}, "preference of Translator is 'position'"),
        ({"place": "middle"}, "place of Translator is 'middle'"),
        ({"head": "multiply"}, "head of Translator is 'multiply'"),
        ({"start": "one"}, "start of Translator is 'one'"),
        ({"attention": "hard"}, "attention of Translator is 'hard'"),
        ({"width": 7}, "width of Translator is 7"),
        ({"depth": 0}, "depth of Translator is 0"),
        ({"length_ratio": 0.0}, "length_ratio of Translator is 0.0"),
        ({"score": "additive", "estimator": "exact"}, "all estimators agree"),
        ({"dropout": 1.0}, "dropout of Translator is 1.0"),
    ],
)
def test_wrong_options_are_named(wrong, said):
    with pytest.raises(ProblemError, match=said):
        translator(**wrong)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (torch.tensor([[4, 3], [0, 0]]), "no word first in row 1"),
        (torch.zeros(1, 0, dtype=torch.int64), "no word first in row 0"),
        (torch.tensor([[4, 0, 3]]), "padding .0. before a word"),
        (torch.tensor([4, 3]), "source has shape"),
        (torch.tensor([[0.5]]), "source"),
    ],
)
def test_sentences_that_are_none_are_refused(source, said):
    with pytest.raises(ProblemError, match=said):
        translator()(source, torch.tensor([[2]] * len(source)))
