"""Classifiers of sentences: padding changes nothing, and attention that does not look is the mean."""

from __future__ import annotations

import pytest
import torch

from fenchel import models
from fenchel.errors import ProblemError
from fenchel.models import AttentionPooling, MeanPooling

NUMBERS = torch.tensor([[4, 7, 2, 9], [5, 3, 0, 0], [8, 0, 0, 0]])
ESTIMATORS = ("first_order", "second_order", "exact")


def attention(seed: int = 0, **changes: object) -> AttentionPooling:
    torch.manual_seed(seed)
    model = AttentionPooling(**{"vocabulary": 12, "classes": 3, "width": 8, "heads": 2, **changes})  # type: ignore[arg-type]
    return model.double().eval()


def built(name: str) -> torch.nn.Module:
    if name == "mean":
        return MeanPooling(vocabulary=12, classes=3, width=8).double().eval()
    return attention(estimator=name, preference="position")


@pytest.mark.parametrize("name", ["mean", *ESTIMATORS])
def test_padding_changes_nothing_and_a_batch_is_its_rows(name):
    model = built(name)
    whole = model(NUMBERS)
    for row, numbers in zip(whole, NUMBERS, strict=True):
        alone = model(numbers[numbers != 0].unsqueeze(0))[0]
        assert torch.allclose(row, alone, atol=1e-9)
    assert model(torch.zeros(1, 3, dtype=torch.int64)).isfinite().all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_attention_that_does_not_look_is_the_mean(estimator):
    asking = attention(estimator=estimator, alpha=1e-9)
    mean = MeanPooling(vocabulary=12, classes=3, width=8).double().eval()
    mean.load_state_dict({name: asking.state_dict()[name] for name in mean.state_dict()})
    assert torch.allclose(asking(NUMBERS), mean(NUMBERS), atol=1e-8)
    looking = attention(estimator=estimator, alpha=4.0)
    assert not torch.allclose(looking(NUMBERS), mean(NUMBERS), atol=1e-3)


def test_estimators_differ_and_all_learn():
    answers = {estimator: attention(estimator=estimator, alpha=6.0) for estimator in ESTIMATORS}
    outputs = [model(NUMBERS) for model in answers.values()]
    assert not torch.allclose(outputs[0], outputs[1], atol=1e-4)
    assert not torch.allclose(outputs[1], outputs[2], atol=1e-5)
    for model, output in zip(answers.values(), outputs, strict=True):
        output.square().sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        assert model.question.grad is not None
        assert model.question.grad.abs().sum() > 0


def test_order_matters_where_places_have_weights_alone():
    turned = NUMBERS[:1].flip(1)
    plain, placed = attention(), attention(preference="position")
    assert torch.allclose(plain(turned), plain(NUMBERS[:1]))
    with torch.no_grad():
        for name, parameter in placed.preference.named_parameters():
            assert name.endswith("bias")
            parameter.copy_(torch.linspace(0, 2, parameter.numel()).view_as(parameter))
    assert not torch.allclose(placed(turned), placed(NUMBERS[:1]), atol=1e-3)


@pytest.mark.parametrize(
    "model", [MeanPooling(20, 3, 8), AttentionPooling(20, 3, 8, 2, 0.1, "exact", 2.0, "position", 9)], ids=str
)
def test_a_model_is_built_again_from_its_configuration(model):
    name = {kind: name for name, kind in models.MODELS.items()}[type(model)]
    again = models.build(name, **model.configuration())
    assert again.configuration() == model.configuration()
    shapes = [{key: value.shape for key, value in one.state_dict().items()} for one in (model, again)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary": 0}, "vocabulary of a classifier of sentences is 0"),
        ({"heads": 3}, "heads of a classifier of sentences is 3 and width 8"),
        ({"estimator": "best"}, "estimator of a classifier of sentences is 'best'"),
        (
            {"preference": "last"},
            "preference of a classifier of sentences is 'last'; expected one of uniform, position",
        ),
        ({"alpha": -1.0}, r"alpha of a classifier of sentences is -1\.0"),
        ({"dropout": 1.0}, r"dropout of a classifier of sentences is 1\.0"),
        ({"longest": 0}, "longest of a classifier of sentences is 0"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_named(changes, message):
    with pytest.raises(ProblemError, match=message):
        attention(**changes)


def test_numbers_have_to_be_some():
    with pytest.raises(ProblemError, match="numbers"):
        attention()(NUMBERS.double())
    with pytest.raises(ProblemError, match="numbers"):
        attention()(NUMBERS[0])
