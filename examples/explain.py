"""Is attention explanation? Weights of classifiers of texts beside other measures of which words matter.

    python examples/explain.py --data toy
    python examples/explain.py --data FOLDER/sst2 --encoders words lstm --out explain.json
    python examples/explain.py --run runs/toy

Classifiers of ``reading.py`` (or its run) are asked which words of a text matter: by gradients (captum), by leaving out
words, by attention, by exact inference of the weights, and by what of the weights reaches the output (effective
attention). Then weights are permuted, replaced by others with the same output, erased in the order of each measure,
made uniform, and trained to be different. The controls: random scores, and models that have not learned.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from captum.attr import InputXGradient, IntegratedGradients, Saliency
from scipy.optimize import linprog
from scipy.stats import kendalltau
from torch import Tensor, nn

from common import load_run
from experiment import main
from fenchel.errors import InputError
from fenchel.integrations.transformers import load_model
from fenchel.nn import use_estimator
from intervals import interval
from reading import PADDING, Classifier, Reading, ReadingOptions
from task import option, several

MEASURES = (
    *("attention", "exact attention", "effective attention", "gradient", "gradient x input"),
    *("integrated gradients", "leave one out", "random"),
)
PERMUTED, STEPS, APART, SOME = 30, 20, 0.1, 300


@dataclass
class Options:
    """What is run."""

    data: str = option("toy", "toy, a folder with train.parquet, or a dataset of the hub")
    run: str = option("", "run of reading.py to explain instead")
    encoders: list[str] = several("words, lstm, or the name of an encoder that is frozen; none: words")
    estimator: str = option("exact", "of the weights that are compared with the classifier's own")
    train: int = option(3000, "texts to train on")
    texts: int = option(100, "texts of the test that are explained")
    epochs: int = option(5, "passes over the texts")
    width: int = option(64, "of states")
    seed: int = option(0, "of weights and draws")
    out: str = option("", "file of the results")


class Frozen(nn.Module):
    """States of an encoder that does not learn, (B, n, width); 0 for padding."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder, self.embed = encoder.requires_grad_(False), encoder.get_input_embeddings()

    def forward(self, words: Tensor) -> Tensor:
        """States of words (B, n)."""
        real = words != PADDING
        return self.encoder(input_ids=words, attention_mask=real.long())[0] * real.unsqueeze(-1)


def prepared(options: Options, name: str) -> tuple[Reading, Callable[[str], Classifier]]:
    """The texts, and what makes a classifier with an attention of reading.py."""
    known = {"data": options.data, "width": options.width, "dropout": 0.1, "quiet": True}
    encoder, tokenizer = None, None
    if name not in ("words", "lstm"):
        encoder, tokenizer, _ = load_model(name)
        known["width"] = encoder.config.hidden_size
    task = Reading(ReadingOptions(**known, encoder=name if encoder is None else "words"))
    if len(task.texts) > 1:
        raise InputError(
            f"{options.data} has pairs of texts; expected single texts. Give --data toy, or others."
        )
    if tokenizer is not None:
        task.tokenizer = tokenizer.backend_tokenizer
        task.tokenizer.no_padding()
        task.splits = {split: [*map(task.with_words, some)] for split, some in task.splits.items()}
    task.splits["train"] = task.splits["train"][: options.train]

    return task, maker(task, encoder)


def maker(task: Reading, encoder: Any = None) -> Callable[[str], Classifier]:
    """What makes a classifier with an attention of reading.py; of the states of an encoder, where one is given."""

    def make(attention: str) -> Classifier:
        options = copy.copy(task.options)
        options.attention = attention
        model: Any = Classifier(task.tokenizer.get_vocab_size(), len(task.classes), options)
        model.states = model.states if encoder is None else Frozen(encoder)
        return model

    return make


def trained(task: Reading, model: Classifier, epochs: int, base: Classifier | None = None) -> Classifier:
    """A classifier after some epochs; to answer as another does by other weights, where that is given."""
    optimiser = torch.optim.Adam([one for one in model.parameters() if one.requires_grad], 2e-3)
    for epoch in range(epochs):
        for numbers in task.batches("train", 32, epoch):
            batch = task.batch([task.splits["train"][one] for one in numbers], training=True)
            model.train()
            said = model(batch["words"], need_weights=base is not None)
            loss = task.losses(said, batch).mean()
            if base is not None:
                with torch.no_grad():
                    known = base(batch["words"], need_weights=True)
                loss = (said["logits"].softmax(-1) - known["logits"].softmax(-1)).abs().sum(-1).mean() / 2
                mine, others = (one["weights"].mean(1)[:, 0].clamp_min(1e-9) for one in (said, known))
                loss = loss - APART * (mine * (mine / others).log()).sum(-1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval()


class Opened:
    """The attention of a classifier on one text, whose answer is linear in the weights.

    Attributes:
        weights: Of each head, (H, n).
        keys: Templates of each head, (H, n, d).
        values: Of each head, (H, n, d).
        said: What a word adds to the logits at weight 1, (H, n, classes).
    """

    @torch.no_grad()
    def __init__(self, model: Classifier, words: Tensor) -> None:
        attention: Any = model.attention
        self.weights = model(words[None], need_weights=True)["weights"][0, :, 0]
        mapped = nn.functional.linear(
            model.states(words[None])[0], attention.in_proj_weight, attention.in_proj_bias
        )
        by_head = mapped.unflatten(-1, (3, attention.num_heads, -1)).permute(1, 2, 0, 3)
        self.keys, self.values = by_head[1] * by_head.shape[-1] ** -0.5, by_head[2]
        read = (model.head.weight @ attention.out_proj.weight).unflatten(-1, (attention.num_heads, -1))
        self.said = torch.einsum("hnd,chd->hnc", self.values, read)
        self.bias = model.head(attention.out_proj.bias)

    def chances(self, weights: Tensor) -> Tensor:
        """Probabilities (..., classes) by other weights (..., H, n)."""
        return (torch.einsum("...hn,hnc->...c", weights, self.said) + self.bias).softmax(-1)


def effective(weights: Tensor, values: Tensor) -> Tensor:
    """What of the weights (H, n) reaches the output: without their part in the null space of the values (H, n, d)."""
    spanned = values.double() @ torch.linalg.pinv(values.double(), rtol=1e-6)
    return (spanned @ weights.double().unsqueeze(-1))[..., 0].to(weights)


def from_embeddings(model: Classifier, words: Tensor) -> Callable[[Tensor], Tensor]:
    """Logits as a function of the embeddings (B, n, width) of a text."""

    def said(embedded: Tensor) -> Tensor:
        hook = model.states.embed.register_forward_hook(lambda *_: embedded)
        try:
            return model(words.expand(len(embedded), -1))["logits"]
        finally:
            hook.remove()

    return said


def measures(model: Classifier, words: Tensor, opened: Opened, estimator: str) -> dict[str, Tensor]:
    """How much each word of a text matters to the class that is answered, (n,), by each measure."""
    said, target = from_embeddings(model, words), int(opened.chances(opened.weights).argmax())
    embedded = model.states.embed(words[None]).detach().requires_grad_()
    result = {
        "gradient": Saliency(said).attribute(embedded, target=target, abs=False)[0].norm(dim=-1),
        "gradient x input": InputXGradient(said).attribute(embedded, target=target)[0].sum(-1).abs(),
        "integrated gradients": IntegratedGradients(said)
        .attribute(embedded, target=target, n_steps=STEPS, internal_batch_size=STEPS)[0]
        .sum(-1)
        .abs(),
    }
    with torch.no_grad():
        left = torch.stack([torch.cat((words[:at], words[at + 1 :])) for at in range(len(words))])
        chances = model(left)["logits"].softmax(-1)[:, target]
        result["leave one out"] = (opened.chances(opened.weights)[target] - chances).abs()
        with use_estimator(model, estimator):
            result["exact attention"] = model(words[None], need_weights=True)["weights"][0, :, 0].mean(0)
    result["attention"] = opened.weights.mean(0)
    result["effective attention"] = effective(opened.weights, opened.values).mean(0)
    result["random"] = torch.rand(len(words))
    return {name: result[name].detach() for name in MEASURES}


def erased(opened: Opened, score: Tensor) -> float:
    """The share of words whose weights are erased, the largest scores first, until the decision changes; 1 if never."""
    count = len(score)
    rank = score.argsort(descending=True).argsort()
    kept = rank >= torch.arange(count)[:, None]  # (erased words, n)
    weights = opened.weights * kept.unsqueeze(1)
    decisions = opened.chances(weights / weights.sum(-1, keepdim=True).clamp_min(1e-12)).argmax(-1)
    changed = (decisions != decisions[0]).nonzero()
    return int(changed[0]) / count if len(changed) else 1.0


def other_weights(opened: Opened) -> Tensor:
    """Weights (H, n) with the same logits that have as little as possible in common with the classifier's."""
    heads, count = opened.weights.shape
    weights = opened.weights.double().flatten().numpy()
    said = opened.said.double().flatten(0, 1).T.numpy()
    kept = np.concatenate((np.kron(np.eye(heads), np.ones(count)), said))
    result = linprog(weights, A_eq=kept, b_eq=kept @ weights, bounds=(0, 1))
    other = result.x.clip(0, 1) if result.success else weights  # bounds hold to the tolerance of the solver
    return torch.from_numpy(other).view(heads, count).to(opened.weights)


def same_mean(weights: Tensor, keys: Tensor) -> Tensor:
    """Other weights (H, n) with the same mean of the keys (H, n, d): a random step that ends before one is 0."""
    kept = torch.cat((keys, torch.ones_like(keys[..., :1])), -1).double()
    step = torch.randn(weights.shape, dtype=torch.double).unsqueeze(-1)
    step = (step - kept @ (torch.linalg.pinv(kept, rtol=1e-6) @ step))[..., 0]
    longest = torch.where(step < -1e-9, -weights.double() / step, torch.inf).amin(-1, keepdim=True)
    return weights + 0.9 * torch.where(longest.isfinite(), longest, 0) * step


def divergence(p: Tensor, q: Tensor | float) -> Tensor:
    """K(p, q) of the last dimension."""
    return torch.xlogy(p, p).sum(-1) - torch.xlogy(p, torch.as_tensor(q).to(p)).sum(-1)


def explained(model: Classifier, words: Tensor, estimator: str) -> dict[str, float]:
    """All numbers of one text."""
    opened = Opened(model, words)
    scores, found = measures(model, words, opened, estimator), {}
    with torch.no_grad():
        weights, chances = opened.weights, opened.chances(opened.weights)
        for name, score in scores.items():
            for other in ("attention", "leave one out"):
                result: Any = kendalltau(score, scores[other])
                tau = float(result[0])
                found[f"{name}: tau to {other}"] = 0.0 if np.isnan(tau) else tau
            found[f"{name}: erased"] = erased(opened, score)
        shuffled = torch.stack([weights[:, torch.randperm(len(words))] for _ in range(PERMUTED)])
        apart = (opened.chances(shuffled) - chances).abs().sum(-1) / 2
        other, same = other_weights(opened), same_mean(weights, opened.keys)
        found["permuted: change"], found["permuted: largest"] = float(apart.median()), float(apart.max())
        found["other weights: distance"] = float((other - weights).abs().sum(-1).mean() / 2)
        found["other weights: change"] = float((opened.chances(other) - chances).abs().sum() / 2)
        hidden = (effective(weights, opened.values) - weights).norm(dim=-1) / weights.norm(dim=-1)
        found["hidden share"] = float(hidden.mean())
        farther = divergence(same, 1 / len(words)) - divergence(weights.double(), 1 / len(words))
        found["same mean: farther"] = float(farther.mean())
        found["same mean: divergence"] = float(divergence(same, weights).mean())
    return found


@torch.no_grad()
def tested(task: Reading, model: Classifier, base: Classifier) -> dict[str, list[float]]:
    """Of each text of the test whether a class is right and that of the base, and how far the weights are (JSD)."""
    result: dict[str, list[float]] = {"right": [], "agrees": [], "divergence": []}
    for one in task.splits["test"][:SOME]:
        words = torch.tensor(one["words"])
        looks = model.attention is not None
        mine, others = model(words, need_weights=looks), base(words, need_weights=True)
        result["right"].append(float(mine["logits"].argmax() == one["label"]))
        result["agrees"].append(float(mine["logits"].argmax() == others["logits"].argmax()))
        known = others["weights"].mean(1)[0, 0]
        p = mine["weights"].mean(1)[0, 0] if looks else torch.full_like(known, 1 / len(known))
        middle = (p + known) / 2
        result["divergence"].append(float(divergence(p, middle) + divergence(known, middle)) / 2)
    return result


def summary(columns: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Mean and half of the 95 % interval over texts."""
    return {name: interval(values)[:2] for name, values in columns.items()}


def study(options: Options) -> dict[str, Any]:
    """All results, by encoder.

    Raises:
        InputError: If the texts or the run cannot be used.
    """
    result: dict[str, Any] = {}
    for name in ["run"] if options.run else options.encoders or ["words"]:
        torch.manual_seed(options.seed)
        if options.run:
            task, model = load_run(Reading, ReadingOptions, options.run)
            if not isinstance(model, Classifier) or task.options.attention != "soft":
                raise InputError(
                    f"{options.run} has no soft attention to single texts. Train with --attention soft."
                )
            make = maker(task)
        else:
            task, make = prepared(options, name)
            model = trained(task, make("soft"), options.epochs)
        new = make("soft").eval()
        models = {
            "as trained": model,
            "another seed": trained(task, make("soft"), options.epochs),
            "uniform weights": trained(task, make("mean"), options.epochs),
            "adversarial weights": trained(task, make("soft"), options.epochs, model),
        }
        texts = [torch.tensor(one["words"][0]) for one in task.splits["test"] if len(one["words"][0]) > 2]
        one: dict[str, Any] = {
            "models": {kind: summary(tested(task, other, model)) for kind, other in models.items()}
        }
        for kind, other in (("trained", model), ("untrained", new)):
            rows = [explained(other, words, options.estimator) for words in texts[: options.texts]]
            one[kind] = summary({column: [row[column] for row in rows] for column in rows[0]})
        result[name] = one
    return {"encoders": result}


def printed(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines of Markdown: three tables of each encoder."""

    def cells(row: Mapping[str, Any], *names: str) -> str:
        return " | ".join("{:.3f} ± {:.3f}".format(*row[name]) for name in names).replace("-", "−")

    for name, one in found["encoders"].items():
        kinds = "τ to attention | τ to leave one out | erased"
        yield from (f"| {name} | {kinds} | untrained: {kinds} |", f"|---|{6 * '---|'}")
        for measure in MEASURES:
            names = [f"{measure}: {what}" for what in ("tau to attention", "tau to leave one out", "erased")]
            yield f"| {measure} | {cells(one['trained'], *names)} | {cells(one['untrained'], *names)} |"
        yield from ("", f"| {name} | trained | untrained |", "|---|---|---|")
        for what in [what for what in one["trained"] if what.split(":")[0] not in MEASURES]:
            yield f"| {what} | {cells(one['trained'], what)} | {cells(one['untrained'], what)} |"
        yield from ("", f"| {name} | right | agrees | divergence |", "|---|---|---|---|")
        for kind, row in one["models"].items():
            yield f"| {kind} | {cells(row, 'right', 'agrees', 'divergence')} |"
        yield ""


if __name__ == "__main__":
    main(Options, study, printed)
