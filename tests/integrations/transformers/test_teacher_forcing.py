"""What a decoder reads is its labels behind the start token, as the models make it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fenchel.errors import InputError, ModelError
from fenchel.integrations.transformers import decoder_inputs
from tests.tiny_models import tiny_model


def test_targets_are_shifted_behind_the_start_token() -> None:
    made = decoder_inputs(tiny_model("marian"), torch.tensor([[5, 6, 7, 2]]))
    assert made["decoder_input_ids"].tolist() == [[1, 5, 6, 7]]
    assert made["decoder_attention_mask"].tolist() == [[1, 1, 1, 1]]


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


def test_it_is_what_t5_makes_of_its_labels() -> None:
    import transformers

    model = transformers.T5ForConditionalGeneration(tiny_model("t5").config)
    labels = torch.tensor([[5, 6, 7, 8], [9, 3, -100, -100]])
    expected = model._shift_right(labels)
    made = decoder_inputs(model, labels)
    real = made["decoder_attention_mask"] == 1
    assert torch.equal(made["decoder_input_ids"][real], expected[real])


def test_a_model_without_a_decoder_is_an_error() -> None:
    with pytest.raises(ModelError, match="BertModel is not an encoder-decoder"):
        decoder_inputs(tiny_model("bert"), torch.ones(1, 2, dtype=torch.long))


def test_a_model_without_a_start_token_is_an_error() -> None:
    model = tiny_model("t5")
    model.config.decoder_start_token_id = None
    with pytest.raises(ModelError, match="T5Model has no decoder_start_token_id"):
        decoder_inputs(model, torch.ones(1, 2, dtype=torch.long))


def test_shapes_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(InputError, match=r"\(1, 2\) and \(1, 3\)"):
        decoder_inputs(tiny_model("t5"), torch.ones(1, 2, dtype=torch.long), torch.ones(1, 3))
