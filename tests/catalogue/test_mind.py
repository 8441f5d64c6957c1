"""What is said of the theories of human attention, as far as it is mathematics."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import Discrete, Hard, InferenceProblem
from fenchel.catalogue import FAMILIES, NOTES, Parts, entry

WAYS = [
    ("first_order", None),
    ("exact", None),
    ("exact", "tsallis:1.5"),
    ("first_order", "tsallis:2:csiszar"),
]


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def salience_as_parts(salience: Tensor, alpha: float = 1.0) -> Parts:
    templates = salience.unsqueeze(-1)
    return Parts(
        templates=templates, evidence=torch.ones_like(templates[..., :1, :]), values=templates, alpha=alpha
    )


def test_the_family_says_what_it_is_not():
    assert set(NOTES) <= set(FAMILIES)
    assert "biology" in NOTES["Mind"]


def test_the_winner_takes_all_in_the_limit_of_softmax():
    inputs = entry("winner-take-all").inputs()
    winner = entry("winner-take-all").run(**inputs).output
    apart = []
    for alpha in (1.0, 10.0, 1e4):
        weights = salience_as_parts(inputs["salience"], alpha=alpha).weights()
        apart.append(float((weights @ inputs["value"] - winner).abs().max()))
    assert apart[0] > apart[1] > apart[2]
    assert apart[2] < 1e-9


def test_exact_inference_has_another_limit_unless_evidence_points_beyond_all():
    salience = torch.tensor([[[-2.0, 0.0, 0.5, 3.0]]], dtype=torch.float64)
    parts = salience_as_parts(salience, alpha=1e3)
    mu = salience.mean()
    mean = parts.answer("exact").squeeze()
    torch.testing.assert_close(mean, mu + 1, rtol=0, atol=1e-2)
    assert float(parts.weights("exact").max()) < 0.9
    beyond = replace(parts, evidence=5 * parts.evidence)
    assert float(beyond.weights("exact")[..., -1]) > 1 - 1e-9


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


def test_a_name_breaks_through_attenuation_at_a_threshold():
    leak, key = 0.05, torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    query = torch.tensor([2.0, 0, 0, 0], dtype=torch.float64).view(1, 1, 1, 4)
    inputs: dict[str, Any] = {
        "query": query,
        "value": key,
        "channel": torch.tensor([0, 1]),
        "attended": torch.tensor([0]),
        "leak": number(leak),
    }
    threshold = math.log(1 / leak)
    for excess, heard in ((0.99, False), (1.01, True)):
        louder = key.clone()
        louder[0, 0, 1, 0] = excess * threshold  # its score: 2 · key / √4
        (weights,) = entry("attenuation").run(**inputs, key=louder).weights
        assert bool(weights[0, 0, 0, 1] > weights[0, 0, 0, 0]) is heard


def test_attenuation_has_filter_and_no_filter_for_limits():
    inputs = entry("attenuation").inputs()
    shut = entry("attenuation").run(**{**inputs, "leak": number(1e-300)}).output
    without = {name: given for name, given in inputs.items() if name != "leak"}
    torch.testing.assert_close(shut, entry("filter").run(**without).output)
    wide = entry("attenuation").run(**{**inputs, "leak": number(1.0)}).output
    plain = {name: inputs[name] for name in ("query", "key", "value")}
    torch.testing.assert_close(wide, entry("scaled-dot").run(**plain).output)


def test_the_power_of_a_beam_falls_with_its_area():
    step = 0.1
    line = torch.arange(-8, 8 + step, step, dtype=torch.float64)
    places = torch.cartesian_prod(line, line)
    n, widths = len(places), torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    key = torch.zeros(1, 1, n, 1, dtype=torch.float64)
    (weights,) = (
        entry("zoom-lens")
        .run(
            query=torch.ones(1, 1, 3, 1, dtype=torch.float64),
            key=key,
            value=key,
            places=places,
            centre=torch.zeros(3, 2, dtype=torch.float64),
            width=widths,
        )
        .weights
    )
    density = weights.amax(-1)[0, 0] / step**2
    torch.testing.assert_close(density * 2 * math.pi * widths**2, torch.ones_like(widths), rtol=1e-3, atol=0)


def test_a_very_wide_lens_is_no_lens_and_a_narrow_one_sees_one_place():
    inputs = entry("zoom-lens").inputs()
    wide = entry("zoom-lens").run(**{**inputs, "width": torch.full((3,), 1e6, dtype=torch.float64)}).output
    plain = {name: inputs[name] for name in ("query", "key", "value")}
    torch.testing.assert_close(wide, entry("scaled-dot").run(**plain).output)
    narrow = entry("zoom-lens").run(**{**inputs, "width": torch.full((3,), 1e-2, dtype=torch.float64)}).output
    nearest = torch.cdist(inputs["centre"], inputs["places"]).argmin(-1)
    torch.testing.assert_close(narrow, inputs["value"][:, :, nearest])


def test_winners_that_are_inhibited_for_good_are_visited_in_the_order_of_their_scores():
    inputs = entry("inhibition-of-return").inputs()
    inputs |= {"inhibition": number(1.0), "memory": number(1.0)}
    inputs |= {"value": torch.eye(6, dtype=torch.float64).expand(1, 2, 6, 6)}
    looks = entry("inhibition-of-return").run(closeness=Hard(), **inputs).output.argmax(-1)
    scores = (inputs["query"] @ inputs["key"].mT).squeeze(-2)
    assert torch.equal(looks, scores.argsort(-1, descending=True)[..., :4])


@pytest.mark.parametrize(("estimator", "closeness"), WAYS)
def test_the_second_look_gives_less_to_what_the_first_gave_most(estimator, closeness):
    first, second, *_ = entry("inhibition-of-return").run(estimator, closeness=closeness).weights
    most = first.argmax(-1, keepdim=True)
    assert bool((second.gather(-1, most) < first.gather(-1, most)).all())


def test_without_inhibition_every_look_is_the_first():
    inputs = entry("inhibition-of-return").inputs()
    looks = entry("inhibition-of-return").run(**{**inputs, "inhibition": number(0.0)}).output
    torch.testing.assert_close(looks, looks[:, :, :1].expand_as(looks))


def test_guided_search_is_who_comes_first_under_gumbel_noise():
    answer = entry("guided-search").run()
    (parts,) = answer.inferences
    assert parts.log_preference is not None
    activation = (parts.evidence @ parts.templates.mT + parts.log_preference)[0, 0, 0]
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(40_000, len(activation), dtype=torch.float64, generator=generator)
    first = (activation - (-uniform.log()).log()).argmax(-1)
    shares = torch.bincount(first, minlength=len(activation)) / len(uniform)
    torch.testing.assert_close(shares.double(), answer.weights[0][0, 0, 0], atol=0.01, rtol=0)


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
