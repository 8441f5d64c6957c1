"""Every entry of the catalogue: what it computes, what it says of itself, and in what orders it does not look."""

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel import KL, Bernoulli, Discrete, Gaussian, Hard, InferenceProblem
from fenchel.catalogue import (
    ENTRIES,
    Entry,
    GaussianParts,
    Parts,
    RelativeParts,
    TransportParts,
    Verdict,
    entry,
)
from fenchel.catalogue.declaration import cited
from fenchel.catalogue.entry import Inferrer
from fenchel.catalogue.parts import AbstractFiniteParts
from fenchel.catalogue.vision_and_gates import coins
from fenchel.errors import FenchelError
from fenchel.functional.relative import distance_index
from fenchel.nn import MultiheadAttention
from tests.catalogue.references import REFERENCES
from tests.normal import drawn

NAMES = list(ENTRIES)
INFERRED = [
    name for name in NAMES if ENTRIES[name].estimators and ENTRIES[name].verdict is not Verdict.NOT_ONE
]


def ways(entry: Entry) -> list[tuple[str, str | None]]:
    """Estimators and closenesses that an entry takes."""
    under = [("first_order", "tsallis:2:csiszar"), (entry.estimators[-1], "tsallis:1.5")]
    return [*((name, None) for name in entry.estimators), *(under if entry.takes_closeness else [])]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_published_is_what_runs(name):
    expected = REFERENCES[name](**ENTRIES[name].inputs(1))
    found = ENTRIES[name].run(seed=1).output
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    single = ENTRIES[name].run(**ENTRIES[name].inputs(1, torch.float32)).output
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_what_is_published(name):
    def gradients(function: Any) -> dict[str, Tensor]:
        inputs = ENTRIES[name].inputs(3)
        floats = (
            key for key, given in inputs.items() if isinstance(given, Tensor) and given.is_floating_point()
        )
        wanted = {key: inputs[key].requires_grad_() for key in floats}
        output = function(**inputs)
        weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(0), dtype=output.dtype)
        if not output.requires_grad:
            return {}
        found = torch.autograd.grad((output * weight).sum(), list(wanted.values()), materialize_grads=True)
        return dict(zip(wanted, found, strict=True))

    found = gradients(lambda **inputs: ENTRIES[name].run(**inputs).output)
    expected = gradients(REFERENCES[name])
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_its_verdict_fits_its_inferences_and_what_it_does_not_take_is_refused(name):
    entry = ENTRIES[name]
    count = len(entry.run(entry.estimators[0] if entry.estimators else "first_order").inferences)
    if entry.verdict is Verdict.NOT_ONE:
        assert (count, entry.estimators, entry.takes_closeness) == (0, ("first_order",), False)
    else:
        assert count == 1 if entry.verdict is Verdict.ONE else count >= 1
    assert entry.because or entry.verdict is Verdict.ONE
    for estimator in {"first_order", "second_order", "exact"} - set(entry.estimators):
        with pytest.raises(FenchelError, match=estimator):
            entry.run(estimator)
    if not entry.takes_closeness:
        with pytest.raises(FenchelError, match="closeness"):
            entry.run(closeness="tsallis:1.5")
    with pytest.raises(FenchelError, match="quiery"):
        entry.run(quiery=None)


def mean_of_values(parts, weights):
    """The mean of the values under weights (B, H, m, N), pair by pair: (B, H, m, d_v)."""
    values = parts.values if parts.values.dim() == 5 else parts.values.unsqueeze(2)
    if getattr(parts, "relative_values", None) is not None:
        index = parts.index
        if index is None:
            index = distance_index(weights.shape[-2], weights.shape[-1], weights.device)
        values = values + parts.relative_values[:, :, index]
    return (weights.unsqueeze(-1) * values).sum(-2)


@pytest.mark.parametrize("name", INFERRED)
def test_weights_are_distributions_inferred_from_the_parts(name):
    entry = ENTRIES[name]
    for estimator, closeness in ways(entry):
        answer = entry.run(estimator, closeness=closeness)
        finite = [parts for parts in answer.inferences if isinstance(parts, AbstractFiniteParts)]
        for parts, weights in zip(finite, answer.weights, strict=True):
            total = weights.sum(-1)
            close(total[total != 0], torch.ones_like(total[total != 0]))
            assert (weights >= 0).all()
            close(parts.output(estimator), mean_of_values(parts, weights))


@pytest.mark.parametrize("name", INFERRED)
def test_what_is_believed_is_the_answer_to_nothing(name):
    for parts in ENTRIES[name].run().inferences:
        if isinstance(parts, Parts | RelativeParts):
            close(
                replace(parts, evidence=torch.zeros_like(parts.evidence)).weights(),
                parts.preference_weights(),
            )
        elif isinstance(parts, TransportParts):
            n = parts.templates.shape[-2]
            close(
                parts.preference_weights()[..., :n],
                torch.full_like(parts.preference_weights()[..., :n], 1 / n),
            )
            assert (parts.preference_weights()[..., n:] == 0).all()


@pytest.mark.parametrize("name", [name for name in INFERRED if "exact" in ENTRIES[name].estimators])
def test_exact_differs_where_it_is_said_to(name):
    entry = ENTRIES[name]
    published, exact = entry.run(), entry.run("exact")
    apart = (published.output - exact.output).abs().max()
    if entry.exact_differs:
        assert apart > 1e-3
    else:
        assert apart < 1e-9
        assert published.gap < 1e-12
        assert entry.exact_because
    assert exact.gap < 1e-12


@pytest.mark.parametrize("name", [name for name in NAMES if ENTRIES[name].symmetries])
def test_permuted_tokens_permute_the_output(name):
    entry = ENTRIES[name]
    hard = [("first_order", Hard())] if entry.takes_closeness else []
    inputs = entry.inputs(5)
    for estimator, closeness in [*ways(entry), *hard]:
        plain = entry.run(estimator, closeness=closeness, **inputs).output
        for symmetry in entry.symmetries:
            sizes = {inputs[key].shape[dim] for key, dim in symmetry.tokens.items()}
            assert len(sizes) == 1, "tokens that are permuted together are as many"
            order = torch.randperm(sizes.pop(), generator=torch.Generator().manual_seed(7))
            permuted = {key: inputs[key].index_select(dim, order) for key, dim in symmetry.tokens.items()}
            found = entry.run(estimator, closeness=closeness, **{**inputs, **permuted}).output
            close(found, plain if symmetry.output is None else plain.index_select(symmetry.output, order))


@pytest.mark.parametrize("name", [name for name in NAMES if ENTRIES[name].layer])
def test_its_layer_can_be_built_and_infers(name):
    from fenchel.closeness import Tsallis
    from fenchel.nn import evidence, preference

    names = vars(evidence) | vars(preference) | {"Tsallis": Tsallis, "nn": nn, "torch": torch}
    sizes = {"heads": 2, "d": 4, "width": 8, "m": 6, "n": 6, "D": 2, "w": 4}
    code = {key: eval(text, {**names, **sizes}) for key, text in ENTRIES[name].layer.items()}  # noqa: S307
    layer = MultiheadAttention(8, 2, batch_first=True, **code).double()
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    output, _ = layer(x, x, x)
    assert output.shape == x.shape
    layer.estimator = "exact"
    assert layer(x, x, x)[0].shape == x.shape


def test_every_paper_of_the_file_is_cited_and_others_are_not_found():
    keys = json.loads(files("fenchel.catalogue").joinpath("papers.json").read_bytes())
    assert {replace(entry.paper, where="") for entry in ENTRIES.values()} == {cited(key) for key in keys}
    with pytest.raises(KeyError, match="nobody1900"):
        cited("nobody1900")


def test_kernels_that_all_underflow_still_find_the_nearest():
    key, query = torch.linspace(-3, 3, 30).double(), torch.tensor([0.3, 9.0]).double()
    given: dict[str, Any] = {
        "query": query.view(1, 1, 2, 1),
        "key": key.view(1, 1, 30, 1),
        "value": drawn(1, 1, 30, 1),
    }
    (weights,) = entry("nadaraya-watson").run(**given, w=torch.full((1, 1), 40.0).double()).weights
    torch.testing.assert_close(weights[0, 0, 1, -1], torch.tensor(1.0).double())


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_a_coin_of_two_templates_is_bernoulli(estimator):
    evidence, odds = 2 * drawn(4, 3), drawn(3, seed=1)
    problem = InferenceProblem(Bernoulli(logits=odds), evidence)
    expected = problem.solve(estimator, **({"tol": 1e-10} if estimator == "exact" else {})).mean
    torch.testing.assert_close(coins(Inferrer(estimator), evidence, odds), expected, rtol=1e-8, atol=1e-10)


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


def test_the_gaussians_answer_is_the_mean_of_values_under_it():
    """From the joint distribution of keys and values, tilted by λ on the keys."""
    key, value, query = drawn(1, 1, 9, 3), drawn(1, 1, 9, 2, seed=1), drawn(1, 1, 4, 3, seed=2)
    parts = GaussianParts(templates=key, evidence=query, values=value, alpha=0.7)
    pairs = torch.cat([key, value], -1)[0, 0]
    joint = Gaussian(torch.zeros(5, dtype=torch.float64), pairs.T @ pairs)
    near = Gaussian(torch.zeros(3, dtype=torch.float64), parts.second_moments())
    problem = InferenceProblem(near, query, 0.7)
    for estimator in ("first_order", "second_order", "exact"):
        dual = parts.dual(estimator)
        torch.testing.assert_close(dual, problem.solve(estimator).dual)
        mean = joint.tilted_mean(nn.functional.pad(dual[0, 0], (0, 2)))
        torch.testing.assert_close(parts.output(estimator)[0, 0], mean[:, 3:])


def test_the_distance_of_two_normal_distributions_is_what_is_integrated():
    key = torch.tensor([[1.5], [0.5]], dtype=torch.float64)[None, None]
    parts = GaussianParts(templates=key, evidence=torch.full((1, 1, 1, 1), 0.8).double(), values=key)
    (variance,) = parts.second_moments().flatten()
    means = [float(variance * parts.dual(way)) for way in ("first_order", "exact")]
    x = torch.linspace(-30, 30, 200_001, dtype=torch.float64)
    one, two = (torch.distributions.Normal(mean, variance.sqrt()).log_prob(x).exp() for mean in means)
    expected = torch.trapezoid((one - two).abs(), x) / 2
    torch.testing.assert_close(parts.total_variation().squeeze(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_parts_are_the_inference_problem_of_each_query(estimator):
    templates, values, log_u = drawn(2, 3, 4, 5, 2), drawn(2, 3, 5, 2, seed=3), drawn(2, 3, 4, 5, seed=4)
    evidence, alpha = drawn(2, 3, 4, 2, seed=1), drawn(3, 4, seed=2).abs() + 0.5
    parts = Parts(templates=templates, evidence=evidence, values=values, log_preference=log_u, alpha=alpha)
    problem = InferenceProblem(
        Discrete(templates, log_u.unsqueeze(-2)), evidence.unsqueeze(-2), alpha.unsqueeze(-1), KL()
    )
    expected = problem.solve(estimator, **({"tol": 1e-10} if estimator == "exact" else {})).weights
    torch.testing.assert_close(parts.weights(estimator), expected.squeeze(-2), rtol=1e-6, atol=1e-8)
