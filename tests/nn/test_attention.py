"""The layer against torch's own, and what it does beside that."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel.errors import ProblemError
from fenchel.nn import MultiheadAttention

WIDTH, HEADS, QUERIES, KEYS, BATCH = 12, 3, 4, 6, 2
ESTIMATORS = ("first_order", "second_order", "exact")


def pair(dtype: torch.dtype = torch.float64, *, ours: dict[str, Any] | None = None, **options: Any):
    """torch's layer with random weights and biases, and ours with the same."""
    theirs = nn.MultiheadAttention(WIDTH, HEADS, dtype=dtype, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    return theirs, MultiheadAttention.from_torch(theirs, **(ours or {}))


def sequences(dtype: torch.dtype = torch.float64, *, batch_first: bool, batched: bool = True, **widths: int):
    """A query, a key and a value, with gradients."""

    def draw(tokens: int, width: int) -> Tensor:
        sequence = torch.randn(BATCH, tokens, width, dtype=dtype)
        if not batched:
            sequence = sequence[0]
        elif not batch_first:
            sequence = sequence.transpose(0, 1)
        return sequence.clone().requires_grad_()

    return (
        draw(QUERIES, WIDTH),
        draw(KEYS, widths.get("kdim", WIDTH)),
        draw(KEYS, widths.get("vdim", WIDTH)),
    )


def assert_same(
    ours: nn.Module, theirs: nn.Module, inputs: tuple[Tensor, ...], tolerance: float, **call: Any
):
    """Outputs and weights to a tolerance, and gradients of inputs and parameters to that of the largest of them.

    The gradient of the keys' bias is 0: terms as large as the other gradients cancel, and what they round to is left.
    """
    results = []
    for layer in (ours, theirs):
        found = [part for part in layer(*inputs, **call) if part is not None]
        torch.manual_seed(1)
        loss = torch.stack([(part * torch.randn(part.shape, dtype=part.dtype)).sum() for part in found]).sum()
        parameters = dict(layer.named_parameters())
        slopes = torch.autograd.grad(loss, (*inputs, *parameters.values()))
        results.append((found, dict(zip([0, 1, 2, *parameters], slopes, strict=True))))
    (found, slopes), (expected, reference) = results
    largest = max(1.0, *(float(slope.abs().max()) for slope in reference.values()))
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(slopes, reference, atol=tolerance * largest, rtol=tolerance)


LAYERS = {
    "plain": {},
    "no bias": {"bias": False},
    "widths": {"kdim": 5, "vdim": 7},
    "added templates": {"add_bias_kv": True, "add_zero_attn": True},
    "zero template, widths, no bias": {"add_zero_attn": True, "kdim": 5, "bias": False},
}


def float_mask(*shape: int) -> Tensor:
    mask = torch.randn(*shape, dtype=torch.float64)
    mask[..., 1] = -torch.inf
    return mask


def bool_mask(*shape: int) -> Tensor:
    mask = torch.rand(*shape) < 0.4
    mask[..., 2] = False
    return mask


MASKS = {
    "none": lambda: {},
    "attn bool": lambda: {"attn_mask": bool_mask(QUERIES, KEYS)},
    "attn float": lambda: {"attn_mask": float_mask(QUERIES, KEYS)},
    "attn a head": lambda: {"attn_mask": bool_mask(BATCH * HEADS, QUERIES, KEYS)},
    "padding bool": lambda: {"key_padding_mask": bool_mask(BATCH, KEYS)},
    "padding float": lambda: {"key_padding_mask": float_mask(BATCH, KEYS)},
    "both bool": lambda: {"attn_mask": bool_mask(QUERIES, KEYS), "key_padding_mask": bool_mask(BATCH, KEYS)},
    "both float, a head": lambda: {
        "attn_mask": float_mask(BATCH * HEADS, QUERIES, KEYS),
        "key_padding_mask": float_mask(BATCH, KEYS),
    },
}


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("need_weights", [True, False])
def test_first_order_is_torchs_layer(options, masks, need_weights):
    theirs, ours = pair(batch_first=True, **options)
    inputs = sequences(batch_first=True, **{k: v for k, v in options.items() if k in ("kdim", "vdim")})
    assert_same(ours, theirs, inputs, 1e-12, need_weights=need_weights, average_attn_weights=False, **masks())


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_layouts(batch_first, batched, average, need_weights):
    theirs, ours = pair(batch_first=batch_first)
    inputs = sequences(batch_first=batch_first, batched=batched)
    padding = bool_mask(BATCH, KEYS) if batched else bool_mask(KEYS)
    attn = bool_mask(BATCH * HEADS if batched else HEADS, QUERIES, KEYS)
    assert_same(
        ours,
        theirs,
        inputs,
        1e-12,
        key_padding_mask=padding,
        attn_mask=attn,
        need_weights=need_weights,
        average_attn_weights=average,
    )


@pytest.mark.parametrize("need_weights", [True, False])
def test_float32(need_weights):
    theirs, ours = pair(torch.float32, batch_first=True)
    inputs = sequences(torch.float32, batch_first=True)
    assert_same(ours, theirs, inputs, 1e-6, need_weights=need_weights, attn_mask=bool_mask(QUERIES, KEYS))


def test_signature_is_torchs():
    for name in ("__init__", "forward"):
        theirs = list(inspect.signature(getattr(nn.MultiheadAttention, name)).parameters.values())
        ours = list(inspect.signature(getattr(MultiheadAttention, name)).parameters.values())
        assert [(p.name, p.default) for p in ours[: len(theirs)]] == [(p.name, p.default) for p in theirs]
        assert all(p.kind is p.KEYWORD_ONLY for p in ours[len(theirs) :])


# ---- torch's state


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
def test_state_dict_is_torchs(options):
    theirs, ours = pair(**options)
    assert isinstance(ours, nn.MultiheadAttention)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    fresh = MultiheadAttention(WIDTH, HEADS, dtype=torch.float64, **options)
    fresh.load_state_dict(theirs.state_dict(), strict=True)
    theirs.load_state_dict(fresh.state_dict(), strict=True)


def test_same_seed_same_initial_weights():
    torch.manual_seed(3)
    theirs = nn.MultiheadAttention(WIDTH, HEADS)
    torch.manual_seed(3)
    ours = MultiheadAttention(WIDTH, HEADS)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    for layer in (theirs, ours):
        torch.manual_seed(4)
        layer._reset_parameters()
    assert torch.equal(ours.in_proj_weight, theirs.in_proj_weight)
    assert not ours._qkv_same_embed_dim


def test_from_torch_copies_and_keeps_what_it_was():
    theirs = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.25, batch_first=True, dtype=torch.float64).eval()
    theirs.in_proj_weight.requires_grad_(False)
    ours = MultiheadAttention.from_torch(theirs, estimator="exact", alpha=2.0)
    assert (ours.dropout, ours.batch_first, ours.training) == (0.25, True, False)
    assert (ours.estimator, ours.alpha) == ("exact", 2.0)
    assert [p.requires_grad for p in ours.parameters()] == [p.requires_grad for p in theirs.parameters()]
    ours.out_proj.weight.data.zero_()
    assert theirs.out_proj.weight.abs().max() > 0
    torch.nn.utils.parametrizations.orthogonal(theirs.out_proj)
    with pytest.raises(ProblemError, match=r"a parameter 'out_proj\.parametrizations\.weight\.original'"):
        MultiheadAttention.from_torch(theirs)


# ---- what differs from torch


@pytest.mark.parametrize("need_weights", [True, False])
def test_is_causal_is_a_hint(need_weights):
    theirs, ours = pair(batch_first=True)
    x = torch.randn(BATCH, KEYS, WIDTH, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(KEYS, dtype=torch.float64)
    inputs = (x, x, x)
    expected = theirs(*inputs, attn_mask=mask, is_causal=True, need_weights=need_weights)[0]
    given = ours(*inputs, attn_mask=mask, is_causal=True, need_weights=need_weights)[0]
    torch.testing.assert_close(given, expected, atol=1e-12, rtol=0)
    with pytest.raises(ProblemError, match="is_causal is True and attn_mask is None"):
        ours(*inputs, is_causal=True)


def test_dropout_only_in_training_and_in_the_weights():
    theirs, ours = pair(batch_first=True, dropout=0.5)
    inputs = sequences(batch_first=True)
    torch.manual_seed(5)
    expected = theirs(*inputs)
    torch.manual_seed(5)
    output, weights = ours(*inputs)
    torch.testing.assert_close((output, weights), expected, atol=1e-12, rtol=0)
    assert (ours(*inputs, average_attn_weights=False)[1] == 0).any()
    dropped = ours(*inputs, need_weights=False)[0]
    ours.eval()
    kept = ours(*inputs, need_weights=False)[0]
    assert not torch.allclose(dropped, kept)
    torch.testing.assert_close(kept, theirs.eval()(*inputs)[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("added", [False, True])
def test_without_keys_the_answer_is_torchs(estimator, added, need_weights):
    theirs, ours = pair(ours={"keep_certificate": True}, batch_first=True, add_zero_attn=added)
    ours.estimator = estimator
    x, nothing = (
        torch.randn(BATCH, QUERIES, WIDTH, dtype=torch.float64),
        torch.zeros(BATCH, 0, WIDTH).double(),
    )
    expected, weights = theirs(x, nothing, nothing, need_weights=need_weights)
    found, found_weights = ours(x, nothing, nothing, need_weights=need_weights)
    torch.testing.assert_close(found, expected)
    assert need_weights is (found_weights is not None)
    if need_weights:
        torch.testing.assert_close(found_weights, weights)
    assert float(ours.last_certificate.gap.max()) < 1e-24  # nothing but what rounding could hide


# ---- inside of torch's transformer layers, whose fused path in inference passes ``self_attn.forward`` by


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
    block = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
    theirs = nn.TransformerEncoder(block, 2, enable_nested_tensor=True).eval()
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
