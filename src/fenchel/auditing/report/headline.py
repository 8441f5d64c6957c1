"""The sentences in which an audit is summed up: first what would move and how far outputs are off, then the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fenchel.auditing.report.findings import STANDARD_ERROR, Findings, model_name
from fenchel.auditing.sampling import sample_words
from fenchel.auditing.twin import twin_line
from fenchel.drawing import count, percent, reading, short

if TYPE_CHECKING:
    from fenchel.auditing.results import AuditResults

__all__ = [
    "certified_sentence",
    "deviation_sentence",
    "headline",
    "moved_sentence",
    "otherwise_sentence",
    "sampled_sentence",
    "summary_sentence",
]

_LEARNED = 2.0  # how many times the twin's what moves has to be for it to be said that it came with training


def headline(report: AuditResults) -> list[str]:
    """What came out, in three or four sentences of plain text.

    Args:
        report: The audit.

    Returns:
        That the model attends otherwise, if it does; what would move and how far outputs are off; what was sampled, if
        it was; what the deviation of the dual point is and what it measures; what is certified; whether the untrained
        twin was audited.

    Raises:
        InputError: If the report holds no head.
    """
    findings, twin = Findings.of(report), _twin(report)
    sampled = sampled_sentence(findings, report.manifest.get("queries"))
    otherwise = otherwise_sentence(report.manifest)
    sentences = [
        *([otherwise] if otherwise else []),
        moved_sentence(findings, twin),
        *([sampled] if sampled else []),
        deviation_sentence(findings, twin),
    ]
    sentences.append(certified_sentence(findings, reading(report.manifest.get("tol"))))
    return [*sentences, twin_line(report.manifest)]


def otherwise_sentence(manifest: Mapping[str, Any]) -> str | None:
    """That attention under a closeness was measured which is not the model's own; None where it is."""
    if not manifest.get("even_so"):
        return None
    return (
        f"The model does not attend under {manifest.get('closeness')}, by which it was measured: what is called "
        "attention here is what its queries and keys would give under that, not what it computes."
    )


def moved_sentence(findings: Findings, twin: Findings | None = None) -> str:
    """How much weight would move and how far the output is off, beside the untrained twin."""
    heads, each = len(findings.heads), findings.queries_per_head
    queries = f"{count(each or findings.problems)} quer{'y' if (each or findings.problems) == 1 else 'ies'}"
    where = f"{queries} in {'each of ' if each and heads > 1 else ''}{count(heads)} head{'s' if heads != 1 else ''}"
    moved, error = findings.mean("total_variation"), findings.mean("mean_error")
    said = (
        f"Over {where}, {percent(moved)} of attention's weight would move to other tokens in the exact answer (total "
        f"variation {short(moved)}), and the output is off by {percent(error)} of the exact output's length."
    )
    if twin is None:
        return said
    without = twin.mean("total_variation")
    said += f" In the untrained twin it is {percent(without)} and {percent(twin.mean('mean_error'))}"
    if moved is None or without is None:
        return f"{said}."
    learned = "most of it came" if moved >= _LEARNED * without else "little of it needs to have come"
    return f"{said}, so {learned} with training."


def sampled_sentence(findings: Findings, queries: int | None) -> str | None:
    """Of how many queries the means are estimates, and how good they are; None where all queries were measured."""
    words = sample_words(queries)
    if words is None:
        return None
    most = {
        metric: max((head.value(metric, STANDARD_ERROR) or 0.0 for head in findings.heads), default=0.0)
        for metric in ("total_variation", "mean_error")
    }
    return (
        f"Measured were {words}, {count(findings.problems)} of {count(sum(head.weight for head in findings.heads))} "
        f"problems: means are estimates for all of them, with standard errors of at most "
        f"{percent(most['total_variation'])} in a head for the weight that would move and of at most "
        f"{percent(most['mean_error'])} for the output."
    )


def deviation_sentence(findings: Findings, twin: Findings | None = None) -> str:
    """How far the dual point is from the exact one, beside what the covariance predicts and the untrained twin has."""
    said = (
        f"The dual point that attention uses is {percent(findings.mean('relative_deviation'))} from the exact one; the "
        f"covariance of the preference alone predicts {percent(findings.mean('predicted_deviation'))}"
    )
    if twin is not None:
        said += f", and the untrained twin has {percent(twin.mean('relative_deviation'))}"
    return f"{said}: this measures how small token vectors are, not how much of the output would change."


def certified_sentence(findings: Findings, tolerance: float | None) -> str:
    """How many exact answers are certified, and to what."""
    missed, problems = findings.not_converged, findings.problems
    certified = (
        f"{count(problems - missed)} of {count(problems)} exact answers are certified, {count(missed)} are not"
        if missed
        else f"All {count(problems)} exact answers are certified"
    )
    if tolerance is None or not math.isfinite(tolerance):
        return f"{certified}, by a bound computed in float64 from the answer itself."
    return (
        f"{certified}: a bound computed in float64 from the answer itself, not trust in the solver, puts its dual "
        f"point within {tolerance:g} of the true one, relative to its length."
    )


def summary_sentence(report: AuditResults) -> str:
    """What the audit found, in one sentence.

    Raises:
        InputError: If the report holds no head.
    """
    findings, twin = Findings.of(report), _twin(report)
    heads, missed = len(findings.heads), findings.not_converged
    tolerance = reading(report.manifest.get("tol"))
    outcome = (
        f"{count(missed)} of {count(findings.problems)} exact solves did NOT converge, the others are certified"
        if missed
        else f"all {count(findings.problems)} exact solves are certified"
    )
    outcome += " in float64"
    if tolerance is not None and math.isfinite(tolerance):
        outcome += f" to {tolerance:g}"

    words = sample_words(report.manifest.get("queries"))
    sampled = "" if words is None else f", {words}"
    closeness = report.manifest.get("closeness")
    under = f" under {closeness}" if closeness else ""
    if report.manifest.get("even_so"):
        under += ", although it attends otherwise"

    def beside(metric: str) -> str:
        return "" if twin is None else f" (untrained twin {percent(twin.mean(metric))})"

    return (
        f"{model_name(report.manifest)}{under}, {count(heads)} head{'s' if heads != 1 else ''}{sampled}: on average "
        f"{percent(findings.mean('total_variation'))} of attention's weight would move{beside('total_variation')} and "
        f"its output is off by {percent(findings.mean('mean_error'))}{beside('mean_error')}; its dual point is "
        f"{percent(findings.mean('relative_deviation'))} off the exact one, where the covariance alone predicts "
        f"{percent(findings.mean('predicted_deviation'))}; {outcome}."
    )


def _twin(report: AuditResults) -> Findings | None:
    return Findings.of_records(report.twin_heads) if report.twin_heads else None
