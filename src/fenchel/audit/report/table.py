"""The report in a terminal: one sentence and a short table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fenchel.audit.report.findings import KIND_NAMES, SHORT_KIND_NAMES, Findings, head_name, model_name
from fenchel.audit.report.number import count, percent, reading, short
from fenchel.errors import MissingExtraError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fenchel.audit.record import AuditReport

__all__ = ["COLUMNS", "summary_sentence", "terminal_table"]

COLUMNS: dict[str, str] = {
    "relative_deviation": "Relative deviation",
    "total_variation": "Total variation",
    "mean_error": "Output error",
    "certificate": "Certificate",
}
"""The metrics of the short tables and what heads their columns."""

_WORST = 3


def summary_sentence(report: AuditReport) -> str:
    """What the audit found, in one sentence.

    Raises:
        InputError: If the report holds no head.
    """
    findings = Findings.of(report)
    heads = len(findings.heads)
    missed = findings.not_converged
    tolerance = reading(report.manifest.get("tol"))
    outcome = (
        f"{count(missed)} of {count(findings.problems)} exact solves did NOT converge"
        if missed
        else f"all {count(findings.problems)} exact solves are certified"
        + (f" to {tolerance:g}" if tolerance is not None and math.isfinite(tolerance) else "")
    )
    return (
        f"{model_name(report.manifest)}, {count(heads)} head{'s' if heads != 1 else ''}: attention's dual "
        f"point is on average {percent(findings.mean('relative_deviation'))} off the exact one, its weights "
        f"are {short(findings.mean('total_variation'))} apart in total variation and its output is off by "
        f"{percent(findings.mean('mean_error'))}; {outcome}."
    )


def terminal_table(report: AuditReport) -> RenderableType:
    """A table of the means of every layer, followed by the worst heads, for rich.

    Args:
        report: The audit.

    Returns:
        Something that ``rich.print`` prints. Names and texts in it are never read as markup.

    Raises:
        MissingExtraError: If rich is not installed.
        InputError: If the report holds no head.
    """
    try:
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    findings = Findings.of(report)
    table = Table(
        box=box.SIMPLE_HEAD,
        title=Text(f"Means over queries, {model_name(report.manifest)}"),
        title_justify="left",
    )
    table.add_column("Kind")
    table.add_column("Layer", justify="right")
    for words in (*COLUMNS.values(), "Queries"):
        table.add_column(words, justify="right")
    for kind in findings.kinds:
        for i, layer in enumerate(layers := findings.layers(kind)):
            heads = [head for head in findings.of_kind(kind) if head.key.layer == layer]
            means = [short(findings.mean(metric, heads)) for metric in COLUMNS]
            table.add_row(
                KIND_NAMES[kind] if i == 0 else "",
                str(layer),
                *means,
                count(sum(head.queries for head in heads)),
                end_section=i == len(layers) - 1,
            )
    parts: list[Any] = [table, Text("Worst heads by mean total variation", style="bold")]
    for head in findings.worst("total_variation", _WORST):
        name = head_name(head.key, several_kinds=len(findings.kinds) > 1)
        numbers = ", ".join(
            f"{words.lower()} {short(head.value(metric))}" for metric, words in COLUMNS.items()
        )
        parts.append(Text(f"  {name}: {numbers}"))
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
