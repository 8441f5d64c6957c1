"""Where is it? Continuous attention on images, with the ellipse that it looks at drawn.

A garment stands somewhere in a larger, noisy image, and a model is told nothing but what it is. One learned question is
asked of 14 x 14 features. Continuous attention answers with a Gaussian over places, and reads what is there on average:
it has a place and an extent. The control is softmax attention to the same features, which has a weight for every
position and as many parameters; the other control is continuous attention that has not learned. Printed are the images
told right, how far the mean place is from the garment's middle (the image is 1 wide, the garment a half), and how often
the ellipse of two standard deviations has the middle in it, with 95 % intervals over seeds. Ellipses are drawn.

    python examples/where_it_is.py DATA [images] [seeds, from 2] [results.json] [ellipses.png]

DATA is ``fashion-mnist`` (found in the folder that FENCHEL_DATA names), or images as ``fenchel train`` takes them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from scipy.stats import t as student
from torch import Tensor, nn

from fenchel.data import ImageDataset, load
from fenchel.nn import ContinuousAttention, MultiheadAttention

WIDTH, GRID, EPOCHS = 48, 14, 4
ARMS = ("softmax", "continuous", "continuous, untrained")


def placed(data: ImageDataset, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images (N, 1, 2s, 2s) with noise around the s x s ones of the data, their classes, and middles (N, 2), (x, y)."""
    count, (side, _), stream = len(data), data.image_size, torch.Generator().manual_seed(seed)
    images = 0.5 * torch.rand(count, 1, 2 * side, 2 * side, generator=stream)
    corner = torch.randint(side + 1, (count, 2), generator=stream)
    for image, pixels, (x, y) in zip(images, data.images.float().mean(1) / 255, corner.tolist(), strict=True):
        image[0, y : y + side, x : x + side].clamp_(min=pixels)
    return images, data.labels, (corner + side / 2) / (2 * side)


class Looker(nn.Module):
    """Features, one question to them, and classes."""

    def __init__(self, arm: str, side: int) -> None:
        super().__init__()
        step = side // GRID
        first = nn.Conv2d(1, WIDTH, 2 * step - 1, step, step - 1)
        further = (nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))
        self.see = nn.Sequential(first, *(layer for one in further for layer in (nn.GELU(), one)))
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
        middle = (torch.arange(GRID) + 0.5) / GRID
        places = torch.cartesian_prod(middle, middle).flip(1)
        mean = weights[:, 0] @ places
        apart = places - mean[:, None]
        return self.classify(read[:, 0]), mean, (apart * weights.mT).mT @ apart


def trained(arm: str, seed: int, images: Tensor, labels: Tensor) -> Looker:
    """A model after some epochs, or after none."""
    torch.manual_seed(seed)
    model, stream = Looker(arm, images.shape[-1]), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(0 if arm.endswith("untrained") else EPOCHS):
        for chosen in torch.randperm(len(images), generator=stream).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images[chosen])[0], labels[chosen]).backward()
            optimiser.step()
    return model.eval()


def ellipses(models: list[Looker], images: Tensor, path: str) -> None:
    """Draw one and two standard deviations of the places that every model looks at."""
    figure = Figure(figsize=(1.6 * len(images), 1.6 * len(models)), layout="constrained")
    for row, model in zip(figure.subplots(len(models), len(images)), models, strict=True):
        for axes, image, mean, covariance in zip(row, images, *model(images)[1:], strict=True):
            axes.imshow(image[0], cmap="gray", extent=(0, 1, 1, 0))
            variances, (_, (x, y)) = torch.linalg.eigh(covariance)[0], torch.linalg.eigh(covariance)[1].mT
            for size, colour, line in ((2, "k", 3), (2, "#ffb454", 1.5), (4, "k", 3), (4, "#ffb454", 1.5)):
                short, long = (size * variances.clamp(min=0).sqrt()).tolist()
                turn = torch.rad2deg(torch.atan2(y, x)).item()
                axes.add_patch(
                    Ellipse(mean.tolist(), long, short, angle=turn, fill=False, ec=colour, lw=line)
                )
            axes.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(1, 0))
    figure.savefig(path, dpi=110)


@torch.no_grad()
def main(data: str, count: int = 4000, seeds: int = 4, out: str = "", figure: str = "") -> None:
    """Train every arm with every seed."""
    known, new = placed(load(data).subset(count, 0), 0), load(data, split="test")
    images, labels, middles = placed(new.subset(min(1000, len(new)), 0), 1)
    runs, models = {}, {}
    for arm in ARMS:
        with torch.enable_grad():
            models[arm] = [trained(arm, seed, *known[:2]) for seed in range(seeds)]
        found = []
        for logits, mean, covariance in (model(images) for model in models[arm]):
            apart = mean - middles
            whitened = torch.linalg.solve(covariance + 1e-6 * torch.eye(2), apart)
            inside = ((apart * whitened).sum(-1) <= 4).double().mean()
            right = (logits.argmax(-1) == labels).double().mean()
            found.append([100 * right.item(), apart.norm(dim=-1).mean().item(), 100 * inside.item()])
        runs[arm] = dict(
            zip(("right", "distance", "inside"), map(list, zip(*found, strict=True)), strict=True)
        )
    print(f"{count} images, {len(images)} to test on, {EPOCHS} epochs, {seeds} seeds")
    for arm, found in runs.items():
        x = torch.tensor(list(found.values()), dtype=torch.float64)
        half = student.ppf(0.975, seeds - 1) * x.std(-1) / seeds**0.5
        (right, a), (distance, b), (inside, c) = zip(x.mean(-1).tolist(), half.tolist(), strict=True)
        print(
            f"{arm:23}{right:.1f} ± {a:.1f} % right, {distance:.3f} ± {b:.3f} away, inside {inside:.1f} ± {c:.1f} %"
        )
    if out:
        Path(out).write_text(json.dumps({"images": count, "seeds": seeds, "runs": runs}, indent=1) + "\n")
    if figure:
        ellipses([models[arm][0] for arm in ARMS], images[:6], figure)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]), *sys.argv[4:])
