"""What the catalogue says of attention in images, of hashing and of gates, beyond what each computes."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import Bernoulli, InferenceProblem
from fenchel import functional as F
from fenchel.catalogue import Inferrer, entry
from fenchel.catalogue.gates import coins

ESTIMATORS = ("first_order", "second_order", "exact")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(name: str, estimator: str = "first_order", **inputs: Any) -> Tensor:
    return entry(name).run(estimator, **inputs).output


def test_sagan_and_the_embedded_gaussian_are_one_mechanism():
    inputs = entry("sagan").inputs()
    found = run("sagan", **inputs)
    maps = {"theta": inputs["g"], "phi": inputs["f"], "g": inputs["h"], "w": inputs["gamma"] * inputs["v"]}
    torch.testing.assert_close(run("non-local-embedded", x=inputs["x"], **maps), found)


def test_double_attention_distributes_over_descriptors_at_each_place():
    inputs = entry("a2-net").inputs()
    answer = entry("a2-net").run(**inputs)
    gathering, distributing = answer.weights
    places, descriptors = inputs["x"].shape[1], inputs["gather"].shape[1]
    assert gathering.shape == (2, 1, descriptors, places)
    assert distributing.shape == (2, 1, places, descriptors)
    # What a place gets lies between the descriptors, in each of their entries.
    gathered = answer.inferences[1].values.squeeze(1)
    assert (answer.output <= gathered.amax(1, keepdim=True)).all()
    assert (answer.output >= gathered.amin(1, keepdim=True)).all()


def test_a_bias_of_the_gathering_map_changes_nothing_and_one_of_the_other_is_belief():
    inputs = entry("a2-net").inputs()
    answer = entry("a2-net").run(**inputs)
    logits = torch.einsum("bnc,ck->bkn", inputs["x"], inputs["gather"])
    torch.testing.assert_close((logits + drawn(5, 1, seed=3)).softmax(-1), answer.weights[0].squeeze(1))
    nothing_seen = run("a2-net", "exact", **{**inputs, "distribute": torch.zeros_like(inputs["distribute"])})
    gathered = entry("a2-net").run("exact", **inputs).inferences[1].values.squeeze(1)
    expected = inputs["bias"].softmax(0) @ gathered
    torch.testing.assert_close(nothing_seen, expected[:, None].expand_as(nothing_seen))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_reformers_are_hashing_attention(estimator):
    inputs = entry("reformer").inputs(2)
    query, value = inputs["query"], inputs["value"]
    key, buckets = torch.nn.functional.normalize(query, dim=-1), F.hash_buckets(query, inputs["rotations"])
    options: dict[str, Any] = {"chunk": 2, "causal": True, "scale": 1.0, "estimator": estimator}
    found = F.hashing_attention(query, key, value, buckets, same_bucket=True, count_meetings=False, **options)
    torch.testing.assert_close(found, run("reformer", estimator, **inputs))
    found = F.hashing_attention(query, key, value, buckets, **options)
    torch.testing.assert_close(found, run("reformer-as-run", estimator, **inputs))
    assert float((run("reformer", **inputs) - run("reformer-as-run", **inputs)).abs().max()) > 1e-3


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_coin_of_two_templates_is_bernoulli(estimator):
    evidence, odds = 2 * drawn(4, 3), drawn(3, seed=1)
    found = coins(Inferrer(estimator), evidence, odds)
    options = {"tol": 1e-10} if estimator == "exact" else {}
    expected = InferenceProblem(Bernoulli(logits=odds), evidence).solve(estimator, **options)
    torch.testing.assert_close(found, expected.mean, rtol=1e-8, atol=1e-10)
    if estimator == "first_order":
        torch.testing.assert_close(found, torch.sigmoid(odds + evidence))


def test_a_coin_with_a_tail_of_minus_one_is_tanh():
    evidence, odds = 2 * drawn(4, 3), drawn(3, seed=1)
    found = coins(Inferrer(), evidence, 2 * odds, tails=-1.0)
    torch.testing.assert_close(found, torch.tanh(evidence + odds))


def test_a_mask_is_the_mean_of_a_feature_and_its_double():
    inputs = entry("residual-attention").inputs()
    answer = entry("residual-attention").run(**inputs)
    (weights,) = answer.weights
    features = inputs["features"]
    shown = torch.stack([features, 2 * features], -1)
    by_unit = weights.squeeze(0).transpose(0, 1).reshape(shown.shape)
    torch.testing.assert_close((by_unit * shown).sum(-1), answer.output)


def test_a_cell_is_kept_by_what_is_believed_of_its_forget_gate():
    inputs = entry("lstm").inputs()
    asked_nothing = {
        **inputs,
        "weight_x": torch.zeros_like(inputs["weight_x"]),
        "weight_h": torch.zeros_like(inputs["weight_h"]),
        "bias": torch.tensor([-40.0] * 2 + [1.0] * 2 + [0.0] * 4, dtype=torch.float64),
    }
    for estimator in ESTIMATORS:
        state = run("lstm", estimator, **asked_nothing)[:, 2:]
        torch.testing.assert_close(state, 0.7310585786300049 * inputs["c"])
