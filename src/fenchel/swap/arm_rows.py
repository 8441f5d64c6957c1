"""The model-wide arms of a swap measure by measure: a value, its interval and where both stand on one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fenchel.drawing import Whisker, WhiskerAxis
from fenchel.swap.table import arm_name
from fenchel.swap.wording import wording

if TYPE_CHECKING:
    from fenchel.swap.swap_tables import SwapTables

__all__ = ["MEASURES", "ArmRow", "ArmTable", "arm_tables"]

MEASURES: dict[str, str] = {
    "embedding_change": "change of the sentence embeddings, 1 − cosine",
    "ranking_agreement": "Spearman’s correlation with the model’s own ranking",
}
"""What is measured besides the qualities and the change of the output, in words."""


@dataclass(frozen=True)
class ArmRow:
    """One arm.

    Attributes:
        name: What it is called.
        role: ``model``, ``control`` or ``swap``.
        value: Of the measure.
        shown: What is drawn: the difference from the model of a quality, else the value itself.
        low: Where its 95 % interval begins; None where there is none.
        high: Where it ends.
        whisker: ``shown`` and the interval, drawn.
    """

    name: str
    role: str
    value: float | None
    shown: float | None
    low: float | None
    high: float | None
    whisker: Whisker


@dataclass(frozen=True)
class ArmTable:
    """A measure of all model-wide arms.

    Attributes:
        measure: Its name in the records.
        words: What it is.
        of_difference: Whether the difference from the model is drawn.
        rows: The model, the controls by α, the estimators.
        model_at: Where the model stands.
    """

    measure: str
    words: str
    of_difference: bool
    rows: list[ArmRow]
    model_at: float


def arm_tables(tables: SwapTables) -> list[ArmTable]:
    """A table a measure: the quality first, where there is one."""
    words = wording(tables.manifest)
    known = {**words.qualities, "hidden_change": f"relative change of the {words.output}", **MEASURES}
    return [
        _table(tables, name, called, of_difference=name in words.qualities)
        for name, called in known.items()
        if name in tables.arms[0]
    ]


def _table(tables: SwapTables, measure: str, words: str, *, of_difference: bool) -> ArmTable:
    drawn = f"{measure}_difference" if of_difference else measure
    whole = [record for record in tables.arms if record["where"] == "model"]
    whole.sort(key=lambda record: (_ROLES.index(_role(record)), record["alpha"]))
    model = next(record for record in whole if _role(record) == "model")
    at_model = 0.0 if of_difference else float(model[measure] or 0.0)
    ends = [record[f"{drawn}{end}"] for record in whole for end in ("", "_low", "_high")]
    axis = WhiskerAxis.of(ends, through=at_model)
    rows = []
    for record in whole:
        shown, low, high = (record[f"{drawn}{end}"] for end in ("", "_low", "_high"))
        rows.append(
            ArmRow(
                name=arm_name(record),
                role=_role(record),
                value=record[measure],
                shown=shown,
                low=low,
                high=high,
                whisker=axis.whisker(shown, low, high),
            )
        )
    return ArmTable(measure, words, of_difference, rows, axis.place(at_model))


_ROLES = ("model", "control", "swap")


def _role(record: dict[str, Any]) -> str:
    if record["estimator"] == "model":
        return "model"
    return "control" if record["control"] else "swap"
