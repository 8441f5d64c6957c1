"""Are trees of syntax in the states of an encoder? The structural probe of Hewitt and Manning (2019).

    python examples/probe.py --data toy
    python examples/probe.py --data FOLDER/ud_english_ewt --out probe.json

A linear map B of the states is learned so that ‖B(x − y)‖² is the distance of two words in the tree, and another so
that ‖Bx‖² is the depth of a word. Printed are, for every layer, the edges of the tree that a spanning tree of the
distances finds (UUAS), Spearman's correlation of distances (DSpr) and how often the root is the least deep word. The
controls: trees of adjacent words, layer 0 (embeddings), an encoder of random weights. The states of the best layer are
also made by another estimator of attention. The probe is no inference; the encoder's attention is one.

FOLDER holds files ending in train, dev and test, .conllu or .conllu.gz.
"""

import gzip
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import conllu
import numpy as np
import torch
from conllu.exceptions import ParseException
from scipy.sparse.csgraph import minimum_spanning_tree, shortest_path
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel

from experiment import main
from fenchel.errors import InputError
from fenchel.integrations.transformers import load_model, use_backend
from intervals import interval
from task import option
from which_heads import spearman

SPLITS, BATCH, METRICS = ("train", "dev", "test"), 25, ("uuas", "dspr", "root")


@dataclass
class Options:
    """What is run."""

    data: str = option("toy", "toy, or a folder of CoNLL-U files for train, dev and test")
    model: str = option("demo", "encoder: demo, a folder or a name of the hub")
    estimator: str = option("exact", "of attention, put into the encoder for one row of the table")
    out: str = option("", "file of the results")
    rank: int = option(64, "of the maps")
    train: int = option(3000, "sentences to train on")
    test: int = option(500, "sentences of the test, and to choose the best layer")
    longest: int = option(40, "words of a sentence at most; longer ones are left out")
    epochs: int = option(6, "passes over the sentences")
    seed: int = option(0, "of the weights and the order")


class Sentence(NamedTuple):
    """Words and their tree."""

    words: list[str]
    heads: np.ndarray  # (n,), the place of the head; -1: root
    kept: np.ndarray  # (n,), whether a word is no punctuation
    distances: np.ndarray  # (n, n)


def sentences(text: str, place: str) -> Iterator[Sentence]:
    """The sentences of a CoNLL-U file.

    Raises:
        InputError: If a line cannot be read, or heads are no tree, with the line.
    """
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if line.strip():
            block.append(line)
        elif block:
            yield tree(block, f"{place}, line", number - len(block))
            block = []


def tree(block: Sequence[str], place: str, first: int) -> Sentence:
    """One sentence; ``first`` is the number of its first line."""
    words, heads, kept, lines = [], [], [], []
    for number, line in enumerate(block, start=first):
        try:
            for token in () if line.startswith("#") else conllu.parse(line)[0]:
                if isinstance(token["id"], int):
                    words.append(token["form"])
                    heads.append(token["head"] - 1)
                    kept.append(token["upos"] != "PUNCT")
                    lines.append(number)
        except (ParseException, KeyError, IndexError, TypeError) as error:
            raise InputError(
                f"{place} {number}: {str(error)[:80]}. Expected ten columns of CoNLL-U."
            ) from error
    links, at = np.zeros((len(words), len(words))), np.array(heads)
    for word, head in enumerate(heads):
        if not -1 <= head < len(words) or head == word or (head == -1 and word != heads.index(-1)):
            what = f"the head of word {word + 1} is {head + 1}"
            raise InputError(
                f"{place} {lines[word]}: {what}; expected another word, or 0 for one root. Mend it."
            )
        links[word, head] = head >= 0
    if words and -1 not in heads:
        raise InputError(f"{place} {lines[0]}: no word has the head 0; expected one root. Mend the heads.")
    distances = shortest_path(links, directed=False, unweighted=True)
    if len(words) and np.isinf(distances).any():
        word = int(np.isinf(distances[heads.index(-1)]).argmax())
        what = f"word {word + 1} does not lead to the root"
        raise InputError(f"{place} {lines[word]}: {what}; expected a tree. Mend its heads.")
    return Sentence(words, at, np.array(kept), distances)


def read(options: Options) -> list[list[Sentence]]:
    """Sentences of train, dev and test.

    Raises:
        InputError: If a file is missing or malformed.
    """
    if options.data == "toy":
        result = [[*sentences(toy(name, 300 if name == "train" else 60), "toy")] for name in SPLITS]
    else:
        result = []
        for name in SPLITS:
            files = [*Path(options.data).glob(f"*{name}.conllu*")]
            if len(files) != 1:
                raise InputError(
                    f"{options.data} has {len(files)} files *{name}.conllu; expected one. UD English-EWT is at "
                    "https://github.com/UniversalDependencies/UD_English-EWT; or use --data toy."
                )
            with (gzip.open if files[0].suffix == ".gz" else open)(files[0], "rt", encoding="utf-8") as file:
                result.append([*sentences(file.read(), str(files[0]))])
    counts = (options.train, options.test, options.test)
    short = ([one for one in some if 2 <= len(one.words) <= options.longest] for some in result)
    draw = random.Random(options.seed)  # noqa: S311
    return [draw.sample(some, min(count, len(some))) for some, count in zip(short, counts, strict=True)]


def toy(split: str, count: int) -> str:
    """Sentences of a small grammar: subject, verb, object, and phrases with a preposition after either noun."""
    draw, result = random.Random(split), []  # noqa: S311
    for _ in range(count):
        rows: list[tuple[str, int]] = []
        subject = phrase(draw, rows, 0)
        rows.append((draw.choice(["sees", "finds", "likes", "paints", "carries", "forgets"]), 0))
        verb = len(rows)
        rows[subject - 1] = (rows[subject - 1][0], verb)
        phrase(draw, rows, verb)
        lines = (
            f"{at}\t{word}\t_\tX\t_\t_\t{head}\t_\t_\t_" for at, (word, head) in enumerate(rows, start=1)
        )
        result.append("\n".join(lines))
    return "\n\n".join(result)


def phrase(draw: random.Random, rows: list[tuple[str, int]], head: int) -> int:
    """Add the words of a noun phrase with their heads; the number of its noun."""
    noun = len(rows) + 3
    rows += [("the", noun), (draw.choice(["old", "red", "small", "quiet"]), noun)]
    rows.append((draw.choice(["dog", "cat", "child", "teacher", "river", "song", "letter", "boat"]), head))
    if draw.random() < 0.4:
        inner = len(rows) + 4  # the noun after preposition, article and adjective
        rows.append((draw.choice(["of", "near", "with"]), inner))
        phrase(draw, rows, noun)
    return noun


@torch.no_grad()
def states(model: Any, tokenizer: Any, some: Sequence[Sentence], estimator: str = "") -> list[Tensor]:
    """States of the words of each sentence, means over their pieces, of all layers: (layers, n, d), in half."""
    result: list[Tensor] = [torch.empty(0)] * len(some)
    order = sorted(range(len(some)), key=lambda one: len(some[one].words))
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        options = {"is_split_into_words": True, "padding": True, "truncation": True, "return_tensors": "pt"}
        batch = tokenizer([some[one].words for one in chosen], **options)
        with use_backend(model, estimator=estimator) if estimator else nullcontext():
            layers = torch.stack(model(**batch, output_hidden_states=True).hidden_states)
        for row, one in enumerate(chosen):
            owner = torch.tensor([-1 if at is None else at for at in batch.word_ids(row)])
            part = (torch.arange(len(some[one].words))[:, None] == owner).float()
            result[one] = (part / part.sum(1, keepdim=True).clamp_min(1) @ layers[:, row]).half()
    return result


def squares(mapped: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distances (..., n, n) of mapped states, and squared norms, both (..., n)."""
    norms = mapped.square().sum(-1)
    return (norms.unsqueeze(-1) + norms.unsqueeze(-2) - 2 * mapped @ mapped.mT).clamp_min(0), norms


def fitted(inputs: Sequence[Tensor], some: Sequence[Sentence], options: Options) -> tuple[Tensor, Tensor]:
    """Maps of each layer (layers, d, rank), of distances and of depths, by least absolute errors.

    Raises:
        InputError: If the rank is above the width of the states.
    """
    layers, _, width = inputs[0].shape
    if not 0 < options.rank <= width:
        raise InputError(
            f"rank is {options.rank} and states have {width} numbers; expected 1 to {width}. Change --rank."
        )
    draw = torch.Generator().manual_seed(options.seed)
    maps = [nn.Parameter(torch.randn(layers, width, options.rank, generator=draw) / width) for _ in range(2)]
    optimiser = torch.optim.Adam(maps, 3e-3)
    order = torch.tensor(sorted(range(len(some)), key=lambda one: len(some[one].words))).split(BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(
        optimiser, 1.0, 0.02, total_iters=options.epochs * len(order)
    )
    for _ in range(options.epochs):
        for at in torch.randperm(len(order), generator=draw).tolist():
            read = pad_sequence([inputs[one].transpose(0, 1) for one in order[at]], batch_first=True).float()
            read, loss = read.permute(2, 0, 1, 3), torch.zeros(())  # (layers, sentences, n, d)
            known = [some[one] for one in order[at]]
            real = pad_sequence([torch.ones(len(one.words)) for one in known], batch_first=True)
            depths = pad_sequence([torch.from_numpy(depth(one)) for one in known], batch_first=True).float()
            apart = torch.zeros(len(known), *2 * real.shape[1:])
            for row, one in zip(apart, known, strict=True):
                row[: len(one.words), : len(one.words)] = torch.from_numpy(one.distances)
            both, lengths = real.unsqueeze(-1) * real.unsqueeze(-2), real.sum(-1)
            said = squares(read @ maps[0].unsqueeze(1))[0], squares(read @ maps[1].unsqueeze(1))[1]
            loss = ((said[0] - apart).abs() * both).sum((-1, -2)) / lengths**2
            loss = loss + ((said[1] - depths).abs() * real).sum(-1) / lengths
            optimiser.zero_grad()
            loss.mean(1).sum().backward()
            optimiser.step()
            schedule.step()
    return maps[0].detach(), maps[1].detach()


def depth(one: Sentence) -> np.ndarray:
    """How many steps each word is below the root, (n,)."""
    return one.distances[int((one.heads < 0).argmax())]


def scores(distances: np.ndarray, depths: np.ndarray, one: Sentence) -> dict[str, float]:
    """Of predicted distances (n, n) and depths (n,): edges found and there, correlation, whether the root is found."""
    kept = np.flatnonzero(one.kept)
    edges = {(head, word) for word, head in enumerate(one.heads) if head >= 0} & {
        (a, b) for a in kept for b in kept
    }
    # A constant changes no spanning tree, and 0 would be no edge.
    spanning = minimum_spanning_tree(np.triu(distances[np.ix_(kept, kept)] + 1, 1)).tocoo()
    result = {
        frozenset((int(kept[a]), int(kept[b]))) for a, b in zip(spanning.row, spanning.col, strict=True)
    }
    right = sum(frozenset(edge) in result for edge in edges)
    root = len(kept) > 0 and kept[depths[kept].argmin()] == int((one.heads < 0).argmax())
    return {
        "right": right,
        "edges": len(edges),
        "dspr": float(spearman(distances, one.distances).mean()) if len(one.words) >= 5 else np.nan,
        "root": float(root),
    }


def summary(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Means and halves of 95 % intervals over sentences; of UUAS the edges of all sentences count alike."""
    right, edges, dspr, root = (np.array([row[name] for row in rows]) for name in rows[0])
    share = right.sum() / edges.sum()
    columns = {
        "uuas": share + (right - share * edges) / edges.mean(),
        "dspr": dspr[~np.isnan(dspr)],
        "root": root,
    }
    return {name: interval(values.tolist())[:2] for name, values in columns.items()}


def tested(
    maps: tuple[Tensor, Tensor], inputs: Sequence[Tensor], some: Sequence[Sentence]
) -> list[dict[str, Any]]:
    """The results of each layer."""
    rows: list[list[dict[str, float]]] = [[] for _ in inputs[0]]
    for read, one in zip(inputs, some, strict=True):
        distances, depths = squares(read.float() @ maps[0])[0], squares(read.float() @ maps[1])[1]
        for layer, row in enumerate(rows):
            row.append(scores(distances[layer].double().numpy(), depths[layer].numpy(), one))
    return [summary(row) for row in rows]


def study(options: Options) -> dict[str, Any]:
    """All results.

    Raises:
        InputError: If the data or the rank cannot be used.
    """
    train, dev, test = read(options)
    model, tokenizer, _ = load_model(options.model)
    torch.manual_seed(options.seed)
    models = {
        "trained": model,
        "untrained": AutoModel.from_config(model.config).eval(),
        options.estimator: model,
    }
    result: dict[str, Any] = {"sentences": [len(train), len(dev), len(test)], "rank": options.rank}
    lines = [np.abs(np.subtract.outer(*2 * [np.arange(len(one.words))])) for one in test]
    rows = [scores(line, line[0], one) for line, one in zip(lines, test, strict=True)]
    result["models"], best = {"adjacent words": summary(rows)}, slice(None)
    for name, encoder in models.items():
        estimator = name if encoder is model and name != "trained" else ""
        known, new = (
            [one[best] for one in states(encoder, tokenizer, some, estimator)] for some in (train, test)
        )
        maps = fitted(known, train, options)
        results = tested(maps, new, test)
        if name == "trained":
            choice = tested(maps, states(encoder, tokenizer, dev), dev)
            chosen = max(range(len(choice)), key=lambda layer: choice[layer]["uuas"][0])
            best, result["best"] = slice(chosen, chosen + 1), chosen
            result["models"] |= {f"layer {layer}": one for layer, one in enumerate(results)}
        else:
            result["models"][f"layer {result['best']}, {name}"] = results[0]
    return result


def printed(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines of Markdown."""
    yield from (f"| states | {' | '.join(METRICS)} |", "|---|---|---|---|")
    for name, one in found["models"].items():
        yield f"| {name} | {' | '.join('{:.3f} ± {:.3f}'.format(*one[metric]) for metric in METRICS)} |"


if __name__ == "__main__":
    main(Options, study, printed)
