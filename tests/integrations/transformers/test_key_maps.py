"""The map that makes keys is found among those that a module calls, taken apart and checked."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel.errors import CaptureError, ModelError
from fenchel.integrations.attention_calls import Trace, Visit, find_key_map

BATCH, HEADS, KEYS, WIDTH, INPUTS = 2, 3, 5, 4, 7


def trace(outputs: int = 12, name: str = "linear") -> Trace:
    torch.manual_seed(0)
    linear, x = nn.Linear(INPUTS, outputs).requires_grad_(False), torch.randn(BATCH, KEYS, INPUTS)
    return Trace(name, linear, x, linear(x))


def heads(outputs: Tensor) -> Tensor:
    return outputs.reshape(BATCH, KEYS, HEADS, WIDTH).transpose(1, 2)


def find(key: Tensor, *traces: Trace) -> Any:
    projection, found = find_key_map("layer.0", nn.Linear(1, 1), Visit(traces=list(traces)), key)
    return projection.inputs, found


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("interleaved", [True, False])
def test_a_fused_map_is_taken_apart(part: int, interleaved: bool) -> None:
    fused = trace(36)
    if interleaved:
        key = fused.output.view(BATCH, KEYS, HEADS, 3, WIDTH)[:, :, :, part].transpose(1, 2)
    else:
        key = fused.output.view(BATCH, KEYS, 3, HEADS, WIDTH)[:, :, part].transpose(1, 2)
    inputs, found = find(key, fused)
    again = torch.einsum("bnw,hdw->bhnd", inputs, found.weight) + found.bias[:, None, :]
    torch.testing.assert_close(again, key)
    memory = [part.untyped_storage().data_ptr() for part in (found.weight, fused.map.get_parameter("weight"))]
    assert interleaved or memory[0] == memory[1]  # no copy


def test_a_flattened_batch_is_unflattened() -> None:
    given = trace()
    flat = Trace("flat", given.map, given.input.flatten(0, 1), given.output.flatten(0, 1))
    inputs, _ = find(heads(given.output), flat)
    assert torch.equal(inputs, given.input)


def test_two_maps_with_the_same_output_cannot_be_told_apart() -> None:
    given = trace(name="one")
    with pytest.raises(CaptureError, match="the maps one, two give the same keys"):
        find(heads(given.output), given, Trace("two", given.map, given.input, given.output.clone()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_no_disagreement_and_a_wrong_weight_is(dtype: torch.dtype) -> None:
    made = nn.Linear(64, 12, dtype=dtype).requires_grad_(False)
    x = torch.randn(BATCH, KEYS, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    key = heads(made(x))
    _, found = find(key, Trace("k", made, x, made(x)))
    assert found.disagreement(x, key) <= 1
    made.weight[3, 5] += 0.5
    assert found.disagreement(x, key) > 1
    output = key.transpose(1, 2).flatten(2)  # what the map gave before its weight changed
    with pytest.raises(ModelError, match=r"k's weight times its input.*quantised or adapted"):
        find(key, Trace("k", made, x, output))
