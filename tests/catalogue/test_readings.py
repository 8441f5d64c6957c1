"""What is a choice in how entries are read, and what is said of exact answers in general."""

import pytest
import torch
from torch import Tensor

from fenchel.catalogue import GaussianParts, Parts, Verdict, entry


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_additive_attention_is_evidence_on_templates_of_pairs_at_first_order_alone():
    inputs = entry("additive").inputs()
    state, annotations, network = inputs["state"], inputs["annotations"], inputs["network"]
    pairs = torch.tanh(network.of_query(state).unsqueeze(-2) + network.of_key(annotations).unsqueeze(-3))
    asked = network.score[0].expand(*state.shape[:2], -1)
    parts = Parts(templates=pairs.unsqueeze(1), evidence=asked.unsqueeze(1), values=annotations.unsqueeze(1))
    (as_belief,) = entry("additive").run(**inputs).weights
    torch.testing.assert_close(parts.weights(), as_belief)
    assert bool(((parts.weights("exact") - as_belief).abs() > 1e-3).any())


def test_location_is_evidence_on_templates_of_places_at_first_order_alone():
    inputs = entry("location").inputs()
    n = inputs["annotations"].shape[1]
    places = inputs["network"].weight[:, :n].expand(2, -1, -1, -1)
    parts = Parts(
        templates=places, evidence=inputs["state"].unsqueeze(1), values=inputs["annotations"].unsqueeze(1)
    )
    (as_belief,) = entry("location").run(**inputs).weights
    torch.testing.assert_close(parts.weights(), as_belief)
    assert bool(((parts.weights("exact") - as_belief).abs() > 1e-3).any())


@pytest.mark.parametrize("beta", [0.7, 5.0])
def test_iterated_exact_inference_forgets_what_was_asked(beta):
    inputs = entry("hopfield").inputs()
    patterns, alpha = inputs["patterns"], torch.tensor(beta, dtype=torch.float64)
    state = torch.cat([inputs["state"], 3 * inputs["state"] + 1], -2)
    for _ in range(40):
        state = Parts(templates=patterns, evidence=state, values=patterns, alpha=alpha).answer("exact")
    rest = patterns.mean(-2, keepdim=True)
    one = (beta * rest @ patterns.mT).softmax(-1) @ patterns
    torch.testing.assert_close(state, one.expand_as(state), rtol=0, atol=1e-4)


def test_exact_linear_attention_takes_off_the_evidence_what_a_feature_has_gained():
    (parts,) = entry("linear-attention").run().inferences
    exact, believed = parts.weights("exact"), parts.believed()
    lifted = (exact / believed).log() - (parts.evidence - (exact - believed))
    torch.testing.assert_close(lifted, lifted[..., :1].expand_as(lifted), rtol=1e-6, atol=1e-7)


def test_the_dot_product_form_is_the_mean_under_a_normal_distribution_on_pairs():
    """And so is any sum of values that is linear in the query: the entry says whose belief that would be."""
    inputs = entry("non-local-dot").inputs()
    pixels = inputs["x"].unsqueeze(1)
    even = torch.full((1, 1, 1, pixels.shape[2]), 1 / pixels.shape[2], dtype=torch.float64)
    parts = GaussianParts(
        templates=pixels @ inputs["phi"],
        evidence=pixels @ inputs["theta"],
        values=pixels @ inputs["g"],
        counts=even,
    )
    found = parts.answer().squeeze(1) @ inputs["w"] + inputs["x"]
    torch.testing.assert_close(found, entry("non-local-dot").run(**inputs).output)
    assert entry("non-local-dot").verdict is Verdict.NOT_ONE


@pytest.mark.parametrize(("name", "counted"), [("retention", True), ("gated-delta", False)])
def test_a_state_that_is_rewritten_is_no_sum_of_counted_pairs(name, counted):
    inputs = entry(name).inputs()
    key, value = inputs["key"][0, 0], inputs["value"][0, 0]
    basis = torch.eye(4, dtype=torch.float64)
    columns = [
        entry(name).run(**{**inputs, "query": one.expand_as(inputs["query"])}).output[0, 0, -1]
        for one in basis
    ]
    state = torch.stack(columns, -1).flatten().unsqueeze(-1)
    pairs = torch.stack([torch.outer(v, k).flatten() for k, v in zip(key, value, strict=True)], -1)
    missed = (pairs @ torch.linalg.lstsq(pairs, state).solution - state).norm() / state.norm()
    assert (float(missed) < 1e-9) if counted else (float(missed) > 1e-2)
