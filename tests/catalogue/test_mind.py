"""What is said of the theories of human attention, as far as it is mathematics."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fenchel import Discrete, InferenceProblem
from fenchel.catalogue import FAMILIES, NOTES, entry

WAYS = [
    ("first_order", None),
    ("exact", None),
    ("exact", "tsallis:1.5"),
    ("first_order", "tsallis:2:csiszar"),
]


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def test_the_family_says_what_it_is_not():
    assert set(NOTES) <= set(FAMILIES)
    assert "biology" in NOTES["Mind"]


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


def test_the_exact_dual_point_is_a_prediction_error_weighted_by_its_precision():
    inputs = entry("precision").inputs()
    u = Discrete(inputs["key"])
    problem = InferenceProblem(u, inputs["query"], inputs["precision"])
    exact = problem.solve("exact", tol=1e-10)
    error = u.mean() + inputs["query"] - exact.mean
    torch.testing.assert_close(exact.dual, inputs["precision"].unsqueeze(-1) * error)
    first = problem.solve("first_order").dual
    torch.testing.assert_close(first, inputs["precision"].unsqueeze(-1) * inputs["query"])
    torch.testing.assert_close(exact.weights, entry("precision").run("exact").weights[0])


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
