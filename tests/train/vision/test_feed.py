"""Batches: the same for both models and any number of processes, and partners that are of the same class."""

from __future__ import annotations

import torch

from fenchel.train.vision.feed import Feed
from fenchel.train.workers import Workers
from tests.train.small_trainings import images, options

CPU = torch.device("cpu")


def feed(rank: int = 0, count: int = 1, **changes: object) -> Feed:
    return Feed(options(**changes).resolved(), images(), Workers(rank, count, CPU))


def batches(source: Feed, epoch: int = 0):
    return [source.batch(indices, step) for step, indices in enumerate(source.indices(epoch))]


def test_both_models_are_given_the_same_batches():
    ours, theirs = batches(feed(model="vit")), batches(feed(model="ot-vit"))
    assert len(ours) == feed().steps_per_epoch == 5
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
        assert one.partners is None
        assert other.partners is not None


def test_images_are_standardised_and_keep_their_labels():
    data, source = images(), feed()
    indices = next(source.indices(0))
    batch = source.batch(indices, 0)
    expected = (data.images[indices].double() / 255 - 0.13) / 0.15
    assert torch.allclose(batch.images.double(), expected, atol=1e-5)
    assert torch.equal(batch.labels, data.labels[indices])


def test_a_partner_is_another_image_of_the_class_and_joins_as_often_as_asked_for():
    joined = total = 0
    source = feed(model="ot-vit", join_probability=0.25)
    for epoch in range(40):
        for step, indices in enumerate(source.indices(epoch)):
            batch = source.batch(indices, 5 * epoch + step)
            assert batch.partners is not None
            for image, partner in enumerate(batch.partners.tolist()):
                total += 1
                if partner >= 0:
                    joined += 1
                    assert partner != image
                    assert batch.labels[partner] == batch.labels[image]
    assert abs(joined / total - 0.25) < 0.04  # four standard deviations of 1,600 draws
    always = batches(feed(model="ot-vit", join_probability=1.0))[0].partners
    assert always is not None
    assert always.tolist() == [1, 0, 3, 2, 5, 4, 7, 6]


def test_processes_share_the_batch_that_one_would_have():
    whole = batches(feed(model="ot-vit"))
    shares = [batches(feed(rank, 2, model="ot-vit")) for rank in range(2)]
    for batch, *parts in zip(whole, *shares, strict=True):
        assert torch.equal(batch.images, torch.cat([part.images for part in parts]))
        assert batch.partners is not None
        moved = [part.partners + (4 * rank) * (part.partners >= 0) for rank, part in enumerate(parts)]
        assert batch.partners.tolist() == torch.cat(moved).tolist()


def test_what_is_drawn_depends_on_seed_and_step_alone():
    one, same, other = (batches(feed(model="ot-vit", seed=seed, recipe="strong")) for seed in (3, 3, 4))
    assert all(torch.equal(a.images, b.images) for a, b in zip(one, same, strict=True))
    assert not all(torch.equal(a.images, b.images) for a, b in zip(one, other, strict=True))
    source = feed(recipe="strong")
    indices = next(source.indices(0))
    assert not torch.equal(source.batch(indices, 0).images, source.batch(indices, 1).images)


def test_pairs_are_mixed_with_pairs():
    data, source = images(), feed(recipe="strong", model="ot-vit")
    mixed = 0
    for step, indices in enumerate(source.indices(0)):
        for draw in range(10):
            batch = source.batch(indices, 100 * step + draw)
            if batch.other_labels is None:
                assert batch.share == 1.0
                continue
            mixed += 1
            assert 0.5 <= batch.share <= 1.0
            assert torch.equal(batch.labels, data.labels[indices])
            assert torch.equal(batch.other_labels[0::2], batch.other_labels[1::2])
            assert torch.equal(batch.other_labels.sort().values, batch.labels.sort().values)
    assert 10 < mixed < 40
