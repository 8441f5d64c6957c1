"""The results of an audit in sentences and as tables in a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fenchel.arguments import Kind, number_of
from fenchel.auditing.heads import SHORT_KIND_NAMES, in_units
from fenchel.auditing.twin import twin_line
from fenchel.drawing import count, percent, short, stacked, titled_table
from fenchel.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fenchel.auditing.state import AuditState
    from fenchel.auditing.statistics import AuditStatistics


def measured(report: AuditState) -> AuditStatistics:
    """The statistics of a report.

    Raises:
        InputError: If it has no heads.
    """
    if not report.heads:
        raise InputError(
            "the report holds 0 heads, expected at least 1; did the audit stop before its first batch?"
        )
    return report.statistics


def model_name(manifest: Mapping[str, Any]) -> str:
    """The name of the model as given by the user."""
    return str(manifest.get("model") or "an unnamed model")


_LEARNED = 2.0  # ratio of the moved weight to the twin's above which it is attributed to training


def headline(report: AuditState, *, brief: bool = False) -> list[str]:
    """The results in a few sentences of plain text.

    Args:
        report: The audit.
        brief: Whether to leave out the deviation of the dual point and the twin.

    Returns:
        Whether the model attends under another closeness or by another estimator; the moved weight and the error of
        the mean; the sample, if any; the deviation of the dual point; certificates; whether the twin was audited.

    Raises:
        InputError: If the report has no heads.
    """
    statistics, twin = measured(report), report.twin
    sentences = (
        model_note(report.manifest),
        moved_sentence(statistics, report.manifest, twin),
        sampled_sentence(statistics, report.sample),
        None if brief else deviation_sentence(statistics, twin),
        certified_sentence(statistics, report.manifest["tol"]),
        None if brief else twin_line(report.manifest),
    )
    return [in_units(sentence, report.manifest) for sentence in sentences if sentence]


def model_note(manifest: Mapping[str, Any]) -> str | None:
    """A note that the measured closeness or estimator is not the model's; None where both are."""
    if manifest.get("even_so"):
        return (
            f"The audit measures {manifest.get('closeness')}, which the model does not use: attention here is what its "
            "queries and keys would give under it, not what the model computes."
        )
    if estimator := manifest.get("estimator"):
        return f"{estimator[0].upper()}{estimator[1:]}, which is compared with the exact one."
    return None


def moved_sentence(
    statistics: AuditStatistics, manifest: Mapping[str, Any], twin: AuditStatistics | None = None
) -> str:
    """The moved weight and the error of the mean, compared with the untrained twin."""
    heads, counts = len(statistics.heads), {head["queries"] for head in statistics.heads}
    queries = counts.pop() if len(counts) == 1 else None
    number = queries or statistics.total("queries")
    each = "each of " if queries and heads > 1 else ""
    where = f"{number_of(number, 'query', 'queries')} in {each}{number_of(heads, 'head')}"
    moved, error = statistics.mean("total_variation"), statistics.mean("mean_error")
    is_input = manifest.get("space") == "input"
    mean = "a head's output before the value map" if is_input else "the mean of a head's keys"
    sentence = (
        f"Over {where}, {percent(moved)} of attention's weight would move to other tokens in the exact solution (total "
        f"variation {short(moved)}), and {mean} is off by {percent(error)} of its exact length."
    )
    if twin is None:
        return sentence
    without = twin.mean("total_variation")
    learned = "most of it came" if moved >= _LEARNED * without else "little of it needs to have come"
    return (
        f"{sentence} In the untrained twin it is {percent(without)} and {percent(twin.mean('mean_error'))}, "
        f"so {learned} with training."
    )


def sampled_sentence(statistics: AuditStatistics, words: str | None) -> str | None:
    """The size of the sample and the standard errors; None where all queries were measured."""
    if words is None:
        return None
    sentence = (
        f"Measured were {words}, {count(statistics.total('queries'))} of {count(statistics.total('population'))} "
        "problems: means are estimates for all of them"
    )
    moved, of_mean = (
        [error for head in statistics.heads if math.isfinite(error := head[f"{metric}_se"])]
        for metric in ("total_variation", "mean_error")
    )
    if not (moved and of_mean):
        return f"{sentence}; a single window gives no standard errors."
    return (
        f"{sentence}, with standard errors of at most {short(max(moved))} in a head for the total variation and "
        f"{short(max(of_mean))} for the error of the mean."
    )


def deviation_sentence(statistics: AuditStatistics, twin: AuditStatistics | None = None) -> str:
    """The relative deviation, compared with its prediction by the covariance and with the untrained twin."""
    beside = (
        "" if twin is None else f", and the untrained twin has {percent(twin.mean('relative_deviation'))}"
    )
    return (
        f"The dual point that attention uses is {percent(statistics.mean('relative_deviation'))} from the exact one; "
        f"the covariance of the preference alone predicts {percent(statistics.mean('predicted_deviation'))}{beside}: "
        "this measures the size of token vectors, not how much of the output would change."
    )


def certified_sentence(statistics: AuditStatistics, tolerance: float) -> str:
    """The number of certified exact solutions, and their tolerance."""
    missed, problems = statistics.total("not_converged"), statistics.total("queries")
    certified = (
        f"{count(problems - missed)} of {count(problems)} exact solutions are certified, {count(missed)} are not"
        if missed
        else f"All {count(problems)} exact solutions are certified"
    )
    return (
        f"{certified}: a certified dual point is within {tolerance:g} of the true one, relative to its norm, by a "
        "bound computed in float64, independent of the solver."
    )


def summary_sentence(report: AuditState) -> str:
    """The model, the closeness that it is audited under, and the sentences of a brief :func:`headline`.

    Raises:
        InputError: If the report has no heads.
    """
    closeness = report.manifest.get("closeness")
    under = f" under {closeness}" if closeness else ""
    return f"{model_name(report.manifest)}{under}: {' '.join(headline(report, brief=True))}"


# Metrics of the short tables, with the headings of their columns.
COLUMNS: dict[str, str] = {
    "total_variation": "Weight moved",
    "mean_error": "Error\N{NO-BREAK SPACE}of the\N{NO-BREAK SPACE}mean",
    "relative_deviation": "Relative deviation",
    "predicted_deviation": "Predicted deviation",
    "certificate": "Deviation at most",
}

_FARTHEST = 3


def terminal_table(report: AuditState) -> RenderableType:
    """Tables of the means of every layer and of the heads with the largest total variation, for rich.

    Args:
        report: The audit.

    Returns:
        An object for ``rich.print``. Names and texts are not interpreted as markup.

    Raises:
        MissingExtraError: If rich is not installed.
        InputError: If the report has no heads.
    """
    statistics, sampled = measured(report), report.sample
    several = len(statistics.kinds) > 1
    known = any(math.isfinite(head["total_variation_se"]) for head in statistics.heads)
    # Kinds and the bound together do not fit in 80 columns.
    metrics = [metric for metric in COLUMNS if metric != "certificate" or not several]

    def written(numbers: Mapping[str, Any]) -> list[str]:
        cells = []
        for metric in metrics:
            error = numbers[f"{metric}_se"]
            under = f"\n{f'±{short(error)}' if math.isfinite(error) else ''}" if known else ""
            cells.append(f"{short(numbers[f'{metric}_mean'])}{under}")
        return cells

    title = f"Means over queries, {model_name(report.manifest)}"
    below = [f"± standard error over {statistics.resampled}"] * known + [f"from {sampled}"] * (
        sampled is not None
    )
    title = "\n".join([title, ", ".join(below)]) if below else title
    # Headings break between words, so that a table fits 80 columns.
    kind_column, names = ["Kind"] * several, [COLUMNS[metric].replace(" ", "\n") for metric in metrics]
    layers = titled_table(title, *kind_column, "Layer", *names, "Queries", left=kind_column)
    for kind in statistics.kinds:
        name = [SHORT_KIND_NAMES[kind]] * several
        for layer in statistics.layers_of(kind):
            numbers = statistics.of(kind, layer)
            layers.add_row(*name, str(layer), *written(numbers), count(numbers["queries"]))
            name = [""] * several
        layers.add_section()
    title = "Heads in which most weight would move"
    farthest = titled_table(title, *kind_column, "Layer", "Head", *names, left=kind_column)
    for head in statistics.farthest("total_variation", _FARTHEST):
        name = [SHORT_KIND_NAMES[head["kind"]]] * several
        farthest.add_row(*name, str(head["layer"]), str(head["head"]), *written(head))
    parts: list[Any] = [layers, farthest]
    if not_converged := statistics.total("not_converged"):
        missed: dict[Kind, int] = {kind: statistics.of(kind)["not_converged"] for kind in statistics.kinds}
        by_kind = [
            f"{SHORT_KIND_NAMES[kind].lower()} {count(number)}" for kind, number in missed.items() if number
        ]
        sentence = f"{count(not_converged)} of {count(statistics.total('queries'))} problems did not converge"
        parts.append((f"{sentence}: {', '.join(by_kind)}", "bold red"))
    return stacked(*parts)
