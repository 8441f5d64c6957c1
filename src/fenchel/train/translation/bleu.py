"""BLEU as sums over sentences, so that any number of processes adds up to sacrebleu's score of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fenchel.errors import MissingExtraError

__all__ = ["SUMS", "bleu_score", "bleu_signature", "bleu_sums"]

_ORDERS = 4
SUMS = (
    "bleu_system_length",
    "bleu_reference_length",
    *(f"bleu_right_{order}" for order in range(1, _ORDERS + 1)),
    *(f"bleu_total_{order}" for order in range(1, _ORDERS + 1)),
)
"""Names of what is added up: words, and n-grams that are right and that there are."""


def _bleu() -> Any:
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise MissingExtraError("sacrebleu", "text") from None
    return BLEU(force=True)  # which only keeps it from warning of text that looks tokenized


def bleu_sums(translations: Sequence[str], references: Sequence[str]) -> dict[str, int]:
    """What sacrebleu counts in some translations.

    Args:
        translations: At least one.
        references: One for each.

    Raises:
        MissingExtraError: If sacrebleu is not installed.
    """
    found = _bleu().corpus_score(list(translations), [list(references)])
    return dict(zip(SUMS, (found.sys_len, found.ref_len, *found.counts, *found.totals), strict=True))


def bleu_score(sums: Mapping[str, float]) -> float:
    """The score, from 0 to 100, that ``sacrebleu.corpus_bleu`` gives all translations together.

    Args:
        sums: ``SUMS`` by name, added up.

    Example:
        >>> one, other = (["ein Hund läuft weg"], ["ein Hund läuft fort"]), (["zwei Katzen"], ["zwei Katzen"])
        >>> parts = [bleu_sums(*one), bleu_sums(*other)]
        >>> added = {name: parts[0][name] + parts[1][name] for name in SUMS}
        >>> import sacrebleu
        >>> bleu_score(added) == sacrebleu.corpus_bleu(one[0] + other[0], [one[1] + other[1]]).score
        True
    """
    system, reference, *counts = (int(sums[name]) for name in SUMS)
    found = _bleu().compute_bleu(
        correct=counts[:_ORDERS],
        total=counts[_ORDERS:],
        sys_len=system,
        ref_len=reference,
        smooth_method="exp",
    )
    return found.score


def bleu_signature() -> str:
    """What has to stand beside every score, as sacrebleu writes it.

    Example:
        >>> bleu_signature().split("|version")[0]
        'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp'
    """
    bleu = _bleu()
    bleu.corpus_score([""], [[""]])
    return str(bleu.get_signature())
