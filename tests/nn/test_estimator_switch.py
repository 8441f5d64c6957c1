"""``use_estimator``: what is switched infers otherwise, everything else as it did, and afterwards all of it "
"as before."""

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel.nn import MultiheadAttention, use_estimator
from tests.tiny_models import ViT

WIDTH, HEADS, TOKENS = 12, 3, 5


def x(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(2, TOKENS, WIDTH, dtype=torch.float64, generator=generator)


def layer(**options: Any) -> MultiheadAttention:
    torch.manual_seed(0)
    made = MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64, **options)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made.eval()


def like(given: MultiheadAttention, **options: Any) -> MultiheadAttention:
    """A layer with the same weights and other options."""
    made = layer(**options)
    made.load_state_dict(given.state_dict())
    return made


def called(module: MultiheadAttention, **options: Any) -> tuple[Tensor, Tensor]:
    output, weights = module(x(), x(), x(), average_attn_weights=False, **options)
    assert weights is not None
    return output, weights


def test_layers_are_chosen_by_number_or_name() -> None:
    torch.manual_seed(1)
    model = ViT(width=WIDTH, depth=3, heads=HEADS).double().eval()
    images = torch.randn(2, 1, 8, 8, dtype=torch.float64)

    def built(*exact: int) -> Tensor:
        made = copy.deepcopy(model)
        for number in exact:
            setattr(made.get_submodule(f"layers.{number}.self_attn"), "estimator", "exact")  # noqa: B010
        return made(images)

    choices: list[tuple[Any, tuple[int, ...]]] = [
        (None, (0, 1, 2)),
        ([2], (1,)),
        (["layers.0.self_attn", 3, 1], (0, 2)),
    ]
    for layers, exact in choices:
        with use_estimator(model, "exact", layers=layers):
            torch.testing.assert_close(model(images), built(*exact), rtol=0, atol=0)
    torch.testing.assert_close(model(images), built(), rtol=0, atol=0)


def test_contexts_nest_and_the_inner_one_alone_counts() -> None:
    own = layer()
    first, exact = called(own)[1], called(like(own, estimator="exact"))[1]
    second = called(like(own, estimator="second_order"))[1]
    with use_estimator(own, "exact"):
        with use_estimator(own, "second_order"):
            torch.testing.assert_close(called(own)[1], second)
        torch.testing.assert_close(called(own)[1], exact)
    torch.testing.assert_close(called(own)[1], first)


def test_an_exception_puts_everything_back() -> None:
    own = layer()
    state = dict(own.__dict__)
    with pytest.raises(KeyError), use_estimator(own, "exact"):
        raise KeyError
    assert dict(own.__dict__) == state


def test_copies_and_files_that_are_made_inside_are_of_the_model_without_it() -> None:
    own = layer()
    first = called(own)[1]
    file = io.BytesIO()
    with use_estimator(own, "exact"):
        copied = copy.deepcopy(own)
        torch.save(own, file)
        own(x(), x(), x())
    file.seek(0)
    for made in (copied, torch.load(file, weights_only=False)):
        torch.testing.assert_close(called(made)[1], first, rtol=0, atol=0)
