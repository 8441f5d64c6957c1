"""Standardised images have mean 0 and variance 1; statistics are those of the pixels."""

from __future__ import annotations

import pytest
import torch

from fenchel.data import Standardise
from fenchel.data.standardise import channel_statistics
from fenchel.errors import ProblemError
from tests.data.image_files import drawn_images

IMAGES = drawn_images(50, side=9) // torch.tensor([1, 2, 5], dtype=torch.uint8)[:, None, None]


def test_statistics_are_those_of_the_pixels():
    pixels = IMAGES.double().transpose(0, 1).flatten(1) / 255
    mean, std = channel_statistics(IMAGES)
    assert mean == pytest.approx(pixels.mean(1).tolist(), abs=1e-14)
    assert std == pytest.approx(pixels.std(1, correction=0).tolist(), abs=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_result_has_mean_0_and_variance_1(dtype):
    mean, std = channel_statistics(IMAGES)
    found = Standardise(mean, std, dtype=dtype)(IMAGES)
    assert found.dtype == dtype
    channels = found.double().transpose(0, 1).flatten(1)
    near = 1e-6 if dtype == torch.float32 else 1e-13
    assert channels.mean(1).tolist() == pytest.approx([0] * 3, abs=near)
    assert channels.var(1, correction=0).tolist() == pytest.approx([1] * 3, abs=near)


def test_it_is_the_formula_and_leaves_the_bytes_alone():
    kept = IMAGES.clone()
    found = Standardise((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), dtype=torch.float64)(IMAGES[0])
    mean, std = (
        torch.tensor(v, dtype=torch.float64)[:, None, None] for v in ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    )
    assert torch.allclose(found, (IMAGES[0].double() / 255 - mean) / std, atol=1e-14)
    assert IMAGES.equal(kept)


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.5,), (0.5, 0.5), "mean has 1 values and std 2"),
        ((), (), "mean has 0 values"),
        ((0.5,), (0.0,), r"std \(0.0,\); expected finite numbers and std > 0"),
        ((float("nan"),), (1.0,), r"mean is \(nan,\)"),
    ],
)
def test_statistics_that_cannot_be(mean, std, message):
    with pytest.raises(ProblemError, match=message):
        Standardise(mean, std)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (IMAGES.float(), "dtype torch.float32; expected"),
        (IMAGES[:, :1], r"shape \(50, 1, 9, 9\)"),
        (IMAGES[0, 0], "shape"),
    ],
)
def test_images_that_do_not_fit(images, message):
    with pytest.raises(ProblemError, match=message):
        Standardise((0.5,) * 3, (0.5,) * 3)(images)
