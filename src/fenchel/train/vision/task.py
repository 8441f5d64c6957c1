"""The classification of images by the models of tables 1 and 2: what the loop does not know of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from fenchel import models
from fenchel.data import load
from fenchel.data.image_dataset import ImageDataset
from fenchel.data.standardise import Standardise
from fenchel.train.classification import ACCURACY, LOSS, sums_of
from fenchel.train.registry import registered
from fenchel.train.task import DataSummary, StepLoss, Task, check_pair
from fenchel.train.vision.feed import Batch, Feed
from fenchel.train.vision.options import TrainOptions
from fenchel.train.vision.splits import refuse_unlike, refuse_unshared, shortened
from fenchel.train.workers import Workers

__all__ = ["ImageClassification", "Images"]

Images = tuple[ImageDataset, ImageDataset]
"""What is trained on and what is tested on."""

_TEST_BATCH = 500
_DOT_COST = (
    "The transport cost is C - <a, b>, as in tables 1 and 2 of the paper: where norms are unequal, a template can be "
    "nearer to another template than to itself."
)


@registered
class ImageClassification(Task[TrainOptions, Images, Batch]):
    """A vision transformer that tells images apart; in training, templates of another image of the class may join."""

    name = "images"
    models = ("vit", "ot-vit")
    unit = "images"
    options_type = TrainOptions
    metrics = (LOSS, ACCURACY)
    headline = "accuracy"
    trained = ("loss", "accuracy")

    def __init__(self, options: TrainOptions, data: Images, workers: Workers) -> None:
        check_pair(data, ImageDataset)
        super().__init__(options, shortened(data, options), workers)
        self._train, self._test = self.data
        refuse_unlike(self._train, self._test)
        refuse_unshared(options.batch_size, workers.count)
        self._feed = Feed(options, self._train, workers)

    @classmethod
    def read(cls, data: str) -> Images:
        """The images of a name or path, to train and to test on."""
        return load(data, split="train"), load(data, split="test")

    @classmethod
    def summary(cls, data: Images) -> DataSummary:
        """How many images there are, and which."""
        train, test = data
        digest = hashlib.sha256(f"{train.digest} {test.digest}".encode()).hexdigest()
        return DataSummary(len(train), len(test), len(train.class_names), train.note, digest)

    def model(self) -> models.AbstractVisionTransformer:
        """A ViT or an OT-ViT for these images."""
        options, data = self.options, self._train
        configuration: dict[str, Any] = {
            "image_size": data.image_size[0],
            "patch_size": options.patch_size,
            "channels": data.channels,
            "classes": data.classes,
            "width": options.width,
            "depth": options.depth,
            "heads": options.heads,
            "mlp_width": options.mlp_width,
            "dropout": options.dropout,
        }
        if options.model == "ot-vit":
            configuration |= {"gamma": options.gamma, "alpha": options.alpha, "cost": options.cost}
        extra = None if options.extra_preference == "none" else options.extra_preference
        built = models.build(options.model, **configuration, extra_preference=extra)
        assert isinstance(built, models.AbstractVisionTransformer)  # noqa: S101 - what the options allow are
        return built

    @property
    def steps_per_epoch(self) -> int:
        """As many as there are batches of whole pairs."""
        return self._feed.steps_per_epoch

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Pairs of a class, paired anew every epoch."""
        return self._feed.batches(epoch, first)

    def examples(self, split: str) -> Iterator[Batch]:
        """The images to test on, standardised, without partners."""
        mine, device = slice(self.workers.rank, None, self.workers.count), self.workers.device
        images, labels = self._test.images[mine], self._test.labels[mine].to(device)
        standardise = Standardise(self._test.mean, self._test.std)
        for some, their in zip(images.split(_TEST_BATCH), labels.split(_TEST_BATCH), strict=True):
            yield Batch(standardise(some.to(device)), their, partners=None)

    def predicted(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits (b, classes)."""
        return model(batch.images, partners=batch.partners)

    def loss(self, predicted: Tensor, batch: Batch) -> StepLoss:
        """Cross-entropy, smoothed and mixed as the recipe has it; of mixed images, accuracy counts the larger share."""
        smoothing = self.options.label_smoothing or 0.0
        mean = nn.functional.cross_entropy(predicted, batch.labels, label_smoothing=smoothing)
        if batch.other_labels is not None:
            other = nn.functional.cross_entropy(predicted, batch.other_labels, label_smoothing=smoothing)
            mean = batch.share * mean + (1.0 - batch.share) * other
        correct = (predicted.detach().argmax(-1) == batch.labels).sum()
        return StepLoss(mean, {"loss": mean.detach() * batch.count, "accuracy": correct})

    def measured(self, predicted: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy and hits."""
        return sums_of(predicted, batch.labels)

    def described(self, model: nn.Module) -> dict[str, Any]:
        """Name, sizes and input of the model, the images, and what is to be known of the cost."""
        train, options = self._train, self.options
        assert isinstance(model, models.AbstractVisionTransformer)  # noqa: S101 - what ``model`` made
        return {
            "model": {
                "name": options.model,
                "configuration": model.configuration(),
                "class_names": list(train.class_names),
                "mean": list(train.mean),
                "std": list(train.std),
            },
            "data": {
                "name": train.name,
                "note": "; ".join(dict.fromkeys(part.note for part in self.data if part.note)),
                "train_images": len(train),
                "test_images": len(self._test),
                **self.fingerprints(),
            },
            "notes": [_DOT_COST] if options.model == "ot-vit" and options.cost == "dot" else [],
        }

    def fingerprints(self) -> dict[str, str]:
        """Of the images that are trained and tested on."""
        return {
            "training_images_sha256": self._train.digest,
            "test_images_sha256": self._test.digest,
        }
