"""What the mechanisms beside and after softmax solve, and what they do not."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel import Gaussian, InferenceProblem
from fenchel.catalogue import GaussianParts, Parts, Verdict, entry
from fenchel.closeness.coupling import transport_value


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def coefficients(name: str, **inputs: Any) -> Tensor:
    """What a mechanism that is linear in its values multiplies each with, (B, H, m, n)."""
    n = inputs["value"].shape[-2]
    one_hot = torch.eye(n, dtype=torch.float64).expand(*inputs["value"].shape[:2], n, n)
    return entry(name).run(**{**inputs, "value": one_hot}).output


def test_sinkhorn_attention_is_the_entropic_plan_of_all_queries_together():
    inputs = entry("sinkhorn").inputs()
    (weights,) = entry("sinkhorn").run(**inputs).weights
    m, n = weights.shape[-2:]
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    torch.testing.assert_close(weights.sum(-2), torch.full_like(weights[..., 0, :], m / n))
    scores, plan = inputs["query"] @ inputs["key"].mT / 2, weights / m
    reached = (plan * (plan.log() - scores)).sum((-2, -1))
    even = torch.full((1, 2, 1, m), 1 / m, dtype=torch.float64)
    log_keys = torch.full((1, 2, 1, n), 1 / n, dtype=torch.float64).log()
    least = transport_value(even, log_keys, -scores, torch.ones(1, 1, dtype=torch.float64))
    torch.testing.assert_close(reached, least.squeeze(-1))


def test_a_sink_is_what_gpt_oss_does():
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    inputs = entry("sink").inputs()
    layer: Any = SimpleNamespace(num_key_value_groups=1, sinks=inputs["sink"], training=False)
    expected, _ = eager_attention_forward(
        layer, inputs["query"], inputs["key"], inputs["value"], None, scaling=0.5
    )
    torch.testing.assert_close(entry("sink").run(**inputs).output, expected.transpose(1, 2))


def test_only_exact_inference_sees_where_the_sink_is():
    inputs = entry("sink").inputs()
    (parts,) = entry("sink").run(**inputs).inferences
    templates = parts.templates.clone()
    # As little in the way of every query: none has this direction.
    query = nn.functional.pad(parts.evidence, (0, 1))
    templates = nn.functional.pad(templates, (0, 1))
    elsewhere = templates.clone()
    elsewhere[..., -1, -1] = 3.0
    options = {"evidence": query, "values": parts.values, "log_preference": parts.log_preference}
    here, there = Parts(templates=templates, **options), Parts(templates=elsewhere, **options)
    torch.testing.assert_close(here.weights(), there.weights())
    assert (here.weights("exact") - there.weights("exact")).abs().max() > 1e-3


def test_linear_attention_is_its_kernel_over_keys_and_an_inference_over_features():
    inputs = entry("linear-attention").inputs()
    of_query, of_key = (nn.functional.elu(inputs[name]) + 1 for name in ("query", "key"))
    kernel = of_query @ of_key.mT
    found = coefficients("linear-attention", **inputs)
    torch.testing.assert_close(found, kernel / kernel.sum(-1, keepdim=True))
    as_belief = Parts(
        templates=inputs["key"],
        evidence=torch.zeros_like(inputs["query"]),
        values=inputs["value"],
        log_preference=kernel.log(),
    )
    answer = entry("linear-attention").run(**inputs)
    torch.testing.assert_close(as_belief.answer(), answer.output)
    assert float(as_belief.certificate().gap.max()) < 1e-12
    assert answer.gap > 1e-3
    assert answer.weights[0].shape[-1] == inputs["key"].shape[-1]


@pytest.mark.parametrize("size", [1.0, 10.0, 60.0])
@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_linear_attention_is_finite_in_float32_where_features_are_small(estimator, size):
    """elu(x) + 1 is 0 in float32 where x is below -18; the formula itself divides by a sum that is above 0."""
    wide = {name: size * part for name, part in entry("linear-attention").inputs().items()}
    wide["value"] = wide["value"] / size
    if size > 1:
        wide["query"][..., 0], wide["key"][..., 1] = -20.0, -30.0
    inputs = {name: part.float() for name, part in wide.items()}
    found = entry("linear-attention").run(estimator, **inputs).output
    expected = entry("linear-attention").run(estimator, **{n: x.double() for n, x in inputs.items()}).output
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    if estimator == "first_order":
        of_query, of_key = (
            torch.where(x > 0, x + 1, x.exp()) for x in (inputs["query"].double(), inputs["key"].double())
        )
        kernel = of_query @ of_key.mT
        published = kernel @ inputs["value"].double() / kernel.sum(-1, keepdim=True)
        torch.testing.assert_close(found.double(), published, rtol=1e-5, atol=1e-5)


def test_retention_has_no_weights_and_the_gaussian_answers():
    inputs = entry("retention").inputs()
    found = coefficients("retention", **inputs)
    assert bool((found < 0).any())
    assert float((found.sum(-1) - 1).abs().max()) > 0.1
    answer = entry("retention").run(**inputs)
    assert answer.weights == ()
    (parts,) = answer.inferences
    u = Gaussian(torch.zeros(1, 2, 6, 4, dtype=torch.float64), parts.second_moments())
    problem = InferenceProblem(u, inputs["query"])
    for estimator in ("first_order", "second_order", "exact"):
        dual = problem.solve(estimator).dual
        read = torch.einsum(
            "bhmn,bhnd,bhmd,bhnv->bhmv", parts.counts.expand(1, 2, 6, 6), inputs["key"], dual, inputs["value"]
        )
        torch.testing.assert_close(parts.answer(estimator), read)


def test_the_gaussians_answer_is_the_mean_of_values_under_it():
    """From the joint distribution of keys and values, tilted by λ on the keys."""
    key, value, query = drawn(1, 1, 9, 3), drawn(1, 1, 9, 2, seed=1), drawn(1, 1, 4, 3, seed=2)
    parts = GaussianParts(templates=key, evidence=query, values=value, alpha=0.7)
    pairs = torch.cat([key, value], -1)[0, 0]
    joint = Gaussian(torch.zeros(5, dtype=torch.float64), pairs.T @ pairs)
    for estimator in ("first_order", "exact"):
        on_keys_alone = nn.functional.pad(parts.dual(estimator)[0, 0], (0, 2))
        mean = joint.tilted_mean(on_keys_alone)
        torch.testing.assert_close(parts.answer(estimator)[0, 0], mean[:, 3:])


def test_the_distance_of_two_normal_distributions_is_what_is_integrated():
    key = torch.tensor([[1.5], [0.5]], dtype=torch.float64)[None, None]
    parts = GaussianParts(templates=key, evidence=torch.full((1, 1, 1, 1), 0.8).double(), values=key)
    (variance,) = parts.second_moments().flatten()
    means = [float(variance * parts.dual(way)) for way in ("first_order", "exact")]
    x = torch.linspace(-30, 30, 200_001, dtype=torch.float64)
    one, two = (
        torch.exp(-((x - mean) ** 2) / (2 * variance)) / (2 * torch.pi * variance) ** 0.5 for mean in means
    )
    expected = torch.trapezoid((one - two).abs(), x) / 2
    torch.testing.assert_close(parts.total_variation().squeeze(), expected, rtol=1e-5, atol=1e-6)


def test_the_mesa_layer_is_ridge_regression_and_the_exact_answer_of_linear_attention():
    inputs = entry("mesa").inputs()
    answer = entry("mesa").run(**inputs)
    assert answer.estimator == "exact"
    k, v, q, ridge = inputs["key"][0, 0], inputs["value"][0, 0], inputs["query"][0, 0, -1], inputs["ridge"]
    weight = torch.linalg.solve(k.T @ k + ridge * torch.eye(4, dtype=k.dtype), k.T @ v).T.requires_grad_()
    loss = (v - k @ weight.T).square().sum() + ridge * weight.square().sum()
    (slope,) = torch.autograd.grad(loss, weight)
    torch.testing.assert_close(slope, torch.zeros_like(slope))
    torch.testing.assert_close(answer.output[0, 0, -1], (weight @ q).detach())
    first = entry("mesa").run("first_order", **inputs).output
    linear = (inputs["query"] @ inputs["key"].mT * inputs["seen"]) @ inputs["value"] / ridge
    torch.testing.assert_close(first, linear)
    assert bool((coefficients("mesa", **inputs) < 0).any())


def test_a_gated_delta_rule_is_what_qwen3_next_does():
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

    inputs = {name: given.float() for name, given in entry("gated-delta").inputs().items()}
    swapped = {name: given.transpose(1, 2) for name, given in inputs.items()}
    expected, _ = torch_recurrent_gated_delta_rule(
        swapped["query"],
        swapped["key"],
        swapped["value"],
        swapped["gate"].log(),
        swapped["rate"],
        None,
        False,
    )
    # Theirs divides queries by the root of their dimension.
    found = entry("gated-delta").run(**inputs).output
    torch.testing.assert_close(found / 2, expected.transpose(1, 2), rtol=1e-4, atol=1e-5)


def test_a_gated_delta_rule_is_no_inference_from_its_pairs():
    rule = entry("gated-delta")
    assert rule.verdict is Verdict.NOT_ONE
    inputs = rule.inputs()
    assert bool((coefficients("gated-delta", **inputs) < 0).any())
    # In another order the same pairs leave another state, although nothing is forgotten.
    inputs |= {"gate": torch.ones_like(inputs["gate"])}
    order = torch.tensor([5, 4, 3, 2, 1, 0])
    swapped = {name: inputs[name][:, :, order] for name in ("key", "value", "rate")}
    last, other = (rule.run(**some).output[:, :, -1] for some in (inputs, {**inputs, **swapped}))
    assert (last - other).abs().max() > 1e-2
