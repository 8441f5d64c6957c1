"""A swap in a terminal: a short table of the model-wide arms, and of single layers and heads where there are any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fenchel.drawing import short, titled_table
from fenchel.errors import MissingExtraError
from fenchel.swap.finding import signed
from fenchel.swap.wording import wording

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fenchel.swap.swap_tables import SwapTables

__all__ = ["arm_name", "terminal_table"]

_MOST = 5
_HEADINGS = {"loss": "Loss", "score_correlation": "Spearman"}
_ESTIMATORS = {"model": "model", "second_order": "second order", "exact": "exact"}


def arm_name(record: dict[str, Any]) -> str:
    """What an arm is called in tables and figures.

    Example:
        >>> arm_name({"estimator": "first_order", "alpha": 0.8}), arm_name({"estimator": "exact", "alpha": 1.0})
        ('α = 0.8', 'exact')
    """
    if record["estimator"] == "first_order":
        return f"α = {record['alpha']:g}"
    return _ESTIMATORS.get(record["estimator"], str(record["estimator"]))


def terminal_table(report: SwapTables) -> RenderableType:
    """The tables, for rich; they fit 80 columns and break headers in narrower terminals.

    Args:
        report: The swap.

    Returns:
        Something that ``rich.print`` prints. Names in it are never read as markup.

    Raises:
        MissingExtraError: If rich is not installed.
    """
    try:
        from rich.console import Group
        from rich.text import Text
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    whole = [record for record in report.arms if record["where"] == "model"]
    units = ", ".join(f"{number:,} {unit}" for unit, number in report.results["units"].items())
    parts: list[Any] = [_table(f"{report.manifest['model']}, {units}", whole, report, [])]
    for where, labels in (("layer", ["Layer"]), ("head", ["Layer", "Head"])):
        arms = [record for record in report.arms if record["where"] == where and not record["control"]]
        if not arms:
            continue
        furthest = sorted(arms, key=lambda record: -record["hidden_change"])[:_MOST]
        shown = (
            f"the {len(furthest)} of {len(arms)} that move the output most" if len(arms) > _MOST else "all"
        )
        parts.append(_table(f"One {where} swapped alone: {shown}", furthest, report, labels))
    if whole[0].get("score_correlation", 0) is None:
        parts.append(
            Text("The model gives every pair the same similarity, so there is no ranking.", style="bold")
        )
    return Group(*parts)


def _table(title: str, records: list[dict[str, Any]], report: SwapTables, labels: list[str]) -> Any:
    from rich.text import Text

    made = titled_table(title)
    columns = [*labels, "Attention"]
    words = wording(report.manifest)
    # Tables of single layers and heads have columns of their own, so there the first quality has to do.
    qualities = [name for name in words.qualities if name in records[0]][: 1 if labels else None]
    for name in qualities:
        columns += [_HEADINGS.get(name, words.tiles[name]), "Difference [95 %]"]
    columns += [words.change.capitalize(), *(["The same by α"] if labels else [])]
    embedding = "embedding_change" in records[0]
    if embedding:
        columns += ["1 − cosine", "Ranking kept"]
    for words in columns:
        made.add_column(
            words.replace(" ", "\n", 1),
            justify="left" if words == "Attention" else "right",
            min_width=len("[−0.0001,") if words.startswith("Difference") else None,
            overflow="fold",
        )
    for record in records:
        cells = [str(record[label.lower()]) for label in labels] + [arm_name(record)]
        for quality in qualities:
            cells += [_number(record[quality]), _difference(record, quality)]
        cells += [_number(record["hidden_change"]), *([_by_alpha(record, report)] if labels else [])]
        if embedding:
            cells += [_number(record["embedding_change"]), _number(record["ranking_agreement"])]
        made.add_row(*map(Text, cells))
    return made


def _by_alpha(record: dict[str, Any], report: SwapTables) -> str:
    """The least and the greatest change that a control gives in the same place."""
    same = [
        other["hidden_change"]
        for other in report.arms
        if other["control"] and (other["layer"], other["head"]) == (record["layer"], record["head"])
    ]
    return f"{short(min(same))} to {short(max(same))}" if same else "–"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if value == 0 or abs(value) >= 1e-4 else f"{value:.0e}"


def _difference(record: dict[str, Any], quality: str) -> str:
    name = f"{quality}_difference"
    if record["estimator"] == "model":
        return ""
    if record[f"{name}_low"] is None:
        return signed(record[name])
    low, high = signed(record[f"{name}_low"]), signed(record[f"{name}_high"])
    if low == high == "0":
        return "0"
    return f"{signed(record[name])}\n[{low}, {high}]"
