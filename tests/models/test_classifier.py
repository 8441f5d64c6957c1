"""The classifier: its answer follows from its parts, padding changes nothing, and α = 0 is the mean."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fenchel import models
from fenchel.errors import ProblemError
from fenchel.inference import InferenceProblem
from fenchel.models import Classifier
from fenchel.models.classifier import PREFERENCES
from fenchel.models.word_states import ENCODERS
from fenchel.nn.preference import AttentionInputs
from fenchel.preference import Discrete
from tests.nn.preferences import perturbed

NUMBERS = torch.tensor([[4, 7, 2, 9, 4], [5, 3, 0, 0, 0], [8, 0, 0, 0, 0]])
ESTIMATORS = ("first_order", "second_order", "exact")
SENTENCES = tuple(name for name in PREFERENCES if name != "recency")


def classifier(**changes: object) -> Classifier:
    torch.manual_seed(0)
    model = Classifier(**{"vocabulary": 12, "classes": 3, "width": 8, "heads": 2, "alpha": 3.0, **changes})  # type: ignore[arg-type]
    if model.preference is not None:
        perturbed(model.preference)
    return model.double().eval()


def records(**changes: object) -> Classifier:
    return classifier(vocabulary=None, given=5, gaps=True, preference="recency", **changes)


def by_hand(model: Classifier, numbers: Tensor, estimator: str) -> Tensor:
    """The logits from the parts, sentence by sentence and head by head."""
    rows = []
    width = model.configuration()["width"] // model.heads
    for row in numbers:
        states, _ = model.states(row[row != 0].unsqueeze(0))
        words = states[0]
        inputs = AttentionInputs(
            1, model.heads, 1, len(words), words.device, words.dtype,
            query_inputs=model.evidence.asked(1), key_inputs=states,
        )  # fmt: skip
        log_u = model.preference(inputs)
        log_u = torch.zeros(1, model.heads, 1, len(words)) if log_u is None else log_u
        log_u = log_u.double().expand(1, model.heads, 1, len(words))
        answers = []
        for head in range(model.heads):
            part = slice(head * width, (head + 1) * width)
            templates = model.templates(words)[:, part] / math.sqrt(width)
            z = model.evidence(1)[0, head]
            if estimator == "first_order" and model.inference.closeness is None:
                weights = (log_u[0, head] + model.inference.alpha * z @ templates.T).softmax(-1)
            else:
                u = Discrete(templates, log_u[0, head])
                close = model.inference.effective_closeness
                weights = InferenceProblem(u, z, model.inference.alpha, close).solve(estimator).weights
            answers.append(weights @ model.values(words)[:, part])
        rows.append(model.head(torch.cat(answers, -1))[0])
    return torch.stack(rows)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("preference", SENTENCES)
def test_the_answer_follows_from_the_parts(estimator, preference):
    model = classifier(estimator=estimator, preference=preference, score="general")
    assert torch.allclose(model(NUMBERS), by_hand(model, NUMBERS, estimator), atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("closeness", ["entmax15", "tsallis:1.25:temperature=0.7"])
def test_so_it_does_whatever_keeps_it_close(estimator, closeness):
    model = classifier(estimator=estimator, preference="context", closeness=closeness)
    assert torch.allclose(model(NUMBERS), by_hand(model, NUMBERS, estimator), atol=1e-6)
    plain = classifier(estimator=estimator, preference="context")
    assert not torch.allclose(model(NUMBERS), plain(NUMBERS), atol=1e-4)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_so_do_its_gradients(estimator):
    model = classifier(estimator=estimator, preference="context")
    gradients = []
    for logits in (model(NUMBERS), by_hand(model, NUMBERS, estimator)):
        model.zero_grad()
        logits.square().sum().backward()
        gradients.append(
            {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.allclose(one, gradients[1][name], atol=1e-5) for name, one in gradients[0].items())


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("pooling", ["attention", "mean"])
def test_padding_changes_nothing_and_a_batch_is_its_rows(encoder, pooling):
    estimator = "exact" if pooling == "attention" else "first_order"
    model = classifier(encoder=encoder, depth=2, pooling=pooling, estimator=estimator)
    whole = model(NUMBERS)
    for row, numbers in zip(whole, NUMBERS, strict=True):
        assert torch.allclose(row, model(numbers[numbers != 0].unsqueeze(0))[0], atol=1e-7)
    wider = torch.nn.functional.pad(NUMBERS, (0, 3))
    assert torch.allclose(model(wider), whole, atol=1e-8)
    assert model(torch.zeros(1, 3, dtype=torch.int64)).isfinite().all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_attention_that_does_not_look_is_the_mean(estimator):
    asking = classifier(estimator=estimator, alpha=1e-9, encoder="conv")
    mean = classifier(pooling="mean", encoder="conv")
    mean.load_state_dict({name: asking.state_dict()[name] for name in mean.state_dict()})
    assert torch.allclose(asking(NUMBERS), mean(NUMBERS), atol=1e-7)
    assert not torch.allclose(
        classifier(estimator=estimator, encoder="conv")(NUMBERS), mean(NUMBERS), atol=1e-3
    )


def test_a_bag_is_linear_in_the_counts_of_words():
    bag = classifier(pooling="bag")
    one, other, both = (bag(torch.tensor([row])) for row in ([4, 4], [7, 9], [9, 4, 4, 7]))
    assert torch.allclose(both, (one + other) / 2)
    assert bag.values is bag.inference is bag.preference is None


def test_an_additive_score_is_all_preference():
    model = classifier(score="additive")
    with torch.no_grad():
        before = model(NUMBERS)
        assert torch.equal(model.evidence(1), torch.zeros_like(model.evidence(1)))
        model.inference.alpha = 50.0
        assert torch.allclose(model(NUMBERS), before)
        model.evidence.question.mul_(-3)
        assert not torch.allclose(model(NUMBERS), before, atol=1e-4)
    with pytest.raises(ProblemError, match="'exact' with an additive score, which is all preference"):
        classifier(score="additive", estimator="exact")


def test_what_was_long_ago_says_less():
    model = records()
    vectors = torch.randn(2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gaps = torch.tensor([[9.0, 4.0, 1.0, 0.0], [3.0, 2.0, 1.0, 0.0]], dtype=torch.float64)
    padding = torch.tensor([[False] * 4, [True, False, False, False]])
    states, _ = model.states(vectors, padding)
    with torch.no_grad():
        for name, one in model.preference.named_parameters():
            assert "rate" in name
            one.fill_(math.log(20.0))
        weights = model.asked(states, padding, gaps, need_weights=True).weights
        assert weights is not None
        assert torch.allclose(weights[..., -1], torch.ones(2, 2, 1, dtype=torch.float64), atol=1e-3)
    assert torch.allclose(model(vectors, gaps=gaps)[:1], model(vectors[:1], gaps=gaps[:1]))
    with pytest.raises(ProblemError, match="gaps are missing"):
        model(vectors)
    with pytest.raises(ProblemError, match=r"gaps have shape \(2, 3\); expected \(B, n\) = \(2, 4\)"):
        model(vectors, gaps=gaps[:, 1:])
    with pytest.raises(ProblemError, match="gaps are given to a model that was built without"):
        classifier()(NUMBERS, gaps=gaps)


@pytest.mark.parametrize(
    "model",
    [
        classifier(),
        records(),
        classifier(pooling="bag"),
        classifier(encoder="lstm", depth=2, closeness="sparsemax"),
    ],
)
def test_a_model_is_built_again_from_its_configuration(model):
    again = models.build("classifier", **model.configuration())
    assert again.configuration() == model.configuration()
    shapes = [{key: value.shape for key, value in one.state_dict().items()} for one in (model, again)]
    assert shapes[0] == shapes[1]


def test_words_are_lost_in_training_alone():
    model = classifier(word_dropout=0.9, dropout=0.0)
    assert torch.equal(model(NUMBERS), model(NUMBERS))
    model.train()
    torch.manual_seed(0)
    first = model(NUMBERS)
    assert not torch.allclose(first, model(NUMBERS))
    given = classifier(vocabulary=None, given=5, word_dropout=0.5, dropout=0.0).train()
    vectors = torch.randn(2, 4, 5, dtype=torch.float64)
    assert not torch.allclose(given(vectors), given(vectors))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"given": 4}, "vocabulary=12 and given=4; expected one of them"),
        ({"vocabulary": None}, "vocabulary=None and given=None; expected one of them"),
        ({"gaps": True}, "gaps of Classifier is True, but words have no times"),
        ({"preference": "recency"}, "preference of Classifier is 'recency', which reads gaps"),
        ({"preference": "relative"}, "preference of Classifier is 'relative'; expected one of uniform"),
        ({"pooling": "max"}, "pooling of Classifier is 'max'; expected one of attention, mean, bag"),
        ({"pooling": "bag", "encoder": "lstm"}, "pooling of Classifier is 'bag' and encoder 'lstm'"),
        ({"encoder": "gru"}, "encoder of Classifier is 'gru'; expected one of words, bigrams, conv, lstm"),
        ({"encoder": "lstm", "width": 9, "heads": 1}, "width of Classifier is 9; expected an even one"),
        ({"vocabulary": None, "given": 4, "encoder": "bigrams"}, "'bigrams', which are pairs of words"),
        ({"score": "cosine"}, "score of Classifier is 'cosine'"),
        ({"heads": 3}, "heads of Classifier is 3 and width 8"),
        ({"dropout": 1.0}, r"dropout of Classifier is 1\.0"),
        ({"word_dropout": -0.1}, "word_dropout of Classifier is -0.1"),
        ({"estimator": "best"}, "'best'"),
        ({"alpha": 0.0}, r"alpha of Inference is 0\.0"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_named(changes, message):
    with pytest.raises(ProblemError, match=message):
        classifier(**changes)


def test_words_have_to_be_numbers_or_vectors():
    with pytest.raises(ProblemError, match=r"words have dtype torch\.float64"):
        classifier()(NUMBERS.double())
    with pytest.raises(
        ProblemError, match=r"vectors have shape \(2, 3, 4\); Classifier was built for \(B, words, 5\)"
    ):
        classifier(vocabulary=None, given=5)(torch.zeros(2, 3, 4, dtype=torch.float64))
