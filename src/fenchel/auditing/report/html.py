"""The report as one self-contained page: no network, all text escaped, all numbers the audit's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fenchel import drawing as number
from fenchel.auditing.counted import counted_in_words
from fenchel.auditing.heads import METRICS, Kind
from fenchel.auditing.report.distribution import AXES
from fenchel.auditing.report.embedded import embedded_json, page_data
from fenchel.auditing.report.example import farthest_heads
from fenchel.auditing.report.findings import (
    KIND_NAMES,
    METRIC_NAMES,
    SHORT_KIND_NAMES,
    STATISTICS,
    Findings,
    head_name,
    model_name,
)
from fenchel.auditing.report.headline import headline
from fenchel.auditing.report.heatmap import heat_maps, highest_finite
from fenchel.auditing.report.opened import head_address
from fenchel.auditing.report.panel import MOST_PANELS, head_panels, layer_panels, strips
from fenchel.auditing.report.reproduce import command, manifest_entries
from fenchel.auditing.report.scatter import scatters
from fenchel.auditing.report.self_contained import page_environment, page_file, script_hash
from fenchel.drawing import LEVELS, scale, stylesheet

if TYPE_CHECKING:
    from jinja2 import Environment

    from fenchel.auditing.results import AuditResults

__all__ = ["render_html"]

_MOST_ROWS = 200
_SCRIPTS = (
    "format",
    "maps",
    "choices",
    "sentence",
    "picture",
    "histogram",
    "lines",
    "matrix",
    "table",
    "opened",
)
_PACKAGE = "fenchel.auditing.report"


@dataclass(frozen=True)
class _OrderPair:
    """First- and second-order deviation of one layer; places are from 0 to 100 along its line."""

    layer: int
    first: float | None
    second: float | None
    first_at: float | None
    second_at: float | None


def _order_pairs(findings: Findings, kind: Kind, highest: float | None) -> Iterator[_OrderPair]:
    def place(value: float | None) -> float | None:
        if value is None or not math.isfinite(value) or not highest:
            return None
        return round(100 * value / highest, 2)

    for layer in findings.layers(kind):
        first = findings.layer_mean("relative_deviation", kind, layer)
        second = findings.layer_mean("second_order_deviation", kind, layer)
        yield _OrderPair(layer, first, second, place(first), place(second))


def _highest_order_mean(findings: Findings) -> float | None:
    return highest_finite(
        findings.layer_mean(metric, kind, layer)
        for kind in findings.kinds
        for layer in findings.layers(kind)
        for metric in ("relative_deviation", "second_order_deviation")
    )


def _kind_section(
    report: AuditResults, findings: Findings, kind: Kind, highest: float | None
) -> dict[str, Any]:
    crowded = len(findings.of_kind(kind)) > MOST_PANELS
    statistics = report.statistics
    return {
        "kind": kind,
        "name": KIND_NAMES[kind],
        "layers": findings.layers(kind),
        "heads": findings.head_numbers(kind),
        "means": {metric: findings.mean(metric, findings.of_kind(kind)) for metric in METRICS},
        "not_converged": sum(head.not_converged for head in findings.of_kind(kind)),
        "heat_maps": heat_maps(findings, kind),
        "layer_panels": [(axis, layer_panels(statistics, findings, axis, kind)) for axis in AXES],
        "head_panels": []
        if crowded
        else [(axis, head_panels(statistics, findings, axis, kind)) for axis in AXES],
        "strips": [(axis, strips(findings, axis, kind)) for axis in AXES] if crowded else [],
        "order_pairs": list(_order_pairs(findings, kind, highest)),
    }


def _environment() -> Environment:
    environment = page_environment(_PACKAGE)
    environment.globals.update(
        head_name=head_name,
        difference=_difference,
        is_finite=_is_finite,
        percent=number.percent,
        metric_names=METRIC_NAMES,
        metrics=METRICS,
        short_kind_names=SHORT_KIND_NAMES,
        statistics=STATISTICS,
    )
    return environment


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _difference(value: float | None, other: float | None, write: Callable[[float | None], str]) -> str:
    """What the first has more, with its sign."""
    if value is None or other is None or not (math.isfinite(value) and math.isfinite(other)):
        return number.MISSING
    return f"{'−' if value < other else '+'}{write(abs(value - other))}"


def _script() -> str:
    """One script of all parts, so that its hash is the only one that the page's policy names."""
    parts = "".join(page_file(_PACKAGE, f"{name}.js") for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}}})();\n'


def render_html(report: AuditResults) -> str:
    """The report as one HTML page that needs no network.

    Args:
        report: The audit. Its texts (model, tokens, contexts, manifest) are escaped, whatever they hold.

    Returns:
        The page.

    Raises:
        MissingExtraError: If jinja2 is not installed.
        InputError: If the report holds no head.
    """
    environment = _environment()
    findings = Findings.of(report)
    highest = _highest_order_mean(findings)
    script = _script()
    colours = scale()
    return environment.get_template("report.html.jinja").render(
        report=report,
        counted=counted_in_words(report.manifest, report.heads),
        manifest=report.manifest,
        model=model_name(report.manifest),
        findings=findings,
        headline=headline(report),
        several_kinds=len(findings.kinds) > 1,
        kinds=[_kind_section(report, findings, kind, highest) for kind in findings.kinds],
        highest_order_mean=highest,
        axes=AXES,
        levels=range(LEVELS),
        most_panels=MOST_PANELS,
        most_rows=_MOST_ROWS,
        cards=farthest_heads(report, findings),
        suggestions=report.suggestions,
        scatters=[] if report.effects is None else scatters(report.effects),
        addresses={head.key: head_address(head.key, findings.kinds) for head in findings.heads},
        twin=Findings.of_records(report.twin_heads) if report.twin_heads else None,
        command=command(report.manifest),
        entries=manifest_entries(report.manifest),
        light_scale=stylesheet(colours),
        dark_scale=stylesheet(colours[::-1]),
        style="".join(page_file(_PACKAGE, name) for name in ("report.css", "opened.css")),
        script=script,
        script_hash=script_hash(script),
        data=embedded_json(page_data(report, findings, most_rows=_MOST_ROWS)),
    )
