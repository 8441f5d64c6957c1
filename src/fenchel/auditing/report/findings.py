"""What an audit found, and how its page and the terminal say it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fenchel.arguments import Kind
from fenchel.auditing.heads import HeadKey
from fenchel.auditing.twin import twin_line
from fenchel.drawing import count, percent, short
from fenchel.errors import InputError

if TYPE_CHECKING:
    from fenchel.auditing.state import AuditState
    from fenchel.auditing.statistics import AuditStatistics

KIND_NAMES: dict[Kind, str] = {
    "encoder_self": "Encoder self-attention",
    "decoder_self": "Decoder self-attention",
    "cross": "Cross-attention",
}

SHORT_KIND_NAMES: dict[Kind, str] = {
    "encoder_self": "Encoder self",
    "decoder_self": "Decoder self",
    "cross": "Cross",
}

METRIC_NAMES: dict[str, str] = {
    "relative_deviation": "Relative deviation",
    "second_order_deviation": "Second-order deviation",
    "total_variation": "Total variation",
    "mean_error": "Output error",
    "certificate": "Certificate",
    "gap": "Duality gap, at most",
    "predicted_deviation": "Predicted deviation",
}

STATISTICS: dict[str, str] = {"mean": "mean", "p50": "median", "p95": "95th percentile", "max": "maximum"}

"""The suffixes of a record's keys, with the words for them."""


STANDARD_ERROR = "se"

"""The suffix of the standard errors of means, which records of a sample have."""


class Head(NamedTuple):
    """One head with what :meth:`fenchel.auditing.statistics.AuditStatistics.of` says of it."""

    key: HeadKey
    numbers: Mapping[str, Any]

    @property
    def queries(self) -> int:
        """How many were measured."""
        return self.numbers["queries"]

    @property
    def population(self) -> int:
        """How many the means speak for."""
        return self.numbers["population"]

    @property
    def not_converged(self) -> int:
        """How many missed the tolerance."""
        return self.numbers["not_converged"]

    @property
    def newton_steps(self) -> float:
        """Mean number of steps of the solver."""
        return self.numbers["newton_steps"] / self.queries

    def value(self, metric: str, statistic: str = "mean") -> float:
        """A statistic of a metric, infinite where it is unbounded; a standard error that is not known is NaN."""
        return self.numbers[f"{metric}_{statistic}"]


class Findings:
    """All heads of an audit, or of its twin, and what they come to.

    Args:
        statistics: Of at least one head.

    Attributes:
        statistics: The same.
        heads: Sorted by kind, layer and head.
        kinds: The kinds of attention that occur.
        problems: How many problems were solved: queries, summed over heads.
        not_converged: How many of them missed the tolerance.
        unbounded_queries: For how many of them the certificate says nothing.
    """

    def __init__(self, statistics: AuditStatistics) -> None:
        self.statistics = statistics
        self.heads = tuple(Head(key, statistics.of(*key)) for key in statistics.keys())  # noqa: SIM118
        self.kinds: tuple[Kind, ...] = tuple(dict.fromkeys(head.key.kind for head in self.heads))
        self.problems = sum(head.queries for head in self.heads)
        self.not_converged = sum(head.not_converged for head in self.heads)
        self.unbounded_queries = sum(head.numbers["certificate_unbounded"] for head in self.heads)

    @classmethod
    def of(cls, report: AuditState) -> Findings:
        """Of the model that a report is of.

        Raises:
            InputError: If the report holds no head.
        """
        if not report.heads:
            raise InputError(
                "the report holds 0 heads, expected at least 1; did the audit stop before its first batch?"
            )
        return cls(report.statistics)

    @classmethod
    def of_twin(cls, report: AuditState) -> Findings | None:
        """Of its untrained twin; None where that was not audited."""
        return None if report.twin is None or not report.twin_heads else cls(report.twin)

    def of_kind(self, kind: Kind) -> tuple[Head, ...]:
        """The heads of one kind."""
        return tuple(head for head in self.heads if head.key.kind == kind)

    def layers(self, kind: Kind) -> list[int]:
        """The layers of one kind."""
        return [layer for found, layer in self.statistics.layers() if found == kind]

    def head_numbers(self, kind: Kind) -> list[int]:
        """The numbers of the heads of one kind, over all layers."""
        return sorted({head.key.head for head in self.of_kind(kind)})

    @property
    def queries_per_head(self) -> int | None:
        """How many queries each head answered, where that is the same for all."""
        counts = {head.queries for head in self.heads}
        return counts.pop() if len(counts) == 1 else None

    def shown_statistic(self, metric: str) -> str:
        """What to show of a metric: the mean, or the median where some head's mean is unbounded."""
        return "p50" if any(head.value(metric) == math.inf for head in self.heads) else "mean"

    def median_of_medians(self, metric: str) -> float:
        """The middle one of the heads' medians, which stays finite where few queries are unbounded."""
        return statistics.median(head.value(metric, "p50") for head in self.heads)

    def mean(self, metric: str) -> float:
        """The mean over all queries."""
        total = sum(head.population for head in self.heads)
        return math.fsum(head.population * head.value(metric) for head in self.heads) / total

    def farthest(self, metric: str, number: int) -> list[Head]:
        """The heads with the greatest means, greatest first; the earlier head where two are equal."""
        return sorted(self.heads, key=lambda head: -head.value(metric))[:number]


def head_name(key: HeadKey, *, several_kinds: bool) -> str:
    """What a reader calls a head.

    Example:
        >>> head_name(HeadKey("cross", 2, 5), several_kinds=True)
        'Cross-attention, layer 2, head 5'
    """
    name = f"layer {key.layer}, head {key.head}"
    return f"{KIND_NAMES[key.kind]}, {name}" if several_kinds else name.capitalize()


def model_name(manifest: Mapping[str, Any]) -> str:
    """The model's name as its user gave it."""
    return str(manifest.get("model") or "an unnamed model")


_LEARNED = 2.0  # how many times the twin's what moves has to be for it to be said that it came with training


def headline(report: AuditState) -> list[str]:
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
    findings, twin = Findings.of(report), Findings.of_twin(report)
    sentences = (
        otherwise_sentence(report.manifest),
        moved_sentence(findings, twin),
        sampled_sentence(findings, report.sample),
        deviation_sentence(findings, twin),
        certified_sentence(findings, report.manifest["tol"]),
        twin_line(report.manifest),
    )
    return [sentence for sentence in sentences if sentence]


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
    learned = "most of it came" if moved >= _LEARNED * without else "little of it needs to have come"
    return f"{said}, so {learned} with training."


def sampled_sentence(findings: Findings, words: str | None) -> str | None:
    """Of how many queries the means are estimates, and how good they are; None where all queries were measured."""
    if words is None:
        return None
    population = sum(head.population for head in findings.heads)
    said = (
        f"Measured were {words}, {count(findings.problems)} of {count(population)} "
        "problems: means are estimates for all of them"
    )
    known = {
        metric: [
            error for head in findings.heads if math.isfinite(error := head.value(metric, STANDARD_ERROR))
        ]
        for metric in ("total_variation", "mean_error")
    }
    if not all(known.values()):
        return f"{said}; a single window gives no standard errors."
    return (
        f"{said}, with standard errors of at most {percent(max(known['total_variation']))} in a head for the weight "
        f"that would move and of at most {percent(max(known['mean_error']))} for the output."
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


def certified_sentence(findings: Findings, tolerance: float) -> str:
    """How many exact answers are certified, and to what."""
    missed, problems = findings.not_converged, findings.problems
    certified = (
        f"{count(problems - missed)} of {count(problems)} exact answers are certified, {count(missed)} are not"
        if missed
        else f"All {count(problems)} exact answers are certified"
    )
    return (
        f"{certified}: a bound computed in float64 from the answer itself, not trust in the solver, puts its dual "
        f"point within {tolerance:g} of the true one, relative to its length."
    )


def summary_sentence(report: AuditState) -> str:
    """What the audit found, in one sentence.

    Raises:
        InputError: If the report holds no head.
    """
    findings, twin = Findings.of(report), Findings.of_twin(report)
    heads, missed = len(findings.heads), findings.not_converged
    outcome = (
        f"{count(missed)} of {count(findings.problems)} exact solves did NOT converge, the others are certified"
        if missed
        else f"all {count(findings.problems)} exact solves are certified"
    )
    outcome += f" in float64 to {report.manifest['tol']:g}"

    words = report.sample
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
