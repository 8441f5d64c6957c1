"""A step of the translator: against attention in three lines of torch, and queries against each other."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.recording import compare, record
from fenchel.models import Translator
from fenchel.nn.inference import Inferred
from fenchel.train import TranslationOptions
from fenchel.train.precision import autocast, chosen_precision
from fenchel.train.translation.cross_entropy import smoothed_cross_entropy

TARGETS = {
    "a step, of the same model with attention in three lines of torch, at most": 1.2,
    "a step with bahdanau's queries, of one with the paper's, at least": 2.0,
}
OPTIONS = TranslationOptions(data="multi30k").resolved()
WORDS = 5000
LENGTHS = 15, 17  # means on Multi30k, in pieces of words
CPU = torch.device("cpu")


class ThreeLines(nn.Module):
    """Softmax attention as it is usually written."""

    def forward(
        self, templates: Tensor, values: Tensor, evidence: Tensor, mask: Tensor, **_: Any
    ) -> Inferred:
        scores = evidence @ templates.mT
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        return Inferred(weights @ values)

    @contextlib.contextmanager
    def steps(self) -> Iterator[None]:
        yield


def sentences(mean: int, *, begin: bool) -> Tensor:
    """A batch of sentences that are within three words of as long."""
    numbers = torch.randint(4, WORDS, (OPTIONS.batch_size, mean + 3))
    lengths = torch.randint(mean - 3, mean + 4, (OPTIONS.batch_size, 1))
    numbers[torch.arange(mean + 3) >= lengths] = 0
    if begin:
        numbers[:, 0] = Translator.BEGIN
    return numbers


def step(*, plain: bool = False, **changes: Any) -> Callable[[], None]:
    """A step of a training with the default options: forward, loss, backward, clipping, AdamW."""
    torch.manual_seed(0)
    model = Translator(WORDS, WORDS, **{"width": OPTIONS.width, "dropout": OPTIONS.dropout, **changes})
    if plain:
        model.inference = ThreeLines()  # pyright: ignore[reportAttributeAccessIssue]
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    source, target = sentences(LENGTHS[0], begin=False), sentences(LENGTHS[1], begin=True)
    labels = target[:, 1:].flatten()
    precision = chosen_precision("auto", CPU)

    def run() -> None:
        with autocast(precision, CPU):
            scores = model(source=source, target=target[:, :-1])
        loss, _ = smoothed_cross_entropy(
            scores.float().flatten(0, 1), labels, smoothing=OPTIONS.label_smoothing, divisor=len(labels)
        )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    found = compare(
        {
            **{query: step(query=query) for query in ("paper", "bahdanau", "luong")},
            **{
                f"{query}, three lines": step(query=query, plain=True)
                for query in ("paper", "bahdanau", "luong")
            },
            "bahdanau, additive score": step(query="bahdanau", score="additive"),
            "paper, without attention": step(attention="none"),
            "paper, second order": step(estimator="second_order"),
        },
        rounds,
    )
    exact = compare({"paper, exact": step(estimator="exact")}, max(2, rounds // 5))
    median = {name: times["median_s"] for name, times in {**found, **exact}.items()}
    record(
        "translator",
        {
            "shape": {
                "batch": OPTIONS.batch_size,
                "width": OPTIONS.width,
                "words": WORDS,
                "lengths": LENGTHS,
                "precision": chosen_precision("auto", CPU),
            },
            "targets": TARGETS,
            "seconds a step": {**found, **exact},
            "of three lines of torch": {
                query: median[query] / median[f"{query}, three lines"]
                for query in ("paper", "bahdanau", "luong")
            },
            "bahdanau, of paper": median["bahdanau"] / median["paper"],
        },
    )


if __name__ == "__main__":
    main()
