"""The texts of ``fill_mask.py``: articles of sentences, pairs and classes of texts, and a tokenizer of words."""

import random
import re
from collections.abc import Iterable
from typing import Any

from data import check_columns, label_names, read_splits, validation_and_test

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNKNOWN, FIRST, END, MASK = range(5)

Articles = list[tuple[list[tuple[str, ...]], int]]


def read_texts(o: Any) -> tuple[dict[str, Articles], list[str]]:
    """The sentences, or the pair of texts, of each article of each split, with its label; and names of the classes.

    Running text without a split for training is put together and split anew, by whole articles. An article begins at a
    heading such as ``= Title =``; where there is none, after every hundred lines.
    """
    running = o.objective in ("mask", "mask_next", "causal") and not o.columns
    found = read_splits(o.data, train=not running)
    if running:
        check_columns(found, ["text"], o.data)
        parts = {str(name): articles_of(rows["text"]) for name, rows in found.items()}
        if not {"train", "validation", "test"} <= {*parts}:
            every = [article for part in parts.values() for article in part]
            random.Random(0).shuffle(every)  # noqa: S311
            cut = max(len(every) // 10, 1)
            parts = {"validation": every[:cut], "test": every[cut : 2 * cut], "train": every[2 * cut :]}
        return {name: [(article, -1) for article in part] for name, part in parts.items()}, ["next", "other"]
    found = validation_and_test(found)
    names, classify = found["train"].column_names, o.objective == "classify"
    columns = o.columns.split() or [name for name in names if name in ("text", "sentence")] or names[:2]
    label = next((name for name in ("coarse_label", "label", "labels") if name in names), "label")
    check_columns(found, [*columns, label] if classify else columns, o.data)
    splits = {}
    for name in ("train", "validation", "test"):
        labels = found[name][label] if classify else [-1] * len(found[name])
        rows = zip(labels, *(found[name][column] for column in columns), strict=True)
        splits[name] = [([tuple(texts)], one) for one, *texts in rows if all(texts)]
    return splits, label_names(found["train"], label) if classify else ["next", "other"]


def articles_of(lines: Iterable[str]) -> list[list[tuple[str, ...]]]:
    """Sentences of the articles of running text."""
    found: list[list[tuple[str, ...]]] = [[]]
    number, headed = 0, False
    for line in (one.strip() for text in lines for one in text.splitlines() if one.strip()):
        heading = re.fullmatch(r"= [^=].*[^=] =", line) is not None
        number, headed = number + 1, headed or heading
        if heading or (not headed and number % 100 == 0):
            found.append([])
        found[-1] += [(sentence,) for sentence in re.split(r"(?<=[.!?]) +", line)]
    return [article for article in found if article]


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
