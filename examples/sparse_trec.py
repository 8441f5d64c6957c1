"""How many weights are zero, and what does it cost? Sparse attention against softmax on TREC's questions.

A question's words pass through self-attention, then one learned question is asked of them, and a linear map tells the
class of the answer. The closeness of both attentions is Kullback and Leibler's (softmax), Tsallis' of order 1.5 or of
order 2 (sparsemax), or of an order that every head learns. All arms start from the same weights by seed and see the
same batches. The control is softmax whose smallest weights are cut after training, so that a query keeps as many words
as under order 2. Printed are accuracies with 95 % intervals over seeds, differences paired by seed, and the share of
weights on words that is 0.

    python examples/sparse_trec.py DATA [epochs] [seeds, from 2] [results.json]

DATA is a folder with train.parquet and test.parquet, or a dataset of the hub, with columns text and coarse_label.
"""

import json
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn

import fenchel
from data import check_columns, label_names, padded, read_splits
from experiment import run_positional
from fenchel.nn import MultiheadAttention
from intervals import shown

WIDTH, HEADS, LONGEST, BATCH = 64, 4, 40, 64
ORDERS = {f"order {order:g}": {"closeness": fenchel.Tsallis(order)} for order in (1.5, 2)}
ARMS = {"softmax": {}, **ORDERS, "learned order": ORDERS["order 1.5"] | {"learn_order": True}}
CUT = "softmax, cut"


class Reader(nn.Module):
    """Self-attention, a learned question, and classes."""

    def __init__(self, words: int, classes: int, options: dict) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, WIDTH, padding_idx=0)
        self.place = nn.Parameter(0.02 * torch.randn(LONGEST, WIDTH))
        self.question = nn.Parameter(torch.randn(1, 1, WIDTH))
        layers = (MultiheadAttention(WIDTH, HEADS, batch_first=True, **options) for _ in range(2))
        self.layers = nn.ModuleList(layers)  # the words read each other, then a question is asked of them
        self.dropout, self.classify = nn.Dropout(0.5), nn.Linear(WIDTH, classes)

    def forward(self, numbers: Tensor, *keep: int) -> tuple[Tensor, list[Tensor]]:
        """Logits and the weights (B, H, m, n) of both layers; ``keep``: of each query only so many, the largest."""
        x, weights = self.dropout(self.embed(numbers) + self.place[: numbers.shape[1]]), []
        for place, layer in enumerate(self.layers):
            given = (self.question.expand(len(x), -1, -1) if place else x, x, x, numbers == 0)
            out, result = layer(*given, average_attn_weights=False)
            if keep and keep[place] < x.shape[1]:
                cut = (result < result.topk(keep[place], -1).values[..., -1:]).flatten(0, 1)
                out, result = layer(*given, attn_mask=cut, average_attn_weights=False)
            x = out if place else x + out
            weights.append(result)
        return self.classify(self.dropout(x[:, 0])), weights


def trained(model: Reader, seed: int, epochs: int, numbers: Tensor, labels: Tensor) -> Reader:
    """The model after so many epochs."""
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    steps = -(-len(labels) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, epochs=epochs, steps_per_epoch=steps)
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
    result = {"accuracy": 100 * (logits.argmax(-1) == labels).double().mean().item()}
    real = (numbers > 0).double()
    for name, weights, asked in zip(("read", "ask"), layers, (real, real[:, :1]), strict=True):
        pairs = (asked[:, None, :, None] * real[:, None, None]).expand_as(weights)
        kept = ((weights > 0) * pairs).sum() / pairs.sum()
        of_a_query = kept * pairs.sum() / asked.sum() / HEADS
        result |= {f"{name}_zero": 100 * (1 - kept.item()), f"{name}_kept": of_a_query.item()}
    return result


def main(data: str, epochs: int = 10, seeds: int = 8, out: str = "") -> None:
    """Train every arm with every seed."""
    splits = read_splits(data, ("train", "test"), toy=False)
    check_columns(splits, ("text", "coarse_label"), data)
    train, test = ([text.lower().split() for text in splits[name]["text"]] for name in ("train", "test"))
    counts = Counter(word for words in train for word in words)
    known = sorted((word for word in counts if counts[word] > 1), key=lambda word: (-counts[word], word))
    classes = len(label_names(splits["train"], "coarse_label"))
    place = {word: number for number, word in enumerate(known, 2)}
    x, u = (padded([[place.get(w, 1) for w in text[:LONGEST]] for text in part]) for part in (train, test))
    y, v = (torch.tensor(splits[name]["coarse_label"]) for name in ("train", "test"))
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in (*ARMS, CUT)}
    for seed in range(seeds):
        models = {}
        for name, options in ARMS.items():
            torch.manual_seed(seed)
            models[name] = trained(Reader(len(known) + 2, classes, options), seed, epochs, x, y)
            runs[name].append(tested(models[name], u, v))
        kept = (max(1, round(runs["order 2"][-1][f"{layer}_kept"])) for layer in ("read", "ask"))
        runs[CUT].append(tested(models["softmax"], u, v, *kept))
    print(f"{len(y)} questions, {len(v)} to test on, {epochs} epochs, {seeds} seeds")
    for name, found in runs.items():
        right, plain = ([one["accuracy"] for one in some] for some in (found, runs["softmax"]))
        more = [one - other for one, other in zip(right, plain, strict=True)]
        read, ask = (sum(one[f"{layer}_zero"] for one in found) / seeds for layer in ("read", "ask"))
        said = f"{shown(right)} % right, {shown(more)} more than softmax"
        print(f"{name:14}{said}; zero: {read:.1f} % and {ask:.1f} %")
    if out:
        Path(out).write_text(json.dumps({"epochs": epochs, "seeds": seeds, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    run_positional(main, __doc__, epochs=1, seeds=2)
