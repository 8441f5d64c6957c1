"""The report in a terminal: a short table, and what to do next."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fenchel.auditing.report.findings import SHORT_KIND_NAMES, STANDARD_ERROR, Findings, model_name
from fenchel.auditing.sampling import sample_words
from fenchel.drawing import count, short, titled_table
from fenchel.errors import MissingExtraError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from fenchel.auditing.results import AuditResults

__all__ = ["COLUMNS", "terminal_table"]

COLUMNS: dict[str, str] = {
    "total_variation": "Weight moved",
    "mean_error": "Output error",
    "relative_deviation": "Relative deviation",
    "predicted_deviation": "Predicted deviation",
    "certificate": "Deviation at most",
}
"""The metrics of the short tables and what heads their columns."""

_FARTHEST = 3


def terminal_table(report: AuditResults) -> RenderableType:
    """A table of the means of every layer, followed by the heads that are farthest off, for rich.

    Args:
        report: The audit.

    Returns:
        Something that ``rich.print`` prints. Names and texts in it are never read as markup.

    Raises:
        MissingExtraError: If rich is not installed.
        InputError: If the report holds no head.
    """
    try:
        from rich.console import Group
        from rich.text import Text
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    findings = Findings.of(report)
    kind_column = ("Kind",) if len(findings.kinds) > 1 else ()
    # Eighty columns have no room for the kinds and a bound.
    columns = {
        metric: words for metric, words in COLUMNS.items() if metric != "certificate" or not kind_column
    }

    def table(title: str, *columns: str) -> Table:
        made = titled_table(title)
        for words in columns:
            # Headers break between words and nothing else does, so that a table fits 80 columns.
            left = words == "Kind"
            made.add_column(words.replace(" ", "\n"), justify="left" if left else "right", no_wrap=True)
        return made

    sampled = sample_words(report.manifest.get("queries"))
    name = f"Means over queries, {model_name(report.manifest)}"
    if sampled is not None:
        name += f"\n± standard error, from {sampled}"

    def written(mean: float | None, error: float | None) -> str:
        if sampled is None:
            return short(mean)
        known = error is not None and math.isfinite(error)
        return f"{short(mean)}\n{f'±{error:.1g}' if known else ''}"

    layers = table(name, *kind_column, "Layer", *columns.values(), "Queries")
    for kind in findings.kinds:
        numbers = findings.layers(kind)
        for i, layer in enumerate(numbers):
            heads = [head for head in findings.of_kind(kind) if head.key.layer == layer]
            layers.add_row(
                *([SHORT_KIND_NAMES[kind] if i == 0 else ""] if kind_column else []),
                str(layer),
                *(
                    written(
                        findings.mean(metric, heads), report.statistics.standard_error(metric, kind, layer)
                    )
                    for metric in columns
                ),
                count(sum(head.queries for head in heads)),
                end_section=i == len(numbers) - 1,
            )
    title = "Heads in which most weight would move"
    farthest = table(title, *kind_column, "Layer", "Head", *columns.values())
    for head in findings.farthest("total_variation", _FARTHEST):
        farthest.add_row(
            *([SHORT_KIND_NAMES[head.key.kind]] if kind_column else []),
            str(head.key.layer),
            str(head.key.head),
            *(written(head.value(metric), head.value(metric, STANDARD_ERROR)) for metric in columns),
        )
    parts: list[Any] = [layers, farthest]
    if findings.not_converged:
        parts.append(
            Text(
                f"{count(findings.not_converged)} of {count(findings.problems)} problems did not converge: "
                + ", ".join(_missed(findings)),
                style="bold red",
            )
        )
    return Group(*parts)


def _missed(findings: Findings) -> list[str]:
    return [
        f"{SHORT_KIND_NAMES[kind].lower()} {count(missed)}"
        for kind in findings.kinds
        if (missed := sum(head.not_converged for head in findings.of_kind(kind)))
    ]
