"""Banks of templates: what they keep, who may use it, and transport attention that reaches it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel.nn import LearnedTemplateBank, RunningTemplateBank, TransportAttention

WIDTH, HEADS, KEYS, BATCH, CLASSES = 8, 2, 5, 4, 3

pytestmark = pytest.mark.filterwarnings("ignore::fenchel.errors.CostWarning")


LABELS = torch.tensor([0, 1, 2, 0])


def tokens(count: int = KEYS, batch: int = BATCH) -> Tensor:
    return torch.randn(batch, count, WIDTH)


def remembering(per_class: int = 1, momentum: float = 0.9, **options: Any) -> Any:
    bank = RunningTemplateBank(WIDTH, CLASSES, per_class, momentum=momentum)
    return TransportAttention(WIDTH, HEADS, memory=bank, **options)


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
    assert bank(labels)[1][:2].int().tolist() == [[0, 0, 0, 0, 1, 1], [1] * 6]


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
    bank, expected = (RunningTemplateBank(WIDTH, CLASSES, per_class) for _ in range(2))
    lost = tokens()
    lost[1, :, 3] = wrong  # the first that class 1 shows
    bank.update(lost, LABELS)
    assert bank.filled.tolist() == [True, False, True]
    later, padding = tokens(), torch.zeros(BATCH, KEYS, dtype=torch.bool)
    padding[0, 2] = True
    expected.update(lost, torch.tensor([0, -1, 2, 0]))
    expected.update(later, LABELS, padding)
    later[0, 2, 0] = wrong
    bank.update(later, LABELS)
    torch.testing.assert_close(bank.templates, expected.templates, rtol=0, atol=0)
    bank.update(torch.full_like(later, wrong), LABELS)
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
    layer, x = remembering(), tokens()
    bank, layer.memory = layer.memory, None
    alone, layer.memory = layer(x), bank
    torch.testing.assert_close(layer(x), alone)
    torch.testing.assert_close(layer(x, labels=LABELS), alone)  # it was empty when it was used
    kept = bank.templates.clone()
    layer.eval()(2 * x, labels=LABELS)
    layer.train()(2 * x)
    assert torch.equal(bank.templates, kept)
    assert (layer(x) - alone).abs().max() > 1e-3
    output = layer(2 * x, labels=LABELS)
    assert not torch.equal(bank.templates, kept)
    layer(x, labels=LABELS)
    output.square().sum().backward()  # also after the bank has moved
    assert layer.in_proj_weight.grad.abs().max() > 0


def test_sequence_first_inputs_are_taken_in_as_batch_first_ones():
    one, other, x = remembering(2), remembering(2, batch_first=False), tokens()
    one(x, labels=LABELS)
    other(x.transpose(0, 1), labels=LABELS)
    assert torch.equal(one.memory.templates, other.memory.templates)


def test_banks_are_saved_with_the_model_and_shown():
    layer, fresh = remembering(2, momentum=0.5), remembering(2)
    layer(tokens(), labels=torch.tensor([0, 1, -1, 0]))
    fresh.load_state_dict(layer.state_dict())
    x = tokens()
    torch.testing.assert_close(fresh.eval()(x), layer.eval()(x))
    assert "8, classes=3, per_class=2, own_class=False, momentum=0.5" in repr(layer)


def test_an_update_works_under_autocast():
    layer, norm = remembering(), nn.LayerNorm(WIDTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            layer(norm(tokens()), atoms=tokens(2), labels=LABELS)
    assert layer.memory.templates.dtype == torch.float32
