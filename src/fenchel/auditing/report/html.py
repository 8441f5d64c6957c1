"""The report as one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from inspect import getmembers, isfunction
from statistics import median
from typing import TYPE_CHECKING, Any

from fenchel import drawing as number
from fenchel.arguments import Kind
from fenchel.auditing.advice import (
    FROM_PYTHON,
    GROUPS,
    Suggestion,
    is_loaded,
    python_call,
    recorded,
    written_command,
)
from fenchel.auditing.heads import (
    KIND_NAMES,
    METRIC_NAMES,
    READS,
    SHORT_KIND_NAMES,
    STATISTIC_NAMES,
    HeadKey,
    counted_in_words,
    head_name,
    unit_of,
)
from fenchel.auditing.manifest import KEYS
from fenchel.auditing.report.findings import COLUMNS, headline, measured, model_name, summary_sentence
from fenchel.auditing.report.plots import (
    AXES,
    BINS,
    MOST_PANELS,
    Axis,
    HeadGrid,
    farthest_heads,
    head_address,
    heat_maps,
    highest_finite,
    page_data,
    panels,
    scatters,
    shown_statistic,
    strips,
)
from fenchel.drawing import LEVELS, SCALE, duration, ink, plain, stylesheet
from fenchel.errors import require_packages
from fenchel.io.runs import ABSENT
from fenchel.run_options import AuditOptions

if TYPE_CHECKING:
    from fenchel.auditing.state import AuditState
    from fenchel.auditing.statistics import AuditStatistics

_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def embedded_json(data: object) -> str:
    r"""JSON for a ``script`` element: no text in it can end the element or start another.

    Example:
        >>> embedded_json({"model": "</script>"})
        '{"model":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


_SHARED, _FOLDER = "fenchel.auditing.report", "page"


@cache
def _environment(package: str) -> Any:
    """Environment of the templates in a package's folder and in the one that all pages share."""
    require_packages("report", "jinja2")
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(one, _FOLDER) for one in dict.fromkeys((package, _SHARED))]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(getmembers(number, isfunction))
    environment.globals.update(
        kind_names=KIND_NAMES,
        short_kind_names=SHORT_KIND_NAMES,
        metric_names=METRIC_NAMES,
        statistic_names=STATISTIC_NAMES,
        head_name=head_name,
        levels=range(LEVELS),
    )
    return environment


def rendered_page(
    package: str,
    template: str,
    *,
    scripts: Sequence[str] = (),
    data: object = None,
    styles: Sequence[str] = ("report.css",),
    scale: bool = True,
    filters: Mapping[str, Callable[..., Any]] | None = None,
    **values: Any,
) -> str:
    """Render a self-contained page with escaped texts, from the templates of a package and those that all pages share.

    Args:
        package: A package such as ``fenchel.auditing.report``, whose folder ``page`` has precedence.
        template: File name of the template.
        scripts: Names of script files without extension. They are joined into one script, whose hash is in the content
            security policy of the page, so that the browser runs no other.
        data: Data of the script.
        styles: File names of style sheets.
        scale: Whether to define the colours of the scale.
        filters: Filters in addition to those that format numbers.
        values: Variables of the template.

    Raises:
        MissingExtraError: If jinja2 is not installed.
    """
    environment = _environment(package)
    environment.filters.update(filters or {})

    def text_of(name: str) -> str:
        own = resources.files(package) / _FOLDER / name
        place = own if own.is_file() else resources.files(_SHARED) / _FOLDER / name
        return place.read_text(encoding="utf-8")

    values["style"] = "".join(map(text_of, styles))
    if scale:
        values |= {"light_scale": stylesheet(SCALE), "dark_scale": stylesheet(SCALE[::-1])}
    if scripts:
        parts = "".join(text_of(f"{name}.js") for name in scripts)
        script = f'(() => {{\n"use strict";\n{parts}}})();\n'
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        values |= {"script": script, "script_hash": f"sha256-{digest}", "data": embedded_json(data)}
    return environment.get_template(template).render(values)


# The others depend on the machine, or are handled separately.
_OPTIONS = tuple(
    name for name in KEYS if name in AuditOptions.model_fields and name not in ("device", "loader")
)

_NAMES = {
    "fenchel": "fenchel version",
    "torch": "torch version",
    "transformers": "transformers version",
    "python": "Python version",
    "texts": "text",
    "text_sha256": "SHA-256 of the file or texts",
    "queries": "queries of each window",
    "tol": "tolerance",
    "seconds": "time",
    "estimated_seconds": "time expected after the first batch",
    "alpha": "α (reliability)",
    "embeds": "without a language-model head: swaps compare embeddings",
    "classifies": "a classifier: swaps can measure the loss",
    "even_so": "although the model uses another closeness",
}


def command(manifest: Mapping[str, Any]) -> str:
    """A command that repeats an audit, for a POSIX shell or, for texts without a file, for Python.

    Example:
        >>> command({"model": "demo", "texts": "my text.txt", "alpha": 1.0, "layers": [1, 2]})
        "fenchel audit demo --text 'my text.txt' --alpha 1 --layers 1,2 --out audit"
        >>> command({"model": "demo", "texts": "Python strings", "alpha": 1.0})
        "fenchel.audit('demo', None, texts, alpha=1.0)"
    """
    given = recorded(manifest, _OPTIONS)
    if given.get("shard") == "0/1" or manifest.get("merged_from") is not None:
        given.pop("shard", None)
    if "tokens" in manifest:
        given.setdefault("queries", "all")
    if is_loaded(manifest) or manifest.get("texts") in FROM_PYTHON:
        return python_call("fenchel.audit", manifest, given, ready_made="inputs")
    return written_command("audit", manifest, given, "audit")


def manifest_entries(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The entries of the manifest with readable names and values, in their order."""
    entries = []
    for name, value in manifest.items():
        if name == "convention":  # shown separately on the page
            continue
        if value is None:
            text = ABSENT.get(name, "none")
        elif isinstance(value, (list, tuple, Mapping)):
            text = ", ".join(map(str, value.values() if isinstance(value, Mapping) else value))
        elif name in ("seconds", "estimated_seconds"):
            text = duration(value)
        else:
            text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else plain(value)
        entries.append((_NAMES.get(name, name.replace("_", " ")), text))
    return entries


_MOST_ROWS = 200

_SCRIPTS = (
    "numbers",
    "format",
    "grid",
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


def _kind_section(
    statistics: AuditStatistics, kind: Kind, counts: Mapping[Axis, Mapping[HeadKey, Sequence[int]]]
) -> dict[str, Any]:
    crowded = len(statistics.of_kind(kind)) > MOST_PANELS
    layers = statistics.layers_of(kind)
    drawn = [(axis, *panels(statistics, kind, of_heads)) for axis, of_heads in counts.items()]
    orders = ("relative_deviation", "second_order_deviation")
    return {
        "name": KIND_NAMES[kind],
        "layers": layers,
        "numbers": statistics.of(kind),
        "heat_maps": heat_maps(statistics, kind),
        "layer_panels": [(axis, of_layers) for axis, of_layers, _ in drawn],
        "head_panels": [] if crowded else [(axis, grid) for axis, _, grid in drawn],
        "strips": [(axis, strips(statistics, axis, kind)) for axis in AXES] if crowded else [],
        "order_pairs": [
            (layer, *(statistics.mean(metric, kind, layer) for metric in orders)) for layer in layers
        ],
    }


def _base_rate(report: AuditState, suggestion: Suggestion) -> float | None:
    """Share of a pattern's keys among all positions; None for keys that are defined relative to the query."""
    classes = GROUPS.get(suggestion.pattern.partition("_")[2], ())
    result = report.statistics.positions(suggestion.heads[0].kind)
    return (
        sum(result.get(name, 0.0) for name in classes)
        if {"first", "punctuation"} & {*classes} & {*result}
        else None
    )


def _difference(value: float, other: float, write: Callable[[float | None], str]) -> str:
    """The signed difference of two values."""
    if not (math.isfinite(value) and math.isfinite(other)):
        return number.MISSING
    return f"{'−' if value < other else '+'}{write(abs(value - other))}"


def render_html(report: AuditState) -> str:
    """Render the report as one self-contained HTML page.

    Args:
        report: The audit. Its texts (model, tokens, contexts, manifest) are escaped.

    Returns:
        The page.

    Raises:
        MissingExtraError: If jinja2 is not installed.
        InputError: If the report has no heads.
    """
    statistics = measured(report)
    counts = {axis: statistics.histograms(axis.metric, axis.upper, BINS) for axis in AXES}
    kinds = [_kind_section(statistics, kind, counts) for kind in statistics.kinds]
    return rendered_page(
        _SHARED,
        "report.html.jinja",
        scripts=_SCRIPTS,
        data=page_data(report, most_rows=_MOST_ROWS),
        styles=("report.css", "opened.css"),
        difference=_difference,
        is_finite=math.isfinite,
        percent=number.percent,
        report=report,
        counted=counted_in_words(report.manifest, report.heads),
        manifest=report.manifest,
        unit=unit_of(report.manifest),
        input_name=READS.get(report.manifest.get("reads") or "text", "document"),
        model=model_name(report.manifest),
        statistics=statistics,
        headline=headline(report),
        several_kinds=len(kinds) > 1,
        kinds=kinds,
        highest_order_mean=highest_finite(
            value for section in kinds for _, *pair in section["order_pairs"] for value in pair
        ),
        # The median of the heads' medians is finite where few queries are unbounded.
        median_certificate=median(head["certificate_p50"] for head in statistics.heads),
        certificate_statistic=shown_statistic(statistics, "certificate"),
        axes=AXES,
        most_panels=MOST_PANELS,
        most_rows=_MOST_ROWS,
        cards=farthest_heads(report),
        base_rates={one.pattern: _base_rate(report, one) for one in report.suggestions},
        scatters=[] if report.effects is None else scatters(report.effects),
        addresses={key: head_address(key, statistics.kinds) for key in statistics.keys()},  # noqa: SIM118
        twin=report.twin,
        command=command(report.manifest),
        entries=manifest_entries(report.manifest),
    )


_MOST_CELLS, _MOST_LAYERS = 2_000, 60
_COLOURS = {f"q{step}": (colour, ink(colour)) for step, colour in enumerate(SCALE)}
_COLOURS["unbounded"] = ("#dde1e8", "#10131a")


def notebook_html(report: AuditState) -> str:
    """Render the total variation of every head and the means of every layer as HTML for a notebook.

    Args:
        report: The audit; its texts are escaped.

    Returns:
        A ``div``; for more than 2,000 heads of a kind it says where the map is.

    Raises:
        MissingExtraError: If jinja2 is not installed.
    """
    if not report.heads:
        return "<div><p>An audit without a head: nothing has been measured.</p></div>"
    statistics = report.statistics
    maps: list[tuple[str, HeadGrid | None]] = []
    for kind in statistics.kinds:
        title = (
            f"{SHORT_KIND_NAMES[kind]}, total variation" if len(statistics.kinds) > 1 else "Total variation"
        )
        shown = next(grid for grid in heat_maps(statistics, kind) if grid.metric == "total_variation")
        maps.append((title, shown if len(statistics.of_kind(kind)) <= _MOST_CELLS else None))
    return rendered_page(
        _SHARED,
        "notebook.html.jinja",
        styles=(),
        scale=False,
        summary=summary_sentence(report),
        maps=maps,
        colours=_COLOURS,
        columns=COLUMNS,
        names=("Layer", *COLUMNS.values(), "Queries"),
        rows=[(KIND_NAMES[kind], statistics.of(kind, layer)) for kind, layer in statistics.layers()],
        most_layers=_MOST_LAYERS,
    )
