"""Labelled images: what fits together, balanced subsets, digests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fenchel.data import ImageDataset
from fenchel.errors import InputError
from tests.data.image_files import drawn_images, drawn_labels


def images_of(labels: torch.Tensor, /, classes: int = 4, **changes: Any) -> ImageDataset:
    pictures = drawn_images(len(labels), side=2)
    names = tuple(f"kind {n}" for n in range(classes))
    return replace(ImageDataset(pictures, labels, names, "mine", mean=(0.5,) * 3, std=(0.2,) * 3), **changes)


LABELS = drawn_labels(203, 4)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 50, 101])
def test_a_subset_is_balanced(count):
    counts = images_of(LABELS).subset(count, seed=1).class_counts
    assert sum(counts) == count
    assert max(counts) - min(counts) <= 1


def test_a_class_that_is_too_small_gives_all_it_has():
    labels = torch.tensor([0] * 2 + [1] * 30 + [2] * 30)
    assert images_of(labels, 3).subset(32, seed=0).class_counts in {(2, 15, 15)}
    assert images_of(labels, 3).subset(62, seed=0).labels.equal(labels)


def test_a_subset_is_decided_by_its_seed_and_contained_in_larger_ones():
    data = images_of(
        LABELS, images=torch.arange(203).to(torch.uint8).reshape(-1, 1, 1, 1), mean=(0.5,), std=(0.2,)
    )
    chosen = [data.subset(count, seed=3).images.flatten().tolist() for count in (7, 30, 30, 150)]
    assert chosen[1] == chosen[2] != data.subset(30, seed=4).images.flatten().tolist()
    assert set(chosen[0]) < set(chosen[1]) < set(chosen[3])
    assert chosen[1] == sorted(chosen[1])


def test_a_subset_keeps_images_with_their_labels_and_the_statistics():
    data = images_of(LABELS)
    part = data.subset(20, seed=0)
    places = [(data.images == image).flatten(1).all(1).nonzero()[0, 0] for image in part.images]
    assert part.labels.equal(data.labels[torch.stack(places)])
    assert (part.mean, part.std, part.class_names) == (data.mean, data.std, data.class_names)
    assert part.digest != data.digest


def test_which_class_has_one_more_depends_on_the_seed():
    data = images_of(LABELS)
    assert len({data.subset(5, seed=seed).class_counts for seed in range(20)}) == 4


@pytest.mark.parametrize("count", [0, -1, 204])
def test_subsets_that_cannot_be(count):
    with pytest.raises(
        InputError, match=rf"a subset of {count} images was asked for and there are 203; ask for 1 to 203"
    ):
        images_of(LABELS).subset(count, seed=0)


def test_the_digest_depends_on_everything_that_is_learned_from():
    data = images_of(LABELS)
    others = [
        replace(data, images=255 - data.images),
        replace(data, labels=(data.labels + 1) % 4),
        replace(data, images=data.images.reshape(203, 3, 1, 4)),
    ]
    assert len({data.digest, *(other.digest for other in others)}) == 4
    shuffled_in_memory = data.images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert replace(data, images=shuffled_in_memory, name="other").digest == data.digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"images": torch.zeros(203, 3, 2, 2)},
            r"images have shape \(203, 3, 2, 2\) and dtype torch.float32",
        ),
        ({"images": torch.zeros(203, 2, 2, dtype=torch.uint8)}, r"images have shape \(203, 2, 2\)"),
        ({"labels": LABELS.to(torch.int32)}, r"labels have shape \(203,\) and dtype torch.int32"),
        ({"labels": LABELS[:-1]}, r"203 images and 202 labels"),
        ({"labels": LABELS - 1}, r"label -1 of image \d+ is out of range; expected 0 to 3"),
        ({"class_names": ("a", "b")}, r"expected 0 to 1, as there are 2 classes"),
        ({"mean": (0.5,)}, r"mean has 1 values for 3 channels"),
        (
            {"images": torch.zeros(0, 3, 2, 2, dtype=torch.uint8), "labels": LABELS[:0]},
            r"there are no images",
        ),
    ],
)
def test_what_does_not_fit(changes, message):
    with pytest.raises(InputError, match=message):
        images_of(LABELS, **changes)
