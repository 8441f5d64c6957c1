"""Augmentation: each image its own change, the same for the same generator, nothing but what is said."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.data import Standardise
from fenchel.data.augment import MixUp, RandomCrop, RandomErasing, RandomFlip, in_turn, strong
from fenchel.errors import ProblemError
from tests.data.image_files import drawn_images

IMAGES = drawn_images(64, side=12)
REAL = IMAGES.float() + 1
STRONG = strong(Standardise((0.5,) * 3, (0.2,) * 3))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("change", "images"),
    [
        (RandomCrop(3), IMAGES),
        (RandomFlip(), IMAGES),
        (RandomErasing(0.9), REAL),
        (STRONG, IMAGES),
        (RandomCrop(2), REAL),
    ],
)
def test_the_generator_decides(change: Any, images: Tensor):
    kept = images.clone()
    torch.manual_seed(1)
    one = change(images, seeded())
    torch.manual_seed(2)
    assert one.equal(change(images, seeded()))
    assert not one.equal(change(images, seeded(1)))
    generator = seeded()
    assert not change(images, generator).equal(change(images, generator))
    assert one.shape == images.shape
    assert images.equal(kept)


def shifted(image: Tensor, down: int, right: int, padding: int) -> Tensor:
    padded = torch.zeros(image.shape[0], *(side + 2 * padding for side in image.shape[1:]), dtype=image.dtype)
    padded[:, padding : padding + image.shape[1], padding : padding + image.shape[2]] = image
    return padded[:, down : down + image.shape[1], right : right + image.shape[2]]


def test_a_crop_is_a_shift_and_all_shifts_come_up():
    images = drawn_images(400, side=7)[:, :, :5]
    found = RandomCrop(1)(images, seeded())
    places = set()
    for image, crop in zip(images, found, strict=True):
        (place,) = [(a, b) for a in range(3) for b in range(3) if crop.equal(shifted(image, a, b, 1))]
        places.add(place)
    assert len(places) == 9
    assert RandomCrop(0)(images, seeded()).equal(images)


def test_a_flip_mirrors_some():
    found = RandomFlip(0.25)(drawn_images(2000, side=4), seeded())
    images = drawn_images(2000, side=4)
    mirrored = (found == images.flip(-1)).flatten(1).all(1)
    assert ((found == images).flatten(1).all(1) ^ mirrored).all()
    assert float(mirrored.float().mean()) == pytest.approx(0.25, abs=0.04)
    assert RandomFlip(0)(images, seeded()).equal(images)


def test_erasing_blots_out_one_rectangle_of_the_right_size():
    images = torch.ones(1000, 2, 20, 30)
    blot = RandomErasing(0.5, area=(0.1, 0.2), aspect=(0.5, 2.0))(images, seeded()) == 0
    assert blot[:, 0].equal(blot[:, 1])
    erased = blot[:, 0].flatten(1).any(1)
    assert float(erased.float().mean()) == pytest.approx(0.5, abs=0.06)
    rows, columns = blot[erased, 0].any(2), blot[erased, 0].any(1)
    assert blot[erased, 0].equal(rows[:, :, None] & columns[:, None, :])
    tall, wide = rows.sum(1), columns.sum(1)
    for lengths in (rows, columns):
        starts = (lengths & ~torch.nn.functional.pad(lengths, (1, 0))[:, :-1]).sum(1)
        assert (starts == 1).all()
    share = tall * wide / 600
    assert 0.08 < float(share.min()) < 0.11
    assert 0.19 < float(share.max()) < 0.23
    assert 0.4 < float((tall / wide).min()) < float((tall / wide).max()) < 2.4
    assert rows[:, 0].any()
    assert rows[:, -1].any()
    assert columns[:, -1].any()


def test_erasing_is_told_how_much_and_how_often():
    assert RandomErasing(0)(REAL, seeded()).equal(REAL)
    assert (RandomErasing(1, area=(1, 1), aspect=(1, 1))(REAL, seeded()) == 0).all()
    tall = RandomErasing(1, area=(0.1, 0.1), aspect=(4, 4))(REAL, seeded())[:, 0] == 0
    assert (tall.any(2).sum(1) > tall.any(1).sum(1)).all()


def test_mixup_is_a_mixture_with_another_pair():
    labels = torch.arange(32).repeat_interleave(2)
    mixed = MixUp(alpha=0.4)(REAL, seeded())
    assert 0.5 <= mixed.share <= 1
    expected = mixed.share * REAL + (1 - mixed.share) * REAL[mixed.others]
    assert torch.allclose(mixed.images, expected, atol=1e-4)
    assert labels[mixed.others][0::2].equal(labels[mixed.others][1::2])
    assert mixed.others.sort().values.equal(torch.arange(64))
    apart = MixUp(pairs=False)(REAL, seeded()).others
    assert not labels[apart][0::2].equal(labels[apart][1::2])
    again = MixUp(alpha=0.4)(REAL, seeded())
    assert again.share == mixed.share != MixUp(alpha=0.4)(REAL, seeded(1)).share


def test_shares_of_a_mixture_follow_alpha():
    generator = seeded()
    near, uniform = (
        torch.tensor([MixUp(alpha)(REAL[:2], generator).share for _ in range(400)]) for alpha in (0.05, 1.0)
    )
    assert float(uniform.mean()) == pytest.approx(0.75, abs=0.03)
    assert float(near.mean()) > 0.95


def test_strong_is_its_parts_in_turn():
    standardise = Standardise((0.5,) * 3, (0.2,) * 3)
    by_hand, generator = IMAGES, seeded()
    for part in (RandomCrop(2), RandomFlip(0.3)):
        by_hand = part(by_hand, generator)
    by_hand = RandomErasing(0.8)(standardise(by_hand), generator)
    assert strong(standardise, padding=2, flip=0.3, erasing=0.8)(IMAGES, seeded()).equal(by_hand)
    nothing = strong(standardise, padding=0, flip=0, erasing=0)
    assert nothing(IMAGES, seeded()).equal(standardise(IMAGES))
    assert in_turn([])(IMAGES, seeded()) is IMAGES


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomCrop(-1), "padding is -1"),
        (lambda: RandomFlip(1.5), "probability is 1.5; expected a finite number at least 0 and at most 1"),
        (lambda: RandomErasing(-0.1), "probability is -0.1"),
        (lambda: RandomErasing(area=(0.5, 0.1)), r"area is \(0.5, 0.1\)"),
        (lambda: RandomErasing(aspect=(0, 1)), "each end of aspect is 0"),
        (lambda: MixUp(0), "alpha is 0; expected a finite number above 0"),
        (
            lambda: RandomErasing()(IMAGES, seeded()),
            "dtype torch.uint8; expected real numbers.* after Standardise",
        ),
        (lambda: MixUp()(IMAGES, seeded()), "dtype torch.uint8; expected real numbers.* after Standardise"),
        (lambda: MixUp()(REAL[:3], seeded()), "there are 3 images; expected whole pairs"),
        (
            lambda: RandomFlip()(IMAGES[0], seeded()),
            r"shape \(3, 12, 12\); expected 4 dimensions \(B, C, H, W\)",
        ),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ProblemError, match=message):
        make()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_the_same_on_every_device():
    assert STRONG(IMAGES.cuda(), seeded()).cpu().allclose(STRONG(IMAGES, seeded()), atol=1e-5)
