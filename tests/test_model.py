"""A loaded model runs where and as it is asked to, and only in what attention computes in."""

from __future__ import annotations

import pytest
import torch

from fenchel.errors import InputError
from fenchel.loading import RunModel, evaluating, seeded
from tests.tiny_models import tiny_model


def found(**options):
    given = {"device": None, "dtype": None, "revision": None, **options}
    return RunModel.of(tiny_model("bert"), None, **given)


@pytest.mark.parametrize(
    ("dtype", "becomes"),
    [
        (None, torch.float64),
        ("auto", torch.float64),
        ("float32", torch.float32),
        ("torch.float32", torch.float32),
        (torch.bfloat16, torch.bfloat16),
    ],
)
def test_a_dtype_by_name_or_as_torch_has_it(dtype, becomes):
    assert found(dtype=dtype).model.dtype == becomes


@pytest.mark.parametrize("dtype", ["int8", "half", "", 32, torch.int64, torch.complex64, torch.float8_e4m3fn])
def test_a_dtype_that_attention_does_not_compute_in(dtype):
    with pytest.raises(
        InputError, match=r"dtype is .*; expected one of auto, bfloat16, float16, float32, float64"
    ):
        found(dtype=dtype)


def test_a_revision_is_asked_of_names_alone():
    with pytest.raises(InputError, match="revision 'main' was given with a model that is loaded already"):
        found(revision="main")


def test_a_loaded_model_is_left_as_it_was():
    model = tiny_model("bert").train()
    model.embeddings.eval()
    state = torch.get_rng_state()
    with evaluating(model), seeded(3, model):
        assert not any(module.training for module in model.modules())
        first = torch.rand(2)
    with seeded(3, model):
        assert torch.equal(torch.rand(2), first)
    assert model.training
    assert not model.embeddings.training
    assert torch.equal(torch.get_rng_state(), state)
