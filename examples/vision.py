"""Vision transformers with softmax or optimal-transport attention in the last layer (section 9, tables 1 and 2).

Commands::

    python examples/vision.py train --data toy --out run
    python examples/vision.py use run --images shirt.png --picture weights.png
    python examples/vision.py train --data FOLDER --model ot-vit --epochs 100 --out run
    python examples/vision.py table --table 2 --budget small --out table2
"""

import math
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from sklearn.metrics import accuracy_score
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

import sweep
from common import load_test, main
from data import check_columns, check_labels, label_names, read_splits, validation_and_test
from fenchel.errors import CostWarning, InputError
from fenchel.nn import MultiheadAttention, TransportAttention
from images import chosen, opened, stacked
from task import Batch, CosineOptions, Record, Task, choice, option, several

# The papers' cost, C - aᵀb, is meant for templates of any norm.
warnings.filterwarnings("ignore", category=CostWarning)
COLUMNS = (("image", "label"), ("img", "label"), ("img", "fine_label"), ("image", "labels"))


@dataclass
class VisionOptions(CosineOptions):
    """A ViT of the papers' size; a smaller one is enough for toy images."""

    batch_size: int = option(64, "images in a step, even: they come in pairs of a class")
    learning_rate: float = option(3e-4, "the largest")
    model: str = choice("last layer: optimal transport or softmax", "ot-vit", "vit")
    extra: str = choice(
        "preference for the partner's templates: zero (ot-vit only), shared as for the image's own, or none: there are "
        "no partners; auto: zero for ot-vit, none for vit",
        *("auto", "zero", "shared", "none"),
    )
    join_probability: float = option(0.5, "how often a partner's templates join, in training")
    cost: str = choice("transport cost", "dot", "squared_euclidean", "cosine")
    gamma: float = option(0.0, "entropy of the transport; 0: √width, of the hidden states, which is √256")
    alpha: float = option(1.0, "reliability of the evidence")
    width: int = option(256, "of the hidden states")
    depth: int = option(6, "layers")
    heads: int = option(8, "of each layer")
    mlp_width: int = option(512, "hidden units of the feed-forward networks")
    dropout: float = option(0.2, "rate")
    patch_size: int = option(4, "pixels of a side")
    train_images: int = option(0, "so many, each class in its share; 0: all")
    test_images: int = option(0, "so many, for validation and test each; 0: all")
    augment: bool = option(False, "shift by up to four pixels, and mirror")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.extra == "auto":
            self.extra = "zero" if self.model == "ot-vit" else "none"
        if (self.model, self.extra) == ("vit", "zero"):
            raise InputError("softmax reaches no template of preference zero. Give --extra shared or none.")
        if self.batch_size % 2:
            raise InputError(f"batch_size is {self.batch_size}; expected an even number, for pairs.")


class Layer(nn.Module):
    """An encoder layer with norms first, around any attention; parameters are named as in torch's."""

    def __init__(self, attention: nn.Module, width: int, mlp_width: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = attention
        self.linear1, self.linear2 = nn.Linear(width, mlp_width), nn.Linear(mlp_width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, queries: slice = slice(None), partners: Tensor | None = None) -> Tensor:
        """The tokens of ``queries`` after attention to all tokens, and to those of partner images."""
        templates = self.norm1(tokens)
        query = templates[:, queries]
        if isinstance(self.self_attn, TransportAttention):
            attended = self.self_attn(query, templates, partners=partners)
        else:
            padding = None
            if partners is not None:
                alone = (partners < 0)[:, None].expand(templates.shape[:2])
                padding = torch.cat([torch.zeros_like(alone), alone], 1)
                templates = torch.cat([templates, templates[partners.clamp_min(0)]], 1)
            attended, _ = self.self_attn(query, templates, templates, padding, need_weights=False)
        tokens = tokens[:, queries] + self.dropout(attended)
        hidden = self.dropout(gelu(self.linear1(self.norm2(tokens))))
        return tokens + self.dropout(self.linear2(hidden))


class VisionTransformer(nn.Module):
    """ViT or OT-ViT: only the class token asks in the last layer, since nothing reads the other answers."""

    def __init__(self, o: VisionOptions, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(channels, o.width, o.patch_size, o.patch_size)
        self.class_token = nn.Parameter(torch.empty(1, 1, o.width))
        self.position = nn.Parameter(torch.empty(1, (size // o.patch_size) ** 2 + 1, o.width))
        self.reset_parameters()
        self.dropout = nn.Dropout(o.dropout)
        attention: list[Any] = [
            MultiheadAttention(o.width, o.heads, batch_first=True) for _ in range(o.depth)
        ]
        if o.model == "ot-vit":
            given: Any = {"cost": o.cost, "gamma": o.gamma or math.sqrt(o.width), "alpha": o.alpha}
            given["extra_preference"] = "shared" if o.extra == "shared" else "zero"
            attention[-1] = TransportAttention(o.width, o.heads, **given)
        self.layers = nn.ModuleList(Layer(one, o.width, o.mlp_width, o.dropout) for one in attention)
        self.norm, self.classify = nn.LayerNorm(o.width), nn.Linear(o.width, classes)

    def reset_parameters(self) -> None:
        """Draw what is of no layer: the class token and the positions. An audit draws an untrained twin so."""
        for one in (self.class_token, self.position):
            nn.init.normal_(one, std=0.02)

    def forward(self, images: Tensor, partners: Tensor | None = None) -> Tensor:
        """Logits (B, classes) of images (B, channels, size, size).

        Args:
            images: Standardised.
            partners: (B,) index in the batch of another image, whose templates join in the last layer; -1: none.
        """
        tokens = self.embed(images).flatten(2).mT
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), tokens], 1)
        tokens = self.dropout(tokens + self.position)
        for layer in self.layers[:-1]:
            tokens = layer(tokens)
        return self.classify(self.norm(self.layers[-1](tokens, slice(1), partners)[:, 0]))


class Vision(Task):
    """Classes of images."""

    name, metric, larger_is_better = "vision", "accuracy", True

    def __init__(self, options: VisionOptions) -> None:
        super().__init__(options)
        self.classes, splits = toy() if options.data == "toy" else read_images(options)
        pixels = splits["train"][0].float() / 255
        self.mean, self.std = (one.view(-1, 1, 1) for one in (pixels.mean((0, 2, 3)), pixels.std((0, 2, 3))))
        self.channels, height, width = pixels.shape[1:]
        if height != width or height % options.patch_size:
            said = f"images are {height} x {width}; expected squares of a side that --patch_size divides"
            raise InputError(f"{said}, {options.patch_size}. Resize them.")
        self.size = height
        self.splits = {name: list(zip(*split, strict=True)) for name, split in splits.items()}

    def model(self) -> VisionTransformer:
        """See ``Task``."""
        return VisionTransformer(self.options, self.channels, self.size, len(self.classes))

    def batches(self, split: str, size: int, epoch: int | None) -> Iterator[list[int]]:
        """See ``Task``; in training images come in pairs of a class, so that each has a partner in its batch."""
        order = [one for part in super().batches(split, size, epoch) for one in part]
        if epoch is not None:
            waiting: dict[int, int] = {}
            pairs: list[int] = []
            for one in order:
                label = int(self.splits[split][one][1])
                if label in waiting:
                    pairs += [waiting.pop(label), one]
                else:
                    waiting[label] = one
            order = pairs + list(waiting.values())
        yield from (order[start : start + size] for start in range(0, len(order), size))

    def batch(self, examples: Sequence[Any], *, training: bool) -> Batch:
        """See ``Task``."""
        images, labels = (torch.stack(some) for some in zip(*examples, strict=True))
        if training and self.options.augment:
            images = augmented(images)
        batch = {"images": (images.float() / 255 - self.mean) / self.std, "labels": labels}
        if training and self.options.extra != "none":
            batch["partners"] = partners(labels, self.options.join_probability)
        return batch

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """See ``Task``."""
        logits = model(batch["images"], batch.get("partners"))
        return cross_entropy(logits.float(), batch["labels"], reduction="sum"), len(logits)

    def records(self, model: nn.Module, batch: Batch) -> list[Record]:
        """See ``Task``."""
        logits = model(batch["images"]).float()
        loss = cross_entropy(logits, batch["labels"], reduction="none").tolist()
        rows = zip(batch["labels"].tolist(), logits.argmax(1).tolist(), loss, strict=True)
        return [{"label": label, "answer": answer, "loss": loss} for label, answer, loss in rows]

    def metrics(self, records: Sequence[Record]) -> dict[str, float]:
        """See ``Task``."""
        answers, labels = [one["answer"] for one in records], [one["label"] for one in records]
        loss = sum(one["loss"] for one in records) / len(records)
        return {"accuracy": float(accuracy_score(labels, answers)), "loss": loss}

    def audited(self, examples: Sequence[Any], batch: Batch) -> Batch:
        """See ``Task``."""
        del examples
        loss = partial(cross_entropy, target=batch["labels"], reduction="none")
        score = partial(hits, labels=batch["labels"])
        return {"inputs": {"images": batch["images"]}, "loss": loss, "score": score}


def partners(labels: Tensor, probability: float) -> Tensor:
    """For each image of a batch the index of a random other one of its class, with a probability; else -1."""
    same = (labels[:, None] == labels).float().fill_diagonal_(0)
    has = (same.sum(1) > 0) & (torch.rand(len(labels)) < probability)
    chosen = torch.multinomial(same + ~has[:, None], 1).squeeze(1)
    return torch.where(has, chosen, -1)


def augmented(images: Tensor) -> Tensor:
    """Each image shifted by up to four pixels, and mirrored with probability one half."""
    count, _, size, _ = images.shape
    padded = nn.functional.pad(images, (4, 4, 4, 4))
    rows, columns = torch.arange(size) + torch.randint(9, (2, count, 1))
    columns = torch.where(torch.rand(count, 1) < 0.5, columns, columns.flip(1))
    number = torch.arange(count)[:, None, None]
    return padded[number, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def toy() -> tuple[list[str], dict[str, tuple[Tensor, Tensor]]]:
    """Stripes of four directions at random places, 16 x 16 pixels, in noise; the mean of a pixel tells nothing."""
    generator = torch.Generator().manual_seed(0)
    names = ["rows", "columns", "falling", "rising"]
    labels = torch.arange(1000) % 4
    x, y = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="xy")
    place = torch.stack([y, x, x + y, x - y])[labels] + torch.randint(8, (1000, 1, 1), generator=generator)
    images = 128 + 80 * torch.sin(place * math.pi / 4) + 90 * torch.randn(1000, 16, 16, generator=generator)
    images = images.clamp(0, 255).byte()[:, None]
    parts = {"train": slice(600), "validation": slice(600, 800), "test": slice(800, 1000)}
    return names, {name: (images[part], labels[part]) for name, part in parts.items()}


def read_images(options: VisionOptions) -> tuple[list[str], dict[str, tuple[Tensor, Tensor]]]:
    """Images and classes of each split of a dataset, as bytes (n, channels, height, width)."""
    result = validation_and_test(read_splits(options.data))
    columns = next((pair for pair in COLUMNS if {*pair} <= {*result["train"].column_names}), COLUMNS[0])
    check_columns(result, columns, options.data)
    image, label = columns
    classes = label_names(result["train"], label)
    check_labels(result, label, len(classes), options.data)
    counts = {"train": options.train_images, "validation": options.test_images, "test": options.test_images}
    splits = {}
    for name, count in counts.items():
        rows = chosen(result[name], label, count)
        splits[name] = stacked(rows, image, f"{options.data}, {name}"), torch.tensor(rows[label])
    return classes, splits


@dataclass
class UseOptions:
    """What is asked of a trained model."""

    images: list[str] = several("files; default: the first four test images")
    picture: str = option("", "file for the images, above how much each pixel moves the logit of the answer")


def use(task: Vision, model: VisionTransformer, options: UseOptions) -> None:
    """Print the three likeliest classes of each image, and draw which pixels the answer depends on."""
    names = options.images or [f"test image {number + 1}" for number in range(4)]
    images = [image for image, _ in task.splits["test"][:4]]
    if options.images:
        images = [opened(file, task.channels, task.size) for file in options.images]
    batch = task.batch([(image, torch.tensor(0)) for image in images], training=False)
    pixels = batch["images"].requires_grad_()
    logits = model(pixels)
    for name, row in zip(names, logits.softmax(-1), strict=True):
        best = row.topk(min(3, len(row)))
        print(f"{name}: " + ", ".join(f"{task.classes[int(k)]} {p:.3f}" for p, k in zip(*best, strict=True)))
    if options.picture:
        (gradient,) = torch.autograd.grad(logits.amax(1).sum(), pixels)
        moved = gradient.abs().amax(1)
        shown = torch.stack(images).float().mean(1) / 255, moved / moved.amax((1, 2), keepdim=True)
        plt.imsave(options.picture, torch.cat([torch.cat([*row], 1) for row in shown]).numpy(), cmap="gray")


def load(folder: str | Path) -> tuple[nn.Module, list[Batch]]:
    """The model of a run and its test images, for ``fenchel audit RUN --loader examples/vision.py`` and ``swap``."""
    return load_test(Vision, VisionOptions, folder)


def hits(logits: Tensor, labels: Tensor) -> Tensor:
    """1 where the largest logit is that of the class."""
    return (logits.argmax(-1) == labels.to(logits.device)).double()


ARMS = {
    "ViT": "--model vit",
    "OT-ViT": "--model ot-vit --extra zero",
    "OT-ViT-shared-u": "--model ot-vit --extra shared",
    "OT-ViT-no-partners": "--model ot-vit --extra none",
    "ViT-with-partners": "--model vit --extra shared",
}
# Depth and width of 3.2 million parameters.
SHAPES = (2, 448), (4, 312), (6, 256), (8, 224), (12, 184), (24, 128)
BUDGETS = {"small": "--train_images 10000 --test_images 5000 --epochs 4", "paper": "--epochs 100"}
CIFAR100 = "uoft-cs/cifar100"
HUB = {"1": [CIFAR100], "2": ["zalando-datasets/fashion_mnist", "uoft-cs/cifar10", CIFAR100]}
PAPER = {  # accuracies of tables 1 and 2: by data and learning rate
    ("cifar100", 3e-3): "ViT 0.228, OT-ViT 0.175",
    ("cifar100", 3e-4): "ViT 0.463, OT-ViT 0.491",
    ("cifar100", 3e-5): "ViT 0.452, OT-ViT 0.412",
    ("fashion_mnist", 3e-4): "ViT 0.928, OT-ViT 0.937",
    ("cifar10", 3e-4): "ViT 0.751, OT-ViT 0.772",
}


@dataclass
class TableOptions:
    """A table of section 9: for each data set and learning rate a sweep of arms over seeds."""

    table: str = choice(
        "of the papers, the ablation, or the search of a shape", "2", "1", "ablation", "search"
    )
    budget: str = choice("10,000 images for 4 epochs, or all for 100", *BUDGETS)
    data: list[str] = several("folders or hub names; default: the paper's")
    out: str = option("", "folder of the sweeps; runs that are finished in it are not run again")
    seeds: int = option(3, "trainings of each arm")
    mixed_precision: str = choice("no, bf16 or fp16", "no", "bf16", "fp16")


def table(options: TableOptions) -> None:
    """Run what is missing of a table, and print accuracies with 95 % intervals over seeds below the paper's.

    Raises:
        InputError: If there is no folder for the runs.
    """
    if not options.out:
        raise InputError("no folder was given for the runs. Give --out DIR.")
    arms = {name: ARMS[name] for name in ("ViT", "OT-ViT")} if options.table in "12" else ARMS
    if options.table == "search":
        shape = "--model vit --depth {0} --width {1} --mlp_width {2}"
        arms = {f"{depth}-layers-of-{w}": shape.format(depth, w, 2 * w) for depth, w in SHAPES}
    rates = (3e-3, 3e-4, 3e-5) if options.table == "1" else (3e-4,)
    failed = 0
    for data, rate in product(options.data or HUB.get(options.table, HUB["2"][:1]), rates):
        name, caption = Path(data).name, f"{Path(data).name}, learning rate {rate:g}"
        for (known, its_rate), accuracies in PAPER.items():
            if its_rate == rate and re.match(rf"{known}(?!\d)", name):
                caption += f"; the paper: {accuracies}"
        given = [__file__, "--out", f"{options.out}/{name}-{rate:g}", "--seeds", str(options.seeds)]
        given += ["--metric", "accuracy", "--caption", caption]
        for arm, of_arm in arms.items():
            given += ["--arm", arm, f"{of_arm} {BUDGETS[options.budget]}"]
        shared = ["--data", data, "--learning_rate", str(rate), "--mixed_precision", options.mixed_precision]
        failed += sweep.main([*given, "--", *shared])
    sys.exit(min(failed, 1))


if __name__ == "__main__":
    main(Vision, VisionOptions, use, UseOptions, table=(table, TableOptions))
