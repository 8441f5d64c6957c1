"""Paired batches: partners share a class, everybody plays, and nothing depends on the number of processes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fenchel.data import PairedBatches
from fenchel.errors import InputError, ProblemError

EVEN = torch.arange(4).repeat(12)
ODD = torch.tensor([0] * 5 + [1] * 7 + [2] * 4 + [5] * 3)


def epoch_of(labels: Tensor, batch_size: int, epoch: int = 0, **options: Any) -> list[Tensor]:
    return list(PairedBatches(labels, batch_size, **{"seed": 0, "epoch": epoch, **options}))


def pairs_of(batches: list[Tensor]) -> set[frozenset[int]]:
    return {frozenset(pair) for batch in batches for pair in batch.reshape(-1, 2).tolist()}


def refuses_pairs_that_are_none(batches: list[Tensor], labels: Tensor) -> None:
    for batch in batches:
        assert labels[batch[0::2]].equal(labels[batch[1::2]])
        assert not (batch[0::2] == batch[1::2]).any()


@given(
    sizes=st.lists(st.integers(2, 9), min_size=1, max_size=5),
    pairs=st.integers(1, 6),
    epoch=st.integers(0, 50),
    world_size=st.integers(1, 3),
)
def test_partners_are_two_images_of_a_class_and_nobody_plays_twice(sizes, pairs, epoch, world_size):
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    there = sum(size // 2 for size in sizes)
    if there < world_size:
        return
    batch_size = 2 * pairs * world_size
    batches = epoch_of(labels, batch_size, epoch, world_size=world_size)
    refuses_pairs_that_are_none(batches, labels)
    assert len(batches) == len(PairedBatches(labels, batch_size, seed=0, epoch=epoch, world_size=world_size))
    everybody = torch.cat([torch.cat(epoch_of(labels, batch_size, epoch, world_size=world_size, rank=rank))
                           for rank in range(world_size)])  # fmt: skip
    assert len(everybody.unique()) == len(everybody)


def test_the_check_of_partners_refuses_wrong_ones():
    with pytest.raises(AssertionError):
        refuses_pairs_that_are_none([torch.tensor([0, 1])], EVEN)
    with pytest.raises(AssertionError):
        refuses_pairs_that_are_none([torch.tensor([0, 0])], EVEN)


def test_everybody_plays_once_where_it_comes_out_even():
    batches = epoch_of(EVEN, 8)
    assert len(batches) == 6
    assert all(batch.dtype == torch.int64 and len(batch) == 8 for batch in batches)
    assert torch.cat(batches).sort().values.equal(torch.arange(48))


@pytest.mark.parametrize("world_size", [2, 4])
def test_processes_share_the_batches_of_one(world_size):
    alone = epoch_of(EVEN, 16, epoch=3)
    shares = [epoch_of(EVEN, 16, epoch=3, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert all(whole.equal(torch.cat(parts)) for whole, *parts in zip(alone, *shares, strict=True))


def test_pairs_follow_from_seed_and_epoch_alone():
    torch.manual_seed(1)
    one = epoch_of(EVEN, 8, epoch=5)
    torch.manual_seed(2)
    batches = PairedBatches(EVEN, 8, seed=0, epoch=5)
    assert all(a.equal(b) and a.equal(c) for a, b, c in zip(one, batches, batches, strict=True))
    assert pairs_of(one) != pairs_of(epoch_of(EVEN, 8, epoch=6))
    assert pairs_of(one) != pairs_of(epoch_of(EVEN, 8, epoch=5, seed=1))
    assert pairs_of(one) == pairs_of(epoch_of(EVEN, 16, epoch=5))


def test_every_other_image_of_the_class_is_as_likely_a_partner():
    labels = torch.zeros(6, dtype=torch.int64)
    seen = Counter(pair for epoch in range(1500) for pair in pairs_of(epoch_of(labels, 6, epoch)))
    assert len(seen) == 15
    # 300 of each on average, standard deviation 15.5.
    assert max(abs(count - 300) for count in seen.values()) < 70


def test_each_sits_out_in_its_turn():
    for epoch in range(3):
        out = [
            set(range(19)) - set(torch.cat(epoch_of(ODD, 2, epoch + later)).tolist()) for later in range(7)
        ]
        turns = Counter(int(ODD[image]) for images in out for image in images)
        assert turns == {0: 7, 1: 7, 5: 7}
        assert {image for images in out for image in images if ODD[image] == 1} == set(range(5, 12))
        assert all(len({image for image in (*a, *b) if ODD[image] == 0}) == 2 for a, b in pairwise(out))


def test_a_last_batch_that_is_not_full_is_left_out_unless_it_is_all():
    assert [len(batch) for batch in epoch_of(EVEN, 40)] == [40]
    assert [len(batch) for batch in epoch_of(EVEN, 100)] == [48]
    assert [len(batch) for batch in epoch_of(EVEN, 100, rank=4, world_size=5)] == [8]
    assert [len(batch) for batch in epoch_of(ODD, 100)] == [16]


def test_classes_of_pairs_are_in_random_order():
    first = [int(ODD[epoch_of(ODD, 2, epoch)[0][0]]) for epoch in range(30)]
    assert set(first) == {0, 1, 2, 5}


def test_a_class_with_a_single_image():
    with pytest.raises(
        InputError, match=r"class 1 has a single image, and another image of its class is wanted"
    ):
        PairedBatches(torch.tensor([0, 0, 1, 2, 2]), 2, seed=0, epoch=0)
    labels = torch.tensor([0, 0, 1, 2, 2, 3])
    with pytest.raises(
        InputError, match=r"classes 1, 3 have a single image each, and another image of its class is wanted"
    ):
        PairedBatches(labels, 2, seed=0, epoch=0)
    with pytest.raises(InputError, match=r"classes 1 \('b'\), 3 \('d'\) have a single image"):
        PairedBatches(labels, 2, seed=0, epoch=0, class_names=("a", "b", "c", "d"))
    with pytest.raises(InputError, match=r"classes 0, 1, 2, 3, 4 and 5 more have a single image"):
        PairedBatches(torch.arange(10), 2, seed=0, epoch=0)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"batch_size": 6, "world_size": 2},
            ProblemError,
            "batch_size is 6; expected a positive multiple of 4",
        ),
        ({"batch_size": 0}, ProblemError, "batch_size is 0; expected a whole number from 1"),
        ({"batch_size": 7}, ProblemError, "batch_size is 7"),
        ({"rank": 2, "world_size": 2}, ProblemError, "rank is 2 and world_size 2"),
        ({"rank": -1}, ProblemError, "rank is -1"),
        ({"world_size": 0}, ProblemError, "world_size is 0"),
        ({"epoch": -1}, ProblemError, "epoch is -1"),
        ({"labels": EVEN.float()}, ProblemError, "labels have dtype torch.float32"),
        ({"labels": EVEN[None]}, ProblemError, r"labels have shape \(1, 48\)"),
        ({"labels": EVEN - 1}, ProblemError, "labels go down to -1"),
        ({"labels": EVEN[:0]}, InputError, "there are no labels"),
        ({"labels": EVEN[:8], "batch_size": 20, "world_size": 5}, InputError, "4 pairs .* for 5 processes"),
    ],
)
def test_what_is_refused(changes, error, message):
    with pytest.raises(error, match=message):
        PairedBatches(**{"labels": EVEN, "batch_size": 8, "seed": 0, "epoch": 0, **changes})
