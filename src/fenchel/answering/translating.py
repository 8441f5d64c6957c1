"""Translations by a trained translator, and the words of the source that it looked at for every word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fenchel.answering.attention_map import AttentionMap, seen_attention
from fenchel.answering.lines import Line, lines_of_texts
from fenchel.answering.trained_run import TrainedRun
from fenchel.arguments import checked
from fenchel.data.subwords import Subwords
from fenchel.data.vocabulary import UNKNOWN
from fenchel.errors import InputError
from fenchel.models import Translator
from fenchel.models.decoding import Decoded
from fenchel.train.translation.task import TARGET_TOKENIZER_FILE, Translation

__all__ = ["Translated", "translate"]

_TOGETHER = 50
_SPACE = "▁"
_END = "(end)"


@dataclass(frozen=True)
class Translated:
    """A sentence and its translation.

    Attributes:
        source: The sentence.
        text: Its translation.
        pieces: The pieces of words that it was written in, and ``(end)`` where it ends by itself.
        log_probability: Of all of them, in nats.
        score: What beams are compared by, ``log_probability`` / length^power.
        ended: Whether it ends by itself, or was cut.
        unknown: How many pieces of the source the translator does not know.
        maps: From pieces of the translation to pieces of the source, where they were asked for.
    """

    source: str
    text: str
    pieces: tuple[str, ...]
    log_probability: float
    score: float
    ended: bool
    unknown: int
    maps: tuple[AttentionMap, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The translation as JSON values."""
        return {
            "source": self.source,
            "translation": self.text,
            "pieces": list(self.pieces),
            "log_probability": self.log_probability,
            "score": self.score,
            "ended": self.ended,
            "unknown_pieces": self.unknown,
            **({"attention": [one.to_json() for one in self.maps]} if self.maps else {}),
        }


def translate(
    run: str | Path | TrainedRun,
    sentences: Sequence[str] | Sequence[Line],
    *,
    beam: int = 1,
    length_power: float = 1.0,
    show: bool = False,
    device: str | None = None,
) -> list[Translated]:
    """Translates sentences, by a model that ``fenchel train --model translator`` trained.

    Args:
        run: Folder of the training, or one that is open.
        sentences: Texts, or lines that know where they are from.
        beam: Width of the beam; 1 is greedy.
        length_power: Beams are compared by log P / length^power.
        show: Whether to solve what every word asked exactly, and say what was looked at.
        device: Where to compute. Default: on the processor.

    Returns:
        One for each sentence, in the order given.

    Raises:
        InputError: If there is no such training or it is damaged, a sentence is empty or too long, or maps are asked of
            a translator without attention.
        MissingExtraError: If ``tokenizers`` is not installed.
    """
    opened = TrainedRun.read(run, tasks=(Translation.name,), device=device)
    model = opened.model
    assert isinstance(model, Translator)  # noqa: S101 - what the task makes
    if show and model.inference is None:
        raise InputError(
            f"{opened.folder} was trained with attention 'none', which looks at nothing. Leave --show out."
        )
    beam = checked("size", beam, name="beam")
    if (length_power := checked("scale", length_power, name="length power")) < 0:
        raise InputError(f"length power is {length_power}; expected a number of at least 0, such as 1.")
    lines = _lines(sentences)
    reads = opened.subwords
    writes = (
        reads if opened.description["vocabulary"] == "joint" else Subwords(opened.file(TARGET_TOKENIZER_FILE))
    )
    sources = _numbered(lines, reads, model.longest)
    found: dict[int, Decoded] = {}
    in_order = sorted(range(len(lines)), key=lambda place: len(sources[place]))
    for begin in range(0, len(lines), _TOGETHER):
        places = in_order[begin : begin + _TOGETHER]
        batch = Subwords.padded([sources[place] for place in places]).to(opened.device)
        with torch.no_grad():
            said = model.translated(batch, beam=beam, length_power=length_power)
        found.update(zip(places, said, strict=True))
    answers = []
    for place, line in enumerate(lines):
        one, source = found[place], sources[place]
        pieces = (*_pieces(writes, one.words), *([_END] if one.ended else []))
        maps = _maps(model, source, one, (*_pieces(reads, source[:-1]), _END), pieces) if show else ()
        answers.append(
            Translated(
                line.text,
                writes.decoded(one.words),
                pieces,
                one.log_probability,
                one.score(length_power),
                one.ended,
                source.count(UNKNOWN),
                maps,
            )
        )
    return answers


def _lines(sentences: Sequence[str] | Sequence[Line]) -> list[Line]:
    if not isinstance(sentences, str) and sentences and all(isinstance(one, Line) for one in sentences):
        return [one for one in sentences if isinstance(one, Line)]
    return lines_of_texts([sentences] if isinstance(sentences, str) else list(sentences))  # pyright: ignore


def _numbered(lines: Sequence[Line], reads: Subwords, longest: int) -> list[list[int]]:
    """The numbers of each sentence's pieces, its end last."""
    found = reads.encoded([line.text for line in lines])
    for line, numbers in zip(lines, found, strict=True):
        written = [number for number in numbers if number in reads.special and number != UNKNOWN]
        if written:
            raise InputError(
                f"{line.where} has {reads.token(written[0])}, which stands for something else in this translator's "
                "input; expected a sentence without it."
            )
        if not numbers:
            raise InputError(f"{line.where} has nothing to translate; expected a sentence.")
        if len(numbers) > longest:
            raise InputError(
                f"{line.where} has {len(numbers)} pieces of words; this translator takes at most {longest}. Cut it "
                "into sentences."
            )
    return [[*numbers, Translator.END] for numbers in found]


def _pieces(subwords: Subwords, numbers: Sequence[int]) -> tuple[str, ...]:
    return tuple(subwords.token(number).replace(_SPACE, " ").strip() or _SPACE for number in numbers)


def _maps(
    model: Translator,
    source: Sequence[int],
    said: Decoded,
    keys: tuple[str, ...],
    queries: tuple[str, ...],
) -> tuple[AttentionMap, ...]:
    """What each piece looked at: the query of a piece is asked after the pieces before it."""
    device = next(model.parameters()).device
    target = [Translator.BEGIN, *said.words][: len(queries)]
    with torch.no_grad(), seen_attention(model) as seen:
        model(source=torch.tensor([source], device=device), target=torch.tensor([target], device=device))
    return seen[0].maps("the translation and its source", queries, keys)
