"""What trained readers answer: the class of a sentence, and what one sentence says of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fenchel.answering.attention_map import AttentionMap, seen_attention
from fenchel.answering.lines import Line, lines_of_texts
from fenchel.answering.trained_run import TrainedRun
from fenchel.arguments import shown
from fenchel.errors import InputError
from fenchel.models.relatedness import expected_degree
from fenchel.train.reading.embedding import Embedding
from fenchel.train.reading.options import LEARNED
from fenchel.train.reading.pairs import PairReading
from fenchel.train.reading.sentences import SentenceReading
from fenchel.train.reading.texts import Texts, Words

__all__ = ["Classified", "Entailed", "PairLine", "classify", "entail", "pair_lines"]

_TOGETHER = 64


@dataclass(frozen=True)
class Classified:
    """What a classifier says of a sentence.

    Attributes:
        sentence: The sentence.
        label: The class that is most probable.
        probabilities: Of each class, by its name.
        maps: What each head attended to, if it was asked for.
    """

    sentence: str
    label: str
    probabilities: dict[str, float]
    maps: tuple[AttentionMap, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON values."""
        return {
            "sentence": self.sentence,
            "label": self.label,
            "probabilities": self.probabilities,
            **({"attention": [one.to_json() for one in self.maps]} if self.maps else {}),
        }


@dataclass(frozen=True)
class Entailed:
    """What a premise says of a hypothesis.

    Attributes:
        premise: The premise.
        hypothesis: The hypothesis.
        label: What is most probable.
        probabilities: Of each label, by its name.
        relatedness: How much the two are about the same, from 1 to 5; None where that was not learned.
        maps: What each head attended to, in both directions, if it was asked for.
    """

    premise: str
    hypothesis: str
    label: str
    probabilities: dict[str, float]
    relatedness: float | None
    maps: tuple[AttentionMap, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON values."""
        return {
            "premise": self.premise,
            "hypothesis": self.hypothesis,
            "label": self.label,
            "probabilities": self.probabilities,
            **({} if self.relatedness is None else {"relatedness": self.relatedness}),
            **({"attention": [one.to_json() for one in self.maps]} if self.maps else {}),
        }


@dataclass(frozen=True)
class PairLine:
    """Two sentences and where they are from.

    Attributes:
        premise: The premise.
        hypothesis: The hypothesis.
    """

    premise: Line
    hypothesis: Line


def pair_lines(lines: Sequence[Line]) -> list[PairLine]:
    r"""Lines that hold a premise, a tab and a hypothesis.

    Raises:
        InputError: If one holds something else, naming it.

    Example:
        >>> pair_lines(lines_of_texts(["a dog barks\tit is loud"]))[0].hypothesis.text
        'it is loud'
    """
    pairs = []
    for line in lines:
        parts = line.text.split("\t")
        if len(parts) != 2:
            raise InputError(
                f"{line.where} has {len(parts)} columns; expected a premise, a tab and a hypothesis."
            )
        premise, hypothesis = (
            Line(text, f"{line.where}, {what}")
            for text, what in zip(parts, ("premise", "hypothesis"), strict=True)
        )
        pairs.append(PairLine(premise, hypothesis))
    return pairs


def classify(
    run: str | Path | TrainedRun,
    sentences: Sequence[str] | Sequence[Line],
    *,
    show: bool = False,
    device: str | None = None,
) -> list[Classified]:
    """The classes of sentences, by a model that ``fenchel train --model classifier`` trained.

    Args:
        run: Folder of the training, or one that is open.
        sentences: Texts, or lines that know where they are from.
        show: Whether to solve every question exactly, and say what was attended to.
        device: Where to compute. Default: on the processor.

    Raises:
        InputError: If there is no such training or it is damaged, or a sentence is empty or too long.
        MissingExtraError: If ``tokenizers``, or what a frozen encoder needs, is not installed.
    """
    opened = TrainedRun.read(run, tasks=(SentenceReading.name,), device=device)
    lines, reader = _lines(sentences), _embedding(opened)
    texts = _texts(reader, lines)
    names = opened.description["class_names"]
    if show:
        _check_attends(opened)
    answers = []
    for places in torch.arange(len(lines)).split(1 if show else _TOGETHER):
        words = texts.taken(places).to(opened.device)
        given = {"words": words.words, "padding": words.padding}
        with torch.no_grad(), seen_attention(opened.model) as seen:
            logits = opened.model(**_there(given))
        for place, row in zip(places.tolist(), logits.double().softmax(-1).tolist(), strict=True):
            line = lines[place]
            maps: tuple[AttentionMap, ...] = ()
            if show:
                maps = seen[0].maps("the question and the sentence", ["question"], _pieces(reader, line))
            answers.append(Classified(line.text, _best(names, row), dict(zip(names, row, strict=True)), maps))
    return answers


def entail(
    run: str | Path | TrainedRun,
    pairs: Sequence[tuple[str, str]] | Sequence[PairLine],
    *,
    show: bool = False,
    device: str | None = None,
) -> list[Entailed]:
    """What premises say of hypotheses, by a model that ``fenchel train --model pairs`` trained.

    Args:
        run: Folder of the training, or one that is open.
        pairs: Premise and hypothesis of each; or lines that know where they are from.
        show: Whether to solve both directions exactly, and say what was attended to.
        device: Where to compute. Default: on the processor.

    Raises:
        InputError: If there is no such training or it is damaged, or a sentence is empty or too long.
        MissingExtraError: If ``tokenizers``, or what a frozen encoder needs, is not installed.
    """
    opened = TrainedRun.read(run, tasks=(PairReading.name,), device=device)
    lines, reader = _pair_lines(pairs), _embedding(opened)
    premises = _texts(reader, [line.premise for line in lines])
    hypotheses = _texts(reader, [line.hypothesis for line in lines])
    names = opened.description["class_names"]
    if show:
        _check_attends(opened)
    answers = []
    for places in torch.arange(len(lines)).split(1 if show else _TOGETHER):
        one, other = (texts.taken(places).to(opened.device) for texts in (premises, hypotheses))
        with torch.no_grad(), seen_attention(opened.model) as seen:
            said = opened.model(**_there(_of_pair(one, other)))
        degrees: list[float | None] = [None] * len(places)
        if "relatedness" in said:
            degrees = expected_degree(said["relatedness"].double()).tolist()
        rows = said["labels"].double().softmax(-1).tolist()
        for place, row, degree in zip(places.tolist(), rows, degrees, strict=True):
            line = lines[place]
            maps: tuple[AttentionMap, ...] = ()
            if show:
                asks, asked = _pieces(reader, line.premise), _pieces(reader, line.hypothesis)
                maps = (
                    *seen[0].maps("the premise asks the hypothesis", asks, asked),
                    *seen[1].maps("the hypothesis asks the premise", asked, asks),
                )
            probabilities = dict(zip(names, row, strict=True))
            answers.append(
                Entailed(
                    line.premise.text, line.hypothesis.text, _best(names, row), probabilities, degree, maps
                )
            )
    return answers


def _lines(sentences: Sequence[str] | Sequence[Line]) -> list[Line]:
    if sentences and all(isinstance(one, Line) for one in sentences):
        return list(sentences)  # pyright: ignore[reportReturnType]
    return lines_of_texts(sentences)  # pyright: ignore[reportArgumentType]


def _pair_lines(pairs: Sequence[tuple[str, str]] | Sequence[PairLine]) -> list[PairLine]:
    if isinstance(pairs, str) or not pairs:
        raise InputError(f"pairs is {shown(pairs)}; expected pairs of a premise and a hypothesis.")
    lines = []
    for number, pair in enumerate(pairs, 1):
        if isinstance(pair, PairLine):
            lines.append(pair)
            continue
        if (
            not isinstance(pair, tuple | list)
            or len(pair) != 2
            or not all(isinstance(one, str) for one in pair)
        ):
            raise InputError(f"pair {number} is {shown(pair)}; expected a premise and a hypothesis.")
        lines.append(
            PairLine(Line(pair[0], f"pair {number}, premise"), Line(pair[1], f"pair {number}, hypothesis"))
        )
    return lines


def _embedding(run: TrainedRun) -> Embedding:
    embed = run.description["embed"]
    reader = Embedding(run.subwords, None if embed == LEARNED else embed, run.description["longest"])
    was = run.configuration.get("encoder_revision")
    if was is not None and was != reader.fingerprints["encoder_revision"]:
        raise InputError(
            f"{run.folder} was trained on states of the encoder {embed!r} whose files have another digest than those "
            "that are here. Install the version that it was trained with."
        )
    return reader


def _texts(reader: Embedding, lines: Sequence[Line]) -> Texts:
    tokens = reader.subwords.encoded([line.text for line in lines])
    for line, one in zip(lines, tokens, strict=True):
        if not one:
            raise InputError(f"{line.where} is {shown(line.text)}, which has no tokens; expected some words.")
        if len(one) > reader.longest:
            raise InputError(
                f"{line.where} has {len(one):,} tokens; expected at most {reader.longest}, as in training. Give a "
                "shorter one."
            )
    return reader.texts([line.text for line in lines], "what is asked")[0]


def _pieces(reader: Embedding, line: Line) -> list[str]:
    """What each token is in the sentence."""
    return [line.text[begin:end] or token for token, (begin, end) in reader.subwords.pieces(line.text)]


def _of_pair(premises: Words, hypotheses: Words) -> dict[str, Any]:
    return {
        "premises": premises.words,
        "hypotheses": hypotheses.words,
        "premise_padding": premises.padding,
        "hypothesis_padding": hypotheses.padding,
    }


def _there(given: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def _best(names: Sequence[str], row: Sequence[float]) -> str:
    return names[max(range(len(row)), key=row.__getitem__)]


def _check_attends(run: TrainedRun) -> None:
    if getattr(run.model, "inference", None) is None:
        raise InputError(
            f"{run.folder} holds a model without attention, so that there is nothing to show. Leave --show out."
        )
