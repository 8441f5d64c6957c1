"""Inside of torch's own transformer layers, whose fused path in inference passes ``self_attn.forward`` by."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from fenchel.errors import ProblemError
from fenchel.nn import MultiheadAttention

WIDTH, HEADS, KEYS, BATCH = 12, 3, 6, 2


def encoder(**options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
    return nn.TransformerEncoder(layer, 2, **options).eval()


def swap(model: nn.Module, layers: slice = slice(None), **options: Any) -> nn.Module:
    """The same model with our attention in some of its layers."""
    model = copy.deepcopy(model)
    for layer in list(model.layers)[layers]:  # pyright: ignore[reportArgumentType]
        layer.self_attn = MultiheadAttention.from_torch(layer.self_attn, **options)  # pyright: ignore[reportAttributeAccessIssue]
    return model


X = torch.randn(BATCH, KEYS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
PADDING = torch.tensor([[False] * KEYS, [False] * (KEYS - 2) + [True] * 2])


@pytest.mark.parametrize("layers", [slice(None), slice(0, 1), slice(1, 2)], ids=["all", "first", "second"])
@pytest.mark.parametrize("padding", [None, PADDING], ids=["whole", "padded: nested tensors"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_encoder_in_inference_runs_our_estimator(layers, padding):
    theirs = encoder(enable_nested_tensor=True)
    same, exact = swap(theirs, layers), swap(theirs, layers, estimator="exact", alpha=2.0)
    with torch.inference_mode():
        expected = theirs(X, src_key_padding_mask=padding)
        torch.testing.assert_close(same(X, src_key_padding_mask=padding), expected, atol=1e-10, rtol=0)
        fast = exact(X, src_key_padding_mask=padding)
    slow = exact(X, src_key_padding_mask=padding)  # with gradients torch's fused path is not taken by anybody
    real = slice(None) if padding is None else ~padding
    torch.testing.assert_close(fast[real], slow[real].detach(), atol=1e-10, rtol=0)
    assert (fast - expected)[real].abs().max() > 1e-3


def test_decoder_layer_with_causal_and_cross_attention():
    theirs = nn.TransformerDecoderLayer(
        WIDTH, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64
    ).eval()
    ours = copy.deepcopy(theirs)
    ours.self_attn = MultiheadAttention.from_torch(theirs.self_attn)
    ours.multihead_attn = MultiheadAttention.from_torch(theirs.multihead_attn)
    mask = nn.Transformer.generate_square_subsequent_mask(KEYS, dtype=torch.float64)
    call = {"tgt_mask": mask, "tgt_is_causal": True, "memory_key_padding_mask": PADDING}
    with torch.inference_mode():
        expected = theirs(X, X.flip(0), **call)
        torch.testing.assert_close(ours(X, X.flip(0), **call), expected, atol=1e-12, rtol=0)
        ours.multihead_attn.estimator = "exact"
        assert not torch.allclose(ours(X, X.flip(0), **call), expected, atol=1e-4)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_other_nested_tensors_are_refused():
    nested = torch.nested.nested_tensor([torch.randn(3, WIDTH), torch.randn(2, WIDTH)])
    jagged = torch.nested.nested_tensor([torch.randn(3, WIDTH), torch.randn(2, WIDTH)], layout=torch.jagged)
    layer = MultiheadAttention(WIDTH, HEADS, batch_first=True)
    output, _ = layer(nested, nested, nested, need_weights=False)
    assert [tuple(part.shape) for part in output.unbind()] == [(3, WIDTH), (2, WIDTH)]
    alone = nested.unbind()[1]
    torch.testing.assert_close(output.unbind()[1], layer(alone, alone, alone)[0])
    for call in (
        lambda: layer(nested, nested, nested),
        lambda: layer(nested, nested, torch.nested.nested_tensor(list(nested.unbind())), need_weights=False),
        lambda: MultiheadAttention(WIDTH, HEADS)(nested, nested, nested, need_weights=False),
    ):
        with pytest.raises(ProblemError, match=r"nested tensor; expected one in self-attention only"):
            call()
    with pytest.raises(ProblemError, match=r"layout torch\.jagged; expected torch\.strided"):
        layer(jagged, jagged, jagged, need_weights=False)
