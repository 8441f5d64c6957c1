"""Every entry of the catalogue: what it computes, what it says of itself, and in what orders it does not look."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel import Hard
from fenchel.catalogue import (
    ENTRIES,
    FAMILIES,
    Entry,
    GaussianParts,
    Parts,
    RelativeParts,
    TransportParts,
    Verdict,
    difference,
    entry,
)
from fenchel.catalogue.parts import AbstractFiniteParts
from fenchel.catalogue.registry import described, record
from fenchel.errors import FenchelError, InputError
from fenchel.nn import MultiheadAttention
from tests.catalogue.references import REFERENCES

NAMES = list(ENTRIES)
CLOSENESSES = ("tsallis:2:csiszar", "tsallis:1.5")
INFERRED = [
    name for name in NAMES if ENTRIES[name].estimators and ENTRIES[name].verdict is not Verdict.NOT_ONE
]


def ways(entry: Entry) -> list[tuple[str, str | None]]:
    """Estimators and closenesses that an entry takes."""
    under = [("first_order", CLOSENESSES[0]), (entry.estimators[-1], CLOSENESSES[1])]
    return [*((name, None) for name in entry.estimators), *(under if entry.takes_closeness else ())]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_every_entry_has_a_reference_and_nothing_else_has():
    assert set(REFERENCES) == set(ENTRIES)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_published_is_what_runs(name):
    inputs = ENTRIES[name].inputs(1)
    expected = REFERENCES[name](**ENTRIES[name].inputs(1))
    found = ENTRIES[name].run(seed=1, **inputs).output
    assert found.shape == expected.shape
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_what_is_published(name):
    def gradients(function: Any) -> dict[str, Tensor]:
        inputs = ENTRIES[name].inputs(3)
        wanted = {
            key: given.requires_grad_()
            for key, given in inputs.items()
            if isinstance(given, Tensor) and given.is_floating_point()
        }
        output = function(**inputs)
        weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(0), dtype=output.dtype)
        if not output.requires_grad:
            return {}
        found = torch.autograd.grad((output * weight).sum(), list(wanted.values()), allow_unused=True)
        return {
            key: torch.zeros_like(wanted[key]) if gradient is None else gradient
            for key, gradient in zip(wanted, found, strict=True)
        }

    found, expected = (
        gradients(lambda **inputs: ENTRIES[name].run(**inputs).output),
        gradients(REFERENCES[name]),
    )
    assert set(found) == set(expected)
    for key, gradient in expected.items():
        torch.testing.assert_close(
            found[key], gradient, rtol=1e-7, atol=1e-8, msg=lambda m, key=key: f"{key}: {m}"
        )


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_gives_the_same(name):
    entry = ENTRIES[name]
    single = entry.run(**entry.inputs(0, torch.float32)).output
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), entry.run().output, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_its_verdict_fits_its_inferences(name):
    entry = ENTRIES[name]
    count = len(entry.run(entry.estimators[0] if entry.estimators else "first_order").inferences)
    if entry.verdict is Verdict.ONE:
        assert count == 1
    elif entry.verdict is Verdict.COMPOSITION:
        assert count >= 1
        assert entry.because
    else:
        assert count == 0
        assert entry.because
        assert entry.estimators == ("first_order",)
        assert not entry.takes_closeness


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
            close(parts.answer(estimator), parts.mean_under(weights))


@pytest.mark.parametrize("name", INFERRED)
def test_what_is_believed_is_the_answer_to_nothing(name):
    for parts in ENTRIES[name].run().inferences:
        if isinstance(parts, Parts | RelativeParts):
            close(replace(parts, evidence=torch.zeros_like(parts.evidence)).weights(), parts.believed())
        elif isinstance(parts, TransportParts):
            n = parts.templates.shape[-2]
            close(parts.believed()[..., :n], torch.full_like(parts.believed()[..., :n], 1 / n))
            assert (parts.believed()[..., n:] == 0).all()


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


@pytest.mark.parametrize("name", NAMES)
def test_what_it_does_not_take_is_refused(name):
    entry = ENTRIES[name]
    for estimator in {"first_order", "second_order", "exact"} - set(entry.estimators):
        with pytest.raises(FenchelError, match=estimator):
            entry.run(estimator)
    if not entry.takes_closeness:
        with pytest.raises(FenchelError, match="closeness"):
            entry.run(closeness="tsallis:1.5")
    with pytest.raises(FenchelError, match="quiery"):
        entry.run(quiery=None)


@pytest.mark.parametrize("name", NAMES)
def test_it_says_all_of_itself(name):
    entry = ENTRIES[name]
    for said in (
        entry.title,
        entry.formula,
        entry.templates,
        entry.preference,
        entry.evidence,
        entry.meaning,
    ):
        assert said.strip() == said
        assert said
    assert 1950 < entry.paper.year < 2027
    assert entry.meaning.endswith(".")
    assert not entry.because or entry.because.endswith(".")


@pytest.mark.parametrize("name", [name for name in NAMES if ENTRIES[name].layer])
def test_its_layer_can_be_built_and_infers(name):
    from fenchel.closeness import Tsallis
    from fenchel.nn import evidence, preference

    names: dict[str, Any] = {
        **vars(evidence),
        **vars(preference),
        "Tsallis": Tsallis,
        "nn": nn,
        "torch": torch,
    }
    sizes = {"heads": 2, "d": 4, "width": 8, "m": 6, "n": 6, "D": 2, "w": 4}
    code = {key: eval(text, {**names, **sizes}) for key, text in ENTRIES[name].layer.items()}  # noqa: S307
    layer = MultiheadAttention(8, 2, batch_first=True, **code).double()
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    output, _ = layer(x, x, x)
    assert output.shape == x.shape
    layer.estimator = "exact"
    assert layer(x, x, x)[0].shape == x.shape


def test_an_unknown_name_has_the_nearest_named():
    with pytest.raises(InputError, match="no entry 'scaled-dott'; nearest: scaled-dot"):
        entry("scaled-dott")
    with pytest.raises(InputError, match=r"no entry 'q'\. 'fenchel catalogue' lists all"):
        entry("q")


def test_families_are_headings_without_repetition():
    families = [one.family for one in ENTRIES.values()]
    assert [name for place, name in enumerate(families) if place == 0 or families[place - 1] != name] == list(
        FAMILIES
    )


def test_records_are_json():
    for one in ENTRIES.values():
        assert json.loads(json.dumps(record(one)))["name"] == one.name


def test_what_is_measured_is_measured_anew():
    found = described(entry("scaled-dot"), "tsallis:1.5", seed=4)["measured"]
    first = difference(entry("scaled-dot"), closeness="tsallis:1.5", seed=4)
    assert found["closeness"] == "tsallis:1.5"
    assert found["estimators"][0] == first.to_json()
    assert [one["estimator"] for one in found["estimators"]] == ["first_order", "second_order", "exact"]


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
