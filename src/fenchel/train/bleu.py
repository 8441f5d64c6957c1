"""BLEU out of sums, so that any number of processes adds up to the same score as sacrebleu gives for all of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fenchel.errors import InputError, MissingExtraError
from fenchel.train.metric import Metric

__all__ = ["BLEU", "BLEU_SUMS", "bleu_of_sums", "bleu_signature", "bleu_sums"]

BLEU = Metric("bleu", "BLEU", higher_is_better=True, least=0.0, most=100.0)

_ORDERS = 4

BLEU_SUMS = (
    *(f"bleu_right_{order}" for order in range(1, _ORDERS + 1)),
    *(f"bleu_said_{order}" for order in range(1, _ORDERS + 1)),
    "bleu_length",
    "bleu_wanted",
)
"""What is added up: n-grams that are right, n-grams that were said, words that were said and that were wanted."""


def bleu_sums(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lower: bool = False
) -> dict[str, float]:
    """The sums of some sentences.

    Args:
        hypotheses: What was said.
        references: For each, what people said, at least once.
        lower: Whether capitals do not count.

    Raises:
        InputError: If there are not as many of both, or one has no reference.
        MissingExtraError: If sacrebleu is not installed.

    Example:
        >>> sums = bleu_sums(["a dog barks ."], [["a dog barks .", "the dog is loud"]])
        >>> round(bleu_of_sums(sums), 1)
        100.0
    """
    if len(hypotheses) != len(references) or not all(references):
        raise InputError(
            f"there are {len(hypotheses)} sentences and {len(references)} lists of references; expected a list that is "
            "not empty for each."
        )
    metric, sums = _sacrebleu(lower), dict.fromkeys(BLEU_SUMS, 0.0)
    for said, wanted in zip(hypotheses, references, strict=True):
        found = metric.corpus_score([said], [[one] for one in wanted])
        values = (*found.counts, *found.totals, found.sys_len, found.ref_len)
        for name, value in zip(BLEU_SUMS, values, strict=True):
            sums[name] += value
    return sums


def bleu_of_sums(sums: Mapping[str, float]) -> float:
    """BLEU from 0 to 100, with the smoothing that sacrebleu has where nobody asks for another.

    Args:
        sums: What ``bleu_sums`` gave, added up.

    Raises:
        MissingExtraError: If sacrebleu is not installed.
    """
    right, said, lengths = (
        [round(sums[name]) for name in BLEU_SUMS[begin:end]] for begin, end in ((0, 4), (4, 8), (8, 10))
    )
    metric = _sacrebleu(False)
    score = metric.compute_bleu(right, said, *lengths, smooth_method="exp").score
    return min(score, 100.0)  # which rounding may leave a little


def bleu_signature(*, lower: bool = False, references: int = 1) -> str:
    """What sacrebleu calls this score.

    Args:
        lower: As for ``bleu_sums``.
        references: How many each sentence has.
    """
    metric = _sacrebleu(lower)
    metric.corpus_score(["a"], [["a"]] * references)
    return str(metric.get_signature())


def _sacrebleu(lower: bool) -> Any:
    try:
        from sacrebleu.metrics.bleu import BLEU as SacreBleu  # noqa: N811 - a metric here has the name already
    except ImportError:
        raise MissingExtraError("sacrebleu", "text") from None
    return SacreBleu(lowercase=lower)
