"""Captions of images, the second running example of the papers (figure 2b): attention to cells of an image.

::

    python captioning.py train --data toy --out runs/toy
    python captioning.py train --data FOLDER --held_out 0 --epochs 40 --out runs/by-heart
    python captioning.py use runs/toy --images dog.jpg --beam 5 --heatmap dog.png

``FOLDER`` has ``train.parquet`` with the columns ``image`` and ``captions``, a list of texts.
"""

import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import datasets
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import dropout, one_hot

import common
import decoding
from data import check_columns, padded, read_splits
from decoding import BEGIN, END, PAD, Attention, State
from fenchel.errors import InputError
from fenchel.nn import preference
from images import decoded_rows, opened, resized
from task import Batch, CosineOptions, Record, Task, choice, option, several


@dataclass
class CaptionOptions(CosineOptions):
    """Options of a training; the defaults are those of the recorded results."""

    epochs: int = option(40, "passes over the captions")
    batch_size: int = option(32, "captions in a step, over all processes")
    learning_rate: float = option(2e-3, "the largest")
    decoder: str = choice("figure 2b's, which never sees the image, or Xu et al.'s", "paper", "xu")
    attention: str = choice("the mean of cells, one cell, or none: the control", "soft", "hard", "mean")
    gradient: str = choice("of hard attention", "reinforce", "straight_through")
    preference: str = choice("of cells: uniform, or a weight that the image decides", "uniform", "context")
    estimator: str = choice("of attention", *decoding.ESTIMATORS)
    alpha: float = option(1.0, "reliability of the evidence")
    gate: bool = option(True, "whether a word decides how much of the image enters")
    coverage: float = option(0.0, "weight of the doubly stochastic penalty of soft attention; 1 in Xu et al.")
    entropy: float = option(0.01, "weight of the entropy of p with reinforce")
    baseline_decay: float = option(0.9, "how slowly the reward that reinforce expects changes")
    held_out: float = option(0.1, "share of images to validate and to test on; 0: those of the training")
    image_size: int = option(64, "side of the square that images are stretched to")
    depth: int = option(3, "convolutions, each of which halves the image")
    width: int = option(128, "of cells, words and states")
    dropout: float = option(0.1, "rate")
    words: int = option(1000, "pieces of words that are known")
    longest: int = option(40, "pieces of a caption; longer ones are cut")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size % 2**self.depth:
            raise InputError(f"image_size is {self.image_size}; expected a multiple of {2**self.depth}.")
        if not 0 <= self.held_out < 0.5:
            raise InputError(f"held_out is {self.held_out}; expected a share from 0 to below 0.5.")


class Caption(NamedTuple):
    """An image, its number, all its captions, and which one these pieces are, between BEGIN and END."""

    image: Tensor
    number: int
    texts: list[str]
    which: int
    pieces: list[int]


class Captioner(nn.Module):
    r"""Says the next word from the words so far, which give the evidence z = W s, and from cells, the templates.

    .. math:: \log P(w) = f_\mathrm{out}(s + \beta h)_w, \qquad \beta = \sigma(\langle b, s\rangle + b_0)

    with h the mean of the cells under p, or one cell where attention is hard. In the papers' decoder the state s never
    sees the image; in Xu et al.'s the LSTM reads h of the state before, and all of the score is an additive preference.

    Args:
        options: Of the training.
        vocabulary: How many pieces there are.
    """

    def __init__(self, options: CaptionOptions, vocabulary: int) -> None:
        super().__init__()
        self.options, width = options, options.width
        wide = [3, *(max(width >> (options.depth - 1 - layer), 8) for layer in range(options.depth))]
        layers: list[nn.Module] = []
        for a, b in pairwise(wide):
            layers.append(nn.Sequential(nn.Conv2d(a, b, 3, 2, padding=1), nn.GroupNorm(1, b), nn.GELU()))
        self.cells, self.norm = nn.Sequential(*layers), nn.LayerNorm(width)
        context = options.preference == "context"
        self.preference = preference.Context(1, width, hidden=width) if context else None
        self.embed = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.xu = options.decoder == "xu"
        self.lstm = nn.LSTM(width * (1 + self.xu), width, batch_first=True)
        self.additive = preference.Additive(1, width, hidden=width) if self.xu else None
        self.evidence = None if options.attention == "mean" else nn.Linear(width, width)
        self.attention = None if options.attention == "mean" else Attention(options.estimator, options.alpha)
        self.gate = nn.Linear(width, 1) if options.gate else None
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("expected", torch.tensor(torch.nan))  # reward of REINFORCE, a moving average

    def forward(self, images: Tensor, words: Tensor, *, extras: bool = False) -> Any:
        """Scores of the piece after each of the words, (B, m, pieces).

        Args:
            images: (B, 3, size, size), from 0 to 1.
            words: Numbers of the pieces so far (B, m), BEGIN first, 0 behind.
            extras: Whether to return also the weights p (B, m, cells) and the cells that were drawn (B, m), if any.
        """
        state = self.read(images)
        embedded = dropout(self.embed(words), self.options.dropout, self.training)
        if not self.xu:
            states, _ = self.lstm(embedded)
            h, weights, chosen = self.look(states, state[0], state[1])
            scores = self.scores(states, h)
            return (scores, weights, chosen) if extras else scores
        result = []
        with nullcontext() if self.attention is None else self.attention.steps():
            for word in embedded.split(1, 1):
                states, h, weights, chosen, state = self.advance(word, state)
                result.append((self.scores(states, h), weights, chosen))
        scores, every, drawn = zip(*result, strict=True)
        if not extras:
            return torch.cat(scores, 1)
        return torch.cat(scores, 1), torch.cat(every, 1), None if drawn[0] is None else torch.cat(drawn, 1)

    def read(self, images: Tensor) -> State:
        """Cells (B, n, width), log u (B, n), hidden state, cell and h before the first word (B, width)."""
        cells = self.norm(self.cells(2 * images - 1).flatten(2).mT)
        rows, count, width = cells.shape
        log_u = cells.new_zeros(rows, count)
        if self.preference is not None:
            sizes = rows, 1, 1, count, cells.device, cells.dtype
            inputs = preference.AttentionInputs(*sizes, key_inputs=cells, query_offset=0)
            log_u = log_u + torch.as_tensor(self.preference(inputs)).view(rows, count)
        return cells, log_u, *(cells.new_zeros(rows, width) for _ in range(2)), cells.mean(1)

    def look(self, states: Tensor, cells: Tensor, log_u: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """H of each state (B, m, width), the weights p, and the cells that were drawn in training."""
        if self.attention is None or self.evidence is None:
            weights = cells.new_full((*states.shape[:2], cells.shape[1]), 1 / cells.shape[1])
            return weights @ cells, weights, None
        u = log_u[:, None, None]
        if self.additive is not None:
            u, z = u + self.additive.scores(states, self.additive.keys(cells)), torch.zeros_like(states)
        else:
            z = self.evidence(states)
        scale = cells.shape[-1] ** -0.5
        h, weights = self.attention(cells, z, u, scale=scale, need_weights=True)
        assert weights is not None  # noqa: S101 - they were asked for
        if self.options.attention == "soft":
            return h, weights, None
        if not self.training:
            return one_hot(weights.argmax(-1), weights.shape[-1]).to(cells.dtype) @ cells, weights, None
        chosen = torch.multinomial(weights.detach().float().flatten(0, 1), 1).view(weights.shape[:2])
        taken = one_hot(chosen, weights.shape[-1]).to(weights.dtype)
        if self.options.gradient == "straight_through":
            taken = taken + weights - weights.detach()
        return taken.to(cells.dtype) @ cells, weights, chosen

    def scores(self, states: Tensor, h: Tensor) -> Tensor:
        """Of all pieces."""
        if self.gate is not None:
            h = self.gate(states).sigmoid() * h
        return self.head(dropout(states + h, self.options.dropout, self.training))

    def advance(self, word: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor, Tensor | None, State]:
        """State, h, weights and drawn cell after one word (B, 1, width), and the state to go on with."""
        cells, log_u, hidden, memory, h = state
        read = torch.cat([word, h[:, None].to(word.dtype)], -1) if self.xu else word
        states, (hidden, memory) = self.lstm(read, (hidden[None].contiguous(), memory[None].contiguous()))
        looked, weights, chosen = self.look(states, cells, log_u)
        return states, looked, weights, chosen, (cells, log_u, hidden[0], memory[0], looked[:, 0])

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Scores of the next piece (R, pieces) after the pieces so far (R, t), and the state after them."""
        states, h, _, _, state = self.advance(self.embed(words[:, -1:]), state)
        return self.scores(states, h)[:, 0], state


class Captioning(Task):
    """Images with captions; the epoch with the lowest cross-entropy is kept."""

    name: ClassVar = "captioning"

    def __init__(self, options: CaptionOptions) -> None:
        super().__init__(options)
        parts = read_captions(options)
        texts = [text for _, captions in parts["train"] for text in captions]
        self.tokenizer = decoding.kept_tokenizer(options, "tokenizer", texts, options.words, lower=True)
        self.splits = {}
        for split, rows in parts.items():
            result = []
            for number, (image, captions) in enumerate(rows):
                encoded = [one.ids[: options.longest] for one in self.tokenizer.encode_batch(captions)]
                for which, one in enumerate(encoded, start=1):
                    result.append(Caption(image, number, captions, which, [BEGIN, *one, END]))
            self.splits[split] = result

    def model(self) -> Captioner:
        """A captioner of these pieces."""
        return Captioner(self.options, self.tokenizer.get_vocab_size())

    def batch(self, examples: Sequence[Caption], *, training: bool) -> Batch:
        """See ``Task``."""
        words, images = padded([one.pieces for one in examples]), torch.stack([one.image for one in examples])
        labels = words[:, 1:]
        result = {"images": images.float() / 255, "words": words[:, :-1] * (labels != PAD)}
        return {**result, "labels": labels, "captions": examples}

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """Cross-entropy of all pieces, with what soft and hard attention add."""
        o, labels = self.options, batch["labels"]
        real = labels != PAD
        scores, weights, chosen = model(images=batch["images"], words=batch["words"], extras=True)
        log_p = scores.float().log_softmax(-1).gather(-1, labels[..., None])[..., 0]
        total = -log_p[real].sum()
        if o.coverage and o.attention == "soft":  # Xu et al., equation 14: each cell is looked at somewhere
            looked = (weights * real[..., None]).sum(1)
            total = total + o.coverage * (1 - looked).square().sum()
        if chosen is not None and o.gradient == "reinforce":
            inner: Any = getattr(model, "module", model)
            reward = log_p.detach()
            mean = reward[real].mean()
            expected = torch.where(inner.expected.isnan(), mean, inner.expected)
            inner.expected.copy_(o.baseline_decay * expected + (1 - o.baseline_decay) * mean)
            log_w = weights.float().clamp_min(torch.finfo(torch.float32).tiny).log()
            likely = log_w.gather(-1, chosen[..., None])[..., 0]
            spread = -(weights.float() * log_w).sum(-1)
            total = total - ((reward - expected) * likely + o.entropy * spread)[real].sum()
        return total, int(real.sum())

    def records(self, model: nn.Module, batch: Batch) -> list[Record]:
        """Greedy captions, one an image, with all that are right, and -log P of each caption."""
        scores = model(images=batch["images"], words=batch["words"])
        nats = decoding.surprise(scores.float(), batch["labels"]).tolist()
        together = zip(batch["captions"], self.captions(model, batch["images"]), nats, strict=True)
        names = ("image", "caption", "right", "nats", "pieces")
        options = [(one.number, text, one.texts, nat, len(one.pieces) - 1) for one, text, nat in together]
        return [dict(zip(names, one, strict=True)) for one in options]

    def captions(self, model: nn.Module, images: Tensor, **how: Any) -> list[str]:
        """What is said of images; ``how``: see ``decoding.search``."""
        inner: Any = model
        limits = torch.full((len(images),), self.options.longest + 1, device=images.device)
        with torch.no_grad():
            said = decoding.search(inner.step, inner.read(images), limits, **how)
        return [self.tokenizer.decode(one.words) for one in said]

    def metrics(self, records: Sequence[Record]) -> dict[str, float]:
        """Cross-entropy a piece, and BLEU against all captions of an image, in small letters."""
        loss = sum(one["nats"] for one in records) / sum(one["pieces"] for one in records)
        images = list({one["image"]: one for one in records}.values())
        most = max(len(one["right"]) for one in images)
        references = [[one["right"][n % len(one["right"])] for one in images] for n in range(most)]
        said = [one["caption"] for one in images]
        return {"loss": loss, "bleu": decoding.bleu(said, references, lower=True)["bleu"]}

    def audited(self, examples: Sequence[Caption], batch: Batch) -> Batch:
        """See ``Task``; a document is an image."""
        result: Batch = {"inputs": {name: batch[name] for name in ("images", "words")}}
        result["documents"] = [one.number + 1 for one in examples]
        result["windows"] = [one.which for one in examples]
        return result | decoding.measures(batch["labels"])


Rows = list[tuple[Tensor, list[str]]]


def read_captions(o: CaptionOptions) -> dict[str, Rows]:
    """Images and their captions; what is held out to validate and to test on is always the same."""
    result = toy(o.image_size) if o.data == "toy" else read_splits(o.data)
    check_columns(result, ["image", "captions"], o.data)
    parts: dict[str, Any] = {}
    for name, rows in result.items():
        place = f"{o.data}, {name}"
        images = [resized(one, 3, o.image_size) for one in decoded_rows(rows, "image", place)]
        said = [[one] if isinstance(one, str) else one or [] for one in rows["captions"]]
        texts = [[text for text in some if text and text.strip()] for some in said]
        if [] in texts:
            raise InputError(f"{place}, row {texts.index([])}, has no caption. Remove the row.")
        parts[str(name)] = list(zip(images, texts, strict=True))
    rest = random.Random(0).sample(parts["train"], len(parts["train"]))  # noqa: S311
    cut = max(round(o.held_out * len(rest)), 1)
    for name in ("validation", "test"):
        if o.held_out and name not in parts:
            parts[name], rest = rest[:cut], rest[cut:]
            parts["train"] = rest
    return {name: parts.get(name, parts["train"]) for name in ("train", "validation", "test")}


def toy(size: int) -> datasets.DatasetDict:
    """A red, green or blue square in one of four corners, and "a COLOUR square at the PLACE"."""
    draw, rows = random.Random(0), []  # noqa: S311
    for _ in range(240):
        colour, up, left = draw.choice(("red", "green", "blue")), draw.random() < 0.5, draw.random() < 0.5
        side = draw.randrange(size // 5, size // 3)
        y, x = (draw.randrange(size // 2 - side) + (0 if first else size // 2) for first in (up, left))
        image = Image.new("RGB", (size, size), "#282828")
        image.paste(colour, (x, y, x + side, y + side))
        place = f"{'top' if up else 'bottom'} {'left' if left else 'right'}"
        texts = [f"a {colour} square at the {place}", f"at the {place} is a {colour} square"]
        rows.append({"image": image, "captions": texts})
    return datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)})


@dataclass
class UseOptions(decoding.SearchOptions):
    """What is asked of a trained model."""

    images: list[str] = several("files; default: the first four of the test")
    heatmap: str = option("", "file for a picture of where the model looks for each word of the first image")


def use(task: Captioning, model: Captioner, options: UseOptions) -> None:
    """Print a caption for each image, and draw where the model looked for its words."""
    tests = list({one.number: one.image for one in task.splits["test"]}.values())[:4]
    result = [opened(file, 3, task.options.image_size) for file in options.images] or tests
    images = torch.stack(result).float() / 255
    said = task.captions(model, images, **options.arguments())
    for number, text in enumerate(said):
        print(f"{options.images[number] if options.images else f'test image {number + 1}'}: {text}")
    if options.heatmap:
        ids = task.tokenizer.encode(said[0]).ids
        weights = decoding.weights_of(model, images=images[:1], words=torch.tensor([[BEGIN, *ids]]))[0]
        names = [*decoding.piece_names(task.tokenizer, torch.tensor([[*ids, END]]))[0]]
        side = round(weights.shape[1] ** 0.5)
        columns = [f"{row + 1}, {column + 1}" for row in range(side) for column in range(side)]
        common.heatmap(weights, names, columns, options.heatmap, title="cells of the image: row, column")


def load(folder: str | Path) -> tuple[nn.Module, list[Batch]]:
    """The model of a run and its test captions, for ``fenchel audit`` and ``fenchel swap``."""
    return common.load_test(Captioning, CaptionOptions, folder)


if __name__ == "__main__":
    common.main(Captioning, CaptionOptions, use, UseOptions)
