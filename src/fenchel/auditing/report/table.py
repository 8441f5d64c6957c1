"""The report in a terminal: one sentence and a short table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fenchel.auditing.report.findings import SHORT_KIND_NAMES, Findings, model_name
from fenchel.errors import MissingExtraError
from fenchel.runs.number import count, percent, reading, short

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fenchel.auditing.results import AuditResults

__all__ = ["COLUMNS", "summary_sentence", "terminal_table"]

COLUMNS: dict[str, str] = {
    "relative_deviation": "Relative deviation",
    "total_variation": "Total variation",
    "mean_error": "Output error",
    "certificate": "Certificate",
}
"""The metrics of the short tables and what heads their columns."""

_WORST = 3


def summary_sentence(report: AuditResults) -> str:
    """What the audit found, in one sentence.

    Raises:
        InputError: If the report holds no head.
    """
    findings = Findings.of(report)
    heads = len(findings.heads)
    missed = findings.not_converged
    tolerance = reading(report.manifest.get("tol"))
    outcome = (
        f"{count(missed)} of {count(findings.problems)} exact solves did NOT converge, the others are certified"
        if missed
        else f"all {count(findings.problems)} exact solves are certified"
    )
    outcome += " in float64"
    if tolerance is not None and math.isfinite(tolerance):
        outcome += f" to {tolerance:g}"
    return (
        f"{model_name(report.manifest)}, {count(heads)} head{'s' if heads != 1 else ''}: attention's dual "
        f"point is on average {percent(findings.mean('relative_deviation'))} off the exact one, its weights "
        f"are {short(findings.mean('total_variation'))} apart in total variation and its output is off by "
        f"{percent(findings.mean('mean_error'))}; {outcome}."
    )


def terminal_table(report: AuditResults) -> RenderableType:
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
    kind_column = ("Kind",) if len(findings.kinds) > 1 else ()

    def table(title: str, *columns: str) -> Table:
        made = Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left", pad_edge=False)
        for words in columns:
            # Headers break between words and nothing else does, so that a table fits 80 columns.
            left = words == "Kind"
            made.add_column(words.replace(" ", "\n"), justify="left" if left else "right", no_wrap=True)
        return made

    name = f"Means over queries, {model_name(report.manifest)}"
    layers = table(name, *kind_column, "Layer", *COLUMNS.values(), "Queries")
    for kind in findings.kinds:
        numbers = findings.layers(kind)
        for i, layer in enumerate(numbers):
            heads = [head for head in findings.of_kind(kind) if head.key.layer == layer]
            layers.add_row(
                *([SHORT_KIND_NAMES[kind] if i == 0 else ""] if kind_column else []),
                str(layer),
                *(short(findings.mean(metric, heads)) for metric in COLUMNS),
                count(sum(head.queries for head in heads)),
                end_section=i == len(numbers) - 1,
            )
    worst = table("Worst heads by mean total variation", *kind_column, "Layer", "Head", *COLUMNS.values())
    for head in findings.worst("total_variation", _WORST):
        worst.add_row(
            *([SHORT_KIND_NAMES[head.key.kind]] if kind_column else []),
            str(head.key.layer),
            str(head.key.head),
            *(short(head.value(metric)) for metric in COLUMNS),
        )
    parts: list[Any] = [layers, worst]
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
