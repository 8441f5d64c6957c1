"""Function and mask are registered together and put back, whatever happens in between."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel.errors import ModelError
from fenchel.integrations.transformers.registry import (
    attention_implementation,
    materialised_mask,
    register_backend,
)
from tests.tiny_models import tiny_inputs, tiny_model

NAME = "fenchel_test"


@pytest.fixture(autouse=True)
def backend() -> list[Tensor | None]:
    """A backend that answers as sdpa does, and the masks that it was given."""
    from transformers import AttentionInterface

    masks: list[Tensor | None] = []
    sdpa = AttentionInterface()["sdpa"]

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        masks.append(attention_mask)
        return sdpa(module, query, key, value, attention_mask, **kwargs)

    register_backend(NAME, attend)
    return masks


@pytest.mark.parametrize("family", ["bert", "t5", "gpt2", "llama", "marian"])
def test_function_and_mask_come_together(family: str, backend: list[Tensor | None]) -> None:
    model, inputs = tiny_model(family), tiny_inputs(family)
    real = inputs.get("decoder_attention_mask", inputs["attention_mask"]) == 1
    expected = model(**inputs).last_hidden_state[real]
    with attention_implementation(model, NAME):
        found = model(**inputs).last_hidden_state[real]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert backend
    assert all(mask is not None and mask.dtype == torch.bool for mask in backend)


def test_a_function_registered_alone_loses_the_mask() -> None:
    """The trap that register_backend exists for; when this fails, transformers has closed it."""
    from transformers import AttentionInterface

    masks: list[Tensor | None] = []

    def alone(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        masks.append(args[4])
        return AttentionInterface()["sdpa"](*args, **kwargs)

    AttentionInterface.register("fenchel_test_alone", alone)
    model = tiny_model("bert")
    model.set_attn_implementation("fenchel_test_alone")
    model(**tiny_inputs("bert"))
    assert masks == [None, None]


def test_every_setting_is_put_back_after_an_exception_too() -> None:
    model = tiny_model("t5")
    model.decoder.set_attn_implementation("eager")
    settings = lambda: [m.config._attn_implementation for m in (model, model.encoder, model.decoder)]  # noqa: E731
    before = settings()
    assert "eager" in before
    assert "sdpa" in before
    during: list[list[str]] = []

    def fail(*_: Any) -> None:
        during.append(settings())
        raise KeyError("mine")

    hook = model.decoder.register_forward_pre_hook(fail)
    with pytest.raises(KeyError, match="mine"), attention_implementation(model, NAME):
        model(**tiny_inputs("t5"))
    hook.remove()
    assert during == [[NAME] * 3]
    assert settings() == before
    with attention_implementation(model, NAME):
        model(**tiny_inputs("t5"))
    assert settings() == before


def test_a_model_that_does_not_call_the_registry_is_an_error() -> None:
    model, inputs = tiny_model("deberta_v2"), tiny_inputs("deberta_v2")
    with (
        pytest.raises(ModelError, match=r"DebertaV2Model was switched.*none of its attention came through"),
        attention_implementation(model, NAME),
    ):
        model(**inputs)


def test_the_mask_is_all_true_rather_than_none() -> None:
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    options: dict[str, Any] = {
        "kv_length": 4,
        "allow_is_bidirectional_skip": True,
        "allow_is_causal_skip": True,
    }
    both = materialised_mask(2, 4, mask_function=bidirectional_mask_function, **options)
    assert both.shape == (2, 1, 4, 4)
    assert both.all()
    causal = materialised_mask(2, 4, mask_function=causal_mask_function, **options)
    assert torch.equal(causal, torch.ones(2, 1, 4, 4, dtype=torch.bool).tril())


def test_the_mask_shortcut_agrees_with_transformers() -> None:
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    padding = torch.rand(3, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    options: dict[str, Any] = {
        "batch_size": 3,
        "q_length": 4,
        "kv_length": 5,
        "mask_function": bidirectional_mask_function,
        "attention_mask": padding,
    }
    found = materialised_mask(**options)
    assert found.stride(2) == 0
    expected = sdpa_mask(**options, allow_is_causal_skip=False)
    assert expected is not None
    assert torch.equal(found, expected)
