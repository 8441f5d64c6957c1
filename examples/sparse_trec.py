"""How many weights are zero, and what does it cost? Sparse attention against softmax on TREC's questions.

A question's words pass through one layer of self-attention, then one learned question is asked of them, and a linear
map tells the class of the answer. The closeness of both attentions is Kullback and Leibler's (softmax), Tsallis' of
order 1.5 or of order 2 (sparsemax), or of an order that every head learns. All arms start from the same weights by
seed and see the same batches. The control is softmax whose smallest weights are cut after training, so that each query
keeps as many words as it does under order 2: is being trained with zeros more than having some cut? Printed are
accuracies with 95 % intervals over seeds, differences paired by seed, and the share of weights on words that is 0.

    python examples/sparse_trec.py DATA [epochs] [seeds, from 2] [results.json]

DATA is ``trec`` (found in the folder that FENCHEL_DATA names) or a folder with TREC's files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from scipy.stats import t as student
from torch import Tensor, nn

import fenchel
from fenchel.data import Vocabulary, load_sentences
from fenchel.nn import MultiheadAttention

WIDTH, HEADS, LONGEST, BATCH = 64, 4, 40, 64
ARMS = {
    "softmax": {},
    "order 1.5": {"closeness": fenchel.Tsallis(1.5)},
    "order 2": {"closeness": fenchel.Tsallis(2.0)},
    "learned order": {"closeness": fenchel.Tsallis(1.5), "learn_order": True},
}
CUT = "softmax, cut"


class Reader(nn.Module):
    """Self-attention, a learned question, and classes."""

    def __init__(self, words: int, classes: int, options: dict) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, WIDTH, padding_idx=0)
        self.place = nn.Parameter(0.02 * torch.randn(LONGEST, WIDTH))
        self.question = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.read = MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)
        self.ask = MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)
        self.dropout, self.classify = nn.Dropout(0.5), nn.Linear(WIDTH, classes)

    def forward(self, numbers: Tensor, *keep: int) -> tuple[Tensor, list[Tensor]]:
        """Logits and the weights (B, H, m, n) of both layers; ``keep``: of each query only so many, the largest."""
        x, weights = self.dropout(self.embed(numbers) + self.place[: numbers.shape[1]]), []
        for place, layer in enumerate((self.read, self.ask)):
            asking = self.question.expand(len(x), -1, -1) if place else x
            given = (asking, x, x, numbers == 0)
            out, found = layer(*given, average_attn_weights=False)
            if keep and keep[place] < x.shape[1]:
                cut = (found < found.topk(keep[place], -1).values[..., -1:]).flatten(0, 1)
                out, found = layer(*given, attn_mask=cut, average_attn_weights=False)
            x = x if place else x + out
            weights.append(found)
        return self.classify(self.dropout(out[:, 0])), weights


def trained(model: Reader, seed: int, epochs: int, numbers: Tensor, labels: Tensor) -> Reader:
    """The model after so many epochs."""
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    steps = epochs * -(-len(labels) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
    stream = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for chosen in torch.randperm(len(labels), generator=stream).split(BATCH):
            taken = numbers[chosen]
            logits, _ = model(taken[:, : (taken > 0).sum(1).max()])
            optimiser.zero_grad()
            nn.functional.cross_entropy(logits, labels[chosen]).backward()
            optimiser.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def tested(model: Reader, numbers: Tensor, labels: Tensor, *keep: int) -> dict[str, float]:
    """Accuracy, and of each layer the share of weights on words that is 0 and how many words a query keeps."""
    logits, layers = model(numbers, *keep)
    found = {"accuracy": 100 * (logits.argmax(-1) == labels).double().mean().item()}
    real = (numbers > 0).double()
    for name, weights, asked in zip(("read", "ask"), layers, (real, real[:, :1]), strict=True):
        pairs = (asked[:, None, :, None] * real[:, None, None]).expand_as(weights)
        kept = ((weights > 0) * pairs).sum() / pairs.sum()
        found |= {f"{name}_zero": 100 * (1 - kept.item())}
        found |= {f"{name}_kept": (kept * pairs.sum() / asked.sum() / HEADS).item()}
    return found


def interval(samples: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval."""
    x = torch.tensor(samples, dtype=torch.float64)
    return x.mean().item(), float(student.ppf(0.975, len(x) - 1) * x.std() / len(x) ** 0.5)


def main(data: str, epochs: int = 10, seeds: int = 8, out: str | None = None) -> None:
    """Train every arm with every seed."""
    train, test = load_sentences(data)
    known = Vocabulary.of(train.words, least=2)
    x, u = (known.numbers(part.words, longest=LONGEST) for part in (train, test))
    y, v = (torch.tensor(part.labels) for part in (train, test))
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in (*ARMS, CUT)}
    for seed in range(seeds):
        models = {}
        for name, options in ARMS.items():
            torch.manual_seed(seed)
            models[name] = trained(Reader(len(known), len(train.class_names), options), seed, epochs, x, y)
            runs[name].append(tested(models[name], u, v))
        kept = (max(1, round(runs["order 2"][-1][f"{layer}_kept"])) for layer in ("read", "ask"))
        runs[CUT].append(tested(models["softmax"], u, v, *kept))
    print(f"{len(y)} questions, {len(v)} to test on, {epochs} epochs, {seeds} seeds")
    for name, found in runs.items():
        pairs = zip(found, runs["softmax"], strict=True)
        (right, half), (more, width), (read, _), (ask, _) = map(
            interval,
            (
                [one["accuracy"] for one in found],
                [one["accuracy"] - other["accuracy"] for one, other in pairs],
                [one["read_zero"] for one in found],
                [one["ask_zero"] for one in found],
            ),
        )
        against = "" if name == "softmax" else f", {more:+.2f} ± {width:.2f} to softmax"
        print(f"{name:14}{right:.2f} ± {half:.2f} % right{against}; zero: {read:.1f} % and {ask:.1f} %")
    if out is not None:
        Path(out).write_text(json.dumps({"epochs": epochs, "seeds": seeds, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]), *sys.argv[4:])
