"""Reading: texts are classified by a learned question, and pairs of texts by words that look at the other text.

    python examples/reading.py train --data toy --out runs/toy
    python examples/reading.py use runs/toy --text "a private says left , a general says stop"
    python examples/reading.py train --data toy-pairs --out runs/pairs
    python examples/reading.py use runs/pairs --text "a red boat" "a crimson boat" --heatmap pair.png

Labels are classes of a text, or of a pair (entailment); where a column says how related the texts of a pair are, the
model learns that as well. ``--attention mean`` and ``--attention bag`` are controls that look at nothing.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import datasets
import torch
from scipy import stats
from sklearn import metrics
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, normalize

import fenchel
from common import heatmap, load_test, main
from data import check_columns, label_names, learned_words, padded, read_splits, validation_and_test
from fenchel.errors import InputError
from fenchel.nn import MultiheadAttention
from fenchel.nn.evidence import ScaledDot
from fenchel.nn.preference import Context
from task import Options, Record, Task, choice, option, several, to_device

PAIRS = (("sentence_A", "sentence_B"), ("premise", "hypothesis"), ("sentence1", "sentence2"))
TEXTS = (*PAIRS, ("text",), ("sentence",))
LABELS = ("coarse_label", "label")
DEGREES = ("relatedness_score", "similarity_score")
CLOSENESS = {"soft": None, "sparse": fenchel.Tsallis(1.5), "hard": fenchel.Hard()}
ATTENTION = (*CLOSENESS, "mean", "bag")
PADDING, VALUES = 0, torch.arange(1.0, 6.0)  # of relatedness


@dataclass
class ReadingOptions(Options):
    """Options of the training."""

    data: str = option("toy", "toy, toy-pairs, a folder with train.parquet, or a dataset of the hub")
    learning_rate: float = option(2e-3, "the largest")
    attention: str = choice("soft, sparse, hard; controls: mean, bag of words", *ATTENTION)
    estimator: str = choice("of soft attention", "first_order", "second_order", "exact")
    preference: str = choice("u; context: a network weighs words", "uniform", "context")
    alpha: float = option(1.0, "reliability of the evidence")
    scale: float | None = option(None, "factor of the scores; (width / heads) ** -0.5 where it is not given")
    heads: int = option(4, "questions that are asked, or matrices of scores of a pair")
    encoder: str = choice("makes states: words (embeddings) or lstm", "words", "lstm")
    width: int = option(128, "of embeddings, states and hidden layers")
    dropout: float = option(0.3, "of embeddings, states and hidden layers")
    relatedness: float = option(0.5, "share of the loss that is of relatedness, where the data have it")
    text: str = option("", "column of the texts; a known name where it is not given")
    text_pair: str = option("", "column of the second texts of pairs")
    label: str = option("", "column of the classes, such as fine_label")
    degree: str = option("", "column of the relatedness, from 1 to 5")
    vocabulary: int = option(20000, "words that are known at most")
    least: int = option(2, "how often a word has to be in the training data to be known")
    longest: int = option(128, "texts are cut after so many words")

    def __post_init__(self) -> None:
        super().__post_init__()
        looks, at = self.attention in CLOSENESS, f"attention is {self.attention}"
        first = self.estimator == "first_order"
        fits = {
            f"{at}; expected one of {', '.join(ATTENTION)}": self.attention in ATTENTION,
            f"{at} and estimator {self.estimator}, of soft attention": first or self.attention == "soft",
            f"{at}, which has no preference": looks or self.preference == "uniform",
            f"{at}, which has the encoder words": self.attention != "bag" or self.encoder == "words",
        }
        for said in (said for said, one in fits.items() if not one):
            raise InputError(f"{said}. Change one of these options.")


class States(nn.Module):
    """A state for each word (B, n, width): its embedding, or what an LSTM reads in both directions; 0 for padding."""

    def __init__(self, vocabulary: int, options: ReadingOptions) -> None:
        super().__init__()
        width = options.width
        self.embed = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.dropout, self.lstm = nn.Dropout(options.dropout), None
        if options.encoder == "lstm":
            self.lstm = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)

    def forward(self, words: Tensor) -> Tensor:
        """States of words (B, n)."""
        real, states = words != PADDING, self.dropout(self.embed(words))
        if self.lstm is not None:
            pack, unpack = nn.utils.rnn.pack_padded_sequence, nn.utils.rnn.pad_packed_sequence
            read, _ = self.lstm(pack(states, real.sum(1).cpu(), batch_first=True, enforce_sorted=False))
            states = self.dropout(unpack(read, batch_first=True, total_length=words.shape[1])[0])
        return states * real.unsqueeze(-1)


class Attention(MultiheadAttention):
    """The layer of both models; hard attention learns by the gradient of soft attention (straight through).

    Args:
        options: Of the training.
        maps: Whether it has linear maps of queries, keys, values and answers; else these are the identity.
    """

    def __init__(self, options: ReadingOptions, *, maps: bool) -> None:
        self.maps, width, heads = maps, options.width, options.heads
        given: dict[str, Any] = {"estimator": options.estimator, "alpha": options.alpha}
        given |= {"evidence": ScaledDot(options.scale), "closeness": CLOSENESS[options.attention]}
        given |= {"preference": Context(heads, width) if options.preference == "context" else None}
        super().__init__(width, heads, bias=maps, batch_first=True, **given)

    def _reset_parameters(self) -> None:
        super()._reset_parameters()
        if not self.maps:
            for weight in (self.in_proj_weight, self.out_proj.weight):
                weight.data.copy_(torch.eye(self.embed_dim).repeat(len(weight) // self.embed_dim, 1))
                weight.requires_grad_(False)

    def forward(self, *given: Any, **more: Any) -> tuple[Tensor, Tensor | None]:
        """As the layer's own; weights are those of each head."""
        more["average_attn_weights"] = False
        result, weights = super().forward(*given, **more)
        if self.training and isinstance(self.closeness, fenchel.Hard):
            hard, self.closeness = self.closeness, None
            mean, _ = super().forward(*given, **more)
            self.closeness = hard
            result = mean + (result - mean).detach()
        return result, weights


def network(read: int, hidden: int, said: int, dropout: float, *, last: bool = False) -> nn.Sequential:
    """Two layers; what is no last answer is rectified too."""
    layers = [nn.Linear(read, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, said)]
    return nn.Sequential(*layers, *(() if last else (nn.ReLU(),)))


def mean_of(states: Tensor, real: Tensor) -> Tensor:
    """The mean over the words (B, width)."""
    return (states * real.unsqueeze(-1)).sum(1) / real.sum(1, keepdim=True)


class Classifier(nn.Module):
    """Every head asks one learned question of a text, and a linear map of the answers gives the classes."""

    def __init__(self, vocabulary: int, classes: int, options: ReadingOptions) -> None:
        super().__init__()
        width = options.width
        self.states, self.attention = States(vocabulary, options), None
        if options.attention in CLOSENESS:
            self.question, self.attention = nn.Embedding(1, width), Attention(options, maps=True)
        self.value = nn.Linear(width, width) if options.attention == "mean" else nn.Identity()
        self.dropout, self.head = nn.Dropout(options.dropout), nn.Linear(width, classes)

    def forward(self, words: Tensor, *, need_weights: bool = False) -> dict[str, Tensor]:
        """``logits`` (B, classes) of words (B, n), 0 for padding; and ``weights`` (B, heads, 1, n) if asked for."""
        states, real, more = self.states(words), words != PADDING, {}
        if self.attention is None:
            result = mean_of(self.value(states), real)
        else:
            question = self.question.weight.expand(len(words), 1, -1)
            result, weights = self.attention(question, states, states, ~real, need_weights=need_weights)
            result, more = result[:, 0], {} if weights is None else {"weights": weights}
        return {"logits": self.head(self.dropout(result)), **more}


class Pairs(nn.Module):
    """Decomposable attention: every word looks at the other text, and is compared with what it finds there."""

    def __init__(self, vocabulary: int, classes: int, options: ReadingOptions, *, related: bool) -> None:
        super().__init__()
        width, dropout = options.width, options.dropout
        self.states, self.attention, self.compare = States(vocabulary, options), None, None
        if options.attention in CLOSENESS:
            self.f, self.attention = network(width, width, width, dropout), Attention(options, maps=False)
        if options.attention != "bag":
            self.compare = network(4 * width, width, width, dropout)
        self.dropout, self.head = nn.Dropout(dropout), network(2 * width, width, classes, dropout, last=True)
        self.degree = network(2 * width, width, len(VALUES), dropout, last=True) if related else None

    def forward(self, words: Tensor, others: Tensor, *, need_weights: bool = False) -> dict[str, Tensor]:
        """``logits`` (B, classes) of the words of both texts, (B, m) and (B, n); ``relatedness`` (B, 5), ``weights``.

        Both texts are one sequence, in which a word looks at those of the other text: weights are (B, heads, m + n,
        m + n).
        """
        m, real, more = words.shape[1], torch.cat((words, others), 1) != PADDING, {}
        if self.compare is None:
            one, other = (self._summary(text) for text in (words, others))
            read = torch.cat(((one - other).abs(), one * other), -1)
        else:
            a, b = self.states(words), self.states(others)
            states = torch.cat((a, b), 1)
            if self.attention is None:
                means = mean_of(b, real[:, m:]), mean_of(a, real[:, :m])
                result = [mean.unsqueeze(1).expand_as(x) for mean, x in zip(means, (a, b), strict=True)]
                result = torch.cat(result, 1)
            else:
                f = self.f(states) * real.unsqueeze(-1)
                first = torch.arange(real.shape[1], device=a.device) < m
                masks = {"key_padding_mask": ~real, "attn_mask": first == first.unsqueeze(1)}
                result, weights = self.attention(f, f, states, need_weights=need_weights, **masks)
                more = {} if weights is None else {"weights": weights}
            compared = self.compare(torch.cat((states, result, states - result, states * result), -1))
            compared = compared * real.unsqueeze(-1)
            read = torch.cat((compared[:, :m].sum(1), compared[:, m:].sum(1)), -1)
        read = self.dropout(read)
        if self.degree is not None:
            more["relatedness"] = self.degree(read)
        return {"logits": self.head(read), **more}

    def _summary(self, words: Tensor) -> Tensor:
        """The mean of the embeddings, of norm √width."""
        mean = mean_of(self.states.embed(words), words != PADDING)
        return normalize(mean, dim=-1) * mean.shape[-1] ** 0.5


class Reading(Task):
    """Texts, or pairs of them, with their classes."""

    name, metric, larger_is_better = "reading", "accuracy", True

    def __init__(self, options: ReadingOptions) -> None:
        super().__init__(options)
        result = toy(options.data) if options.data in ("toy", "toy-pairs") else read_splits(options.data)
        self.texts, self.label, self.degree = columns_of(result, options)
        train, label = result["train"], self.label
        strings = train.features[label].dtype == "string"
        self.classes = sorted(set(train[label])) if strings else label_names(train, label)
        names = [name for name in ("train", "validation", "test") if name in result]
        rows = {name: datasets.Dataset.from_list(self.rows(result[name], name)) for name in names}
        rows = validation_and_test(datasets.DatasetDict(**rows))
        read = (text for texts in rows["train"]["texts"] for text in texts)
        self.tokenizer = learned_words(read, options.vocabulary, ["[PAD]", "[UNK]"], options.least)
        self.tokenizer.enable_truncation(options.longest)
        self.splits = {str(name): [*map(self.with_words, some)] for name, some in rows.items()}

    def rows(self, rows: datasets.Dataset, split: str) -> list[Record]:
        """Texts, label and relatedness of each row with a label; -1 stands for none.

        Raises:
            InputError: If a text is empty, a label is no class of the training data, or a relatedness is not in [1, 5].
        """
        known: dict[Any, int] = {name: place for place, name in enumerate(self.classes)}
        known |= {place: place for place in range(len(self.classes))}
        columns = [rows[name] for name in self.texts]
        degrees = rows[self.degree] if self.degree else [None] * len(rows)
        together, result = zip(rows[self.label], degrees, *columns, strict=True), []
        for number, (label, degree, *texts) in enumerate(together):
            where = f"{self.options.data}, {split}, row {number}"
            if label == -1:
                continue
            if not all(isinstance(text, str) and text.strip() for text in texts):
                raise InputError(f"{where}: a text is empty; expected some words. Remove such rows.")
            if label not in known:
                raise InputError(f"{where}: {self.label} is {label!r}, no class of the training data.")
            if self.degree and not (isinstance(degree, int | float) and 1 <= degree <= 5):
                raise InputError(f"{where}: {self.degree} is {degree}; expected a number from 1 to 5.")
            one = {"texts": texts, "label": known[label]}
            result.append(one | ({"degree": degree} if self.degree else {}))
        return result

    def with_words(self, row: Any) -> Record:
        """A row with the numbers of the words of its texts."""
        return row | {"words": [one.ids for one in self.tokenizer.encode_batch(row["texts"])]}

    def model(self) -> nn.Module:
        """A classifier of texts, or of pairs."""
        sizes = (self.tokenizer.get_vocab_size(), len(self.classes), self.options)
        return Classifier(*sizes) if len(self.texts) == 1 else Pairs(*sizes, related=bool(self.degree))

    def batch(self, examples: Sequence[Any], *, training: bool) -> Record:
        """Words of the texts side by side, padded; labels and relatedness where they are known."""
        del training
        result: Record = {"examples": examples}
        for place, name in enumerate(("words", "others")[: len(self.texts)]):
            result[name] = padded([one["words"][place] for one in examples])
        for name, kind in (("label", torch.int64), ("degree", torch.float32)):
            if name in examples[0]:
                result[name] = torch.tensor([one[name] for one in examples], dtype=kind)
        return result

    def losses(self, said: dict[str, Tensor], batch: Record) -> Tensor:
        """Of each example: cross-entropy of the class, and divergence of relatedness, in shares.

        Relatedness is a distribution over 1 to 5, on the two whole numbers around it (Tai et al. 2015, eq. 16).
        """
        batch = to_device(batch, said["logits"].device)
        of_label = cross_entropy(said["logits"].float(), batch["label"], reduction="none")
        if "degree" not in batch:
            return of_label
        right = (1 - (batch["degree"].unsqueeze(-1) - VALUES.to(of_label.device)).abs()).clamp_min(0)
        of_degree = kl_div(said["relatedness"].float().log_softmax(-1), right, reduction="none").sum(-1)
        share = self.options.relatedness
        return (1 - share) * of_label + share * of_degree

    def loss(self, model: nn.Module, batch: Record) -> tuple[Tensor, int]:
        """The sum over the examples."""
        return self.losses(model(**inputs(batch)), batch).sum(), len(batch["examples"])

    def records(self, model: nn.Module, batch: Record) -> list[Record]:
        """The probability of each class, the likeliest one, and the relatedness that is expected; what is right."""
        said, result = model(**inputs(batch)), []
        chances = said["logits"].double().softmax(-1)
        degrees = [None] * len(chances)
        if "relatedness" in said:
            degrees = (said["relatedness"].double().softmax(-1) @ VALUES.to(chances)).tolist()
        for one, chance, degree in zip(batch["examples"], chances.tolist(), degrees, strict=True):
            record = {"texts": one["texts"], "said": self.classes[chance.index(max(chance))]}
            record["chances"] = dict(zip(self.classes, chance, strict=True))
            record |= {"label": self.classes[one["label"]]} if "label" in one else {}
            record |= {} if degree is None else {"said_degree": degree}
            result.append(record | ({"degree": one["degree"]} if "degree" in one else {}))
        return result

    def metrics(self, records: Sequence[Record]) -> dict[str, float]:
        """Accuracy and cross-entropy; correlations and squared error of relatedness."""
        right, said = ([one[name] for one in records] for name in ("label", "said"))
        chances = [list(one["chances"].values()) for one in records]
        result = {"accuracy": float(metrics.accuracy_score(right, said))}
        places = [self.classes.index(one) for one in right]
        result["cross_entropy"] = float(metrics.log_loss(places, chances, labels=range(len(self.classes))))
        if "degree" in records[0]:
            true, given = ([one[name] for one in records] for name in ("degree", "said_degree"))
            kinds: dict[str, Any] = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}
            varied = min(max(one) - min(one) for one in (true, given)) > 0
            result |= {name: float(kind(given, true)[0]) if varied else 0.0 for name, kind in kinds.items()}
            result["squared_error"] = float(metrics.mean_squared_error(true, given))
        return result

    def audited(self, examples: Sequence[Any], batch: Record) -> Record:
        """See ``Task``; the two texts of a pair are one sequence, with padding after each."""
        words = torch.cat(list(inputs(batch).values()), 1)
        return {
            "inputs": inputs(batch),
            "counted": words != PADDING,
            "tokens": [[self.tokenizer.id_to_token(number) for number in row] for row in words.tolist()],
            "loss": partial(self.losses, batch=batch),
            "score": partial(hits, labels=batch["label"]),
        }


def inputs(batch: Record) -> dict[str, Tensor]:
    """What the model is called with."""
    return {name: batch[name] for name in ("words", "others") if name in batch}


def columns_of(found: datasets.DatasetDict, options: ReadingOptions) -> tuple[tuple[str, ...], str, str]:
    """Columns of the texts, of the label and of the relatedness ("" for none): those given, or of a known name."""
    there = found["train"].column_names
    texts = tuple(one for one in (options.text, options.text_pair) if one)
    texts = texts or next((some for some in TEXTS if set(some) <= set(there)), ("text",))
    label = options.label or next((one for one in LABELS if one in there), "label")
    degree = options.degree or next((one for one in DEGREES if one in there and len(texts) > 1), "")
    check_columns(found, [*texts, label, *([degree] if degree else [])], options.data)
    return texts, label, degree


# With the letter that is repeated to say it louder.
ORDERS = {"stop": "o", "left": "e", "right": "i", "back": "a"}
STEMS = [one + vowel + "m" for one in "bdfgkt" for vowel in "aeiou"]


def toy(name: str) -> datasets.DatasetDict:
    """Invented texts: orders, of which the loudest is the class (toy); or pairs of lists of words (toy-pairs).

    The second list repeats words of the first (entailment), but that one may be the opposite of one, "unkam" of "kam"
    (contradiction), or another word (neutral). Relatedness is 1 and 4 times the share of its words that are repeated.
    """
    make, result = toy_text if name == "toy" else toy_pair, {}
    for split, count in (("train", 3000), ("validation", 300), ("test", 500)):
        draw = random.Random(f"{name} {split}")  # noqa: S311
        result[split] = datasets.Dataset.from_list([make(draw) for _ in range(count)])
    return datasets.DatasetDict(result)


def toy_text(draw: random.Random) -> dict[str, Any]:
    """An order that is said once, and two that are less loud but repeated."""
    loud = draw.randint(2, 8)
    orders = [(draw.choice(list(ORDERS)), one) for one in (loud, loud - 1, draw.randint(1, loud - 1))]
    words = [order.replace(ORDERS[order], ORDERS[order] * one) for order, one in orders]
    words += words[1:] * draw.randint(1, 4)
    return {"text": " ".join(draw.sample(words, len(words))), "label": orders[0][0]}


def toy_pair(draw: random.Random) -> dict[str, Any]:
    """A list of eight words, and one of two."""
    *first, other = (draw.choice(("", "un")) + stem for stem in draw.sample(STEMS, 9))
    second, label = first[:2], draw.choice(("entailment", "neutral", "contradiction"))
    if label == "contradiction":
        second[0] = second[0].removeprefix("un") if second[0].startswith("un") else f"un{second[0]}"
    elif label == "neutral":
        second[0] = other
    degree = 1 + 4 * sum(word in first for word in second) / 2
    texts = {"sentence_A": " ".join(draw.sample(first, 8)), "sentence_B": " ".join(draw.sample(second, 2))}
    return {**texts, "label": label, "relatedness_score": degree}


@dataclass
class UseOptions:
    """What is read, and what is drawn."""

    text: list[str] = several("texts, or pairs: first, second ...")
    heatmap: str = option("", "file to draw the weights of the first text or pair in")


def use(task: Reading, model: nn.Module, options: UseOptions) -> None:
    """Print what the model says of texts, or of some of the test data, a JSON object a line; draw where it looks."""
    count, examples = len(task.texts), task.splits["test"][:5]
    if options.text:
        if len(options.text) % count or not all(text.strip() for text in options.text):
            kind = "texts" if count == 1 else "pairs of texts (--text FIRST SECOND)"
            raise InputError(f"--text is {options.text}; this model reads {kind}, each of some words.")
        parts = [options.text[place : place + count] for place in range(0, len(options.text), count)]
        examples = [task.with_words({"texts": texts}) for texts in parts]
    with torch.no_grad():
        for record in task.records(model, task.batch(examples, training=False)):
            print(json.dumps(record, ensure_ascii=False))
        if options.heatmap:
            draw_weights(task, model, examples[0], options.heatmap)


def draw_weights(task: Reading, model: nn.Module, example: Record, path: str) -> None:
    """Draw the weights of the words of a pair's first text on those of the second; or of the heads on a text."""
    if task.options.attention not in CLOSENESS:
        raise InputError(f"a model with attention {task.options.attention} has no weights to draw.")
    weights = model(**inputs(task.batch([example], training=False)), need_weights=True)["weights"][0]
    words = [one.tokens for one in task.tokenizer.encode_batch(example["texts"])]
    if len(words) == 1:
        heatmap(weights[:, 0], [f"head {head}" for head in range(1, len(weights) + 1)], words[0], path)
    else:
        m = len(words[0])
        heatmap(weights.mean(0)[:m, m:], words[0], words[1], path)


def load(folder: str) -> tuple[nn.Module, list[Record]]:
    """The model of a run and the batches of its test split, for audits and swaps."""
    return load_test(Reading, ReadingOptions, folder)


def hits(said: dict[str, Tensor], labels: Tensor) -> Tensor:
    """1 where the likeliest class is the right one."""
    return (said["logits"].argmax(-1) == labels.to(said["logits"].device)).double()


if __name__ == "__main__":
    main(Reading, ReadingOptions, use, UseOptions)
