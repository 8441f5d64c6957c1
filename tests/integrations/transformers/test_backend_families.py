"""Every family that dispatches, against its own eager attention and against the slow reference."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel import functional
from fenchel.integrations.transformers import use_backend
from tests.tiny_models import DISPATCHING, tiny_inputs, tiny_model


def real_rows(inputs: dict[str, Any]) -> Any:
    """An index of the positions of the last hidden state that are not padding."""
    mask = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
    return slice(None) if mask is None else mask == 1


ESTIMATORS = ("first_order", "second_order", "exact")
PADDED = [
    (family, padding)
    for family in DISPATCHING
    for padding in (("none",) if family in ("swin", "vit") else ("right", "left"))
]


def without_dropout(model: nn.Module) -> Any:
    """The model in training mode with every dropout probability at 0."""
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, float) and (name == "p" or "drop" in name):
                setattr(module, name, 0.0)
    return model.train()


@pytest.mark.parametrize(("family", "padding"), PADDED)
def test_first_order_in_float32_is_the_familys_own_attention(family, padding):
    """And so are its weights, where output_attentions asks for them."""
    # In float64, eager attention of several families gives NaN for rows that see nothing.
    inputs = tiny_inputs(family, padding=padding, dtype=torch.float32)
    model, real = tiny_model(family, dtype=torch.float32, attn_implementation="eager"), real_rows(inputs)
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True)
        with use_backend(model, "first_order"):
            plain, found = (model(**inputs, output_attentions=asked) for asked in (False, True))
    own = expected.last_hidden_state[real]
    for output in (plain, found):
        # MobileBERT's hidden states are in the ten thousands; all others are of the order of 1.
        atol = 2e-5 * max(1.0, float(own.abs().max()))
        torch.testing.assert_close(output.last_hidden_state[real], own, rtol=0, atol=atol)
    names = [name for name in expected if name.endswith("attentions")]
    assert names == [name for name in found if name.endswith("attentions")]
    assert any(expected[name] for name in names)
    for name in names:
        assert len(found[name]) == len(expected[name])
        of_decoder = "decoder_input_ids" in inputs and name != "encoder_attentions"
        mask = inputs.get("decoder_attention_mask" if of_decoder else "attention_mask")
        real = slice(None) if mask is None else mask == 1
        for one, other in zip(found[name], expected[name], strict=True):
            rows = one.transpose(1, 2)[real]
            torch.testing.assert_close(rows.sum(-1), torch.ones_like(rows[..., 0]))
            torch.testing.assert_close(rows, other.transpose(1, 2)[real], rtol=0, atol=1e-4)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("family", ["bert", "llama", "swin", "t5"])
def test_half_precision_runs_by_every_estimator(family, autocast):
    dtype = torch.float32 if autocast else torch.bfloat16
    inputs = tiny_inputs(family, dtype=dtype)
    model = tiny_model(family, dtype=dtype, attn_implementation="eager")
    real = real_rows(inputs)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        expected = model(**inputs).last_hidden_state[real]
        for estimator in ESTIMATORS:
            with use_backend(model, estimator):
                found = model(**inputs).last_hidden_state[real]
            assert found.dtype == expected.dtype
            assert bool(found.isfinite().all())
            near = (found - expected).abs().mean() < 0.02 * expected.abs().mean()
            assert near == (estimator == "first_order")


@pytest.mark.parametrize("family", DISPATCHING)
def test_second_order_and_exact_run_and_are_certified(family):
    inputs = tiny_inputs(family)
    model, real = tiny_model(family), real_rows(inputs)
    outputs: dict[str, Tensor] = {}
    errors: dict[str, float] = dict.fromkeys(ESTIMATORS, 0.0)
    for estimator in ESTIMATORS:

        def note(_site: str, bounds: functional.AttentionCertificate, estimator: str = estimator) -> None:
            errors[estimator] = max(errors[estimator], float(bounds.mean_error.max()))

        with torch.no_grad(), use_backend(model, estimator, certificate=note):
            outputs[estimator] = model(**inputs).last_hidden_state[real]
    assert errors["exact"] < 1e-7
    assert min(errors["first_order"], errors["second_order"]) > 1e-3
    assert all(bool(output.isfinite().all()) for output in outputs.values())
    for one, other in (("first_order", "second_order"), ("second_order", "exact")):
        assert not torch.allclose(outputs[one], outputs[other])


@pytest.mark.parametrize("family", DISPATCHING)
def test_training_gives_every_parameter_the_gradient_of_eager_attention(family):
    inputs = tiny_inputs(family)
    # In float64, eager attention of these two gives NaN for the gradient of rows that a window leaves empty.
    own = "sdpa" if family in ("mistral", "modernbert") else "eager"
    model = without_dropout(tiny_model(family, attn_implementation=own))
    real = real_rows(inputs)

    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        model(**inputs).last_hidden_state[real].square().mean().backward()
        return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}

    expected = gradients()
    with use_backend(model, "first_order"):
        found = gradients()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    # Many families take their softmax in float32 whatever their dtype.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * largest)


def test_values_of_a_few_times_the_smallest_number_of_a_half_type_are_no_other_attention():
    inputs = tiny_inputs("t5", dtype=torch.float16)
    model = tiny_model("t5", dtype=torch.float16, attn_implementation="eager")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(".v.weight"):
                weight.mul_(2e-7 / float(weight.abs().max()))
        expected = model(**inputs).last_hidden_state
        with use_backend(model, "first_order"):
            found = model(**inputs).last_hidden_state
    torch.testing.assert_close(found, expected)
