"""Where is it? Continuous attention on images, with the ellipse that it looks at drawn.

A garment stands somewhere in a larger, noisy image, and a model is told nothing but what it is. One learned question is
asked of 14 x 14 features. Continuous attention answers with a Gaussian over places and reads what is there on average.
The controls are softmax attention to the same features, with as many parameters, and continuous attention that has not
learned. Printed are the images told right, how far the mean place is from the garment's middle (the image is 1 wide,
the garment a half), and how often the ellipse of two standard deviations has the middle in it, with 95 % intervals.

    python examples/where_it_is.py DATA [images] [seeds, from 2] [results.json] [ellipses.png]

DATA is a folder with train.parquet and test.parquet, or a dataset of the hub, with columns image and label, such as
Fashion-MNIST.
"""

import json
from pathlib import Path

import datasets
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from torch import Tensor, nn

from data import check_columns, read_splits
from experiment import run_positional
from fenchel.nn import ContinuousAttention, MultiheadAttention
from intervals import interval

WIDTH, GRID, EPOCHS = 48, 14, 4
ARMS = ("softmax", "continuous", "untrained")


def placed(rows: datasets.Dataset, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images (N, 1, 2s, 2s) with noise around s x s ones of the data, their classes, and middles (N, 2), (x, y)."""
    some = rows.shuffle(seed=0).take(min(count, len(rows)))
    pixels = [np.asarray(image.convert("L")) for image in some["image"]]
    small = torch.from_numpy(np.stack(pixels)).float() / 255
    count, side, stream = len(small), small.shape[-1], torch.Generator().manual_seed(seed)
    images = 0.5 * torch.rand(count, 1, 2 * side, 2 * side, generator=stream)
    corner = torch.randint(side + 1, (count, 2), generator=stream)
    for image, pixels, (x, y) in zip(images, small, corner.tolist(), strict=True):
        image[0, y : y + side, x : x + side].clamp_(min=pixels)
    return images, torch.tensor(some["label"]), (corner + side / 2) / (2 * side)


class Looker(nn.Module):
    """Features, one question to them, and classes."""

    def __init__(self, arm: str, side: int) -> None:
        super().__init__()
        step = side // GRID
        first = nn.Conv2d(1, WIDTH, 2 * step - 1, step, step - 1)
        second = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.see = nn.Sequential(first, nn.GELU(), second, nn.GELU(), nn.Conv2d(WIDTH, WIDTH, 3, padding=1))
        self.question, self.classify = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Linear(WIDTH, 10)
        if arm == "softmax":
            self.attention = MultiheadAttention(WIDTH, 1, batch_first=True)
        else:
            self.attention = ContinuousAttention(WIDTH, 1, dimensions=2, basis=6)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits; mean (B, 2) and covariance (B, 2, 2) of the places that are looked at."""
        features = self.see(images).flatten(2).transpose(1, 2)
        question = self.question.expand(len(images), -1, -1)
        if isinstance(self.attention, ContinuousAttention):
            read, density = self.attention(question, features, grid=(GRID, GRID))
            return self.classify(read[:, 0]), density.mean()[:, 0, 0], density.covariance()[:, 0, 0]
        read, weights = self.attention(question, features, features)
        places = torch.cartesian_prod(*[(torch.arange(GRID) + 0.5) / GRID] * 2).flip(1)
        mean = weights[:, 0] @ places
        apart = places - mean[:, None]
        return self.classify(read[:, 0]), mean, (apart * weights.mT).mT @ apart


def trained(arm: str, seed: int, images: Tensor, labels: Tensor) -> Looker:
    """A model after some epochs, or after none."""
    torch.manual_seed(seed)
    model, stream = Looker(arm, images.shape[-1]), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(0 if arm == "untrained" else EPOCHS):
        for chosen in torch.randperm(len(images), generator=stream).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images[chosen])[0], labels[chosen]).backward()
            optimiser.step()
    return model.eval()


@torch.no_grad()
def ellipses(models: list[Looker], images: Tensor, path: str) -> None:
    """Draw one and two standard deviations of the places that every model looks at."""
    figure = Figure(figsize=(1.6 * len(images), 1.6 * len(models)), layout="constrained")
    for row, model in zip(figure.subplots(len(models), len(images)), models, strict=True):
        for axes, image, mean, covariance in zip(row, images, *model(images)[1:], strict=True):
            axes.imshow(image[0].tolist(), cmap="gray", extent=(0, 1, 1, 0))
            variances, directions = torch.linalg.eigh(covariance)
            turn = torch.rad2deg(torch.atan2(directions[1, 1], directions[0, 1])).item()
            for size, ec, lw in ((2, "k", 3), (2, "orange", 1.5), (4, "k", 3), (4, "orange", 1.5)):
                short, long = (size * variances.clamp(min=0).sqrt()).tolist()
                axes.add_patch(Ellipse(mean.tolist(), long, short, angle=turn, fill=False, ec=ec, lw=lw))
            axes.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(1, 0))
    figure.savefig(path, dpi=110)


@torch.no_grad()
def tested(model: Looker, images: Tensor, labels: Tensor, middles: Tensor) -> dict[str, float]:
    """Per cent right, distance to the middle, and per cent of middles inside of two standard deviations."""
    logits, mean, covariance = model(images)
    apart = mean - middles
    inside = (apart * torch.linalg.solve(covariance + 1e-6 * torch.eye(2), apart)).sum(-1) <= 4
    right, inside = (100 * one.double().mean().item() for one in (logits.argmax(-1) == labels, inside))
    return {"right": right, "distance": apart.norm(dim=-1).mean().item(), "inside": inside}


def main(data: str, images: int = 4000, seeds: int = 3, out: str = "", figure: str = "") -> None:
    """Train every arm with every seed."""
    splits = read_splits(data, ("train", "test"), toy=False)
    check_columns(splits, ("image", "label"), data)
    known, new = placed(splits["train"], images, 0), placed(splits["test"], 1000, 1)
    models = {arm: [trained(arm, seed, *known[:2]) for seed in range(seeds)] for arm in ARMS}
    runs = {arm: [tested(model, *new) for model in found] for arm, found in models.items()}
    print(f"{images} images, {len(new[0])} to test on, {EPOCHS} epochs, {seeds} seeds")
    for arm, found in runs.items():
        means = map(interval, zip(*(one.values() for one in found), strict=True))
        right, distance, inside = (f"{one.mean:.3g} ± {one.half_width:.2g}" for one in means)
        print(f"{arm:11}{right} % right, {distance} away, inside {inside} %")
    if out:
        Path(out).write_text(json.dumps({"images": images, "seeds": seeds, "runs": runs}, indent=1) + "\n")
    if figure:
        ellipses([models[arm][0] for arm in ARMS], new[0][:6], figure)


if __name__ == "__main__":
    run_positional(main, __doc__, images=1, seeds=2)
