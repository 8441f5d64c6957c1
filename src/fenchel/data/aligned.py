"""Sentences and their translations as articles of two sentences, for models that read both."""

from __future__ import annotations

from pathlib import Path

from fenchel.data.articles import Articles
from fenchel.data.multi30k import load_pairs
from fenchel.data.parallel import SentencePairs
from fenchel.data.separated_words import separated

__all__ = ["holds_pairs", "load_aligned"]

_NAME = "multi30k"
_TEST = "test_2016_flickr"
_OF_RUNNING_TEXT = frozenset({"txt", "tokens"})
_LANGUAGES = 2


def holds_pairs(name_or_path: str) -> bool:
    """Whether a name or path means sentences in two languages, rather than running text."""
    if name_or_path == _NAME:
        return True
    names = (path.name.removesuffix(".gz") for path in Path(name_or_path).expanduser().glob("train.*"))
    endings = {name.partition(".")[2] for name in names} - _OF_RUNNING_TEXT
    return len(endings) == _LANGUAGES


def load_aligned(name_or_path: str | Path) -> tuple[Articles, Articles, Articles]:
    """Reads pairs of sentences as ``fenchel.data.load_pairs`` does, with words and signs apart.

    Args:
        name_or_path: ``multi30k``, or a folder, as ``load_pairs`` takes it.

    Returns:
        The pairs to train, to validate and to test on: of several sets to test on, Flickr's of 2016, or else the first.

    Raises:
        InputError: As ``load_pairs``.
    """
    corpus = load_pairs(name_or_path)
    test = corpus.test(_TEST if _TEST in corpus.tests else next(iter(corpus.tests)))
    train, validation, tested = (
        _articles(pairs, corpus.name, corpus.languages) for pairs in (corpus.train, corpus.validation, test)
    )
    return train, validation, tested


def _articles(pairs: SentencePairs, name: str, languages: tuple[str, str]) -> Articles:
    texts = (tuple(map(separated, pair)) for pair in zip(pairs.first, pairs.second, strict=True))
    return Articles(tuple(texts), name, pairs.note, languages)
