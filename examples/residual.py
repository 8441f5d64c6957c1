"""Residual attention (Wang et al., 2017): is a mask M better as (1 + M)F than as MF?

Stages of a small convolutional network have a trunk, whose features are F, and a mask branch, which sees more and says
by how much each feature passes. Masks below 1 make the product of many stages small; 1 + M keeps what the trunk found.
The third arm adds the branch to F without making a mask of it. All arms have the same layers and as many parameters.

A mask is an inference: each unit is a coin, whose preference is the unit's bias and whose evidence is what the branch
says. At first order its mean is the logistic function; ``--estimator exact`` is the exact one.

    python examples/residual.py --data toy
    python examples/residual.py --data $FENCHEL_DATA/parquet/cifar10_jpeg --out residual.json
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, max_pool2d

import experiment
import glimpse
from data import check_columns, check_labels, label_names, read_splits
from fenchel import Bernoulli, InferenceProblem
from images import chosen, stacked
from task import choice, option

ARMS = ("(1 + M)F", "MF", "F + S")


@dataclass
class ResidualOptions(experiment.ExperimentOptions):
    """Data, the network and training."""

    data: str = option("toy", "toy, a folder with train.parquet and test.parquet, or a dataset of the hub")
    images: int = option(2000, "to train on, at most")
    test: int = option(1000, "to test on, at most")
    stages: int = option(4, "with a mask each")
    width: int = option(16, "features of each stage")
    epochs: int = option(6, "passes over the images")
    batch: int = option(64, "images in a step")
    learning_rate: float = option(5e-3, "the largest; it falls to 0")
    estimator: str = choice("of the masks", "first_order", "second_order", "exact")


@cache
def read(data: str, split: str, count: int) -> tuple[Tensor, Tensor]:
    """Images (N, channels, h, w), -1 to 1, and their classes; of toys too."""
    if data == "toy":
        torch.manual_seed(("train", "test").index(split))
        pixels, labels = glimpse.toy(min(count, 300))
        return 2 * pixels.unsqueeze(1) - 1 + 0.5 * torch.randn(len(pixels), 1, 28, 28), labels
    splits = read_splits(data, ("train", "test"))
    image = "img" if "img" in splits["train"].column_names else "image"
    check_columns(splits, (image, "label"), data)
    check_labels(splits, "label", len(label_names(splits["train"], "label")), data)
    rows = chosen(splits[split], "label", count)
    return stacked(rows, image, f"{data}, {split}").float() / 127.5 - 1, torch.tensor(rows["label"])


def block(channels: int, width: int) -> nn.Module:
    """A convolution, the norm of its features over the batch, and what is positive of them."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    )


class Stage(nn.Module):
    """A trunk F of two convolutions, and a branch that sees the image half as fine."""

    def __init__(self, arm: str, width: int, estimator: str) -> None:
        super().__init__()
        self.arm, self.estimator = arm, estimator
        self.trunk = nn.Sequential(block(width, width), block(width, width))
        self.branch = nn.Sequential(block(width, width), block(width, width))
        self.ask = nn.Conv2d(width, width, 1, bias=False)
        self.odds = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Features (B, width, h, w) of such."""
        features = self.trunk(x)
        wide = interpolate(self.branch(max_pool2d(x, 2)), x.shape[-2:], mode="bilinear")
        evidence = self.ask(wide)
        if self.arm == "F + S":
            return features + evidence + self.odds.view(-1, 1, 1)
        passed = self.mask(evidence) * features
        return passed + features if self.arm == "(1 + M)F" else passed

    def mask(self, evidence: Tensor) -> Tensor:
        """The means of the coins, as the evidence (B, width, h, w)."""
        asked = evidence.movedim(1, -1)
        result = InferenceProblem(Bernoulli(logits=self.odds), asked.flatten(0, 2)).solve(self.estimator)
        return result.mean.view(asked.shape).movedim(-1, 1)


class Classifier(nn.Module):
    """A convolution, stages at half the width of the image, and classes of the mean over places."""

    def __init__(self, arm: str, o: ResidualOptions, channels: int, classes: int) -> None:
        super().__init__()
        self.enter = block(channels, o.width)
        self.stages = nn.Sequential(*(Stage(arm, o.width, o.estimator) for _ in range(o.stages)))
        self.leave = nn.BatchNorm2d(o.width)
        self.answer = nn.Linear(o.width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes)."""
        x = self.stages(max_pool2d(self.enter(images), 2))
        return self.answer(self.leave(x).mean((2, 3)))


def run(o: ResidualOptions, arm: str, seed: int) -> dict[str, float]:
    """Train and test a network: images told right in percent, the loss, and how large features are after the stages."""
    (images, labels), (new, right) = read(o.data, "train", o.images), read(o.data, "test", o.test)
    torch.manual_seed(seed)
    model = Classifier(arm, o, images.shape[1], int(labels.max()) + 1)
    steps = o.epochs * -(-len(images) // o.batch)
    optimiser = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, o.learning_rate, total_steps=steps)
    for _ in range(o.epochs):
        for some in torch.randperm(len(images)).split(o.batch):
            mirrored = images[some].flip(-1) if torch.rand(()) < 0.5 else images[some]
            loss = cross_entropy(model(mirrored), labels[some])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(some) for some in new.split(250)])
        features = model.stages(max_pool2d(model.enter(new[:250]), 2))
    return {
        "right": 100 * (logits.argmax(-1) == right).double().mean().item(),
        "loss": cross_entropy(logits, right).item(),
        "features": features.square().mean().sqrt().item(),
        "parameters": sum(one.numel() for one in model.parameters()),
    }


def compare(o: ResidualOptions) -> dict[str, Any]:
    """Every arm with every seed."""
    return {"runs": experiment.repeated(run, ARMS, o)}


if __name__ == "__main__":
    experiment.main(ResidualOptions, compare)
