"""Transport attention as a layer: what it computes, what each option changes, what it refuses."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from fenchel.functional import reference
from fenchel.nn import LearnedTemplateBank, RunningTemplateBank, TransportAttention
from tests.nn.small_layers import BATCH, HEADS, KEYS, QUERIES, WIDTH, heads, tokens
from tests.side_effects import default_dtype

ATOMS = 5

pytestmark = pytest.mark.filterwarnings("ignore::fenchel.errors.CostWarning")


def build(**options: Any) -> TransportAttention:
    layer = TransportAttention(WIDTH, HEADS, **{"dtype": torch.float64, **options})
    nn.init.normal_(layer.in_proj_weight, std=0.5)
    for bias in (layer.in_proj_bias, layer.out_proj.bias):
        if bias is not None:
            nn.init.normal_(bias, std=0.1)
    return layer


@pytest.mark.parametrize("extra_preference", ["zero", "shared"])
@pytest.mark.parametrize(
    "options",
    [{}, {"cost": "squared_euclidean", "gamma": 0.7}, {"cost": 1 - torch.eye(KEYS + ATOMS).double(), "scale": 0.5}],
)  # fmt: skip
def test_it_is_transport_attention_between_projections(options, extra_preference):
    """A float mask is added to log u; under a shared preference further templates are like the input's own."""
    layer = build(**options, extra_preference=extra_preference)
    x, query, atoms, log_u = tokens(), tokens(QUERIES), tokens(ATOMS), tokens(1)[..., 0, :KEYS]
    log_u[1, 4] = -torch.inf
    for mask in (None, log_u):
        own, given = x, None if mask is None else mask[:, None, None].expand(-1, HEADS, QUERIES, -1)
        further: dict[str, Any] = dict(zip(("atoms", "atom_values"), heads(layer, atoms)[1:], strict=True))
        if extra_preference == "shared":
            own, further = torch.cat([x, atoms], 1), {}
            given = None if given is None else nn.functional.pad(given, (0, ATOMS))
        asked = {"gamma": math.sqrt(WIDTH), **options, **further}
        qkv = heads(layer, query)[0], *heads(layer, own)[1:]
        expected = reference.transport_attention(*qkv, log_preference=given, **asked)
        found = layer(query, x, atoms=atoms, key_padding_mask=mask)
        torch.testing.assert_close(
            found, layer.out_proj(expected.transpose(1, 2).flatten(2)), atol=1e-9, rtol=0
        )


def test_parameters_are_those_of_torch_with_the_same_names_and_the_same_draws():
    torch.manual_seed(3)
    theirs = nn.MultiheadAttention(WIDTH, HEADS)
    torch.manual_seed(3)
    ours = TransportAttention(WIDTH, HEADS)
    torch.testing.assert_close(dict(ours.state_dict()), dict(theirs.state_dict()), rtol=0, atol=0)
    plain = (
        kind(WIDTH, HEADS, bias=False).state_dict() for kind in (TransportAttention, nn.MultiheadAttention)
    )
    assert [*next(plain)] == [*next(plain)]


@pytest.mark.parametrize("extra_preference", ["zero", "shared"])
def test_masked_atoms_are_as_if_they_were_not_there(extra_preference):
    layer, x, atoms = build(extra_preference=extra_preference), tokens(), tokens(ATOMS)
    mask = torch.tensor([[True, False, True, False, False], [False] * 5])
    output = layer(x, atoms=atoms, atom_mask=mask)
    torch.testing.assert_close(output[0], layer(x[:1], atoms=atoms[:1, [0, 2]])[0])
    torch.testing.assert_close(output[1], layer(x[1:])[0])  # falls to the input's own
    assert (layer(x, atoms=atoms) - output).abs().amax((1, 2)).min() > 1e-3
    one = layer(x, atoms=atoms[:1], atom_mask=mask[:1])  # one set of atoms for the batch
    torch.testing.assert_close(one, layer(x, atoms=atoms[:1].expand(BATCH, -1, -1), atom_mask=mask[[0, 0]]))


@pytest.mark.parametrize("extra_preference", ["zero", "shared"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_partners_lend_their_keys_and_values(extra_preference, batch_first):
    bank = LearnedTemplateBank(WIDTH).double()
    layer = build(extra_preference=extra_preference, memory=bank)
    query, x, atoms = (tokens(count, batch=3) for count in (QUERIES, KEYS, ATOMS))
    partners, there = torch.tensor([2, -1, 0]), torch.tensor([[True], [False], [True]])
    padding = torch.zeros(3, KEYS, dtype=torch.bool)
    padding[2, 3:] = True
    lent = torch.cat([atoms, x[partners.clamp_min(0)]], 1)
    may = torch.cat([there.new_ones(3, ATOMS), there & ~padding[partners.clamp_min(0)]], 1)
    expected = layer(query, x, atoms=lent, atom_mask=may, key_padding_mask=padding)
    layer.batch_first = batch_first
    q, k, a = (t if batch_first else t.transpose(0, 1) for t in (query, x, atoms))
    output = layer(q, k, atoms=a, partners=partners, key_padding_mask=padding)
    torch.testing.assert_close(output if batch_first else output.transpose(0, 1), expected)
    without = layer(q, k, atoms=a, key_padding_mask=padding)
    assert (output - without).abs().max() > 1e-3
    nobody = layer(q, k, atoms=a, partners=torch.full((3,), -1), key_padding_mask=padding)
    torch.testing.assert_close(nobody, without)

    lent_values = x.clone()
    lent_values[2] += 1.0  # of the partner of the first
    moved = layer(
        q, k, lent_values if batch_first else lent_values.transpose(0, 1), atoms=a, partners=partners
    )
    apart = moved - layer(q, k, k, atoms=a, partners=partners)
    assert (apart if batch_first else apart.transpose(0, 1))[0].abs().max() > 1e-3


@pytest.mark.parametrize("extra_preference", ["zero", "shared"])
def test_weights_are_over_keys_then_further_templates(extra_preference):
    layer, x, atoms = build(extra_preference=extra_preference, bias=False), tokens(), tokens(ATOMS)
    output, weights = layer(x, atoms=atoms, need_weights=True, average_attn_weights=False)
    values = (torch.cat([x, atoms], 1) @ layer.in_proj_weight[-WIDTH:].T).unflatten(-1, (HEADS, -1))
    read = (weights @ values.transpose(1, 2)).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer.out_proj(read), output)
    torch.testing.assert_close(output, layer(x, atoms=atoms))


def test_a_learned_gamma_starts_at_gamma_and_dropout_is_of_the_output_in_training_only():
    layer, fixed, x = build(learn_gamma=True, gamma=1.5, dropout=0.5), build(gamma=1.5), tokens(100)
    fixed.load_state_dict(layer.state_dict(), strict=False)
    dropped, whole = layer(x), layer.eval()(x)
    torch.testing.assert_close(whole, fixed(x))
    assert layer.log_gamma is not None
    assert layer.log_gamma.shape == (HEADS,)
    zeros = dropped == 0
    assert 0.4 < zeros.double().mean() < 0.6
    torch.testing.assert_close(dropped[~zeros], 2 * whole[~zeros])


def test_a_class_starts_with_its_first_and_last_token_whatever_torchs_default_dtype():
    bank = RunningTemplateBank(1, 1, per_class=2)
    with default_dtype(torch.bfloat16):
        bank.update(torch.arange(1000, dtype=torch.float32).view(1, -1, 1), torch.zeros(1, dtype=torch.int64))
    assert bank.templates.flatten().tolist() == [0.0, 999.0]
