"""Translators by what is believed, how it is inferred and how words are scored; and one without attention."""

from __future__ import annotations

from collections.abc import Sequence

from fenchel.experiments.arm import Arm, arms_by_name
from fenchel.experiments.budget import Budget, budgets_by_name
from fenchel.experiments.caveats import usual_caveats
from fenchel.experiments.column import Column
from fenchel.experiments.comparison import Comparison
from fenchel.experiments.plan import Plan
from fenchel.experiments.record import RunRecord
from fenchel.train.translation import Translation

__all__ = ["MAIN_TRANSLATORS", "TRANSLATION"]

_PREFERENCES = {
    "uniform": "every word of the source is believed alike",
    "context": "the source alone decides what is believed of its words",
    "relative": "belief by the distance of places, learned",
    "gaussian": "belief around the place that is as far into the source",
}
_ESTIMATORS = {"first": "first_order", "second": "second_order", "exact": "exact"}
_SCORES = {"dot": "dot product", "general": "bilinear"}
_OF_ATTENTION = frozenset({"alpha", "closeness", "place", "spread"})
_LEFT_OUT = (
    "An additive score with another estimator than first order is no arm: such a score is all preference, so that the "
    "evidence is 0, estimators agree and the gap is 0."
)

MAIN_TRANSLATORS = (
    "none",
    "general-uniform-first",
    "general-uniform-exact",
    "general-context-first",
    "general-relative-first",
    "general-gaussian-first",
    "dot-uniform-first",
    "additive-uniform-first",
)
"""What is run where nobody asks for other arms: one step to each side of plain attention, and none."""


def _arms() -> tuple[Arm, ...]:
    none = Arm(
        "none",
        "No attention",
        {"attention": "none"},
        "the head reads the encoder's last state in the place of h",
        leaves=_OF_ATTENTION,
    )
    inferred = tuple(
        Arm(
            f"{score}-{preference}-{short}",
            f"{score.capitalize()}, {preference}, {short}",
            {"attention": "inference", "score": score, "preference": preference, "estimator": estimator},
            f"{how} score; {believed}; {estimator.replace('_', ' ')}",
        )
        for score, how in _SCORES.items()
        for preference, believed in _PREFERENCES.items()
        for short, estimator in _ESTIMATORS.items()
    )
    additive = tuple(
        Arm(
            f"additive-{preference}-first",
            f"Additive, {preference}",
            {
                "attention": "inference",
                "score": "additive",
                "preference": preference,
                "estimator": "first_order",
            },
            f"additive score, which is all preference; {believed}",
        )
        for preference, believed in _PREFERENCES.items()
    )
    return (none, *inferred, *additive)


def _caveats(plan: Plan, records: Sequence[RunRecord]) -> tuple[str, ...]:
    trained = plan.setting["train_sentences"]
    some = () if trained is None else (f"Trained on the first {trained:,} pairs only.",)
    return usual_caveats(
        plan,
        records,
        *some,
        "The epoch of the best validation BLEU is kept, and the test is read once with it; BLEU is of greedy "
        "translations where nothing is said of a beam.",
        _LEFT_OUT,
        f"{len(plan.chosen)} of {len(plan.known)} arms were planned; the others were not run.",
        shared=("epochs", "batch_size", "width", "depth", "dropout", "query"),
    )


TRANSLATION = Comparison(
    task=Translation,
    arms=arms_by_name(*_arms()),
    baseline="general-uniform-first",
    budgets=budgets_by_name(
        Budget(
            "smoke",
            {"train_sentences": 200, "epochs": 1, "width": 32, "depth": 1, "subwords": 500},
            "minutes: shows that everything works, and no more",
        ),
        Budget(
            "desk",
            {"train_sentences": None, "epochs": 8, "width": 256, "depth": 2, "subwords": 5000},
            "all pairs, half an hour or so a run on a CPU core",
        ),
    ),
    caveats=_caveats,
    before="To know of these numbers:",
    columns=(
        Column("test_beam_bleu", "Test BLEU, beam 5", 2),
        Column("test_loss", "Test loss"),
        Column("validation_bleu", "Validation BLEU, last epoch", 2),
    ),
    costs=True,
)
"""Preference × score × estimator, and no attention."""
