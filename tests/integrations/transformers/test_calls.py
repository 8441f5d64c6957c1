"""Calls of attention: arguments, modules, real queries, what decoders read, and the own attention of a family."""

from typing import Any

import pytest
import torch
from torch import nn

from fenchel.errors import CaptureError, InputError, ModelError
from fenchel.integrations.masks_and_sinks import FamilyCall, refuse_unsupported
from fenchel.integrations.registry import attention_modules
from fenchel.integrations.sites import RealQueries
from fenchel.integrations.transformers import decoder_inputs, use_backend
from fenchel.nn.inference import Problem
from tests.tiny_models import tiny_inputs, tiny_model


@pytest.mark.parametrize("value", [0.0, torch.ones(2)], ids=["zero", "tensor"])
def test_what_changes_scores_is_refused_by_name(value: Any) -> None:
    problem = Problem(QUERY, QUERY, QUERY, 1.0, 0.5)
    call = FamilyCall("layers.3", nn.Identity(), problem, None, None, False, {"mood": value})
    with pytest.raises(ModelError, match=r"layers.3 \(Identity\) passes 'mood'"):
        refuse_unsupported(call)


def test_arguments_of_the_loss_do_not_concern_attention() -> None:
    model, inputs = tiny_model("llama", head="AutoModelForCausalLM"), tiny_inputs("llama")
    labels = inputs["input_ids"].roll(-1, 1)
    loss = {"labels": labels, "shift_labels": labels, "num_items_in_batch": 20, "ignore_index": 0}
    with torch.no_grad():
        expected = model(**inputs, **loss).loss
        with use_backend(model, "first_order"):
            torch.testing.assert_close(model(**inputs, **loss).loss, expected)


def test_torchs_own_attention_is_found_unless_it_adds_templates() -> None:
    model = tiny_model("vit")
    model.head = nn.MultiheadAttention(24, 4)
    assert "head" in attention_modules(model).values()
    model.head = nn.MultiheadAttention(24, 4, add_zero_attn=True)
    with pytest.raises(
        ModelError, match=r"ViTModel computes attention in MultiheadAttention \(such as 'head'"
    ):
        attention_modules(model)
    with pytest.raises(ModelError, match="Sequential has no module that calls the attention registry"):
        attention_modules(nn.Sequential(nn.Linear(2, 2)))


MASK = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])
QUERY = torch.zeros(2, 3, 4, 5)


def test_queries_that_see_nothing_in_some_head_are_left_out() -> None:
    empty = torch.zeros(1, 3, 4, 1, dtype=torch.bool)
    empty[0, 1, 2] = True
    real = RealQueries({}, None, None)("site", QUERY, empty, decoder=False)
    assert real.tolist() == [[True, True, False, True]] * 2


def test_what_does_not_fit_is_refused() -> None:
    for name in ("attention_mask", "input_ids"):
        with pytest.raises(
            InputError, match=r"counted has shape \(2, 3\); expected .*\(2, 4\), as the inputs"
        ):
            RealQueries({name: MASK}, torch.ones(2, 3, dtype=torch.bool), None)
    with pytest.raises(InputError, match=r"counted_decoder has dtype torch.float32"):
        RealQueries({}, None, torch.ones(2, 3))
    real = RealQueries({"attention_mask": MASK}, None, None)
    with pytest.raises(CaptureError, match=r"site has queries of shape \(2, 9\).*is \(2, 4\)"):
        real("site", torch.zeros(2, 3, 9, 5), None, decoder=False)


@pytest.mark.parametrize(
    ("labels", "mask", "ids", "real"),
    [
        ([5, 6, 7, 0], [1, 1, 1, 0], [1, 5, 6, None], [1, 1, 1, 0]),
        ([0, 5, 6, 7], [0, 1, 1, 1], [None, 1, 5, 6], [0, 1, 1, 1]),
        ([5, 6, -100, -100], None, [1, 5, None, None], [1, 1, 0, 0]),
    ],
)
def test_padding_on_either_side(labels: list[int], mask: Any, ids: list[Any], real: list[int]) -> None:
    given = None if mask is None else torch.tensor([mask])
    made = decoder_inputs(tiny_model("marian"), torch.tensor([labels]), given)
    assert made["decoder_attention_mask"].tolist() == [real]
    found = made["decoder_input_ids"][0].tolist()
    assert [f for f, e in zip(found, ids, strict=True) if e is not None] == [e for e in ids if e is not None]
    assert min(found) >= 0


def test_labels_that_do_not_fit_their_mask_and_models_that_cannot_read_them_are_refused() -> None:
    model, labels = tiny_model("t5"), torch.ones(1, 2, dtype=torch.long)
    with pytest.raises(InputError, match=r"mask has shape \(1, 3\); expected \(batch, tokens\) = \(1, 2\)"):
        decoder_inputs(model, labels, torch.ones(1, 3))
    model.config.decoder_start_token_id = None
    with pytest.raises(ModelError, match="T5Model has no decoder_start_token_id"):
        decoder_inputs(model, labels)
    with pytest.raises(ModelError, match="BertModel is not an encoder-decoder"):
        decoder_inputs(tiny_model("bert"), labels)


def test_rows_that_see_nothing_are_not_compared_with_the_familys_own() -> None:
    model, inputs = tiny_model("llama", dtype=torch.float32), tiny_inputs("llama", padding="left")
    inputs["attention_mask"][:, :2] = 0
    real = inputs["attention_mask"] == 1
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state[real]
        with use_backend(model, "first_order"):
            found = model(**inputs).last_hidden_state[real]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
