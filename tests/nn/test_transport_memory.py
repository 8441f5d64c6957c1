"""Banks of templates: what they keep, who may use it, and transport attention that reaches it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fenchel.nn import LearnedTemplateBank, RunningTemplateBank, TransportAttention

WIDTH, HEADS, KEYS, BATCH, CLASSES = 8, 2, 5, 4, 3

pytestmark = pytest.mark.filterwarnings("ignore::fenchel.errors.CostWarning")


def tokens(count: int = KEYS, batch: int = BATCH) -> Tensor:
    return torch.randn(batch, count, WIDTH)


@pytest.mark.parametrize("extra_preference", ["zero", "shared"])
def test_the_templates_of_a_bank_are_atoms_beside_those_of_the_call(extra_preference):
    bank = LearnedTemplateBank(WIDTH, CLASSES, per_class=2)
    layer = TransportAttention(WIDTH, HEADS, memory=bank, extra_preference=extra_preference)
    plain = TransportAttention(WIDTH, HEADS, extra_preference=extra_preference)
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("memory")})
    x, atoms, kept = tokens(), tokens(3), bank()[0].unsqueeze(0)
    torch.testing.assert_close(layer(x), plain(x, atoms=kept))
    both = torch.cat([atoms, kept.expand(BATCH, -1, -1)], 1)
    torch.testing.assert_close(layer(x, atoms=atoms), plain(x, atoms=both))
    mask = torch.rand(BATCH, 3) < 0.5
    masks = torch.cat([mask, torch.ones(BATCH, 6, dtype=torch.bool)], 1)
    torch.testing.assert_close(layer(x, atoms=atoms, atom_mask=mask), plain(x, atoms=both, atom_mask=masks))
    torch.testing.assert_close(layer(x, atoms=atoms[:1]), layer(x, atoms=atoms[:1].expand(BATCH, -1, -1)))


def test_a_learned_bank_learns_what_its_inputs_may_use():
    bank = LearnedTemplateBank(WIDTH, CLASSES, per_class=2, own_class=True)
    layer = TransportAttention(WIDTH, HEADS, memory=bank)
    layer(tokens(), labels=torch.tensor([0, 0, 2, 0])).square().sum().backward()
    gradient = bank.templates.grad
    assert gradient is not None
    assert gradient[[0, 2]].abs().min() > 0
    assert (gradient[1] == 0).all()


def test_labels_keep_an_input_to_its_class_only_where_the_bank_says_so():
    labels, x = torch.tensor([2, -1, 0, 1]), tokens()
    bank = LearnedTemplateBank(WIDTH, CLASSES, per_class=2)
    layer = TransportAttention(WIDTH, HEADS, memory=bank).eval()
    everything = layer(x)
    torch.testing.assert_close(layer(x, labels=labels), everything)
    bank.own_class = True
    own = layer(x, labels=labels)
    torch.testing.assert_close(own[1], everything[1])  # without a label it may use all
    assert (own - everything)[[0, 2, 3]].abs().amax((1, 2)).min() > 1e-4
    torch.testing.assert_close(layer(x), everything)
    assert bank(labels)[1].int().tolist() == [
        [0, 0, 0, 0, 1, 1],
        [1, 1, 1, 1, 1, 1],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 0, 0],
    ]


def test_a_running_template_is_the_running_mean_of_its_class():
    bank = RunningTemplateBank(WIDTH, CLASSES, momentum=0.75)
    first, second, labels = tokens(), tokens(), torch.tensor([0, 2, 0, -1])
    bank.update(first, labels)
    assert bank.filled.tolist() == [True, False, True]
    torch.testing.assert_close(bank.templates[0, 0], first[[0, 2]].mean((0, 1)))
    bank.update(second, labels)
    expected = 0.75 * first[[0, 2]].mean((0, 1)) + 0.25 * second[[0, 2]].mean((0, 1))
    torch.testing.assert_close(bank.templates[0, 0], expected)
    assert (bank.templates[1] == 0).all()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("per_class", [1, 2])
def test_tokens_that_are_no_numbers_leave_a_running_bank_as_it_is(wrong, per_class):
    labels = torch.tensor([0, 1, 2, 0])
    bank, expected = (RunningTemplateBank(WIDTH, CLASSES, per_class) for _ in range(2))
    lost = tokens()
    lost[1, :, 3] = wrong  # the first that class 1 shows
    bank.update(lost, labels)
    assert bank.filled.tolist() == [True, False, True]
    later, padding = tokens(), torch.zeros(BATCH, KEYS, dtype=torch.bool)
    padding[0, 2] = True
    expected.update(lost, torch.tensor([0, -1, 2, 0]))
    expected.update(later, labels, padding)
    later[0, 2, 0] = wrong
    bank.update(later, labels)
    torch.testing.assert_close(bank.templates, expected.templates, rtol=0, atol=0)
    bank.update(torch.full_like(later, wrong), labels)
    assert torch.equal(bank.templates, expected.templates)


def test_several_templates_of_a_class_find_its_clusters():
    centres = torch.tensor([[-4.0] * WIDTH, [4.0] * WIDTH])
    bank = RunningTemplateBank(WIDTH, 1, per_class=2, momentum=0.5)
    for _ in range(12):
        bank.update(centres.repeat_interleave(4, 0) + 0.1 * torch.randn(1, 8, WIDTH), torch.zeros(1).long())
    torch.testing.assert_close(bank.templates[0], centres, atol=0.2, rtol=0)
    kept = bank.templates.clone()
    bank.update(centres[:1].expand(1, 3, WIDTH), torch.zeros(1).long())
    torch.testing.assert_close(bank.templates[0, 1], kept[0, 1])  # nothing was near to it
    assert not torch.equal(bank.templates[0, 0], kept[0, 0])


def test_a_layer_updates_its_running_bank_in_training_with_labels_and_after_use():
    bank = RunningTemplateBank(WIDTH, CLASSES)
    layer = TransportAttention(WIDTH, HEADS, memory=bank)
    x, labels = tokens(), torch.tensor([0, 1, 2, 0])
    alone = layer(x)
    torch.testing.assert_close(layer(x, labels=labels), alone)  # it was empty when it was used
    kept = bank.templates.clone()
    assert bank.filled.all()
    layer.eval()(2 * x, labels=labels)
    layer.train()(2 * x)
    assert torch.equal(bank.templates, kept)
    layer.train()(2 * x, labels=labels)
    assert not torch.equal(bank.templates, kept)


def test_an_empty_bank_is_as_none_and_a_full_one_is_not():
    bank = RunningTemplateBank(WIDTH, CLASSES)
    layer = TransportAttention(WIDTH, HEADS, memory=bank).eval()
    x = tokens()
    layer.memory = None
    alone = layer(x)
    layer.memory = bank
    torch.testing.assert_close(layer(x), alone)
    bank.update(tokens(), torch.tensor([0, 1, 2, 0]))
    assert (layer(x) - alone).abs().max() > 1e-3


def test_gradients_can_be_taken_after_the_bank_has_moved():
    layer = TransportAttention(WIDTH, HEADS, memory=RunningTemplateBank(WIDTH, CLASSES))
    labels = torch.tensor([0, 1, 2, 0])
    layer(tokens(), labels=labels)
    output = layer(tokens(), labels=labels)
    layer(tokens(), labels=labels)
    output.square().sum().backward()
    assert layer.in_proj_weight.grad is not None
    assert layer.in_proj_weight.grad.abs().max() > 0


def test_sequence_first_inputs_are_taken_in_as_batch_first_ones():
    banks = []
    for batch_first in (True, False):
        layer = TransportAttention(
            WIDTH, HEADS, memory=RunningTemplateBank(WIDTH, CLASSES, 2), batch_first=batch_first
        )
        torch.manual_seed(1)
        x = tokens()
        layer(x if batch_first else x.transpose(0, 1), labels=torch.tensor([0, 1, 2, 0]))
        banks.append(layer.memory)
    assert torch.equal(banks[0].templates, banks[1].templates)


def test_banks_are_saved_with_the_model_and_shown():
    layer = TransportAttention(WIDTH, HEADS, memory=RunningTemplateBank(WIDTH, CLASSES, 2, momentum=0.5))
    layer(tokens(), labels=torch.tensor([0, 1, -1, 0]))
    fresh = TransportAttention(WIDTH, HEADS, memory=RunningTemplateBank(WIDTH, CLASSES, 2))
    fresh.load_state_dict(layer.state_dict())
    x = tokens()
    torch.testing.assert_close(fresh.eval()(x), layer.eval()(x))
    assert "8, classes=3, per_class=2, own_class=False, momentum=0.5" in repr(layer)
    assert not list(RunningTemplateBank(WIDTH, 1).parameters())


def test_an_update_works_under_autocast():
    layer = TransportAttention(WIDTH, HEADS, memory=RunningTemplateBank(WIDTH, CLASSES))
    norm = nn.LayerNorm(WIDTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            layer(norm(tokens()), atoms=tokens(2), labels=torch.tensor([0, 1, 2, 0]))
    assert layer.memory is not None
    assert layer.memory.templates.dtype == torch.float32
