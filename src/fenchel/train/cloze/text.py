"""The text of a training on blanks: a tokenizer of what is trained on, and the passages of every split."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fenchel.data import Subwords
from fenchel.data.articles import Articles
from fenchel.data.passages import Passage, packed_passages, paired_passages, single_passages
from fenchel.errors import InputError
from fenchel.train.cloze.options import ClozeOptions
from fenchel.train.cloze.rows import SPECIAL

__all__ = ["Splits", "TrainedText", "learned_tokenizer"]

UNKNOWN = "[UNK]"
_LEFT_OUT = "<unk>"
_LEAST_ARTICLES = 2

Splits = tuple[Articles, Articles, Articles]
"""What is trained, validated and tested on."""


class TrainedText(NamedTuple):
    """What is read of the data.

    Attributes:
        tokenizer: Of the text to train on.
        passages: Of each split, by its name.
    """

    tokenizer: Subwords
    passages: dict[str, list[Passage]]

    @classmethod
    def of(cls, data: Splits, options: ClozeOptions) -> TrainedText:
        """The text of some options.

        Raises:
            InputError: If the data do not suit the objective, or there is too little of them.
        """
        train, validation, test = data
        if options.objective == "tlm" and not train.languages:
            raise InputError(
                f"objective is 'tlm' and {train.name} holds no sentences that translate each other; expected such "
                "pairs, as multi30k has them, or another objective."
            )
        if options.objective == "mlm+nsp" and train.languages:
            raise InputError(
                f"objective is 'mlm+nsp' and {train.name} holds single sentences with translations, of which none "
                "follows another; expected running text, as wikitext2 has it, or another objective."
            )
        tokenizer = learned_tokenizer(train, options)
        splits = {"train": train, "validation": validation, "test": test}
        passages = {name: _passages(split, tokenizer, options) for name, split in splits.items()}
        wanted, there = options.train_sentences, len(passages["train"])
        if wanted is not None and wanted > there:
            raise InputError(
                f"{train.name}: {wanted:,} passages to train on were asked for and there are {there:,}; ask for fewer."
            )
        passages["train"] = passages["train"][:wanted]
        for name, held in passages.items():
            articles = {one.article for one in held}
            if not held or (options.objective == "mlm+nsp" and len(articles) < _LEAST_ARTICLES):
                raise InputError(
                    f"{train.name} has text of {len(articles)} articles to {_DOING[name]}; expected at least one, and "
                    f"{_LEAST_ARTICLES} for the objective 'mlm+nsp'. Give more text."
                )
        return cls(tokenizer, passages)


_DOING = {"train": "train on", "validation": "validate on", "test": "test on"}


def learned_tokenizer(text: Articles, options: ClozeOptions) -> Subwords:
    """The words of a text, without those that its authors left out."""
    lines = (" ".join(word for word in line.split() if word != _LEFT_OUT) for line in _lines(text))
    return Subwords.learned(
        lines, size=options.vocabulary, kind=options.tokens, lower=options.lower, special=SPECIAL
    )


def _lines(text: Articles) -> Iterator[str]:
    return (sentence for sentences in text.texts for sentence in sentences)


def _passages(text: Articles, tokenizer: Subwords, options: ClozeOptions) -> list[Passage]:
    lines = tokenizer.encoded([line.replace(_LEFT_OUT, UNKNOWN) for line in _lines(text)])
    numbers = iter(lines)
    encoded = [[next(numbers) for _ in sentences] for sentences in text.texts]
    if text.languages:
        made = paired_passages if options.objective == "tlm" else single_passages
        return [one for one in made(encoded, options.longest) if one.first]
    found = packed_passages(encoded, options.longest)
    return [one for one in found if one.second] if options.objective == "mlm+nsp" else found
