"""Reports of comparisons: files, a self-contained page and tables with the numbers of ``compare.json``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fenchel.arguments import Kind, checked
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.heads import KIND_NAMES, METRIC_NAMES, METRICS, SHORT_KIND_NAMES, HeadKey
from fenchel.auditing.report.html import manifest_entries, rendered_page
from fenchel.auditing.report.plots import Cell, HeadGrid, highest_finite
from fenchel.comparing.comparison import CONFIDENCE, STATISTICS, Change, Comparison, comparable
from fenchel.drawing import (
    bracketed,
    change_style,
    count,
    json_number,
    short,
    signed,
    signed_short,
    stacked,
    titled_table,
    whiskers,
)
from fenchel.errors import InputError, require_packages
from fenchel.io.runs import check_writable, write_text
from fenchel.io.storage import Form, OpenRecord, read_document, write_document

if TYPE_CHECKING:
    from rich.console import RenderableType

# The metric that is shown first: the share of attention's weight that would move.
METRIC = "total_variation"

_SCHEMA, _JSON, _PAGE = 1, "compare.json", "compare.html"
_ORDER = (METRIC, *(metric for metric in METRICS if metric != METRIC))
_MOST_ROWS, _MOST_IN_TERMINAL = 12, 5


class _SavedAudit(OpenRecord):
    name: str


class _SavedComparison(OpenRecord):
    audits: list[_SavedAudit]


_FORM = Form(
    name="comparison",
    version=_SCHEMA,
    schema=_SavedComparison,
    advice="Replace it with --overwrite, or choose another folder with --out.",
)


def render_html(comparison: Comparison) -> str:
    """Render a comparison as one self-contained HTML page.

    Args:
        comparison: The comparison. Its texts (names, models, texts) are escaped.

    Returns:
        The page.

    Raises:
        MissingExtraError: If jinja2 is not installed.
    """
    differing = [
        manifest_entries({name: values[place] for name, values in comparison.differing.items()})
        for place in range(len(comparison.audits))
    ]
    return rendered_page(
        "fenchel.comparing",
        "compare.html.jinja",
        scripts=("numbers", "grid", "choices", "compare"),
        data=_data(comparison),
        scale=False,
        comparison=comparison,
        first=comparison.first,
        last=comparison.last,
        metric=METRIC,
        metrics=_ORDER,
        statistics=STATISTICS,
        several_kinds=len(comparison.kinds) > 1,
        confidence=CONFIDENCE,
        differing=[
            (entries[0][0], [text for _, text in entries]) for entries in zip(*differing, strict=True)
        ],
        maps=[(KIND_NAMES[kind], _maps(comparison, kind)) for kind in comparison.kinds],
        moved=[(metric, *_moved(comparison, metric)) for metric in _ORDER],
        trajectories=trajectories(comparison, _ORDER) if len(comparison.audits) > 2 else [],
    )


def _maps(comparison: Comparison, kind: Kind) -> list[tuple[str, HeadGrid]]:
    """Heat maps of the differences of the heads of a kind, by metric."""
    made = []
    for metric in _ORDER:
        changes = {key: comparison.changes[key][metric] for key in comparison.keys}
        sizes = [None if change.median is None else abs(change.median) for change in changes.values()]
        highest, cells = highest_finite(sizes), {}
        for place, (key, change) in enumerate(changes.items()):
            if key.kind == kind:
                moved = " moved" if change.interval.direction else ""
                cells[key.layer, key.head] = Cell(
                    place, change_style(change.median, highest) + moved, signed_short(change.median)
                )
        made.append((metric, HeadGrid.of(cells, highest)))
    return made


def _moved(comparison: Comparison, metric: str) -> tuple[list[dict[str, Any]], float]:
    """The heads that changed most, with their intervals drawn on a common axis, and the position of 0."""
    changes = {key: comparison.changes[key][metric] for key in comparison.moved(metric)[:_MOST_ROWS]}
    spans = [(change.median, change.interval.low, change.interval.high) for change in changes.values()]
    drawn, zero_at = whiskers(spans)
    rows = [
        {
            "key": key,
            "change": change,
            "interval": bracketed(change.interval.low, change.interval.high),
            "whisker": whisker,
        }
        for (key, change), whisker in zip(changes.items(), drawn, strict=True)
    ]
    return rows, zero_at


def _data(comparison: Comparison) -> dict[str, Any]:
    """Data of the page's script: a row per head with nine numbers per metric."""

    def numbers(change: Change) -> list[Any]:
        first, second, interval = change.first, change.second, change.interval
        values = (first.median, second.median, first.mean, second.mean, change.median, change.mean)
        return [*map(json_number, values), signed(interval.low), signed(interval.high), interval.direction]

    rows = [
        [SHORT_KIND_NAMES[key.kind], key.layer, key.head, [numbers(changes[metric]) for metric in _ORDER]]
        for key, changes in comparison.changes.items()
    ]
    return {"metrics": list(_ORDER), "metric_names": METRIC_NAMES, "rows": rows}


def path(values: Sequence[float], highest: float) -> str:
    """An SVG path through equidistant values in a box of 100 by 100 whose y axis points down.

    Values that are not finite, or beyond the axis, leave gaps.

    Example:
        >>> path([0.0, 0.5, math.inf, 1.0, 0.5], 1.0)
        'M0 100L25 50M75 0L100 50'
    """
    steps, pen = [], "M"
    for place, value in enumerate(values):
        if not math.isfinite(value) or value > highest:
            pen = "M"
            continue
        x = 100 * place / (len(values) - 1)
        steps.append(f"{pen}{x:.4g} {100 - 100 * value / highest:.4g}")
        pen = "L"
    return "".join(steps)


def trajectories(comparison: Comparison, metrics: Iterable[str]) -> list[dict[str, Any]]:
    """Trajectories of medians over audits: a panel per layer and a line per head, with a common axis for each metric.

    Returns:
        For each ``metric`` and ``kind`` the upper end of the axis, ``highest``, and ``panels``: for each ``layer`` the
        lines of its ``heads`` and its own ``line`` as SVG paths, and the ``values`` of that line.
    """
    made = []
    for metric in metrics:
        medians = {
            key: [audit.distribution(metric, *key).median for audit in comparison.audits]
            for key in comparison.keys
        }
        highest = highest_finite(value for values in medians.values() for value in values) or 1.0
        for kind in comparison.kinds:
            panels = []
            for layer in comparison.first.statistics.layers_of(kind):
                whole = [audit.distribution(metric, kind, layer).median for audit in comparison.audits]
                heads = [medians[key] for key in comparison.keys if key[:2] == (kind, layer)]
                panels.append(
                    {
                        "layer": layer,
                        "heads": "".join(path(values, highest) for values in heads),
                        "line": path(whole, highest),
                        "values": [short(value) for value in whole],
                    }
                )
            made.append({"metric": metric, "kind": kind, "highest": highest, "panels": panels})
    return made


def finding(comparison: Comparison) -> str:
    """The result for total variation in a sentence that is justified by the intervals."""
    rose, fell = comparison.directions(METRIC)
    heads = len(comparison.keys)
    kept = comparison.rank_correlation(METRIC)
    moved = (
        f"{METRIC_NAMES[METRIC].lower()} rose in {count(rose)} and fell in {count(fell)} of {count(heads)} heads"
        if rose or fell
        else f"{METRIC_NAMES[METRIC].lower()} changed in none of {count(heads)} heads by more than chance"
    )
    order = "" if kept is None else f"; the rank correlation of the heads is {signed(kept)}"
    return f"From {comparison.first.name} to {comparison.last.name}: {moved} ({comparison.resampled}){order}."


def terminal_table(comparison: Comparison) -> RenderableType:
    """Tables of the changes of each metric and of the heads that changed most, for rich.

    Args:
        comparison: The comparison.

    Returns:
        An object for ``rich.print``. Names are not interpreted as markup.

    Raises:
        MissingExtraError: If rich is not installed.
    """
    several = len(comparison.kinds) > 1
    title = f"Medians of {count(len(comparison.keys))} heads, last against first"
    heads = titled_table(title, "Metric", "rose", "fell", "rank\ncorrelation", left=["Metric"])
    for metric in METRICS:
        numbers = map(count, comparison.directions(metric))
        heads.add_row(METRIC_NAMES[metric], *numbers, signed(comparison.rank_correlation(metric)))
    title = f"{METRIC_NAMES[METRIC]}: the heads that moved most, by the smallest change within the interval"
    moved = titled_table(title, "Head", "first", "last", "change", "95 %", left=["Head"])
    for key in comparison.moved(METRIC)[:_MOST_IN_TERMINAL]:
        change = comparison.changes[key][METRIC]
        medians = [short(change.first.median), short(change.second.median), signed(change.median)]
        moved.add_row(_called(key, several), *medians, bracketed(change.interval.low, change.interval.high))
    parts: list[Any] = [heads, moved]
    if len(comparison.audits) > 2:
        numbers = [str(n + 1) for n in range(len(comparison.audits))]
        title = f"{METRIC_NAMES[METRIC]} by layer, medians"
        by_layer = titled_table(title, "Layer", *numbers, left=["Layer"])
        for kind, layer in comparison.sites:
            name = f"{SHORT_KIND_NAMES[kind]} {layer}" if several else str(layer)
            medians = [short(audit.distribution(METRIC, kind, layer).median) for audit in comparison.audits]
            by_layer.add_row(name, *medians)
        parts.append(by_layer)
    sampled = (f"{audit.name}: {audit.sample} were measured." for audit in comparison.audits if audit.sample)
    return stacked(*parts, f"Of medians: {comparison.resampled}.", *sampled)


def _called(key: HeadKey, several: bool) -> str:
    kind = f"{SHORT_KIND_NAMES[key.kind]}, " if several else ""
    return f"{kind}layer {key.layer}, head {key.head}"


class ComparisonReport(Comparison):
    """A comparison of audits, and the files that show it."""

    def save(self, directory: str | Path, *, overwrite: bool = False) -> Path:
        """Write ``compare.json`` and ``compare.html``, each atomically.

        ``compare.json`` has the following entries, with null for infinite numbers:

        * ``audits``: name, manifest and number of queries that did not converge, of each audit
        * ``differing``: entries of the manifests that differ, with the value of each audit
        * ``confidence``: 0.95
        * ``resampled``: ``documents``, the smaller number of both audits, and ``paired``
        * ``metrics``: for each, ``rank_correlation`` (of medians), ``rank_correlation_of_means``, and the numbers of
          heads that ``rose`` and ``fell``
        * ``heads``: for each, ``queries``; ``NAME_mean`` and ``NAME_p50`` with a number per audit;
          ``NAME_mean_difference``, ``NAME_p50_difference``, its interval ``NAME_p50_low`` to ``NAME_p50_high``, and
          ``NAME_moved``, 1 or -1 if that excludes 0
        * ``layers``: for each, ``NAME_mean`` and ``NAME_p50`` over its heads, a number per audit
        * ``steps``: rank correlations of consecutive audits

        Args:
            directory: The folder; created if it does not exist.
            overwrite: Replace another comparison in the folder.

        Returns:
            Path of ``compare.html``.

        Raises:
            InputError: If the folder contains another comparison and ``overwrite`` is false.
            OutputError: If something cannot be written.
        """
        folder = Path(directory).expanduser()
        page = render_html(self)
        check_writable(folder)
        if not overwrite and (folder / _JSON).exists():
            there = read_document(folder / _JSON, _FORM)
            if there["audits"] != self.to_json()["audits"]:
                names = ", ".join(audit["name"] for audit in there["audits"])
                raise InputError(f"{folder} holds another comparison, of {names[:200]}. {_FORM.advice}")
        write_document(folder / _JSON, _FORM, self.to_json())
        write_text(folder / _PAGE, page)
        return folder / _PAGE

    def __repr__(self) -> str:
        return f"<ComparisonReport of {', '.join(self.names)}: {len(self.keys)} heads. {finding(self)}>"


def compare(
    *audits: str | Path | AuditReport,
    names: Sequence[str] | None = None,
    directory: str | Path | None = None,
    overwrite: bool = False,
) -> ComparisonReport:
    """Compare audits with the same conventions of models with the same shape: the last with the first, and all others.

    Heads are compared by the difference of their medians. Its interval is from resampling documents, which are
    independent where tokens are not; for audits of the same text the same documents are drawn of both and queries are
    paired by document and position. The intervals of all heads of a metric have a simultaneous coverage of 0.95. One or
    two documents give no interval.

    Args:
        audits: Two or more, each a folder written by ``fenchel.audit`` or a report returned by it.
        names: Their names. Default: the folder as given, or the model.
        directory: Folder for ``compare.html`` and ``compare.json``. Default: nothing is written.
        overwrite: Replace another comparison in the folder.

    Returns:
        The comparison.

    Raises:
        InputError: If an audit cannot be loaded or is repeated, or two differ in space, α, tolerance, versions or
            heads; the message has both values.
        OutputError: If something cannot be written.
        MissingExtraError: If a required package is not installed.

    Example:
        >>> from fenchel.comparing import compare
        >>> compare("before-fine-tuning")
        Traceback (most recent call last):
        ...
        fenchel.errors.InputError: 1 audit was given; expected two or more, such as compare('before', 'after').
    """
    overwrite, folder = checked("overwrite", overwrite), checked("directory", directory)
    require_packages("hf", "polars")
    require_packages("report", "scipy", "jinja2")
    report = ComparisonReport(comparable(audits, names))
    if folder is not None:
        report.save(folder, overwrite=overwrite)
    return report
