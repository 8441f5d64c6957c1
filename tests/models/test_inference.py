"""The block g: equals the functional form, for every estimator and closeness, and is found by those who look on."""

from __future__ import annotations

import pytest
import torch

from fenchel import functional
from fenchel.errors import FenchelError
from fenchel.models import Inference
from fenchel.nn import use_estimator
from fenchel.nn.attending import attention_layers


def drawn() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 3, 5, 4), (2, 3, 5, 6), (2, 3, 7, 4), (2, 1, 7, 5)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
@pytest.mark.parametrize("closeness", [None, "tsallis:1.5"])
def test_it_is_the_functional_form(estimator, closeness):
    from fenchel import Tsallis

    templates, values, evidence, log_preference = drawn()
    block = Inference(3, estimator=estimator, alpha=0.7, closeness=closeness)
    found = block(
        templates, values, evidence, log_preference, scale=0.5, need_weights=True, need_certificate=True
    )
    near = None if closeness is None else Tsallis(1.5)
    options = {"log_preference": log_preference, "alpha": 0.7, "scale": 0.5, "estimator": estimator}
    torch.testing.assert_close(
        found.output, functional.attention(evidence, templates, values, closeness=near, **options)
    )
    torch.testing.assert_close(found.output, found.weights @ values)
    assert found.certificate is not None
    if estimator == "exact":
        assert found.certificate.gap.max() < 1e-8


def test_it_can_be_switched_for_a_while():
    templates, values, evidence, _ = drawn()
    block = Inference(3)
    assert list(attention_layers(torch.nn.Sequential(block))) == ["0"]
    with use_estimator(block, "exact"):
        switched = block(templates, values, evidence).output
    exact = Inference(3, estimator="exact")(templates, values, evidence).output
    torch.testing.assert_close(switched, exact)
    assert not torch.allclose(switched, block(templates, values, evidence).output)


@pytest.mark.parametrize(
    "wrong",
    [{"heads": 0}, {"alpha": 0.0}, {"estimator": "third"}, {"closeness": "near"}, {"alpha": float("nan")}],
)
def test_wrong_arguments_are_named(wrong):
    with pytest.raises(FenchelError, match=next(iter(wrong))):
        Inference(**wrong)


def test_evidence_of_other_heads_is_refused():
    templates, values, evidence, _ = drawn()
    with pytest.raises(FenchelError, match="with 2 heads"):
        Inference(2)(templates, values, evidence)


@pytest.mark.parametrize("shared", [True, False])
def test_steps_are_one_call_to_who_looks_on(shared):
    templates, values, evidence, log_preference = drawn()
    block, seen = Inference(3), []
    if shared:
        log_preference = log_preference[:, :, :1]
    whole = block(templates, values, evidence, log_preference)

    def ask() -> torch.Tensor:
        with block.steps():
            answers = [
                block(
                    templates,
                    values,
                    evidence[:, :, [step]],
                    log_preference if shared else log_preference[:, :, [step]],
                ).output
                for step in range(evidence.shape[2])
            ]
        return torch.cat(answers, 2)

    torch.testing.assert_close(ask(), whole.output)
    block.onlooker = lambda module, call: seen.append((module, call))
    torch.testing.assert_close(ask(), whole.output)
    ((module, call),) = seen
    assert module is block
    assert torch.equal(call.problem.evidence, evidence)
    assert torch.equal(call.log_preference.expand(2, 1, 7, 5), log_preference.expand(2, 1, 7, 5))
    assert shared == (call.log_preference is log_preference)


def test_steps_without_a_preference_and_steps_that_fail():
    templates, values, evidence, _ = drawn()
    block, seen = Inference(3), []

    def look(_: object, call: object) -> None:
        seen.append(call)

    block.onlooker = look
    with block.steps():
        block(templates, values, evidence[:, :, :1])
        block(templates, values, evidence[:, :, 1:], torch.zeros(2, 1, 6, 5, dtype=torch.float64))
    assert torch.equal(seen[0].log_preference, torch.zeros(2, 1, 7, 5, dtype=torch.float64))
    with pytest.raises(RuntimeError), block.steps():
        raise RuntimeError
    assert block.onlooker is look
    assert len(seen) == 1
