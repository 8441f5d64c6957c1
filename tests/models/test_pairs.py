"""Pairs: both directions follow from one matrix of scores, padding changes nothing, and α = 0 is the mean."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fenchel import models
from fenchel.errors import ProblemError
from fenchel.inference import InferenceProblem
from fenchel.models import Pairs
from fenchel.models.pairs import PREFERENCES
from fenchel.nn.preference import AttentionInputs
from fenchel.preference import Discrete
from tests.nn.preferences import perturbed

PREMISES = torch.tensor([[4, 7, 2, 9], [5, 3, 0, 0], [8, 6, 3, 0]])
HYPOTHESES = torch.tensor([[4, 9, 3], [6, 0, 0], [5, 5, 0]])
ESTIMATORS = ("first_order", "second_order", "exact")


def pairs(**changes: object) -> Pairs:
    torch.manual_seed(0)
    model = Pairs(**{"vocabulary": 12, "width": 8, "heads": 2, "alpha": 3.0, **changes})  # type: ignore[arg-type]
    if model.preference is not None:
        perturbed(model.preference)
    return model.double().eval()


def by_hand(model: Pairs, premise: Tensor, hypothesis: Tensor, estimator: str) -> dict[str, Tensor]:
    """The logits of one pair without padding, from the parts, direction by direction and head by head."""
    states = [model.states(one.unsqueeze(0))[0][0] for one in (premise, hypothesis)]
    width = model.configuration()["width"] // model.heads
    sums = []
    for query, key, back in ((0, 1, False), (1, 0, True)):
        inputs = AttentionInputs(
            1, model.heads, len(states[query]), len(states[key]), premise.device, torch.float64,
            query_inputs=states[query].unsqueeze(0), key_inputs=states[key].unsqueeze(0), query_offset=0,
        )  # fmt: skip
        log_u = model.preference(inputs)
        shape = (1, model.heads, len(states[query]), len(states[key]))
        log_u = torch.zeros(shape) if log_u is None else log_u.expand(shape)
        found = []
        for head in range(model.heads):
            part = slice(head * width, (head + 1) * width)
            z, t = (model.templates(states[side])[:, part] for side in (query, key))
            form = model.evidence.weight[head]
            z, t = z @ (form.T if back else form), t / math.sqrt(width)
            if estimator == "first_order" and model.inference.closeness is None:
                weights = (log_u[0, head].double() + model.inference.alpha * z @ t.T).softmax(-1)
            else:
                u, g = Discrete(t, log_u[0, head].double()), model.inference
                problem = InferenceProblem(u, z, g.alpha, g.effective_closeness)
                weights = problem.solve(estimator).weights
            found.append(weights @ states[key][:, part])
        own, other = states[query], torch.cat(found, -1)
        sums.append(model.compare(torch.cat([own, other, own - other, own * other], -1)).sum(0))
    if model.summary:
        means = [model.states.embed(one).mean(0) for one in (premise, hypothesis)]
        one, other = (mean / mean.norm() * math.sqrt(len(mean)) for mean in means)
        sums += [(one - other).abs(), one * other]
    read = torch.cat(sums)
    assert model.head is not None
    assert model.degree is not None
    return {"labels": model.head(read), "relatedness": model.degree(read)}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("preference", PREFERENCES)
def test_both_directions_follow_from_the_parts_and_padding_changes_nothing(estimator, preference):
    model = pairs(
        estimator=estimator, preference=preference, score="general", summary=preference == "context"
    )
    with torch.no_grad():
        model.evidence.weight.add_(0.3 * torch.randn(model.evidence.weight.shape, dtype=torch.float64))
    says = model(PREMISES, HYPOTHESES)
    for place, (premise, hypothesis) in enumerate(zip(PREMISES, HYPOTHESES, strict=True)):
        alone = by_hand(model, premise[premise != 0], hypothesis[hypothesis != 0], estimator)
        for name, logits in alone.items():
            assert torch.allclose(says[name][place], logits, atol=1e-6)
    wider = model(torch.nn.functional.pad(PREMISES, (0, 2)), torch.nn.functional.pad(HYPOTHESES, (0, 1)))
    assert all(torch.allclose(wider[name], logits, atol=1e-7) for name, logits in says.items())


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_both_directions_follow_whatever_keeps_them_close(estimator):
    model = pairs(estimator=estimator, score="general", closeness="entmax15")
    says = model(PREMISES[:1], HYPOTHESES[:1])
    alone = by_hand(model, PREMISES[0], HYPOTHESES[0], estimator)
    assert all(torch.allclose(says[name][0], logits, atol=1e-6) for name, logits in alone.items())


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_follow_from_the_parts(estimator):
    model = pairs(score="general", preference="context", estimator=estimator)
    gradients = []
    for by in (model, lambda a, b: by_hand(model, a[0], b[0], estimator)):
        model.zero_grad()
        says = by(PREMISES[:1], HYPOTHESES[:1])
        (says["labels"].square().sum() + says["relatedness"].square().sum()).backward()
        gradients.append(
            {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys() == dict(model.named_parameters()).keys()
    assert all(torch.allclose(one, gradients[1][name], atol=1e-5) for name, one in gradients[0].items())


@pytest.mark.parametrize("score", ["dot", "general", "additive"])
def test_there_is_one_matrix_of_scores(score):
    model = pairs(score=score, heads=1)
    if model.evidence is not None:
        with torch.no_grad():
            model.evidence.weight.add_(torch.randn(8, 8, dtype=torch.float64))
    premise, hypothesis = model.read(PREMISES[:1]), model.read(HYPOTHESES[:1])
    found = [one.weights for one in model.asked(premise, hypothesis, need_weights=True)]
    assert found[0] is not None
    assert found[1] is not None
    there, back = found[0][0, 0], found[1][0, 0]
    # Softmax over either side of one matrix: the quotient of the two is a product of a row's and a column's number.
    quotient = there.log() - back.T.log()
    centred = quotient - quotient.mean(0) - quotient.mean(1, keepdim=True) + quotient.mean()
    assert torch.allclose(centred, torch.zeros_like(centred), atol=1e-9)
    assert not torch.allclose(quotient, quotient.mean().expand_as(quotient), atol=1e-3)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_attention_that_does_not_look_compares_with_the_mean(estimator):
    asking, mean = pairs(estimator=estimator, alpha=1e-9), pairs(pooling="mean")
    mean.load_state_dict({name: asking.state_dict()[name] for name in mean.state_dict()})
    for name, logits in asking(PREMISES, HYPOTHESES).items():
        assert torch.allclose(logits, mean(PREMISES, HYPOTHESES)[name], atol=1e-7)


def test_controls_have_no_attention_and_a_bag_no_order():
    for pooling in ("mean", "bag"):
        model = pairs(pooling=pooling)
        assert model.inference is model.inference_back is model.templates is model.preference is None
        turned = model(PREMISES[:1].flip(1), HYPOTHESES[:1])
        assert torch.allclose(turned["labels"], model(PREMISES[:1], HYPOTHESES[:1])["labels"])


@pytest.mark.parametrize(
    ("answers", "there"),
    [("labels", {"labels"}), ("relatedness", {"relatedness"}), ("both", {"labels", "relatedness"})],
)
def test_what_is_asked_for_is_answered(answers, there):
    model = pairs(answers=answers, comparison="concatenated", encoder="lstm")
    assert set(model(PREMISES, HYPOTHESES)) == there
    again = models.build("pairs", **model.configuration())
    assert again.configuration() == model.configuration()
    assert again.load_state_dict(model.state_dict())


def test_vectors_take_the_place_of_words():
    model = pairs(vocabulary=None, given=5, estimator="exact")
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, n, 5, dtype=torch.float64, generator=generator) for n in (4, 3))
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    says = model(a, b, premise_padding=padding)["labels"]
    assert torch.allclose(says[1], model(a[1:, :2], b[1:])["labels"][0], atol=1e-6)


def test_a_bag_reads_means_and_nothing_else():
    bag = pairs(pooling="bag", vocabulary=None, given=5)
    a, b = torch.randn(1, 4, 5, dtype=torch.float64), torch.randn(1, 3, 5, dtype=torch.float64)
    twice = bag(torch.cat([a, a], 1), b)["labels"]
    assert torch.allclose(twice, bag(3 * a, b)["labels"])
    assert bag.compare is None
    assert bag.head[0].in_features == 10  # type: ignore[index]


def test_an_additive_score_leaves_estimators_nothing_to_do():
    with pytest.raises(ProblemError, match="'exact' with an additive score, which is all preference"):
        pairs(score="additive", estimator="exact")
    model = pairs(score="additive", preference="gaussian", closeness="sparsemax")
    assert model(PREMISES, HYPOTHESES)["labels"].isfinite().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"summary": 1}, "summary is 1; expected True or False"),
        ({"answers": "all"}, "answers of Pairs is 'all'; expected one of labels, relatedness, both"),
        ({"comparison": "sum"}, "comparison of Pairs is 'sum'"),
        ({"preference": "position"}, "preference of Pairs is 'position'; expected one of uniform, context"),
        ({"pooling": "max"}, "pooling of Pairs is 'max'"),
        ({"score": "cosine"}, "score of Pairs is 'cosine'"),
        ({"heads": 3}, "heads of Pairs is 3 and width 8"),
        ({"classes": 0}, "classes of Pairs is 0"),
        ({"dropout": 1.0}, r"dropout of Pairs is 1\.0"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_named(changes, message):
    with pytest.raises(ProblemError, match=message):
        pairs(**changes)


def test_there_are_as_many_hypotheses_as_premises():
    with pytest.raises(ProblemError, match="there are 3 premises and 2 hypotheses"):
        pairs()(PREMISES, HYPOTHESES[:2])
