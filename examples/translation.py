"""Translation, the first running example of the papers (figure 2a): attention of a decoder to a sentence.

::

    python translation.py train --data toy --out runs/toy
    python translation.py train --data FOLDER --source en --target de --out runs/en-de
    python translation.py use runs/en-de --sentences "A dog runs." --beam 5 --heatmap dog.png

``FOLDER`` has ``train.parquet``, ``validation.parquet`` and ``test.parquet`` with a column of text for each language.
"""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import common
import decoding
from data import check_columns, padded, read_splits, validation_and_test
from decoding import BEGIN, END, PAD, Attention, State
from fenchel.errors import InputError
from fenchel.nn import MultiheadAttention, preference, sinusoids
from task import Batch, CosineOptions, Record, Task, choice, option, several

POOL = 50  # batches whose pairs are sorted by length together


@dataclass
class TranslationOptions(CosineOptions):
    """Options of a training; the defaults are those of the recorded results, but for toy data."""

    source: str = option("en", "column to translate from (toy data have none)")
    target: str = option("de", "column to translate into")
    model: str = choice("the papers' figure 2a, or a transformer", "lstm", "transformer")
    query: str = choice("of lstm: a state that never saw h, or the textbook's", "paper", "bahdanau", "luong")
    score: str = choice("of lstm", "general", "dot", "additive")
    preference: str = choice(
        "of lstm: uniform; context, what the sentence itself says is important; relative, a weight for each distance; "
        "aligned, a Gaussian around the place that goes with the word by the ratio of lengths; predicted, one around a "
        "place that the query says; location, Luong's weights of places by the query",
        *("uniform", "context", "relative", "aligned", "predicted", "location"),
    )
    context: str = choice("of lstm; mean and last are the same for all words", "attention", "mean", "last")
    estimator: str = choice("of attention", *decoding.ESTIMATORS)
    alpha: float = option(1.0, "reliability of the evidence")
    order: float = option(1.0, "of Tsallis' closeness: 1 is softmax, 2 sparsemax (lstm)")
    head: str = choice("of lstm: tanh(W[h; s]), or h + s as in figure 2a", "concat", "add")
    width: int = option(-1, "of embeddings and states; -1: 32 for toy data, else 256")
    depth: int = option(-1, "layers on either side; -1: 1 for toy data, else 2")
    heads: int = option(4, "of transformer")
    dropout: float = option(-1.0, "share of elements dropped; -1: 0 for toy data, else 0.3")
    label_smoothing: float = option(0.1, "share of each label that is spread over all pieces")
    subwords: int = option(5000, "pieces of words that a tokenizer knows at most")
    longest: int = option(100, "pieces of a sentence at most; longer pairs are not trained on")
    epochs: int = option(8, "passes over the data")
    learning_rate: float = option(-1.0, "the largest; -1: 0.01 for toy data, else 0.002")
    clip_norm: float = option(1.0, "largest norm of the gradient; 0: no limit")

    def __post_init__(self) -> None:
        toy = {"width": 32, "depth": 1, "dropout": 0.0, "learning_rate": 0.01}
        usual = {"width": 256, "depth": 2, "dropout": 0.3, "learning_rate": 0.002}
        for name, value in (toy if self.data == "toy" else usual).items():
            if getattr(self, name) == -1:
                setattr(self, name, value)
        super().__post_init__()
        if self.width % 2:
            raise InputError(f"width is {self.width}; expected an even number.")
        if self.score == "additive" and self.estimator != "first_order":
            given = f"estimator is {self.estimator} with an additive score"
            raise InputError(f"{given}, which is all preference: all give the same. Leave --estimator out.")


class Pair(NamedTuple):
    """A sentence and its translation, as texts and as numbers of pieces."""

    source: str
    target: str
    pieces: list[int]  # of the source, with END
    labels: list[int]  # of the target, with BEGIN and END


def toy_pairs(count: int) -> list[tuple[str, str]]:
    """Sentences of a made-up language and their translations: other words, and adjectives behind their nouns."""
    generator = random.Random(0)  # noqa: S311
    stems = [first + second for first in "bdfgklmn" for second in "aeo"]

    def phrase() -> tuple[str, str]:
        noun, adjective = generator.choices(stems, k=2)
        if generator.random() < 0.4:
            return f"{noun}le", f"{noun[::-1]}lin"
        return f"{adjective}k {noun}le", f"{noun[::-1]}lin {adjective}sch"

    pairs = []
    for _ in range(count):
        first, second = phrase()
        for verb in generator.choices(stems, k=generator.randint(1, 3)):
            subject, translated = phrase()
            first, second = f"{first} {verb}tu {subject}", f"{second} {verb[::-1]}ton {translated}"
        pairs.append((first, second))
    return pairs


def read_pairs(options: TranslationOptions) -> dict[str, list[tuple[str, str]]]:
    """The texts of all splits.

    Raises:
        InputError: If data or columns are missing, or a text is empty.
    """
    if options.data == "toy":
        pairs = toy_pairs(3200)
        return {"train": pairs[:3000], "validation": pairs[3000:3100], "test": pairs[3100:]}
    result = read_splits(options.data)
    columns, splits = (options.source, options.target), {}
    check_columns(result, columns, options.data)
    for name, rows in validation_and_test(result).items():
        splits[str(name)] = list(zip(*(rows[column] for column in columns), strict=True))
        for number, pair in enumerate(splits[str(name)]):
            if not all(isinstance(text, str) and text.strip() for text in pair):
                where = f"{options.data}, {name}, row {number}, has the texts {pair}"
                raise InputError(f"{where}; expected two that are not empty. Remove it.")
    return splits


class LSTMTranslator(nn.Module):
    r"""The papers' figure 2a: LSTMs over the source give templates, LSTMs over the target so far the evidence.

    Args:
        options: Of the training.
        sizes: How many pieces the source and the target have.
        length_ratio: Pieces of the source for each of the target.
    """

    def __init__(self, options: TranslationOptions, sizes: Sequence[int], length_ratio: float) -> None:
        super().__init__()
        self.options, width, depth = options, options.width, options.depth
        self.embed_source = nn.Embedding(sizes[0], width, padding_idx=PAD)
        self.forwards = nn.ModuleList(nn.LSTM(width, width // 2, batch_first=True) for _ in range(depth))
        self.backwards = nn.ModuleList(nn.LSTM(width, width // 2, batch_first=True) for _ in range(depth))
        self.embed_target = nn.Embedding(sizes[1], width, padding_idx=PAD)
        widths = [width if options.query == "paper" else 2 * width, *[width] * (depth - 1)]
        self.decoder = nn.ModuleList(nn.LSTM(one, width, batch_first=True) for one in widths)
        self.bridge = nn.Linear(width, 2 * depth * width)
        general, additive = options.score == "general", options.score == "additive"
        self.additive = preference.Additive(1, width, hidden=width) if additive else None
        if options.context == "attention":
            self.evidence = nn.Linear(width, width, bias=False) if general else nn.Identity()
            self.preference = preference_of(options, length_ratio)
            self.attention = Attention(options.estimator, options.alpha, options.order)
        self.join = nn.Linear(2 * width, width, bias=False) if options.head == "concat" else None
        self.bias = nn.Parameter(torch.zeros(sizes[1]))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Scores of the piece after each of the target's, (B, m, pieces).

        Args:
            source: Numbers (B, n), 0 behind the sentence.
            target: Numbers (B, m), BEGIN first, 0 behind the sentence.
        """
        state, words = self.read(source), self.dropped(self.embed_target(target))
        masks, result = [self.mask(words) for _ in self.decoder], []
        if self.options.query == "paper":
            return self.scores(self.advance(words, state, 0, masks)[0])
        with self.attention.steps() if self.options.context == "attention" else nullcontext():
            for place, word in enumerate(words.split(1, 1)):
                x, state = self.advance(word, state, place, masks)
                result.append(x)
        return self.scores(torch.cat(result, 1))

    def read(self, source: Tensor) -> State:
        """Templates (B, n, width), padding (B, n), what the context and the score make of them; x, hidden and cells."""
        padding, places = source == PAD, torch.arange(source.shape[1], device=source.device)
        lengths = (~padding).sum(1, keepdim=True)
        turned = torch.where(places < lengths, lengths - 1 - places, places).unsqueeze(-1)
        states = self.dropped(self.embed_source(source))
        for forwards, backwards in zip(self.forwards, self.backwards, strict=True):
            right = backwards(states.gather(1, turned.expand_as(states)))[0]
            left = forwards(states)[0]
            states = self.dropped(torch.cat((left, right.gather(1, turned.expand_as(right))), -1))
        half = states.shape[-1] // 2
        ends = states.gather(1, (lengths - 1).unsqueeze(-1).expand(-1, 1, half)).squeeze(1)
        last = torch.cat((ends, states[:, 0, half:]), -1)
        kept = enumerate(self.bridge(last).chunk(2 * len(self.decoder), -1))  # hidden and cell of each layer
        cells = [one if place % 2 else one.tanh() for place, one in kept]
        if self.options.context == "mean":
            last = (states * ~padding.unsqueeze(-1)).sum(1) / lengths
        keys = last if self.additive is None else self.additive.keys(states)
        return states, padding, last, keys, torch.zeros_like(last), *cells

    def advance(self, words: Tensor, state: State, place: int, masks: list[Tensor]) -> tuple[Tensor, State]:
        """What scores are made of, (B, m, width), after some words, and the state then; one word but for ``paper``."""
        memory, fed, cells, kept = state[:4], state[4].unsqueeze(1), state[5:], []
        if self.options.query == "bahdanau":
            fed = self.look(cells[-2].unsqueeze(1), memory, place)
        if self.options.query != "paper":
            words = torch.cat((words, fed.to(words.dtype)), -1)
        for layer, (lstm, mask) in enumerate(zip(self.decoder, masks, strict=True)):
            before = cells[2 * layer : 2 * layer + 2]
            if words.shape[1] == 1:  # in half the time of a sequence of one
                after = torch.lstm_cell(words.squeeze(1), before, *lstm.parameters())
                words = after[0].unsqueeze(1)
            else:
                words, after = lstm(words, tuple(one.unsqueeze(0).contiguous() for one in before))
            words, kept = words * mask, [*kept, *(one.view_as(before[0]) for one in after)]
        h = fed if self.options.query == "bahdanau" else self.look(words, memory, place)
        x = h + words if self.join is None else self.join(torch.cat((h, words), -1)).tanh()
        return x, (*memory, x[:, -1], *kept)

    def look(self, queries: Tensor, memory: Sequence[Tensor], place: int) -> Tensor:
        """The context h of queries, (B, m, width), of which the first asks for the word at ``place``."""
        states, padding, fixed, keys = memory
        if self.options.context != "attention":
            return fixed.unsqueeze(1).expand_as(queries)
        sizes = len(states), 1, queries.shape[1], states.shape[1], states.device, states.dtype
        u = self.preference(preference.AttentionInputs(*sizes, queries, states, padding, place))
        if self.additive is not None:
            u = self.additive.scores(queries, keys) + (0 if u is None else u)
        z = torch.zeros_like(queries) if self.additive is not None else self.evidence(queries)
        real = ~padding[:, None, None]
        u = real if u is None else u.masked_fill(~real, -torch.inf)
        return self.attention(states, z, u)[0]

    def scores(self, x: Tensor) -> Tensor:
        """Of all pieces, by their embeddings."""
        return functional.linear(self.dropped(x), self.embed_target.weight, self.bias)

    def mask(self, like: Tensor) -> Tensor:
        """What dropout multiplies states with, (B, 1, width): the same at all words of a sentence."""
        ones = like.new_ones(len(like), 1, self.options.width)
        return functional.dropout(ones, self.options.dropout, self.training)

    def dropped(self, states: Tensor) -> Tensor:
        """States with elements dropped."""
        return states * self.mask(states)

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Scores of the next piece (R, pieces) after the pieces so far (R, t), and the state after them."""
        word = self.embed_target(words[:, -1:])
        x, state = self.advance(word, state, words.shape[1] - 1, [self.mask(word) for _ in self.decoder])
        return self.scores(x).squeeze(1), state


def preference_of(options: TranslationOptions, length_ratio: float) -> preference.AbstractPreference:
    """The preference u, but for padding and an additive score."""
    width = options.width
    factors: dict[str, Any] = {
        "uniform": preference.Uniform,
        "context": lambda: preference.Context(1, width),
        "relative": lambda: preference.RelativePosition(1),
        "aligned": lambda: preference.GaussianWindow(1, 4.0, pace=length_ratio),
        "predicted": lambda: preference.GaussianWindow(1, 4.0, predict_location=True, query_dim=width),
        "location": lambda: preference.Location(1, width, 512),
    }
    return factors[options.preference]()


class TransformerTranslator(nn.Module):
    """A transformer with an encoder and a decoder, whose attention is :class:`fenchel.nn.MultiheadAttention`.

    Args:
        options: Of the training.
        sizes: How many pieces the source and the target have.
    """

    def __init__(self, options: TranslationOptions, sizes: Sequence[int]) -> None:
        super().__init__()
        width, heads, dropout, depth = options.width, options.heads, options.dropout, range(options.depth)
        embeds = [nn.Embedding(size, width, padding_idx=PAD) for size in sizes]
        self.embed_source, self.embed_target = embeds
        shape: Any = {"dropout": dropout, "batch_first": True, "norm_first": True}
        wide = width, heads, 4 * width
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(*wide, **shape) for _ in depth)
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(*wide, **shape) for _ in depth)
        self.norm_source, self.norm_target = nn.LayerNorm(width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(sizes[1]))
        own: Any = {"batch_first": True, "estimator": options.estimator, "alpha": options.alpha}
        for layer in self.encoder:
            layer.self_attn = MultiheadAttention(width, heads, dropout, **own)
        for layer in self.decoder:
            layer.self_attn = MultiheadAttention(width, heads, dropout, preference=preference.Causal(), **own)
            layer.multihead_attn = MultiheadAttention(width, heads, dropout, **own)
        for embed in embeds:
            nn.init.normal_(embed.weight, std=width**-0.5)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Scores of the piece after each of the target's, (B, m, pieces); as ``LSTMTranslator.forward``."""
        return self.decoded(target, *self.read(source))

    def placed(self, embed: nn.Embedding, numbers: Tensor) -> Tensor:
        """Embeddings with the sinusoids of their places."""
        places = sinusoids(torch.arange(numbers.shape[1], device=numbers.device), embed.embedding_dim)
        return embed(numbers) * embed.embedding_dim**0.5 + places

    def read(self, source: Tensor) -> State:
        """The states of the source and its padding."""
        states, padding = self.placed(self.embed_source, source), source == PAD
        for layer in self.encoder:
            states = layer(states, src_key_padding_mask=padding)
        return self.norm_source(states), padding

    def decoded(self, target: Tensor, states: Tensor, padding: Tensor) -> Tensor:
        """Scores (B, m, pieces), from what ``read`` gave."""
        result, masks = self.placed(self.embed_target, target), (target == PAD, padding)
        for layer in self.decoder:
            result = layer(result, states, tgt_key_padding_mask=masks[0], memory_key_padding_mask=masks[1])
        return functional.linear(self.norm_target(result), self.embed_target.weight, self.bias)

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Scores of the next piece (R, pieces) after the pieces so far (R, t), and the state, which stays."""
        return self.decoded(words, *state)[:, -1], state


class Translation(Task):
    """Pairs of sentences; the epoch with the best BLEU of greedy translations is kept."""

    name, metric, larger_is_better = "translation", "bleu", True

    def __init__(self, options: TranslationOptions) -> None:
        super().__init__(options)
        texts, self.splits = read_pairs(options), {}
        self.tokenizers = [
            decoding.kept_tokenizer(options, name, [pair[side] for pair in texts["train"]], options.subwords)
            for side, name in enumerate(("source_tokenizer", "target_tokenizer"))
        ]
        for split, pairs in texts.items():
            sides = zip(*pairs, strict=True)
            encoded = [one.encode_batch(list(side)) for one, side in zip(self.tokenizers, sides, strict=True)]
            rows: Any = zip(pairs, *encoded, strict=True)
            result = [
                Pair(pair[0], pair[1], [*one.ids, END], [BEGIN, *other.ids, END]) for pair, one, other in rows
            ]
            most = options.longest + 1 if split == "train" else float("inf")
            self.splits[split] = [one for one in result if max(len(one.pieces), len(one.labels) - 1) <= most]
        if not self.splits["train"]:
            raise InputError(f"no pair has at most {options.longest} pieces a side. Give a larger --longest.")

    def model(self) -> nn.Module:
        """A translator of these pieces."""
        sizes, train = [one.get_vocab_size() for one in self.tokenizers], self.splits["train"]
        if self.options.model == "transformer":
            return TransformerTranslator(self.options, sizes)
        ratio = sum(len(pair.pieces) for pair in train) / sum(len(pair.labels) - 1 for pair in train)
        return LSTMTranslator(self.options, sizes, ratio)

    def batches(self, split: str, size: int, epoch: int | None) -> Iterator[list[int]]:
        """Pairs of about the same length, other ones in every epoch; in evaluations the short ones first."""
        order = list(range(len(self.splits[split])))
        generator, pool = random.Random(f"{self.options.seed} {epoch}"), len(order)  # noqa: S311
        if epoch is not None:
            generator.shuffle(order)
            pool = POOL * size
        pairs = [(place // pool, self.splits[split][one], one) for place, one in enumerate(order)]
        pairs.sort(key=lambda found: (found[0], len(found[1].labels), len(found[1].pieces)))
        batches = [[one for *_, one in pairs[start : start + size]] for start in range(0, len(pairs), size)]
        if epoch is not None:
            generator.shuffle(batches)
        yield from batches

    def batch(self, examples: Sequence[Pair], *, training: bool) -> Batch:
        """The numbers, and the pairs."""
        source, target = (padded(side) for side in list(zip(*examples, strict=True))[2:])
        labels = target[:, 1:]
        inputs = target[:, :-1] * (labels != PAD)
        return {"source": source, "target": inputs, "labels": labels, "pairs": examples}

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """Cross-entropy with smoothed labels, of all pieces."""
        labels = batch["labels"].flatten()
        scores = model(source=batch["source"], target=batch["target"]).flatten(0, 1).float()
        kept: Any = {"ignore_index": PAD, "label_smoothing": self.options.label_smoothing, "reduction": "sum"}
        return functional.cross_entropy(scores, labels, **kept), int((labels != PAD).sum())

    def records(self, model: nn.Module, batch: Batch) -> list[Record]:
        """Greedy translations, and -log P of the right ones; in float32, whatever is trained in."""
        with torch.autocast(batch["source"].device.type, enabled=False):
            scores = model(source=batch["source"], target=batch["target"])
            nats = decoding.surprise(scores, batch["labels"]).tolist()
            said = self.said(model, batch["source"])
        names, result = ("source", "reference", "translation", "nats", "pieces"), []
        for pair, one, lost in zip(batch["pairs"], said, nats, strict=True):
            options = (
                pair.source,
                pair.target,
                self.tokenizers[1].decode(one.words),
                lost,
                len(pair.labels) - 1,
            )
            result.append(dict(zip(names, options, strict=True)))
        return result

    def metrics(self, records: Sequence[Record]) -> dict[str, float]:
        """BLEU, cased, of plain text; and the cross-entropy a piece, in nats."""
        said, right = ([one[name] for one in records] for name in ("translation", "reference"))
        nats, pieces = (sum(one[name] for one in records) for name in ("nats", "pieces"))
        return {"bleu": decoding.bleu(said, [right])["bleu"], "loss": nats / pieces}

    def audited(self, examples: Sequence[Pair], batch: Batch) -> Batch:
        """See ``Task``."""
        del examples
        tokens = map(decoding.piece_names, self.tokenizers, (batch["source"], batch["target"]))
        return {
            "inputs": {name: batch[name] for name in ("source", "target")},
            "counted": batch["source"] != PAD,
            "counted_decoder": batch["labels"] != PAD,
            **dict(zip(("tokens", "tokens_decoder"), tokens, strict=True)),
            **decoding.measures(batch["labels"]),
        }

    def said(self, model: Any, source: Tensor, **how: Any) -> list[decoding.Said]:
        """Translations as numbers: at most twice as many pieces as the source has, and ten, and END."""
        limits = (2 * (source != PAD).sum(1) + 11).clamp(max=self.options.longest)
        with torch.no_grad():
            return decoding.search(model.step, model.read(source), limits, **how)


@dataclass
class UseOptions(decoding.SearchOptions):
    """Options of ``use``."""

    heatmap: str = option("", "file for a picture of where the first translation looks")
    sentences: list[str] = several("by default of the test")


def use(task: Translation, model: Any, options: UseOptions) -> None:
    """Print a JSON line for each translation; of the test also BLEU and its signature."""
    texts, how, said = (
        options.sentences or [one.source for one in task.splits["test"]],
        options.arguments(),
        [],
    )
    if not all(text.strip() for text in texts):
        raise InputError("a sentence is empty; expected words.")
    rows = [[*one.ids, END] for one in task.tokenizers[0].encode_batch(texts)]
    for start in range(0, len(rows), 64):
        said += task.said(model, padded(rows[start : start + 64]), **how)
    result = [task.tokenizers[1].decode(one.words) for one in said]
    for text, translation, one in zip(texts, result, said, strict=True):
        line = {"source": text, "translation": translation, "log_probability": one.log_probability}
        print(json.dumps(line, ensure_ascii=False))
    if not options.sentences:
        print(json.dumps(decoding.bleu(result, [[one.target for one in task.splits["test"]]])))
    if options.heatmap:
        source, target = torch.tensor([rows[0]]), torch.tensor([[BEGIN, *said[0].words, END]])
        weights = decoding.weights_of(model, source=source, target=target[:, :-1])[0]
        (read,), (written,) = map(decoding.piece_names, task.tokenizers, (source, target))
        common.heatmap(weights, written[1:], read, options.heatmap)


def load(folder: str | Path) -> tuple[nn.Module, list[Batch]]:
    """The model of a run and the batches of its test, for ``fenchel audit`` and ``fenchel swap``."""
    return common.load_test(Translation, TranslationOptions, folder)


if __name__ == "__main__":
    common.main(Translation, TranslationOptions, use, UseOptions)
