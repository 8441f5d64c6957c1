"""Distillation: a student with every other layer of an encoder learns to answer as all of them do.

The recipe is DistilBERT's (Sanh et al., 2019): layers are copied, and the student follows the teacher. A model with a
head for masked words follows its chances at temperature 2, the words themselves and the direction of its states. A
sentence encoder has no chances; its student follows the similarities of sentences, as chances among those of a batch,
and the direction of each sentence. No label is read in training. The controls are the copied layers before training,
and a student whose layers are random at first. Tested are Spearman's correlation of cosines with how related people
call two sentences (or, with a head, masked words), and the time of a forward pass.

    python examples/distil.py --data $FENCHEL_DATA/parquet/sick --out distil.json
    python examples/distil.py --data toy --sentences 64 --seeds 1 --estimator exact

Training is no inference; attention is the model's own, or has another estimator in all models alike.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import datasets
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, kl_div, normalize

import experiment
from data import check_columns, read_splits
from fenchel.errors import ModelError
from fenchel.integrations.transformers import load_model, use_backend
from task import choice, option

COLUMNS = ("sentence_A", "sentence_B", "relatedness_score")
HEAD_TEMPERATURE, TEMPERATURE, MASKED, IGNORED = 2.0, 0.05, 0.15, -100


@dataclass
class DistilOptions(experiment.ExperimentOptions):
    """Model, data and training."""

    data: str = option("toy", "toy, a folder with train.parquet and test.parquet, or a dataset of the hub")
    model: str = option("demo", "demo for the encoder that comes along, a folder, or a name of the hub")
    sentences: int = option(2000, "to train on, at most")
    pairs: int = option(10_000, "to test on, at most")
    epochs: int = option(3, "passes over the sentences")
    batch: int = option(32, "sentences a step")
    learning_rate: float = option(5e-4, "the largest; it falls to 0")
    estimator: str = choice("of all attention", "first_order", "second_order", "exact")


def toy() -> datasets.DatasetDict:
    """Sentences of three words, as related as they share words."""
    words = (
        ("a dog", "a cat", "a child", "a man"),
        ("sees", "wants", "finds"),
        ("a ball", "a tree", "a river", "food"),
    )
    every, result = list(product(*words)), {}
    for split, step in (("train", 5), ("test", 7)):
        pairs = [(one, every[step * number % len(every)]) for number, one in enumerate(every)]
        shared = [1 + sum(map(str.__eq__, one, other)) for one, other in pairs]
        texts = [[" ".join(one) for one in side] for side in zip(*pairs, strict=True)]
        result[split] = datasets.Dataset.from_dict(dict(zip(COLUMNS, (*texts, shared), strict=True)))
    return datasets.DatasetDict(result)


class Distillation:
    """A teacher, the sentences, and what a student is trained and tested by."""

    def __init__(self, o: DistilOptions) -> None:
        self.options = o
        splits = toy() if o.data == "toy" else read_splits(o.data, ("train", "test"))
        check_columns(splits, COLUMNS, o.data)
        self.test = splits["test"].take(min(o.pairs, len(splits["test"])))
        texts = dict.fromkeys(text for name in COLUMNS[:2] for text in splits["train"][name])
        self.train = sorted(
            list(texts)[: o.sentences], key=len
        )  # sentences of about the same length together
        self.teacher, self.tokenizer, _ = load_model(o.model, with_head=True)
        self.with_head = self.teacher.get_output_embeddings() is not None
        if self.with_head and self.tokenizer.mask_token_id is None:
            raise ModelError(f"{o.model} has a head but no token for a masked word; expected a masked model.")
        lists = [name for name, one in self.teacher.named_modules() if isinstance(one, nn.ModuleList)]
        count = self.teacher.config.num_hidden_layers
        result = [name for name in lists if len(self.teacher.get_submodule(name)) == count]
        if len(result) != 1:
            raise ModelError(f"{o.model} has {len(result)} lists of {count} layers; expected one.")
        self.layers, self.vectors = (
            result[0],
            None if self.with_head else self.embedded(self.teacher, self.train),
        )

    def inferring(self, model: nn.Module) -> AbstractContextManager[Any]:
        """The estimator that was asked for."""
        first = self.options.estimator == "first_order"
        return nullcontext() if first else use_backend(model, self.options.estimator)

    def student(self, *, copied: bool) -> Any:
        """A model with half the layers, every other one of the teacher's or random ones; the rest is the teacher's."""
        config = deepcopy(self.teacher.config)
        config.num_hidden_layers = -(-config.num_hidden_layers // 2)
        student, state = type(self.teacher)(config), {}
        for name, value in self.teacher.state_dict().items():
            if name.startswith(f"{self.layers}."):
                number, rest = name.removeprefix(f"{self.layers}.").split(".", 1)
                if copied and int(number) % 2 == 0:
                    state[f"{self.layers}.{int(number) // 2}.{rest}"] = value
            else:
                state[name] = value
        student.load_state_dict(state, strict=copied)
        return student.eval()

    def tokens(self, texts: Sequence[str]) -> Any:
        """Numbers of the tokens, padded."""
        return self.tokenizer(list(texts), padding=True, truncation=True, max_length=64, return_tensors="pt")

    def vector(self, model: nn.Module, texts: Sequence[str]) -> Tensor:
        """The mean of the last states of each sentence, of length 1, (B, width)."""
        tokens = self.tokens(texts)
        states = model(**tokens, output_hidden_states=True).hidden_states[-1].float()
        real = tokens["attention_mask"].unsqueeze(-1)
        return normalize((states * real).sum(1) / real.sum(1), dim=-1)

    @torch.no_grad()
    def embedded(self, model: nn.Module, texts: Sequence[str]) -> Tensor:
        """Vectors of any number of sentences, in their order."""
        order = sorted(range(len(texts)), key=lambda one: len(texts[one]))
        parts = [order[first : first + 64] for first in range(0, len(order), 64)]
        with self.inferring(model):
            result = torch.cat([self.vector(model, [texts[one] for one in part]) for part in parts])
        return result[torch.tensor(order).argsort()]

    def sentence_loss(self, student: nn.Module, chosen: list[int]) -> Tensor:
        """How far similarities among a batch, and the direction of each sentence, are from the teacher's."""
        assert self.vectors is not None  # noqa: S101 - no head
        theirs, ours = self.vectors[chosen], self.vector(student, [self.train[one] for one in chosen])
        itself = 1e4 * torch.eye(len(chosen))
        logs, goal = (((some @ some.mT) / TEMPERATURE - itself).log_softmax(-1) for some in (ours, theirs))
        return (
            kl_div(logs, goal, reduction="batchmean", log_target=True) + (1 - (ours * theirs).sum(-1)).mean()
        )

    def masked(self, texts: Sequence[str]) -> tuple[Any, Tensor]:
        """Tokens of which some are masked, and those; what is not asked for is -100."""
        tokens = self.tokens(texts)
        ids = tokens["input_ids"]
        special = torch.isin(ids, torch.tensor(self.tokenizer.all_special_ids))
        asked = (torch.rand(ids.shape) < MASKED) & ~special
        return {**tokens, "input_ids": ids.masked_fill(asked, self.tokenizer.mask_token_id)}, ids.where(
            asked, IGNORED
        )

    def head_loss(self, student: nn.Module, chosen: list[int]) -> Tensor:
        """The three terms of DistilBERT: chances, masked words, and the direction of states."""
        tokens, words = self.masked([self.train[one] for one in chosen])
        ours = student(**tokens, output_hidden_states=True)
        with torch.no_grad(), self.inferring(self.teacher):
            theirs = self.teacher(**tokens, output_hidden_states=True)
        real = tokens["attention_mask"].bool()
        logs, goal = ((one.logits[real].float() / HEAD_TEMPERATURE).log_softmax(-1) for one in (ours, theirs))
        chances = HEAD_TEMPERATURE**2 * kl_div(logs, goal, reduction="batchmean", log_target=True)
        known = cross_entropy(ours.logits.flatten(0, 1).float(), words.flatten(), reduction="sum")
        states = [one.hidden_states[-1][real].float() for one in (ours, theirs)]
        return (
            chances + known / (words != IGNORED).sum().clamp(min=1) + (1 - cosine_similarity(*states)).mean()
        )

    def trained(self, student: nn.Module) -> nn.Module:
        """The student after its training."""
        o, loss = self.options, self.head_loss if self.with_head else self.sentence_loss
        parts = [
            list(range(first, min(first + o.batch, len(self.train))))
            for first in range(0, len(self.train), o.batch)
        ]
        optimiser = torch.optim.AdamW(student.parameters(), o.learning_rate, weight_decay=0.01)
        total = o.epochs * len(parts)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: min(1.0, (step + 1) / (0.1 * total), 1 - step / total)
        )
        with self.inferring(student):
            for _ in range(o.epochs):
                for number in torch.randperm(len(parts)).tolist():
                    optimiser.zero_grad()
                    with torch.autocast("cpu", torch.bfloat16, enabled=o.estimator == "first_order"):
                        lost = loss(student, parts[number])
                    lost.backward()
                    nn.utils.clip_grad_norm_(student.parameters(), 1.0)
                    optimiser.step()
                    schedule.step()
        return student

    @torch.no_grad()
    def tested(self, model: nn.Module) -> dict[str, float]:
        """Spearman's correlation; or the loss at masked words, the same for all models."""
        if self.with_head:
            with torch.random.fork_rng([]), self.inferring(model):
                torch.manual_seed(0)
                tokens, words = self.masked(self.test[COLUMNS[0]])
                return {"loss": cross_entropy(model(**tokens).logits.flatten(0, 1), words.flatten()).item()}
        pair = [self.test[name] for name in COLUMNS[:2]]
        texts = list(dict.fromkeys(text for side in pair for text in side))
        vectors, place = self.embedded(model, texts), {text: number for number, text in enumerate(texts)}
        first, second = (vectors[[place[text] for text in side]] for side in pair)
        correlation: Any = spearmanr((first * second).sum(-1), self.test[COLUMNS[2]])
        return {"Spearman": float(correlation.statistic)}

    @torch.no_grad()
    def seconds(self, *models: nn.Module) -> list[float]:
        """The shortest of ten forward passes of each model on a batch, in turn, in CPU time."""
        tokens, times = self.tokens(self.train[len(self.train) // 2 :][:32]), [[] for _ in models]
        for _ in range(10):
            for model, found in zip(models, times, strict=True):
                start = time.process_time()
                model(**tokens)
                found.append(time.process_time() - start)
        return list(map(min, times))

    def run(self, o: DistilOptions, arm: str, seed: int) -> dict[str, float]:
        """Test the teacher, or a student of it."""
        torch.manual_seed(seed)
        if arm == "teacher":
            return self.tested(self.teacher)
        student = self.student(copied=arm != "random layers")
        return self.tested(student if arm.endswith("untrained") else self.trained(student))


def compare(o: DistilOptions) -> dict[str, Any]:
    """Distil into copied and into random layers with every seed."""
    task = Distillation(o)
    student = task.student(copied=True)
    slow, fast = task.seconds(task.teacher, student)
    parameters = [sum(one.numel() for one in model.parameters()) for model in (task.teacher, student)]
    print(
        f"{slow / fast:.2f} times faster, {parameters[1] / parameters[0]:.0%} of the parameters", flush=True
    )
    once = experiment.repeated(task.run, ["teacher", "copied layers, untrained"], replace(o, seeds=1))
    runs = once | experiment.repeated(task.run, ["copied layers", "random layers"], o)
    return {"faster": slow / fast, "parameters": parameters, "runs": runs}


if __name__ == "__main__":
    experiment.main(DistilOptions, compare)
