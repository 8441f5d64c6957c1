"""Words for the blanks of texts, by a model that was trained to fill them in."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fenchel.answering.attention_map import AttentionMap, seen_attention
from fenchel.answering.lines import Line, lines_of_texts
from fenchel.answering.trained_run import TrainedRun
from fenchel.arguments import checked, shown
from fenchel.data.passages import Passage
from fenchel.data.separated_words import separated
from fenchel.data.subwords import Subwords
from fenchel.errors import InputError
from fenchel.models import Cloze
from fenchel.train.cloze.rows import Batch, Rows

__all__ = ["Blank", "Filled", "fill"]

_MASK = "[MASK]"
_BETWEEN = "|||"
_SPACE = "▁"


@dataclass(frozen=True)
class Blank:
    """What may stand in a blank.

    Attributes:
        place: Which token of the row it is, from 0, the special ones among them.
        words: The likeliest words, or pieces of words, the likeliest first.
        probabilities: Of each, among all that the model knows.
    """

    place: int
    words: tuple[str, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class Filled:
    """A text with words for its blanks.

    Attributes:
        text: As it was given.
        filled: The text with the likeliest word in each blank, each by itself.
        tokens: What the model read.
        blanks: At least one, in order.
        maps: What every blank attended to in the last layer, one map a head, where they were asked for.
    """

    text: str
    filled: str
    tokens: tuple[str, ...]
    blanks: tuple[Blank, ...]
    maps: tuple[AttentionMap, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON values."""
        return {
            "text": self.text,
            "filled": self.filled,
            "tokens": list(self.tokens),
            "blanks": [dataclasses.asdict(blank) for blank in self.blanks],
            **({"attention": [one.to_json() for one in self.maps]} if self.maps else {}),
        }


def fill(
    run: str | Path | TrainedRun,
    texts: Sequence[str] | Sequence[Line],
    *,
    top: int = 5,
    show: bool = False,
    device: str | None = None,
) -> list[Filled]:
    """Says what may stand in the blanks of texts, each of which is ``[MASK]``.

    Signs are taken apart from words where the model knows words and not the two together. A model of two languages
    takes a sentence and its translation with ``|||`` between them, one of which may be empty.

    Args:
        run: The folder of a training of a ``cloze``.
        texts: At least one, with a blank or several in each.
        top: How many words to say for each blank.
        show: Whether to say what the blanks attended to, ``Filled.maps``.
        device: Where to compute. Default: on the processor.

    Returns:
        One for each text, in the order given.

    Raises:
        InputError: If there is no such training, or a text is empty, has no blank, or is longer than the training's.
        MissingExtraError: If ``tokenizers`` is not installed.
    """
    opened = TrainedRun.read(run, tasks=("cloze",), device=device)
    top = checked("size", top, name="top")
    lines = [one for one in texts if isinstance(one, Line)]
    if len(lines) < len(texts) or isinstance(texts, str) or not texts:
        lines = lines_of_texts([texts] if isinstance(texts, str) else list(texts), what="text")  # pyright: ignore[reportArgumentType]
    return [_filled(opened, line, top, show=show) for line in lines]


def _filled(run: TrainedRun, line: Line, top: int, *, show: bool) -> Filled:
    subwords, model = run.subwords, run.model
    assert isinstance(model, Cloze)  # noqa: S101 - what the task makes
    batch = _batch(run, line)
    numbers = batch.numbers[0]
    blanks = (numbers == subwords.number(_MASK)).nonzero().flatten()
    if not len(blanks):
        raise InputError(
            f"{line.where} is {shown(line.text)} and has no {_MASK}; expected at least one, where a word is to be "
            "filled in."
        )
    # A model that sees nothing after a place says there what comes next.
    asked = blanks - int(model.configuration()["causal"])
    batch.places[0, asked] = True
    with torch.no_grad(), seen_attention(model) as seen:
        said = model(**batch.inputs)["words"][0]
    probabilities = said.softmax(-1)
    probabilities[:, sorted(subwords.special)] = -1.0  # no text has them
    best = probabilities.topk(min(top, len(subwords) - len(subwords.special)))
    tokens = tuple(subwords.token(number) for number in numbers.tolist())
    found = tuple(
        Blank(place, tuple(subwords.token(number).strip(_SPACE) for number in words), tuple(shares))
        for place, words, shares in zip(
            blanks.tolist(), best.indices.tolist(), best.values.tolist(), strict=True
        )
    )
    maps: tuple[AttentionMap, ...] = ()
    if show:
        (last,) = [one for one in seen if one.layer is model.inference]
        maps = tuple(
            _rows(one, asked.tolist(), [f"{tokens[place]} {place}" for place in blanks.tolist()])
            for one in last.maps("blanks to words", tokens, tokens)
        )
    text = line.text
    for blank in found:
        text = text.replace(_MASK, blank.words[0], 1)
    return Filled(line.text, text, tokens, found, maps)


def _batch(run: TrainedRun, line: Line) -> Batch:
    """A row of a text, as the training made its own."""
    subwords, description = run.subwords, run.description
    languages, longest = description["languages"], int(description["longest"])
    parts = line.text.split(_BETWEEN) if languages else [line.text]
    if len(parts) > max(len(languages), 1):
        raise InputError(
            f"{line.where} has {len(parts)} parts between {_BETWEEN}; expected at most {len(languages)}."
        )
    encoded = [tuple(subwords.encoded([_known(part, subwords)])[0]) for part in parts]
    encoded += [()] * (2 - len(encoded))
    for part in encoded:
        if len(part) > longest:
            raise InputError(
                f"{line.where} has {len(part)} tokens; expected at most {longest}, the longest that the model was "
                "trained on."
            )
    first, second = encoded
    together = description["objective"] == "tlm"
    if first and second and not together:
        raise InputError(
            f"{line.where} has two sentences, and {run.folder} was trained on single ones; expected one of them."
        )
    language = 0 if first else 1
    if first and second:
        passage = Passage(first, second, 0, (0, 1), (0, 1))
    else:
        passage = Passage(first or second, (), 0, (language, language), (0, 0))
    rows = Rows([passage], subwords, description["objective"], longest)
    return rows.batch([0], slice(None), None, run.device)


def _known(text: str, subwords: Subwords) -> str:
    """The text with signs apart from words, unless the two are known together."""
    if subwords.kind != "word":
        return text
    unknown = subwords.number("[UNK]")
    return " ".join(
        separated(piece) if unknown in subwords.encoded([piece])[0] else piece for piece in text.split()
    )


def _rows(whole: AttentionMap, places: list[int], queries: list[str]) -> AttentionMap:
    """Some rows of a map."""
    parts = {
        name: getattr(whole, name)[places] for name in ("first_order", "exact", "moved", "error", "solved")
    }
    return dataclasses.replace(whole, queries=tuple(queries), **parts)
