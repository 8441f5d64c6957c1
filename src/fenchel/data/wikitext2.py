"""WikiText-2, and other running text, from files: articles, parted into those to train, validate and test on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from fenchel.arguments import checked
from fenchel.data.articles import Articles, sentences_of
from fenchel.data.hub_rows import HUB_PREFIX
from fenchel.data.randomness import seeded_generator
from fenchel.data.text_folder import TextFolder
from fenchel.errors import InputError

__all__ = ["load_articles"]

_FILES = ("wikitext2_valid.txt", "wikitext2_test.txt")
_FOLDER = TextFolder(
    "wikitext2",
    "plain_text",
    _FILES,
    "https://github.com/pytorch/examples/tree/main/word_language_model/data/wikitext-2",
)
_SPLITS = {
    "train": ("train.txt", "wiki.train.tokens"),
    "validation": ("valid.txt", "validation.txt", "wiki.valid.tokens"),
    "test": ("test.txt", "wiki.test.tokens"),
}
_PARTED = (
    "parted by article: WikiText-2's validation and test files, without the two million words to train on"
)
_TITLE = re.compile(r"\s*= (?!= ).*\S =\s*")
_SECTION = re.compile(r"\s*= = .* = =\s*")
_HELD_OUT = 0.1
_SPLIT_SEED = 0
_LEAST = 3

Splits = tuple[Articles, Articles, Articles]


def load_articles(name_or_path: str | Path, *, root: str | Path | None = None) -> Splits:
    """Reads running text, split by article. Nothing is downloaded, but for ``hf:NAME``.

    Lines are read as WikiText has them: `` = Title = `` between blank lines begins an article, `` = = Section = = `` is
    left out, and every other line is a paragraph of words apart by spaces. Signs within words stay as they are written
    there, such as `` @-@ `` for the hyphen of a compound, and ``<unk>`` is a word that its authors left out.

    Args:
        name_or_path: ``wikitext2``, found in the folder ``plain_text`` under ``root``: of its 120 articles a tenth, the
            same ones always, validate and a tenth test. Or the path of a folder: with ``train.txt``, ``valid.txt`` and
            ``test.txt`` (or ``wiki.train.tokens`` and so on) these are the splits; otherwise the articles of all its
            ``.txt`` files are parted likewise, where a file without titles is one article. Or ``hf:NAME[:CONFIG]``, a
            dataset with a column ``text`` and splits ``train``, ``validation`` and ``test``.
        root: The folder that holds a folder for each data set. Default: the environment's ``FENCHEL_DATA``.

    Returns:
        The articles to train, to validate and to test on.

    Raises:
        InputError: If the name is unknown, a file is missing or no UTF-8, or there are too few articles.
        MissingExtraError: If ``datasets`` is not installed, for ``hf:NAME``.
    """
    name = str(checked("data_path", name_or_path, name="data"))
    if name.startswith(HUB_PREFIX):
        return _from_hub(name)
    folder = _FOLDER.found(name, root)
    if name == _FOLDER.name or all((folder / file).is_file() for file in _FILES):
        texts = [text for file in _FILES for text in _articles(_FOLDER.lines(_FOLDER.file(folder, file)))]
        return _parted(texts, name, _PARTED)
    found = {
        split: next((folder / file for file in files if (folder / file).is_file()), None)
        for split, files in _SPLITS.items()
    }
    if all(found.values()):
        train, validation, test = (
            Articles(tuple(_read(path)), name) for path in found.values() if path is not None
        )
        return train, validation, test
    texts = [text for path in sorted(folder.glob("*.txt")) for text in _read(path)]
    return _parted(texts, name, "parted by article")


def _read(path: Path) -> list[tuple[str, ...]]:
    found = list(_articles(_FOLDER.lines(path)))
    if not found:
        raise InputError(f"{path} holds no text; expected lines of words. Give text, or take the file away.")
    return found


def _articles(lines: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Articles as their sentences; what stands before the first title is one too."""
    known = [line.strip() for line in lines]
    sentences: list[str] = []
    for place, line in enumerate(known):
        around = (known[place - 1] if place else "", known[place + 1] if place + 1 < len(known) else "")
        if _TITLE.fullmatch(line) and not any(around):
            if sentences:
                yield tuple(sentences)
            sentences = []
        elif not _SECTION.fullmatch(line):
            sentences += sentences_of(line)
    if sentences:
        yield tuple(sentences)


def _parted(texts: list[tuple[str, ...]], name: str, note: str) -> Splits:
    """A tenth to test on, a tenth to validate on, and the rest, each in its order."""
    if len(texts) < _LEAST:
        raise InputError(
            f"{name} holds {len(texts)} articles; expected at least {_LEAST}, which are parted into those to train, "
            "validate and test on. An article begins with a title, ' = Title = ' between blank lines, or with a file; "
            "or give train.txt, valid.txt and test.txt."
        )
    order = torch.randperm(len(texts), generator=seeded_generator("articles", _SPLIT_SEED)).tolist()
    held_out = max(round(_HELD_OUT * len(texts)), 1)
    whole = Articles(tuple(texts), name, note)
    test, validation, train = order[:held_out], order[held_out : 2 * held_out], order[2 * held_out :]
    return whole.taken(sorted(train)), whole.taken(sorted(validation)), whole.taken(sorted(test))


def _from_hub(name: str) -> Splits:
    from fenchel.data.text.tables import Columns, dataset_rows

    source = name.removeprefix(HUB_PREFIX)
    if not source:
        raise InputError(
            f"{name!r} names no dataset; expected hf:NAME or hf:NAME:CONFIG, such as hf:wikitext:wikitext-2-v1."
        )
    found: list[Articles] = []
    for split in _SPLITS:
        # Not every copy keeps the blank rows around titles: each row is taken to be between two.
        rows = dataset_rows(f"{source}@{split}", Columns("text", None))
        lines = [line for row in rows for line in ("", row.text.strip(), "")]
        found.append(Articles(tuple(_articles(lines)), name))
    train, validation, test = found
    return train, validation, test
