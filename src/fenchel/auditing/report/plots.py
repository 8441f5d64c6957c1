"""Data of the page of an audit: distributions, heat maps, scatter plots, cards, and details of heads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fenchel.arguments import Kind
from fenchel.auditing.examples import HeadExample, Packing, unpacked
from fenchel.auditing.heads import (
    KIND_NAMES,
    METRIC_NAMES,
    METRICS,
    SHORT_KIND_NAMES,
    STATISTIC_NAMES,
    HeadKey,
    in_units,
    unit_of,
)
from fenchel.auditing.weight_moves import KEY_CLASSES
from fenchel.drawing import json_number, level, short

if TYPE_CHECKING:
    from fenchel.auditing.advice import HeadPattern
    from fenchel.auditing.examples import AttentionMatrix, Picture
    from fenchel.auditing.state import AuditState
    from fenchel.auditing.statistics import AuditStatistics
    from fenchel.auditing.swap_effects import SwapEffects

BINS = 25


@dataclass(frozen=True)
class Axis:
    """The range of a metric's histogram, whose last bin includes larger values."""

    metric: str
    upper: float

    def position(self, value: float) -> float | None:
        """Position of a value on the axis, from 0 to 100; None if it is not finite."""
        return round(min(100.0, 100 * value / self.upper), 2) if math.isfinite(value) else None


AXES: tuple[Axis, ...] = (
    Axis("relative_deviation", 0.5),
    Axis("total_variation", 1.0),
    Axis("mean_error", 1.0),
)


# Number of heads of a kind above which the heads of a layer share one strip instead of a panel each.
MOST_PANELS = 400

# The numbers of a layer or head, as of ``AuditStatistics.of``, and its distribution as an SVG ``path`` in a box of 100
# by 100: the outline of bars, or a tick for each head.
Panel = dict[str, Any]


def outline(fractions: Sequence[float]) -> str:
    """The outline of bars of equal width as an SVG path in a box of 100 by 100 whose y axis points down.

    Example:
        >>> outline([0.5, 0.5, 0.0, 0.0])
        'M0 100V50H50V100H100V100Z'
    """
    steps = ["M0 100"]
    width = 100 / len(fractions)
    previous = None
    for i, fraction in enumerate(fractions):
        height = f"{100 - 100 * fraction:.4g}"
        if height != previous:
            if i:
                steps.append(f"H{i * width:.4g}")
            steps.append(f"V{height}")
            previous = height
    return "".join(steps) + "H100V100Z"


def panels(
    statistics: AuditStatistics, kind: Kind, counts: Mapping[HeadKey, Sequence[int]]
) -> tuple[list[Panel], HeadGrid]:
    """A panel for each layer, as in figure 4, and for each head, as in figure 5.

    Args:
        statistics: The numbers of the audit.
        kind: The kind of attention.
        counts: Histogram of the metric for each head.
    """

    def panel(bins: Sequence[int], *place: int) -> Panel:
        queries = sum(bins) or 1
        return {**statistics.of(kind, *place), "path": outline([count / queries for count in bins])}

    by_head = {key[1:]: bins for key, bins in counts.items() if key.kind == kind}
    by_layer: dict[int, list[Sequence[int]]] = {}
    for (layer, _), bins in by_head.items():
        by_layer.setdefault(layer, []).append(bins)
    layers = [panel([sum(bins) for bins in zip(*by_layer[n], strict=True)], n) for n in sorted(by_layer)]
    return layers, HeadGrid.of({place: panel(bins, *place) for place, bins in by_head.items()}, None)


def strips(statistics: AuditStatistics, axis: Axis, kind: Kind) -> list[Panel]:
    """A panel for each layer with the means of its heads as ticks, for models with too many heads for panels."""
    result = []
    for layer in statistics.layers_of(kind):
        means = [head[f"{axis.metric}_mean"] for head in statistics.of_kind(kind) if head["layer"] == layer]
        ticks = sorted({at for mean in means if (at := axis.position(mean)) is not None})
        result.append({**statistics.of(kind, layer), "path": "".join(f"M{at:g} 15V85" for at in ticks)})
    return result


HEAT_METRICS: tuple[str, ...] = ("relative_deviation", "total_variation", "mean_error", "certificate")


@dataclass(frozen=True)
class Cell:
    """Cell of a heat map.

    Args:
        index: Index of the head in the report.
        style: CSS class of its colour: a step of the scale, or ``unbounded``.
        text: Its value.
    """

    index: int
    style: str
    text: str


@dataclass(frozen=True)
class HeadGrid:
    """A grid of layers by heads.

    Args:
        heads: Numbers of the columns.
        rows: Number of each layer with its cells; None where it has no such head.
        highest: Upper end of the colour scale; None where no value is finite.
        metric: Metric of the cells, for audits.
        statistic: Statistic of the metric.
    """

    heads: list[int]
    rows: list[tuple[int, list[Any]]]
    highest: float | None
    metric: str = ""
    statistic: str = ""

    @classmethod
    def of(cls, cells: Mapping[tuple[int, int], Any], highest: float | None, *shown: str) -> HeadGrid:
        """The grid of cells by layer and head."""
        heads = sorted({head for _, head in cells})
        layers = sorted({layer for layer, _ in cells})
        rows = [(layer, [cells.get((layer, head)) for head in heads]) for layer in layers]
        return cls(heads, rows, highest, *shown)

    @property
    def width(self) -> str:
        """CSS class of the width of the map, which decides when its numbers are shown."""
        return "few" if len(self.heads) <= 8 else "several" if len(self.heads) <= 12 else "many"

    @property
    def height(self) -> str:
        """CSS class of the height of the map."""
        return "low" if len(self.rows) <= 16 else "tall"


def highest_finite(values: Iterable[float | None]) -> float | None:
    """The largest finite value; None where there is none."""
    return max((v for v in values if v is not None and math.isfinite(v)), default=None)


def shown_statistic(statistics: AuditStatistics, metric: str) -> str:
    """The statistic of a metric that is shown: the mean, or the median where some head's mean is infinite."""
    return "p50" if any(head[f"{metric}_mean"] == math.inf for head in statistics.heads) else "mean"


def heat_maps(statistics: AuditStatistics, kind: Kind) -> list[HeadGrid]:
    """The heat maps of one kind, one per metric, with colour scales shared by all kinds."""
    maps = []
    for metric in HEAT_METRICS:
        statistic = shown_statistic(statistics, metric)
        values = [head[f"{metric}_{statistic}"] for head in statistics.heads]
        highest, cells = highest_finite(values), {}
        for index, (head, value) in enumerate(zip(statistics.heads, values, strict=True)):
            if head["kind"] == kind:
                style = f"q{level(value, highest or 0.0)}" if math.isfinite(value) else "unbounded"
                cells[head["key"][1:]] = Cell(index, style, short(value))
        maps.append(HeadGrid.of(cells, highest, metric, statistic))
    return maps


def scatters(effects: SwapEffects) -> list[dict[str, Any]]:
    """Scatter plots of total variation and relative deviation against the effect of exact inference.

    Returns:
        For each ``metric`` a point per head (``points``), the ends of the axes (``widest``, ``highest``) and Spearman's
        ``rank_correlation``. A point has ``key``, ``deviation`` and ``effect``, and the positions of these and of the
        interval, from 0 to 100 (``x``, ``y``, ``low``, ``high``).
    """
    plots = []
    for metric in ("total_variation", "relative_deviation"):
        heads = [
            (head, deviation)
            for head in effects.heads
            if (deviation := head.deviations.get(metric)) is not None and math.isfinite(deviation)
        ]
        if not heads:
            continue
        widest = 1.05 * max(deviation for _, deviation in heads) or 1.0
        highest = 1.05 * max(max(head.effect, head.high or 0.0) for head, _ in heads) or 1.0
        points = [
            {
                "key": head.key,
                "deviation": deviation,
                "effect": head.effect,
                "x": _percentage(deviation, widest),
                "y": _percentage(head.effect, highest),
                "low": _percentage(head.low, highest),
                "high": _percentage(head.high, highest),
            }
            for head, deviation in heads
        ]
        plot = {"metric": metric, "points": points, "widest": widest, "highest": highest}
        plots.append({**plot, "rank_correlation": effects.rank_correlation.get(metric)})
    return plots


def _percentage(value: float | None, highest: float) -> float | None:
    return None if value is None else round(100 * max(0.0, min(1.0, value / highest)), 2)


_MOST_CARDS = 6


def _ordinal(rank: int) -> str:
    return f"{rank}{({1: 'st', 2: 'nd', 3: 'rd'}).get(rank, 'th')}"


def farthest_heads(report: AuditState) -> list[dict[str, Any]]:
    """The six farthest heads, taken in turn from the rankings by total variation and by error of the mean.

    Returns:
        Statistics of each (``head``), the ``reasons`` for showing it, such as "2nd largest total variation", and its
        ``example``, None where the audit kept none.
    """
    metrics = ("total_variation", "mean_error")
    rankings = [report.statistics.farthest(metric, _MOST_CARDS) for metric in metrics]
    cards: dict[HeadKey, dict[str, Any]] = {}
    for rank, heads in enumerate(zip(*rankings, strict=True), start=1):
        for metric, head in zip(metrics, heads, strict=True):
            key = head["key"]
            if key not in cards and len(cards) < _MOST_CARDS:
                cards[key] = {"head": head, "reasons": [], "example": report.examples.get(key)}
            if key in cards:
                place = "largest" if rank == 1 else f"{_ordinal(rank)} largest"
                cards[key]["reasons"].append(f"{place} {METRIC_NAMES[metric].lower()}")
    return list(cards.values())


# Maximum number of queries on a page, those of the farthest heads.
MOST_QUERIES = 1_200

# Maximum number of attention matrices on a page, likewise.
MOST_MATRICES = 240

# Prefixes of the addresses of heads that are not of the report's first kind.
KIND_PREFIXES: dict[Kind, str] = {"encoder_self": "encoder-", "decoder_self": "decoder-", "cross": "cross-"}

# Names of the classes of keys on the page.
PLACES: dict[str, str] = {
    "first": "the first token",
    "special": "special tokens",
    "itself": "the query itself",
    "neighbour": "its neighbours",
    "punctuation": "punctuation",
    "rest": "other tokens",
}

_QUERIES_OF_A_HEAD = 4
_NAMED = 5  # tokens that get too much, and too little, of a query
_LEAST_NAMED = 0.001
_BINS = 24


def head_address(key: HeadKey, kinds: Sequence[Kind]) -> str:
    """URL fragment of a head, without the kind for heads of the report's first kind.

    Example:
        >>> head_address(HeadKey("cross", 2, 3), ["encoder_self", "cross"])
        'cross-L2H3'
    """
    return f"{'' if key.kind == kinds[0] else KIND_PREFIXES[key.kind]}L{key.layer}H{key.head}"


def shown_queries(examples: Sequence[HeadExample]) -> list[HeadExample]:
    """Select the farthest queries of a head, preferring different patterns and sentences, at different positions."""
    shown: list[HeadExample] = []
    pattern, place = attrgetter("pattern"), attrgetter("position", "token")
    sentence = attrgetter("document", "window", "context")
    for most, of in ((_QUERIES_OF_A_HEAD, (sentence, pattern)), (3, (sentence,)), (2, ())):
        for example in examples:
            new = all(mark(example) not in map(mark, shown) for mark in (place, *of))
            if new and len(shown) < most:
                shown.append(example)
    return sorted(shown, key=lambda example: example.rank, reverse=True)


def page_data(report: AuditState, *, most_rows: int) -> dict[str, Any]:
    """Data of the page's script: statistics and details of every head, as lists with an entry per head.

    Args:
        report: The audit.
        most_rows: Number of rows of the table that are shown at first.
    """
    statistics = report.statistics
    columns = ["kind", "layer", "head", "queries", "not_converged", "newton_steps"]
    metrics_from = len(columns)
    columns += [f"{metric}_{statistic}" for metric in METRICS for statistic in STATISTIC_NAMES]
    rows = [
        [
            *(statistics.kinds.index(head["kind"]), head["layer"], head["head"]),
            *(head["queries"], head["not_converged"], json_number(head["newton_steps_mean"])),
            *_numbers(head),
        ]
        for head in statistics.heads
    ]
    sampled = [
        [head["population"], *(json_number(head[f"{metric}_se"]) for metric in METRICS)]
        for head in statistics.heads
    ]
    return {
        "kinds": [KIND_NAMES[kind] for kind in statistics.kinds],
        "short_kinds": [SHORT_KIND_NAMES[kind] for kind in statistics.kinds],
        "metrics": METRIC_NAMES,
        "statistics": STATISTIC_NAMES,
        "kind_prefixes": [KIND_PREFIXES[kind] for kind in statistics.kinds],
        "places": {place: in_units(words, report.manifest) for place, words in PLACES.items()},
        "reads": report.manifest.get("reads", "text"),
        "unit": unit_of(report.manifest),
        "axes": [axis.metric for axis in AXES],
        "columns": columns,
        "metrics_from": metrics_from,
        "most_rows": most_rows,
        "rows": rows,
        "sampled": sampled if report.sample else None,
        **opened_data(report),
    }


def opened_data(report: AuditState) -> dict[str, Any]:
    """Entries of the page's data for the details of heads, most of them with one entry per head in order."""
    statistics, keys = report.statistics, report.statistics.keys()
    far = [head["key"] for head in statistics.farthest("total_variation", len(keys))]
    most = max(1, min(_QUERIES_OF_A_HEAD, MOST_QUERIES // len(keys)))
    with_queries, with_matrix = (
        set(far[: MOST_QUERIES // most]),
        {*far[:MOST_MATRICES]} & report.matrices.keys(),
    )
    texts, sentences, images = dict[Any, int](), dict[Any, int](), dict[Any, int]()
    effects = () if report.effects is None else report.effects.heads
    examples = (card["example"] for card in farthest_heads(report))
    positions = (statistics.positions(kind) for kind in statistics.kinds)

    def column(entries: Mapping[HeadKey, Any]) -> list[Any]:
        return [entries.get(key) for key in keys]

    return {
        "addresses": [head_address(key, statistics.kinds) for key in keys],
        "twins": report.twin and column({head["key"]: _numbers(head) for head in report.twin.heads}),
        "histograms": _histograms(report),
        "queries": column(
            {
                key: [
                    _query(one, texts, images)
                    for one in shown_queries(report.far_queries.get(key, ()))[:most]
                ]
                for key in keys
                if key in with_queries
            }
        ),
        "matrices": column(
            {key: _matrix(report.matrices[key], sentences) for key in keys if key in with_matrix}
        ),
        "patterns": column({pattern.key: _moves(pattern) for pattern in report.patterns}),
        "effects": column({one.key: [_short(n) for n in (one.effect, one.low, one.high)] for one in effects}),
        "pictures": [
            _picture(one.picture, one.position_among_templates, images)
            for one in examples
            if one is not None and one.picture is not None
        ],
        "changed": "" if report.effects is None else report.effects.changed,
        "classes": KEY_CLASSES,
        "positions": [[_short(one.get(name)) for name in KEY_CLASSES] if one else None for one in positions],
        "texts": list(texts),
        "images": list(images),
        "sentences": list(sentences),
    }


def _number(entries: dict[Any, int], entry: Any) -> int:
    """Index of an entry that several heads may share."""
    return entries.setdefault(entry, len(entries))


def _short(value: float | None) -> float | str | None:
    return json_number(value, 4)


def _numbers(head: Mapping[str, Any]) -> list[float | str | None]:
    return [json_number(head[f"{metric}_{name}"]) for metric in METRICS for name in STATISTIC_NAMES]


def _histograms(report: AuditState) -> list[list[list[Any]]]:
    """For each head and axis its upper end, the model's counts and the twin's."""
    result: list[list[list[Any]]] = [[] for _ in report.statistics.heads]
    for axis in AXES:
        uppers = {head["key"]: _upper(head, axis.metric) for head in report.statistics.heads}
        counts = report.statistics.histograms(axis.metric, uppers, _BINS)
        twins = {} if report.twin is None else report.twin.histograms(axis.metric, uppers, _BINS)
        for entries, (key, upper) in zip(result, uppers.items(), strict=True):
            entries.append([upper, counts[key], twins.get(key)])
    return result


def _upper(head: Mapping[str, Any], metric: str) -> float:
    high, most = head[f"{metric}_p95"], head[f"{metric}_max"]
    # A single outlier must not squeeze all others into the first bins.
    return _round_number(most if most <= 1.6 * high else 1.25 * high)


def _round_number(value: float) -> float:
    """The smallest of 1, 1.5, 2, 3, ... times a power of ten that is at least the value.

    Example:
        >>> _round_number(0.117), _round_number(0.62), _round_number(0.0)
        (0.15, 0.8, 1.0)
    """
    if not 0 < value < math.inf:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    factor = next((f for f in (1, 1.5, 2, 3, 4, 5, 6, 8) if f * power >= value), 10)
    return float(f"{factor * power:.3g}")


def _query(example: HeadExample, texts: dict[Any, int], images: dict[Any, int]) -> dict[str, Any]:
    passage = example.passage
    weights = {template.position: astuple(template)[1:] for template in example.templates}
    result: dict[str, Any] = {
        "variation": _short(example.total_variation),
        "deviation": _short(example.relative_deviation),
        "place": [example.document, example.window, example.position],
        "token": example.token,
        "pattern": example.pattern,
    }
    if passage is not None:
        sides = [unpacked(side, Packing.FINE) for side in (passage.first_order, passage.exact)]
        tokens = zip(passage.pieces, *sides, strict=True)
        for position, (piece, first, exact) in enumerate(tokens, start=passage.first_position):
            weights.setdefault(position, (piece.strip(), first, exact))
        result |= {
            "first": passage.first_position,
            "window": passage.window_tokens,
            "text": _number(texts, passage.pieces),
            "weights": [passage.first_order, passage.exact],
        }
    if example.picture is not None:
        result["picture"] = _picture(example.picture, example.position_among_templates, images)
    if passage is None or example.key.kind == "cross":
        result["context"] = example.context_parts
    order = sorted(weights.items(), key=lambda item: (item[1][1] - item[1][2], item[0]))
    result["little"] = list(_named(order, 1))
    result["much"] = list(_named(order[::-1], -1))
    return result


def _picture(picture: Picture, position: int | None, images: dict[Any, int]) -> list[Any]:
    """Index and grid of the image, the weights of all positions, and the position of the query from 0, if any."""
    grid, weights = (picture.rows, picture.columns, picture.extra), (picture.first_order, picture.exact)
    return [_number(images, picture.image), *grid, *weights, None if position is None else position - 1]


def _named(order: Sequence[tuple[int, tuple[str, float, float]]], sign: int) -> Iterator[list[Any]]:
    """Position, token, attention's weight and the exact one of those that change most."""
    for position, (token, first, exact) in order[:_NAMED]:
        if sign * (exact - first) >= _LEAST_NAMED:
            yield [position, token, _short(first), _short(exact)]


def _matrix(matrix: AttentionMatrix, sentences: dict[Any, int]) -> list[Any]:
    sides = matrix.query_positions, matrix.key_positions, matrix.queries, matrix.keys
    place = matrix.document, matrix.window, matrix.window_tokens
    return [_number(sentences, (place, *sides)), matrix.first_order, matrix.exact]


def _moves(pattern: HeadPattern) -> Mapping[str, Any]:
    weights = attrgetter("attention", "exact", "leaves", "reaches")
    tokens = {"much": pattern.too_much, "little": pattern.too_little}
    return {
        "classes": [[_short(value) for value in weights(pattern.classes[name])] for name in KEY_CLASSES],
        **{
            name: [[token.token, _short(token.net)] for token in some if abs(token.net) >= _LEAST_NAMED]
            for name, some in tokens.items()
        },
    }
