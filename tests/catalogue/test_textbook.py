"""What the textbook says of its mechanisms, and where it is not so."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fenchel import KL, Discrete, InferenceProblem, Tsallis
from fenchel.catalogue import Inferrer, Parts, entry

LARGE = -1e6


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_a_large_negative_score_does_not_mask_all():
    inputs = entry("masked").inputs()
    query, key, visible = inputs["query"], inputs["key"], inputs["visible"].clone()
    visible[1] = False
    answer = entry("masked").run(**{**inputs, "visible": visible})
    scores = query @ key.mT / key.shape[-1] ** 0.5
    written, added = scores.masked_fill(~visible, LARGE).softmax(-1), (scores + LARGE * ~visible).softmax(-1)
    assert (answer.weights[0][..., 1, :] == 0).all()
    assert (answer.output[..., 1, :] == 0).all()
    torch.testing.assert_close(written[..., 1, :], torch.full_like(written[..., 1, :], 1 / 7))
    # Unmasked again; scores at a million have lost ten digits.
    torch.testing.assert_close(added[..., 1, :], scores[..., 1, :].softmax(-1), rtol=1e-8, atol=1e-8)


def test_the_textbooks_double_exponential_is_no_kernel_regression():
    train, labels = torch.linspace(-3, 3, 30, dtype=torch.float64), drawn(30)
    test, w = torch.tensor([0.3, 9.0], dtype=torch.float64), 4.0
    kernel = torch.exp(-((w * (test[:, None] - train)) ** 2) / 2)
    printed = kernel.softmax(-1)
    assert float(printed.max() / printed.min()) <= math.e
    found = entry("nadaraya-watson").run(
        query=test.view(1, 1, 2, 1),
        key=train.view(1, 1, 30, 1),
        value=labels.view(1, 1, 30, 1),
        w=torch.full((1, 1), w, dtype=torch.float64),
    )
    near = kernel[0] / kernel[0].sum()
    torch.testing.assert_close(found.weights[0][0, 0, 0], near)
    assert float(near.max()) > 4 * float(printed[0].max())
    # Where every kernel underflows the nearest label is still found, from logarithms.
    torch.testing.assert_close(found.weights[0][0, 0, 1, -1], torch.tensor(1.0, dtype=torch.float64))


@pytest.mark.parametrize("estimator", ["first_order", "exact"])
def test_only_first_order_kernel_regression_knows_no_origin(estimator):
    regression = entry("nadaraya-watson")
    inputs = regression.inputs()
    moved = {**inputs, "query": inputs["query"] + 1, "key": inputs["key"] + 1}
    apart = (
        (regression.run(estimator, **moved).output - regression.run(estimator, **inputs).output).abs().max()
    )
    assert (apart < 1e-9) if estimator == "first_order" else (apart > 1e-2)


def test_scores_read_as_evidence_have_the_same_first_order_answer_and_another_exact_one():
    inputs = entry("soft-dictionary").inputs()
    scores = inputs["score"](inputs["query"], inputs["key"])
    n = scores.shape[-1]
    one_hot = torch.eye(n, dtype=scores.dtype).expand(1, 2, n, n)
    as_evidence = Parts(templates=one_hot, evidence=scores, values=inputs["value"])
    as_belief = entry("soft-dictionary").run(**inputs)
    torch.testing.assert_close(as_evidence.answer(), as_belief.output)
    assert (as_evidence.weights("exact") - as_belief.weights[0]).abs().max() > 0.01


@pytest.mark.parametrize("form", ["kl", "bregman", "csiszar"])
def test_hard_attention_is_the_limit_of_cold_softer_ones(form):
    inputs = entry("hard").inputs()
    hard = entry("hard").run(**inputs).output

    def at(temperature: float) -> Tensor:
        if form == "kl":
            cold = {**inputs, "query": inputs["query"] / temperature}
            return Inferrer()(Parts(templates=cold["key"], evidence=cold["query"], values=cold["value"]))
        closeness = Tsallis(1.5, form, temperature=temperature)
        parts = Parts(
            templates=inputs["key"], evidence=inputs["query"], values=inputs["value"], closeness=closeness
        )
        return parts.answer()

    apart = [float((at(temperature) - hard).abs().max()) for temperature in (1.0, 0.1, 1e-4)]
    assert apart[0] > apart[1] >= apart[2]
    assert apart[2] < 1e-9


def test_parts_are_the_inference_problem():
    answer = entry("nadaraya-watson").run("exact")
    (parts,) = answer.inferences
    assert isinstance(parts.log_preference, Tensor)
    assert isinstance(parts.alpha, Tensor)
    problem = InferenceProblem(
        Discrete(parts.templates, parts.log_preference.expand(1, 2, 1, 7)), parts.evidence, parts.alpha, KL()
    )
    torch.testing.assert_close(problem.solve("exact", tol=1e-10).weights, answer.weights[0])


def test_each_direction_of_decomposable_attention_is_an_inference_of_its_own():
    answer = entry("decomposable").run()
    beside_a, beside_b = answer.weights
    assert beside_a.shape[-2:] == (5, 6)
    assert beside_b.shape[-2:] == (6, 5)
    one, two = answer.inferences
    torch.testing.assert_close(one.evidence @ one.templates.mT, (two.evidence @ two.templates.mT).mT)


WAYS = [
    ("first_order", None),
    ("exact", None),
    ("exact", "tsallis:1.5"),
    ("first_order", "tsallis:2:csiszar"),
]


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize(("estimator", "closeness"), WAYS)
def test_nothing_passes_a_filter(estimator, closeness):
    inputs = entry("filter").inputs()
    changed = {**inputs, "key": inputs["key"].clone(), "value": inputs["value"].clone()}
    other = inputs["channel"] == 1
    changed["key"][:, :, other] *= 9
    changed["value"][:, :, other] += 100
    before, after = (
        entry("filter").run(estimator, closeness=closeness, **some).output for some in (inputs, changed)
    )
    torch.testing.assert_close(after[:, :, :2], before[:, :, :2])
    assert (after[:, :, 2:] - before[:, :, 2:]).abs().max() > 1


def test_attenuation_has_filter_and_no_filter_for_limits():
    inputs = entry("attenuation").inputs()
    shut = entry("attenuation").run(**{**inputs, "leak": number(1e-300)}).output
    without = {name: given for name, given in inputs.items() if name != "leak"}
    torch.testing.assert_close(shut, entry("filter").run(**without).output)
    wide = entry("attenuation").run(**{**inputs, "leak": number(1.0)}).output
    plain = {name: inputs[name] for name in ("query", "key", "value")}
    torch.testing.assert_close(wide, entry("scaled-dot").run(**plain).output)


@pytest.mark.parametrize(("estimator", "closeness"), WAYS)
def test_the_second_look_gives_less_to_what_the_first_gave_most(estimator, closeness):
    first, second, *_ = entry("inhibition-of-return").run(estimator, closeness=closeness).weights
    most = first.argmax(-1, keepdim=True)
    assert bool((second.gather(-1, most) < first.gather(-1, most)).all())


@pytest.mark.parametrize("estimator", ["first_order", "exact"])
def test_a_gain_multiplies_odds_at_first_order_alone(estimator):
    inputs = entry("gain-field").inputs()
    flat = {**inputs, "gain": torch.ones_like(inputs["gain"])}
    (gained,), (plain,) = (entry("gain-field").run(estimator, **some).weights for some in (inputs, flat))
    odds = (gained / gained[..., :1]) / (plain / plain[..., :1])
    expected = (inputs["gain"] / inputs["gain"][0]).expand_as(odds)
    apart = float((odds - expected).abs().max())
    assert (apart < 1e-9) if estimator == "first_order" else (apart > 0.1)


def test_bottom_up_and_top_down_alone():
    inputs = entry("top-down").inputs()
    (parts,) = entry("top-down").run().inferences
    bottom_up = replace(parts, alpha=1e-12)
    for estimator in ("first_order", "exact"):
        found = bottom_up.weights(estimator)
        torch.testing.assert_close(found, inputs["salience"].softmax(-1).unsqueeze(-2).expand_as(found))
    even = entry("top-down").run(**{**inputs, "salience": torch.zeros_like(inputs["salience"])}).output
    plain = {"query": inputs["goal"], "key": inputs["key"], "value": inputs["value"]}
    torch.testing.assert_close(even, entry("dot").run(**plain).output)
