"""Recurrent attention: six small glimpses of an image, at places that are learned by reinforcement.

A network with a memory sees 8 x 8 pixels, and as many of wider and coarser surroundings, says where to look next, and
after six glimpses what the image is (Mnih et al., 2014). Where it looks is drawn, so that the choice has no gradient:
REINFORCE with a learned baseline rewards places after which the answer was right. The controls look at random places,
and at the same six places of every image. Images are 28 x 28, or stand somewhere in 60 x 60 with clutter, pieces of
other images. Choosing a place is a draw, not an inference, and has no estimator.

    python examples/glimpse.py --data toy
    python examples/glimpse.py --data $FENCHEL_DATA/parquet/fashion_mnist --canvas 28 --scales 1 --out glimpse.json

Printed are the images told right, and the mean distance of the last three glimpses from the image's middle, in pixels.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, grid_sample

import experiment
from data import check_columns, check_labels, label_names, read_splits
from fenchel.errors import InputError
from images import stacked
from task import option

ARMS = ("learned", "random", "fixed")
GLIMPSES, PATCH, PIECES = 6, 8, 8  # glimpses, their width, and pieces of clutter
SPREAD, REINFORCED = 0.15, 0.1  # deviation of places, and weight of what reinforces them
CAUTION = 0.1  # of the learning rate, for where to look: the gradients are mostly noise, of which Adam takes full steps


@dataclass
class GlimpseOptions(experiment.ExperimentOptions):
    """Data and training."""

    data: str = option("toy", "toy, a folder with train.parquet and test.parquet, or a dataset of the hub")
    images: int = option(1500, "to train on")
    test: int = option(1000, "to test on, at most")
    canvas: int = option(60, "width that an image stands in; where it is the image's own there is no clutter")
    scales: int = option(3, "widths of a glimpse: 8 pixels, and each twice as wide as the one before")
    epochs: int = option(8, "passes over the images")
    width: int = option(128, "of states")
    learning_rate: float = option(5e-3, "the largest; it falls to 0")
    picture: str = option("", "file for a picture of the paths of the first model")


class Images(NamedTuple):
    """Images (N, 1, w, w), their classes (N,), and where in -1 to 1 the middle of what is meant stands, (N, 2)."""

    pixels: Tensor
    labels: Tensor
    middles: Tensor


def toy(count: int) -> tuple[Tensor, Tensor]:
    """Bars, rings and crosses of 28 x 28 pixels in four classes."""
    y, x = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    labels, size = torch.randint(4, (count,)), 6 + 5 * torch.rand(count, 1, 1)
    y, x = (one - 13.5 for one in (y, x))
    inside = torch.maximum(y.abs(), x.abs()) < size
    upright, level = inside & (x.abs() < 2), inside & (y.abs() < 2)
    ring = inside & (torch.maximum(y.abs(), x.abs()) > size - 3)
    shapes = torch.stack([upright, level, upright | level, ring])
    return shapes[labels, torch.arange(count)].float(), labels


def read(data: str, split: str, count: int) -> tuple[Tensor, Tensor]:
    """Images (N, w, w) of a split, from 0 to 1, and their classes."""
    splits = read_splits(data, ("train", "test"))
    check_columns(splits, ("image", "label"), data)
    check_labels(splits, "label", len(label_names(splits["train"], "label")), data)
    rows = splits[split].shuffle(seed=0).take(min(count, len(splits[split])))
    pixels = stacked(rows, "image", f"{data}, {split}").float().mean(1)
    return pixels / 255, torch.tensor(rows["label"])


@cache
def made(data: str, split: str, count: int, canvas: int) -> Images:
    """Images of a split; on a wider canvas somewhere, among pieces of the others."""
    torch.manual_seed(("train", "test").index(split))
    small, labels = toy(count) if data == "toy" else read(data, split, count)
    side = small.shape[-1]
    if canvas < side:
        raise InputError(
            f"canvas is {canvas} and images are {side} wide; expected no less. Give --canvas {side}."
        )
    corners = torch.randint(canvas - side + 1, (len(small), 2))
    pixels = torch.zeros(len(small), 1, canvas, canvas)
    for image, meant, (x, y) in zip(pixels, small, corners.tolist(), strict=True):
        for _ in range(PIECES if canvas > side else 0):
            other, place = (
                small[torch.randint(len(small), ())],
                torch.randint(canvas - PATCH, (2,)).tolist(),
            )
            cut = torch.randint(side - PATCH, (2,)).tolist()
            piece = other[cut[0] : cut[0] + PATCH, cut[1] : cut[1] + PATCH]
            image[0, place[0] : place[0] + PATCH, place[1] : place[1] + PATCH] = piece
        image[0, y : y + side, x : x + side].clamp_(min=meant)
    return Images(pixels, labels, (2 * corners + side) / canvas - 1)


class Watcher(nn.Module):
    """What is seen at a place enters a memory, which says where to look next and what the image is."""

    def __init__(self, arm: str, o: GlimpseOptions, classes: int) -> None:
        super().__init__()
        self.arm, self.scales, self.canvas, width = arm, o.scales, o.canvas, o.width
        self.see, self.place = nn.Linear(o.scales * PATCH**2, width), nn.Linear(2, width)
        self.remember, self.answer = nn.GRUCell(width, width), nn.Linear(width, classes)
        self.look, self.expect = nn.Linear(width, 2), nn.Linear(width, 1)
        rows, columns = torch.tensor([-0.4, 0.4]), torch.tensor([-0.6, 0.0, 0.6])
        self.register_buffer("fixed", torch.cartesian_prod(columns, rows))

    def seen(self, images: Tensor, places: Tensor) -> Tensor:
        """The pixels around places, (B, scales * 64), each scale twice as wide and half as fine."""
        steps = (torch.arange(PATCH) - (PATCH - 1) / 2) * 2 / self.canvas
        around = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), -1)
        grids = [places[:, None, None] + around * 2**scale for scale in range(self.scales)]
        patches = [grid_sample(images, grid, align_corners=False) for grid in grids]
        return torch.cat(patches, 1).flatten(1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits (B, classes), places (B, 6, 2), their log chances and the rewards that are expected (B, 6)."""
        state = images.new_zeros(len(images), self.remember.hidden_size)
        places, chances, expected = [], [], []
        for number in range(GLIMPSES):
            means = self.look(state).tanh()
            place = means.detach()
            if self.arm == "random":
                place = 2 * torch.rand_like(means) - 1
            elif self.arm == "fixed":
                place = self.get_buffer("fixed")[number].expand_as(means)
            elif self.training:
                place = place + SPREAD * torch.randn_like(place)
            chances.append(-(place - means).square().sum(-1) / (2 * SPREAD**2))
            expected.append(self.expect(state.detach()).squeeze(-1))
            places.append(place)
            state = self.remember((self.see(self.seen(images, place)) + self.place(place)).relu(), state)
        return self.answer(state), torch.stack(places, 1), torch.stack(chances, 1), torch.stack(expected, 1)


def trained(arm: str, seed: int, o: GlimpseOptions) -> Watcher:
    """A model after its epochs."""
    images, labels, _ = made(o.data, "train", o.images, o.canvas)
    torch.manual_seed(seed)
    model = Watcher(arm, o, int(labels.max()) + 1)
    steps, looking = o.epochs * -(-len(images) // 64), list(model.look.parameters())
    others = [one for name, one in model.named_parameters() if not name.startswith("look.")]
    optimiser = torch.optim.Adam([{"params": others}, {"params": looking}])
    rates = [o.learning_rate, o.learning_rate * CAUTION]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rates, total_steps=steps, pct_start=0.1)
    for _ in range(o.epochs):
        for chosen in torch.randperm(len(images)).split(64):
            logits, _, chances, expected = model(images[chosen])
            right = (logits.argmax(-1) == labels[chosen]).float().unsqueeze(1)
            lost = cross_entropy(logits, labels[chosen])
            if arm == "learned":
                better = right - expected
                lost = lost + better.square().mean() - REINFORCED * (better.detach() * chances).mean()
            optimiser.zero_grad()
            lost.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
    return model.eval()


def run(o: GlimpseOptions, arm: str, seed: int) -> dict[str, float]:
    """Train and test a model; the first learned one draws its paths."""
    model, (images, labels, middles) = trained(arm, seed, o), made(o.data, "test", o.test, o.canvas)
    torch.manual_seed(seed)
    with torch.no_grad():
        logits, places, _, _ = model(images)
    apart = (places[:, GLIMPSES // 2 :] - middles.unsqueeze(1)).norm(dim=-1) * o.canvas / 2
    if o.picture and (arm, seed) == ("learned", 0):
        draw(images[:6], places[:6], o.picture)
    return {
        "right": 100 * (logits.argmax(-1) == labels).double().mean().item(),
        "distance": apart.mean().item(),
    }


def draw(images: Tensor, places: Tensor, path: str) -> None:
    """Images with the glimpses on them, in their order."""
    figure = Figure(figsize=(1.8 * len(images), 1.8), layout="constrained")
    for axes, image, line in zip(figure.subplots(1, len(images)), images, places.tolist(), strict=True):
        axes.imshow(image[0].tolist(), cmap="gray", extent=(-1, 1, 1, -1))
        axes.plot(*zip(*line, strict=True), "-o", color="orange", markersize=3, linewidth=1)
        axes.plot(*line[-1], "s", color="red", markersize=5)
        axes.set(xticks=[], yticks=[], xlim=(-1, 1), ylim=(1, -1))
    figure.savefig(path, dpi=110)


def compare(o: GlimpseOptions) -> dict[str, Any]:
    """Every arm with every seed."""
    return {"runs": experiment.repeated(run, ARMS, o)}


if __name__ == "__main__":
    experiment.main(GlimpseOptions, compare)
