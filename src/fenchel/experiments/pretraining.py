"""Models that fill in blanks, by what becomes of the words that are chosen and by what is trained for."""

from __future__ import annotations

from collections.abc import Sequence

from fenchel.experiments.arm import Arm, arms_by_name
from fenchel.experiments.budget import Budget, budgets_by_name
from fenchel.experiments.caveats import usual_caveats
from fenchel.experiments.column import Column
from fenchel.experiments.comparison import Comparison
from fenchel.experiments.plan import Plan
from fenchel.experiments.record import RunRecord
from fenchel.train.cloze import ClozeTask

__all__ = ["BLANKS", "CORRUPTIONS", "TRANSLATED_BLANKS"]

CORRUPTIONS = ("80/10/10", "100/0/0", "80/0/20", "80/20/0", "0/20/80", "0/0/100")
"""MASK/SAME/RND in per cent, row by row as Devlin et al. (2019, table 8) have them."""

_SHARED = ("epochs", "batch_size", "width", "depth", "dropout")
_TESTED = (
    "Whatever is trained, the test hides all words that are chosen: the accuracy is the share of them that is found. "
    "The epoch of the best validation accuracy is kept, and the test is read once with it."
)
_BUDGETS = budgets_by_name(
    Budget(
        "smoke",
        {"train_sentences": 200, "epochs": 1, "width": 32, "depth": 1, "heads": 2, "vocabulary": 1000},
        "a minute or two: shows that everything works, and no more",
    ),
    Budget(
        "desk",
        {"train_sentences": None, "epochs": 8, "width": 128, "depth": 3, "heads": 4, "vocabulary": 8000},
        "all text, half an hour or so a run on a CPU core",
    ),
)


def _corrupted(shares: str) -> Arm:
    hidden, same, exchanged = shares.split("/")
    return Arm(
        "-".join((hidden, same, exchanged)),
        f"MLM {shares}",
        {"objective": "mlm", "shares": shares},
        f"of the words that are chosen, {hidden} % hidden, {same} % left as they are, {exchanged} % exchanged",
    )


def _blanks_caveats(plan: Plan, records: Sequence[RunRecord]) -> tuple[str, ...]:
    return usual_caveats(
        plan,
        records,
        _TESTED,
        "A causal model sees no word to the right, so that its accuracy, of the next word, is not of the same "
        "question; it stands here for what fine-tuning makes of it.",
        "Next sentences are tested on passages of two parts, of which half are exchanged: not quite the same places, "
        "and easier or harder ones, as the columns of the counts say. A difference as small as theirs shows nothing.",
        shared=_SHARED,
    )


def _translated_caveats(plan: Plan, records: Sequence[RunRecord]) -> tuple[str, ...]:
    return usual_caveats(
        plan,
        records,
        _TESTED,
        "Both arms read the same sentences; TLM sees the translation beside each, so that it can find hidden words "
        "there.",
        shared=_SHARED,
    )


_COLUMNS = (
    Column("test_loss", "Test loss"),
    Column("test_unigram_accuracy", "Most frequent word"),
    Column("test_bigram_accuracy", "Two neighbours"),
)

BLANKS = Comparison(
    task=ClozeTask,
    arms=arms_by_name(
        *map(_corrupted, CORRUPTIONS),
        Arm(
            "mlm-nsp",
            "MLM + next sentence",
            {"objective": "mlm+nsp", "shares": CORRUPTIONS[0]},
            "80/10/10, and whether the second half of a passage follows the first",
        ),
        Arm("causal", "Causal", {"objective": "causal", "shares": CORRUPTIONS[0]}, "the next word"),
    ),
    baseline="80-10-10",
    budgets=_BUDGETS,
    caveats=_blanks_caveats,
    before="To know of these numbers:",
    columns=(*_COLUMNS, Column("test_next_accuracy", "Next sentences")),
    costs=True,
)
"""The six rows of the table, and other objectives."""

TRANSLATED_BLANKS = Comparison(
    task=ClozeTask,
    arms=arms_by_name(
        Arm("mlm", "MLM", {"objective": "mlm"}, "hidden words of a sentence, the translation not there"),
        Arm("tlm", "TLM", {"objective": "tlm"}, "the same with the translation beside it"),
    ),
    baseline="mlm",
    budgets=_BUDGETS,
    caveats=_translated_caveats,
    before="To know of these numbers:",
    columns=_COLUMNS,
    costs=True,
)
"""Hidden words of sentences, without and with their translation."""
