"""MixtureAttention against mixture attention by hand, torch's layer, and whatever it is called with wrongly."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel import functional as F
from fenchel.nn import MixtureAttention, MultiheadAttention
from fenchel.nn.preference import ALiBi, Causal
from tests.nn.small_layers import BATCH, HEADS, KEYS, WIDTH, heads, tokens

KINDS = ("input", "learned", "given")


def build(**options: Any) -> MixtureAttention:
    """A layer whose variances differ by key and coordinate."""
    torch.manual_seed(0)
    if options.get("variances") == "learned":
        options.setdefault("memories", KEYS)
    layer = MixtureAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def given(layer: MixtureAttention, width: int = WIDTH) -> dict[str, Tensor]:
    if layer.variances != "given":
        return {}
    return {"variances": torch.rand(BATCH, KEYS, width, dtype=torch.float64)}


def variances_of(layer: MixtureAttention, x: Tensor, options: dict[str, Tensor]) -> Tensor:
    if layer.variances == "given":
        shared = options["variances"].shape[-1] == 1
        return options["variances"].view(BATCH, KEYS, 1 if shared else HEADS, -1).transpose(1, 2)
    if layer.raw_variance is not None:
        return nn.functional.softplus(layer.raw_variance)
    assert layer.variance_proj is not None
    return nn.functional.softplus(layer.variance_proj(x)).view(BATCH, KEYS, HEADS, -1).transpose(1, 2)


@pytest.mark.parametrize("answer", ["values", "memories"])
@pytest.mark.parametrize("spherical", [False, True])
@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
@pytest.mark.parametrize("variances", KINDS)
def test_it_is_mixture_attention_between_projections(
    variances: str, estimator: str, spherical: bool, answer: str
) -> None:
    layer = build(
        variances=variances, estimator=estimator, spherical=spherical, answer=answer, learn_alpha=True
    )
    x = tokens()
    options = given(layer, HEADS if spherical else WIDTH)
    output, weights = layer(x, x, x, average_attn_weights=False, **options)
    q, k, v = heads(layer, x)
    s = variances_of(layer, x, options)
    assert layer.log_alpha is not None
    kind: dict[str, Any] = {"estimator": estimator, "alpha": layer.log_alpha.exp().unsqueeze(-1)}
    expected = F.reference.mixture_attention(q, k, s, v if answer == "values" else None, **kind)
    expected = layer.out_proj(expected.transpose(1, 2).flatten(2))
    torch.testing.assert_close(output, expected, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(weights, F.mixture_attention_weights(q, k, s, **kind), rtol=1e-7, atol=1e-8)


def test_as_variances_vanish_it_is_multihead_attention() -> None:
    torch.manual_seed(0)
    plain = MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64, preference=Causal())
    mixed = MixtureAttention.from_torch(plain, variances="given", preference=Causal())
    x = tokens()
    none = torch.zeros(BATCH, KEYS, 1, dtype=torch.float64)
    torch.testing.assert_close(mixed(x, x, x, variances=none), plain(x, x, x))
    certain = MixtureAttention.from_torch(plain, preference=Causal(), initial_variance=1e-12)
    torch.testing.assert_close(certain(x, x, x)[0], plain(x, x, x)[0])


def test_variances_are_positive_and_start_where_they_are_told() -> None:
    for start in (1e-6, 0.1, 50.0, 800.0):
        for kind in ("input", "learned"):
            layer = MixtureAttention(WIDTH, HEADS, variances=kind, answer="memories", initial_variance=start)
            raw: Any = layer.raw_variance if layer.variance_proj is None else layer.variance_proj.bias
            for _ in range(2):
                found = nn.functional.softplus(raw)
                torch.testing.assert_close(found, torch.full_like(raw, start), rtol=1e-3, atol=0)
                nn.init.normal_(raw, std=100)
                layer.reset_parameters()


def test_given_variances_are_laid_out_and_masked_as_keys_are() -> None:
    layer, x = build(preference=ALiBi(HEADS), variances="given"), tokens()
    s = torch.rand(BATCH, KEYS, WIDTH, dtype=torch.float64)
    padding = torch.zeros(BATCH, KEYS, dtype=torch.bool)
    padding[:, 4:] = True
    output = layer(x, x, x, padding, variances=s)[0]
    moved = s + 3 * padding.unsqueeze(-1)
    torch.testing.assert_close(layer(x, x, x, padding, variances=moved)[0], output)
    torch.testing.assert_close(layer(x[0], x[0], x[0], padding[0], variances=s[0])[0], output[0])
    layer.batch_first = False
    turned = layer(*(x.transpose(0, 1),) * 3, padding, variances=s.transpose(0, 1))[0]
    torch.testing.assert_close(turned.transpose(0, 1), output)


@pytest.mark.parametrize("variances", KINDS)
def test_added_memories_are_certain(variances: str) -> None:
    layer = build(variances=variances, add_bias_kv=True, add_zero_attn=True, answer="memories")
    x, options = tokens(), given(layer)
    output, weights = layer(x, x, x, average_attn_weights=False, **options)
    assert weights.shape == (BATCH, HEADS, KEYS, KEYS + 2)
    q, k, _ = heads(layer, x)
    s = variances_of(layer, x, options).expand(BATCH, -1, -1, -1)
    assert layer.bias_k is not None
    k = torch.cat([k, layer.bias_k.view(1, HEADS, 1, -1).expand(BATCH, -1, -1, -1), 0 * k[:, :, :1]], 2)
    s = torch.cat([s, 0 * s[:, :, :2]], 2)
    expected = layer.out_proj(F.mixture_attention(q, k, s).transpose(1, 2).flatten(2))
    torch.testing.assert_close(output, expected)
