"""Training a Hugging Face model under ``torch.compile``; ``tests/nn/test_compile.py`` has the default backend."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.integrations.transformers import use_backend
from tests.compiling import compiled_afresh
from tests.tiny_models import tiny_inputs, tiny_model


def trained(model: nn.Module, inputs: dict[str, Tensor], run: Any) -> list[Tensor]:
    """The output of a training step, and the gradients of all parameters that have one."""
    with use_backend(model, "exact", alpha=0.9):
        output = run(**inputs).last_hidden_state
        (output.sin() * torch.linspace(-1, 1, output.shape[-1], dtype=output.dtype)).sum().backward()
    return [output, *(p.grad for p in model.parameters() if p.grad is not None)]


def test_a_training_step_of_t5_is_that_of_eager() -> None:
    model = tiny_model("t5").encoder.train()
    model.block = model.block[:1]
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            module.__dict__["dropout"] = 0.0
    inputs = {
        name: tensor for name, tensor in tiny_inputs("t5").items() if name in ("input_ids", "attention_mask")
    }
    other = copy.deepcopy(model)
    with compiled_afresh():
        found = trained(model, inputs, torch.compile(model, fullgraph=True, backend="aot_eager"))
    expected = trained(other, inputs, other)
    assert len(found) == len(expected) > 5
    # T5's norms are in float32 even here, and a compiler adds up in another order.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
