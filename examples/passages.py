"""The texts of ``fill_mask.py``: articles of sentences, pairs and classes of texts, and a tokenizer of words."""

import random
import re
from collections.abc import Iterable
from typing import Any

import torch

from data import check_columns, check_labels, label_names, read_splits, validation_and_test
from fenchel.errors import InputError

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNKNOWN, FIRST, END, MASK = range(5)
SPLIT_SEED = 4474009624885258790  # gives the split of the recorded results

Articles = list[tuple[list[tuple[str, ...]], int]]


def read_texts(o: Any) -> tuple[dict[str, Articles], list[str]]:
    """The sentences, or the pair of texts, of each article of each split, with its label; and names of the classes.

    Running text without a split for training is put together and split anew, by whole articles, WikiText-2 as for the
    recorded results. An article begins at a heading such as ``= Title =``; where there is none, after every hundred
    lines. Headings are left out, and ``<unk>``, as WikiText has it for words that it leaves out, is ``[UNK]``.
    """
    running = o.objective in ("mask", "mask_next", "causal") and not o.columns
    result = read_splits(o.data, train=not running)
    if running:
        check_columns(result, ["text"], o.data)
        parts = {str(name): articles_of(rows["text"]) for name, rows in result.items()}
        if not {"train", "validation", "test"} <= {*parts}:
            every = [article for part in parts.values() for article in part]
            order = torch.randperm(len(every), generator=torch.Generator().manual_seed(SPLIT_SEED)).tolist()
            cut = max(round(len(every) / 10), 1)
            chosen = {"test": order[:cut], "validation": order[cut : 2 * cut], "train": order[2 * cut :]}
            parts = {name: [every[number] for number in sorted(some)] for name, some in chosen.items()}
        return {name: [(article, -1) for article in part] for name, part in parts.items()}, ["next", "other"]
    result = validation_and_test(result)
    names, classify = result["train"].column_names, o.objective == "classify"
    columns = o.columns.split() or [name for name in names if name in ("text", "sentence")] or names[:2]
    label = next((name for name in ("coarse_label", "label", "labels") if name in names), "label")
    check_columns(result, [*columns, label] if classify else columns, o.data)
    splits = {}
    for name in ("train", "validation", "test"):
        labels = result[name][label] if classify else [-1] * len(result[name])
        rows = zip(labels, *(result[name][column] for column in columns), strict=True)
        splits[name] = [([tuple(texts)], one) for one, *texts in rows]
        for number, ((texts,), _) in enumerate(splits[name]):
            if not all(isinstance(text, str) and text.strip() for text in texts):
                raise InputError(f"{o.data}, {name}, row {number}: a text is empty. Remove such rows.")
    if not classify:
        return splits, ["next", "other"]
    classes = label_names(result["train"], label)
    check_labels(result, label, len(classes), o.data)
    return splits, classes


def articles_of(lines: Iterable[str | None]) -> list[list[tuple[str, ...]]]:
    """Sentences of the articles of running text; headings stand between blank lines, where there are any."""
    known = [line.strip() for text in lines for line in (text or "").splitlines() or [""]]
    result: list[list[tuple[str, ...]]] = [[]]
    number, headed = 0, False
    for before, line, after in zip(["", *known], known, [*known[1:], ""], strict=False):
        alone = "" not in known or before == after == ""
        heading = alone and re.fullmatch(r"(= )+[^=](.*[^=])?( =)+", line) is not None
        title = heading and not line.startswith("= =")
        headed = headed or title
        if title or (line and not headed and number % 100 == 0):
            result.append([])
        number += bool(line)
        if line and not heading:
            text = line.replace("<unk>", SPECIAL[UNKNOWN])
            result[-1] += [(sentence,) for sentence in re.split(r"(?<=[.!?]) +", text)]
    return [article for article in result if article]


def toy(o: Any) -> tuple[dict[str, Articles], list[str]]:
    """Sentences whose verb agrees with a noun before it, of articles that keep to a topic."""
    draw = random.Random(0)  # noqa: S311
    topics = [[f"{kind}{topic}{number}" for number in "abc"] for topic in "klmnpr" for kind in ("n", "o")]
    articles: Articles = []
    for number in range(240):
        nouns, objects = topics[2 * (number % 6)], topics[2 * (number % 6) + 1]
        sentences: list[tuple[str, ...]] = []
        for _ in range(8):
            ending, verb = ("s", "sing") if draw.random() < 0.5 else ("", "sings")
            noun, place = draw.choice(nouns), draw.choice(["river", "hill", "road"])
            text = f"the {noun}{ending} near the {place} {verb} of {draw.choice(objects)} ."
            translation = " ".join(f"x{word}" for word in text.split())
            sentences.append((text, translation) if o.objective == "tlm" else (text,))
        if o.objective in ("tlm", "classify"):
            articles += [([sentence], number % 6) for sentence in sentences]
        else:
            articles.append((sentences, -1))
    part = len(articles) // 6
    splits = {"train": articles[2 * part :], "validation": articles[:part], "test": articles[part : 2 * part]}
    return splits, [*"klmnpr"] if o.objective == "classify" else ["next", "other"]
