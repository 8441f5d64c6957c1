"""Options: what is out of range is named, and what is left out comes from the recipe and the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenchel.errors import InputError
from fenchel.train import TrainOptions
from fenchel.train.vision.recipe import RECIPES
from tests.train.small_trainings import options


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": ""}, r"data is ''; expected a name, such as fashion-mnist, or a path"),
        ({"model": "resnet"}, r"model is 'resnet'; expected one of vit, ot-vit"),
        ({"recipe": "weak"}, r"recipe is 'weak'; expected one of paper, strong"),
        ({"precision": "float16"}, r"precision is 'float16'; expected one of auto, float32, bfloat16"),
        ({"cost": "manhattan"}, r"cost is 'manhattan'; expected one of dot"),
        ({"extra_preference": "some"}, r"extra preference is 'some'; expected one of zero, shared, none"),
        ({"extra_preference": "zero"}, r"extra preference is 'zero' for the model 'vit'"),
        ({"epochs": 0}, r"epochs is 0; expected a whole number from 1"),
        ({"epochs": 1.5}, r"epochs is 1\.5; expected a whole number"),
        ({"epochs": True}, r"epochs is True; expected a whole number"),
        ({"train_images": 0}, r"train images is 0; expected a whole number"),
        ({"batch_size": 7}, r"batch size is 7; it must be even"),
        ({"seed": -1}, r"seed is -1; expected a whole number"),
        ({"seed": 2**40}, r"seed is 1099511627776; expected a whole number from 0 to 2,147,483,647"),
        ({"learning_rate": 0.0}, r"learning rate is 0\.0; expected a finite number above 0"),
        ({"learning_rate": float("nan")}, r"learning rate is nan; expected a finite number above 0"),
        ({"learning_rate": float("inf")}, r"learning rate is inf; expected a finite number above 0"),
        ({"learning_rate": "big"}, r"learning rate is 'big'; expected a finite number above 0"),
        ({"model": "ot-vit", "gamma": -1.0}, r"gamma is -1\.0; expected a finite number above 0"),
        ({"model": "ot-vit", "gamma": 0.0}, r"gamma is 0\.0; expected a finite number above 0"),
        ({"model": "ot-vit", "alpha": 0.0}, r"alpha is 0\.0; expected a finite number above 0"),
        ({"join_probability": 1.5}, r"join probability is 1\.5; expected a finite number at least 0 and at most 1"),
        ({"dropout": 1.0}, r"dropout is 1\.0; expected a finite number at least 0 and below 1"),
        ({"weight_decay": -0.1}, r"weight decay is -0\.1; expected a finite number at least 0"),
        ({"warmup_fraction": 1.0}, r"warmup fraction is 1\.0; expected a finite number at least 0 and below 1"),
        ({"label_smoothing": 1.0}, r"label smoothing is 1\.0"),
        ({"gradient_clip": -1}, r"gradient clip is -1"),
        ({"heads": 3}, r"heads is 3 and width is 16; the number of heads must divide the width"),
        ({"evaluate_every": 0}, r"the number of epochs from one test to the next \(--evaluate-every\) is 0; expected"),
        ({"gamma": 3.0}, r"gamma is 3\.0 for the model 'vit', which has no transport\. Leave it out, or use"),
        ({"alpha": 2.0}, r"alpha is 2\.0 for the model 'vit', which has no transport"),
        ({"cost": "cosine"}, r"cost is 'cosine' for the model 'vit', which has no transport"),
    ],
)  # fmt: skip
def test_what_is_out_of_range_is_named(changes, message):
    with pytest.raises(InputError, match=message) as caught:
        options(**changes)
    assert "\n" not in str(caught.value)


def test_json_round_trip():
    asked = options(model="ot-vit", gamma=2.0, flip=True, train_images=30)
    assert TrainOptions.from_json(asked.to_json()) == asked
    assert TrainOptions(data=Path("a/b")).data == "a/b"  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'epoch' is no option of a training"):
        TrainOptions.from_json({"data": "a", "epoch": 3})
    with pytest.raises(InputError, match="name no data"):
        TrainOptions.from_json({"epochs": 3})


def test_a_recipe_fills_what_is_left_out_and_nothing_else():
    for name, recipe in RECIPES.items():
        filled = options(recipe=name, data="cifar10").resolved()
        for field in ("weight_decay", "warmup_fraction", "label_smoothing", "gradient_clip", "flip"):
            assert getattr(filled, field) == getattr(recipe, field)
    kept = options(
        recipe="strong", weight_decay=0.0, label_smoothing=0.0, flip=False, data="cifar10"
    ).resolved()
    assert (kept.weight_decay, kept.label_smoothing, kept.flip) == (0.0, 0.0, False)
    assert kept.gradient_clip == RECIPES["strong"].gradient_clip
    assert kept.resolved() == kept


def test_gamma_left_out_is_the_root_of_the_width():
    assert (
        options(model="ot-vit", width=256).resolved()
        == options(model="ot-vit", width=256, gamma=16).resolved()
    )
    assert options(model="ot-vit", width=256, gamma=3.0).resolved().gamma == 3.0
    assert options(model="vit").resolved().gamma is None


def test_digits_are_not_mirrored_unless_that_is_asked_for():
    assert options(recipe="strong", data="fashion-mnist").resolved().flip is True
    assert options(recipe="strong", data="some/digits").resolved().flip is False
    assert options(recipe="strong", data="some/digits", flip=True).resolved().flip is True
    assert options(recipe="paper", data="fashion-mnist").resolved().flip is False


def test_the_model_decides_what_the_preference_gives_further_templates():
    assert options(model="vit").resolved().extra_preference == "none"
    assert options(model="ot-vit").resolved().extra_preference == "zero"
    assert not options(model="vit").joins
    assert options(model="vit", extra_preference="shared").joins
    assert options(model="ot-vit").joins
    assert not options(model="ot-vit", extra_preference="none").joins
    assert not options(model="ot-vit", join_probability=0.0).joins
