"""Transport attention as a layer: what it computes, what each option changes, what it refuses."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel.nn import LearnedTemplateBank, TransportAttention

WIDTH, HEADS, QUERIES, KEYS, ATOMS, BATCH = 12, 3, 4, 6, 5, 2

pytestmark = pytest.mark.filterwarnings("ignore::fenchel.errors.CostWarning")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def build(**options: Any) -> TransportAttention:
    layer = TransportAttention(WIDTH, HEADS, **{"dtype": torch.float64, **options})
    nn.init.normal_(layer.in_proj_weight, std=0.5)
    for bias in (layer.in_proj_bias, layer.out_proj.bias):
        if bias is not None:
            nn.init.normal_(bias, std=0.1)
    return layer


def tokens(count: int = KEYS, batch: int = BATCH) -> Tensor:
    return torch.randn(batch, count, WIDTH, dtype=torch.float64)


def written_out(
    layer: TransportAttention,
    query: Tensor,
    own: Tensor,
    atoms: Tensor,
    gamma: float,
    cost: str,
    u: Sequence[float] | None = None,
) -> Tensor:
    """Formula (22), one sequence, head, query and template at a time; u, on ``own``, is uniform where None."""
    u = [1 / own.shape[1]] * own.shape[1] if u is None else u
    assert layer.in_proj_bias is not None
    (q_weight, k_weight, v_weight), (q_bias, k_bias, v_bias) = (
        layer.in_proj_weight.chunk(3),
        layer.in_proj_bias.chunk(3),
    )
    width = WIDTH // HEADS
    outputs = []
    for b in range(len(query)):
        everything = torch.cat([own[b], atoms[b]])
        q, k, v = (
            query[b] @ q_weight.T + q_bias,
            everything @ k_weight.T + k_bias,
            everything @ v_weight.T + v_bias,
        )
        means = torch.zeros_like(q)
        for head in range(HEADS):
            part = slice(head * width, (head + 1) * width)
            t, values = k[:, part], v[:, part]
            for j, z in enumerate(q[:, part]):
                p = torch.zeros(len(t), dtype=t.dtype)
                for i, weight in enumerate(u):
                    m = (t - t[i]).square().sum(-1) if cost == "squared_euclidean" else -t @ t[i]
                    p = p + weight * ((t @ z - m) / gamma).softmax(0)
                means[j, part] = p @ values
        outputs.append(means @ layer.out_proj.weight.T + layer.out_proj.bias)
    return torch.stack(outputs)


@pytest.mark.parametrize("cost", ["dot", "squared_euclidean"])
def test_it_computes_formula_22(cost):
    layer, x, query, atoms = build(cost=cost), tokens(), tokens(QUERIES), tokens(ATOMS)
    expected = written_out(layer, query, x, atoms, math.sqrt(WIDTH), cost)
    torch.testing.assert_close(layer(query, x, atoms=atoms), expected, atol=1e-9, rtol=0)
    assert (layer(query, x) - expected).abs().max() > 1e-3
    layer.extra_preference = "shared"
    both = torch.cat([x, atoms], 1)
    shared = written_out(layer, query, both, atoms[:, :0], math.sqrt(WIDTH), cost)
    torch.testing.assert_close(layer(query, x, atoms=atoms), shared, atol=1e-9, rtol=0)
    assert (shared - expected).abs().max() > 1e-3


def test_parameters_are_those_of_torch_with_the_same_names_and_the_same_draws():
    torch.manual_seed(3)
    theirs = nn.MultiheadAttention(WIDTH, HEADS)
    torch.manual_seed(3)
    ours = TransportAttention(WIDTH, HEADS)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    ours.load_state_dict(nn.MultiheadAttention(WIDTH, HEADS).state_dict())
    assert not torch.equal(ours.in_proj_weight, theirs.in_proj_weight)
    assert list(TransportAttention(WIDTH, HEADS, bias=False).state_dict()) == list(
        nn.MultiheadAttention(WIDTH, HEADS, bias=False).state_dict()
    )


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
@pytest.mark.parametrize("kind", [torch.bool, torch.float64])
def test_masked_keys_are_as_if_they_were_not_there(extra_preference, kind):
    layer, x, query, atoms = (
        build(extra_preference=extra_preference),
        tokens(),
        tokens(QUERIES),
        tokens(ATOMS),
    )
    padding = torch.zeros(BATCH, KEYS, dtype=torch.bool)
    padding[1, 4:] = True
    atom_mask = torch.tensor([[True] * 5, [True, True, False, True, True]])

    def as_kind(mask: Tensor) -> Tensor:
        return mask if kind == torch.bool else torch.zeros(mask.shape).double().masked_fill(mask, -torch.inf)

    output = layer(query, x, atoms=atoms, atom_mask=atom_mask, key_padding_mask=as_kind(padding))
    short = layer(query[1:], x[1:, :4], atoms=atoms[1:], atom_mask=atom_mask[1:])
    torch.testing.assert_close(output[1], short[0])
    torch.testing.assert_close(output[:1], layer(query[:1], x[:1], atoms=atoms[:1]))
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool).triu(1)
    causal = layer(query, x, atoms=atoms, attn_mask=as_kind(mask), is_causal=True)
    for j in range(QUERIES):
        seen = layer(query[:, j : j + 1], x[:, : j + 1], atoms=atoms)
        torch.testing.assert_close(causal[:, j : j + 1], seen)


def test_a_float_mask_is_added_to_log_u():
    layer, x, atoms = build(), tokens(2), tokens(ATOMS)
    thrice = torch.tensor([math.log(3.0), 0.0], dtype=torch.float64).expand(BATCH, 2)
    expected = written_out(layer, x, x, atoms, math.sqrt(WIDTH), "dot", u=[0.75, 0.25])
    torch.testing.assert_close(layer(x, atoms=atoms, key_padding_mask=thrice), expected, atol=1e-9, rtol=0)


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


def test_what_partners_lend_are_their_own_values():
    layer, x, values = build(), tokens(batch=2), tokens(batch=2)
    lent = layer(x, x, values, partners=torch.tensor([1, -1]))
    swapped = values.clone()
    swapped[1] += 1.0
    moved = layer(x, x, swapped, partners=torch.tensor([1, -1]))
    assert (moved - lent)[0].abs().max() > 1e-3


@pytest.mark.parametrize("extra_preference", ["zero", "shared"])
def test_weights_are_over_keys_then_further_templates(extra_preference):
    layer, x, atoms = build(extra_preference=extra_preference, bias=False), tokens(), tokens(ATOMS)
    output, weights = layer(x, atoms=atoms, need_weights=True, average_attn_weights=False)
    values = (torch.cat([x, atoms], 1) @ layer.in_proj_weight[-WIDTH:].T).unflatten(-1, (HEADS, -1))
    read = (weights @ values.transpose(1, 2)).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer.out_proj(read), output)
    torch.testing.assert_close(output, layer(x, atoms=atoms))


def test_key_and_value_default_and_can_be_given():
    layer, x, y = build(), tokens(), tokens()
    torch.testing.assert_close(layer(x), layer(x, x.clone(), x.clone()))
    torch.testing.assert_close(layer(x, y), layer(x, y, y.clone()))
    assert not torch.allclose(layer(x, y), layer(x, y, x))
    assert not torch.allclose(layer(x, y), layer(x))


OPTIONS: dict[str, dict[str, Any]] = {
    "gamma": {"gamma": 0.7},
    "cost": {"cost": "cosine"},
    "matrix": {"cost": 1 - torch.eye(KEYS + ATOMS)},
    "alpha": {"alpha": 2.0},
    "scale": {"scale": 0.5},
    "estimator": {"estimator": "second_order"},
    "exact": {"estimator": "exact"},
    "extra_preference": {"extra_preference": "shared"},
    "memory": {"memory": LearnedTemplateBank(WIDTH, per_class=2).double()},
    "dropout": {"dropout": 0.5},
    "bias": {"bias": False},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_changes_the_output(name):
    options = OPTIONS[name]
    plain = build()
    layer = TransportAttention(WIDTH, HEADS, dtype=torch.float64, **options)
    layer.load_state_dict(plain.state_dict(), strict=False)
    x, atoms = tokens(), tokens(ATOMS)
    assert (layer(x, atoms=atoms) - plain(x, atoms=atoms)).abs().max() > 1e-4


def test_every_head_can_learn_gamma_and_alpha():
    x, atoms = tokens(), tokens(ATOMS)
    layer, fixed = (
        build(learn_gamma=True, learn_alpha=True, gamma=1.5, alpha=0.8),
        build(gamma=1.5, alpha=0.8),
    )
    fixed.load_state_dict(layer.state_dict(), strict=False)
    torch.testing.assert_close(layer(x, atoms=atoms), fixed(x, atoms=atoms))
    layer(x, atoms=atoms).square().sum().backward()
    assert layer.log_gamma is not None
    assert layer.log_alpha is not None
    for parameter in (layer.log_gamma, layer.log_alpha):
        assert parameter.grad is not None
        assert parameter.grad.shape == (HEADS,)
        assert parameter.grad.abs().min() > 0
    with torch.no_grad():
        layer.log_gamma[1] += 0.5
    changed, before = layer(x, atoms=atoms), fixed(x, atoms=atoms)
    assert (changed - before).abs().max() > 1e-4
    assert "gamma=learned, alpha=learned" in repr(layer)


def test_gradients_reach_inputs_atoms_and_all_parameters():
    layer, x, atoms = build(gamma=2.0), tokens(), tokens(ATOMS)
    for tensor in (x, atoms):
        tensor.requires_grad_()
    mask = torch.tensor([[True] * 5, [False] * 5])
    layer(x, atoms=atoms, atom_mask=mask).square().sum().backward()
    for tensor in (x, *layer.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.abs().max() > 0
    assert atoms.grad is not None
    assert atoms.grad[0].abs().min() > 0
    assert (atoms.grad[1] == 0).all()
    torch.autograd.gradcheck(
        lambda a, b: layer(a, atoms=b, atom_mask=mask), (x[:, :3].detach().requires_grad_(), atoms)
    )


def test_an_atom_of_the_same_group_shares_the_weight_and_one_of_another_gets_none():
    # Keys 0 and 1, atoms 2 and 3. Groups {0, 2, 3} and {1}, and no evidence.
    cost = torch.full((4, 4), torch.inf, dtype=torch.float64)
    cost[[[0], [2], [3]], [0, 2, 3]] = 0.0
    cost[1, 1] = 0.0
    layer = build(cost=cost, bias=False)
    nn.init.eye_(layer.out_proj.weight)
    x, atoms = tokens(2), tokens(2)
    values = torch.cat([x, atoms], 1) @ layer.in_proj_weight[-WIDTH:].T
    output = layer(torch.zeros(BATCH, 1, WIDTH, dtype=torch.float64), x, atoms=atoms)
    expected = torch.tensor([1 / 6, 1 / 2, 1 / 6, 1 / 6], dtype=torch.float64) @ values
    torch.testing.assert_close(output[:, 0], expected)


def test_dropout_is_of_the_output_in_training_only():
    layer, x = build(dropout=0.5), tokens(100)
    dropped, whole = layer(x), layer.eval()(x)
    zeros = dropped == 0
    assert 0.4 < zeros.double().mean() < 0.6
    torch.testing.assert_close(dropped[~zeros], 2 * whole[~zeros])
