"""What the page of an audit shows: distributions, maps and scatter plots, cards, and the data of heads that open."""

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
)
from fenchel.auditing.weight_moves import KEY_CLASSES
from fenchel.drawing import json_number, level, short

if TYPE_CHECKING:
    from fenchel.auditing.advice import HeadPattern
    from fenchel.auditing.examples import AttentionMatrix, Picture
    from fenchel.auditing.state import AuditState
    from fenchel.auditing.statistics import AuditStatistics, Head
    from fenchel.auditing.swap_effects import SwapEffects

BINS = 25


@dataclass(frozen=True)
class Axis:
    """The range over which a metric's distribution is drawn; what lies above is counted in the last bin."""

    metric: str
    upper: float

    def position(self, value: float) -> float | None:
        """Where a value stands, from 0 to 100; None where it is not finite."""
        return round(min(100.0, 100 * value / self.upper), 2) if math.isfinite(value) else None


AXES: tuple[Axis, ...] = (
    Axis("relative_deviation", 0.5),
    Axis("total_variation", 1.0),
    Axis("mean_error", 1.0),
)


MOST_PANELS = 400

"""Above this many heads of a kind, a layer's heads share one strip instead of having a panel each."""


@dataclass(frozen=True)
class Panel:
    """One distribution in a box of 100 by 100.

    Args:
        layer: The layer.
        head: The head, or None for all heads of the layer.
        path: The outline of the bars, or a tick for each head.
        mean_at: Where the mean's line stands, from 0 to 100; None where there is no finite mean.
        mean: The mean, written.
        queries: How many queries the distribution counts.
    """

    layer: int
    head: int | None
    path: str
    mean_at: float | None
    mean: str
    queries: int

    @classmethod
    def of(
        cls,
        path: str,
        statistics: AuditStatistics,
        axis: Axis,
        kind: Kind,
        layer: int,
        head: int | None = None,
    ) -> Panel:
        """The panel of a layer or a head, with what is drawn in it."""
        numbers = statistics.of(kind, layer, head)
        mean = numbers[f"{axis.metric}_mean"]
        return cls(layer, head, path, axis.position(mean), short(mean), numbers["queries"])


def outline(fractions: Sequence[float]) -> str:
    """The outline of bars of equal width, as an SVG path in a box of 100 by 100 whose y runs downwards.

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
    statistics: AuditStatistics, axis: Axis
) -> dict[Kind, tuple[list[Panel], list[tuple[int, list[Panel | None]]]]]:
    """By kind one panel a layer, as in figure 4, and one a head, a row a layer, as in figure 5.

    Where a layer lacks a head, its row has None.
    """
    counts = statistics.histograms(axis.metric, axis.upper, BINS)

    def panel(counts: Sequence[int], *place: Any) -> Panel:
        queries = sum(counts) or 1
        return Panel.of(outline([count / queries for count in counts]), statistics, axis, *place)

    result = {}
    for kind in statistics.kinds:
        numbers = sorted({head.key.head for head in statistics.of_kind(kind)})
        of_layers, rows = [], []
        for layer in statistics.layers_of(kind):
            of_heads = {key.head: counts[key] for key in counts if key[:2] == (kind, layer)}
            of_layers.append(panel([sum(bins) for bins in zip(*of_heads.values(), strict=True)], kind, layer))
            row = [panel(of_heads[head], kind, layer, head) if head in of_heads else None for head in numbers]
            rows.append((layer, row))
        result[kind] = of_layers, rows
    return result


def strips(statistics: AuditStatistics, axis: Axis, kind: Kind) -> list[Panel]:
    """One strip a layer, with the means of its heads as ticks, for models with too many heads for a panel each."""
    result = []
    for layer in statistics.layers_of(kind):
        means = [head.value(axis.metric) for head in statistics.of_kind(kind) if head.key.layer == layer]
        ticks = sorted({at for mean in means if (at := axis.position(mean)) is not None})
        path = "".join(f"M{at:g} 15V85" for at in ticks)
        result.append(Panel.of(path, statistics, axis, kind, layer))
    return result


HEAT_METRICS: tuple[str, ...] = ("relative_deviation", "total_variation", "mean_error", "certificate")


@dataclass(frozen=True)
class Cell:
    """One head.

    Args:
        index: Its place among all heads of the report.
        style: The CSS class of its colour: a step of the scale, or ``unbounded``.
        text: Its number.
    """

    index: int
    style: str
    text: str


@dataclass(frozen=True)
class HeadGrid:
    """Layers by heads.

    Args:
        heads: The numbers of the columns.
        rows: A layer's number and its cells; None where a layer lacks that head.
        highest: The upper end of the colour scale; None where no number is finite.
        metric: What is shown, in the map of an audit.
        statistic: The statistic of it.
    """

    heads: list[int]
    rows: list[tuple[int, list[Cell | None]]]
    highest: float | None
    metric: str = ""
    statistic: str = ""

    @classmethod
    def of(cls, cells: Mapping[tuple[int, int], Cell], highest: float | None, *shown: str) -> HeadGrid:
        """The grid of cells by layer and head."""
        heads = sorted({head for _, head in cells})
        layers = sorted({layer for layer, _ in cells})
        rows = [(layer, [cells.get((layer, head)) for head in heads]) for layer in layers]
        return cls(heads, rows, highest, *shown)

    @property
    def width(self) -> str:
        """How wide the map is, as the CSS class that decides when its numbers are shown."""
        return "few" if len(self.heads) <= 8 else "several" if len(self.heads) <= 12 else "many"

    @property
    def height(self) -> str:
        """How tall the map is, as the CSS class of its rows."""
        return "low" if len(self.rows) <= 16 else "tall"


def highest_finite(values: Iterable[float | None]) -> float | None:
    """The greatest finite value; None where there is none."""
    return max((v for v in values if v is not None and math.isfinite(v)), default=None)


def shown_statistic(statistics: AuditStatistics, metric: str) -> str:
    """What to show of a metric: the mean, or the median where some head's mean is unbounded."""
    return "p50" if any(head.value(metric) == math.inf for head in statistics.heads) else "mean"


def heat_maps(statistics: AuditStatistics, kind: Kind) -> list[HeadGrid]:
    """The heat maps of one kind, one a metric, on scales that all kinds share."""
    maps = []
    for metric in HEAT_METRICS:
        statistic = shown_statistic(statistics, metric)
        values = [head.value(metric, statistic) for head in statistics.heads]
        highest, cells = highest_finite(values), {}
        for index, (head, value) in enumerate(zip(statistics.heads, values, strict=True)):
            if head.key.kind == kind:
                style = f"q{level(value, highest or 0.0)}" if math.isfinite(value) else "unbounded"
                cells[head.key[1:]] = Cell(index, style, short(value))
        maps.append(HeadGrid.of(cells, highest, metric, statistic))
    return maps


def scatters(effects: SwapEffects) -> list[dict[str, Any]]:
    """Total variation and relative deviation against the change of the model's hidden states.

    Returns:
        Of each ``metric`` a point a head (``points``), what the ends of the axes stand for (``widest``, ``highest``)
        and Spearman's ``rank_correlation``. Of a point its ``key``, ``deviation`` and ``effect``, and the places of
        these and of the interval, from 0 to 100 (``x``, ``y``, ``low``, ``high``).
    """
    plots = []
    for metric in ("total_variation", "relative_deviation"):
        deviations = {head.key: head.deviations.get(metric) for head in effects.heads}
        known = {
            key: value for key, value in deviations.items() if value is not None and math.isfinite(value)
        }
        if not known:
            continue
        heads = [head for head in effects.heads if head.key in known]
        widest = 1.05 * max(known.values()) or 1.0
        highest = 1.05 * max(max(head.effect, head.high or 0.0) for head in heads) or 1.0

        def up(value: float | None, highest: float = highest) -> float | None:
            return None if value is None else round(100 * max(0.0, min(1.0, value / highest)), 2)

        points = [
            {
                "key": head.key,
                "deviation": known[head.key],
                "effect": head.effect,
                "x": round(100 * known[head.key] / widest, 2),
                "y": up(head.effect),
                "low": up(head.low),
                "high": up(head.high),
            }
            for head in heads
        ]
        rank = effects.rank_correlation.get(metric)
        plots.append(
            {
                "metric": metric,
                "points": points,
                "widest": widest,
                "highest": highest,
                "rank_correlation": rank,
            }
        )
    return plots


_MOST_CARDS = 6


@dataclass(frozen=True)
class Card:
    """One of the farthest heads.

    Args:
        head: Its numbers.
        reasons: Why it is shown, such as "2nd largest total variation".
        example: The query, or None where the audit kept none.
    """

    head: Head
    reasons: list[str]
    example: HeadExample | None


def _ordinal(rank: int) -> str:
    return f"{rank}{({1: 'st', 2: 'nd', 3: 'rd'}).get(rank, 'th')}"


def farthest_heads(report: AuditState) -> list[Card]:
    """The six farthest heads, taken in turn from the rankings by total variation and by output error."""
    metrics = ("total_variation", "mean_error")
    rankings = [report.statistics.farthest(metric, _MOST_CARDS) for metric in metrics]
    cards: dict[HeadKey, Card] = {}
    for rank, heads in enumerate(zip(*rankings, strict=True), start=1):
        for metric, head in zip(metrics, heads, strict=True):
            if len(cards) < _MOST_CARDS or head.key in cards:
                card = cards.setdefault(head.key, Card(head, [], report.examples.get(head.key)))
                place = "largest" if rank == 1 else f"{_ordinal(rank)} largest"
                card.reasons.append(f"{place} {METRIC_NAMES[metric].lower()}")
    return list(cards.values())


MOST_QUERIES = 1_200

"""Queries that a page shows, over all heads; those of the heads that are farthest."""

MOST_MATRICES = 240

"""Heads whose attention in a sentence a page shows, likewise."""

KIND_PREFIXES: dict[Kind, str] = {"encoder_self": "encoder-", "decoder_self": "decoder-", "cross": "cross-"}

"""How the addresses of heads begin that are not of the report's first kind."""

PLACES: dict[str, str] = {
    "first": "the first token",
    "special": "special tokens",
    "itself": "the query itself",
    "neighbour": "its neighbours",
    "punctuation": "punctuation",
    "rest": "other tokens",
}

"""What the page calls the places that weight moves between."""

PLACES_OF_IMAGES: dict[str, str] = {"first": "the first position", "rest": "other patches"}

"""The same where the input is images."""

_QUERIES_OF_A_HEAD = 4
_NAMED = 5  # tokens that get too much, and too little, of a query
_LEAST_NAMED = 0.001
_BINS = 24


def head_address(key: HeadKey, kinds: Sequence[Kind]) -> str:
    """What follows the ``#`` in the address of a head; heads of the report's first kind need not say which it is.

    Example:
        >>> head_address(HeadKey("cross", 2, 3), ["encoder_self", "cross"])
        'cross-L2H3'
    """
    return f"{'' if key.kind == kinds[0] else KIND_PREFIXES[key.kind]}L{key.layer}H{key.head}"


def shown_queries(examples: Sequence[HeadExample]) -> list[HeadExample]:
    """The farthest queries of a head: new patterns first, no sentence twice if there are others, no place twice."""
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
    """What the page's script reads: every head's numbers and what it shows when it is opened, a list entry a head.

    Args:
        report: The audit.
        most_rows: How many rows of the table the page shows before it is asked for all.
    """
    statistics, images = report.statistics, report.manifest.get("reads") == "images"
    columns = ["kind", "layer", "head", "queries", "not_converged", "newton_steps"]
    metrics_from = len(columns)
    columns += [f"{metric}_{statistic}" for metric in METRICS for statistic in STATISTIC_NAMES]
    rows = [
        [
            *(statistics.kinds.index(head.key.kind), head.key.layer, head.key.head),
            *(head.queries, head.not_converged, json_number(head.newton_steps)),
            *_numbers(head),
        ]
        for head in statistics.heads
    ]
    sampled = [
        [head.population, *(json_number(head.value(metric, "se")) for metric in METRICS)]
        for head in statistics.heads
    ]
    return {
        "kinds": [KIND_NAMES[kind] for kind in statistics.kinds],
        "short_kinds": [SHORT_KIND_NAMES[kind] for kind in statistics.kinds],
        "metrics": METRIC_NAMES,
        "statistics": STATISTIC_NAMES,
        "kind_prefixes": [KIND_PREFIXES[kind] for kind in statistics.kinds],
        "places": PLACES | (PLACES_OF_IMAGES if images else {}),
        "reads": report.manifest.get("reads", "text"),
        "axes": [axis.metric for axis in AXES],
        "columns": columns,
        "metrics_from": metrics_from,
        "most_rows": most_rows,
        "rows": rows,
        "sampled": sampled if report.sample else None,
        **opened_data(report),
    }


def opened_data(report: AuditState) -> dict[str, Any]:
    """Entries of the page's data that are for heads that open, most of them with one entry a head in their order."""
    statistics, keys = report.statistics, report.statistics.keys()
    far = [head.key for head in statistics.farthest("total_variation", len(keys))]
    most = max(1, min(_QUERIES_OF_A_HEAD, MOST_QUERIES // len(keys)))
    with_queries, with_matrix = (
        set(far[: MOST_QUERIES // most]),
        {*far[:MOST_MATRICES]} & report.matrices.keys(),
    )
    texts, sentences, images = dict[Any, int](), dict[Any, int](), dict[Any, int]()
    effects = () if report.effects is None else report.effects.heads
    examples = (card.example for card in farthest_heads(report))
    positions = (statistics.positions(kind) for kind in statistics.kinds)

    def column(entries: Mapping[HeadKey, Any]) -> list[Any]:
        return [entries.get(key) for key in keys]

    return {
        "addresses": [head_address(key, statistics.kinds) for key in keys],
        "twins": report.twin and column({head.key: _numbers(head) for head in report.twin.heads}),
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
    """The number of an entry that many heads may share, each once."""
    return entries.setdefault(entry, len(entries))


def _short(value: float | None) -> float | str | None:
    return json_number(value, 4)


def _numbers(head: Head) -> list[float | str | None]:
    return [json_number(head.value(metric, statistic)) for metric in METRICS for statistic in STATISTIC_NAMES]


def _histograms(report: AuditState) -> list[list[list[Any]]]:
    """Of each head and axis: its upper end, the model's counts and the twin's; the last bin holds what lies beyond."""
    result: list[list[list[Any]]] = [[] for _ in report.statistics.heads]
    for axis in AXES:
        uppers = {head.key: _upper(head, axis.metric) for head in report.statistics.heads}
        counts = report.statistics.histograms(axis.metric, uppers, _BINS)
        twins = {} if report.twin is None else report.twin.histograms(axis.metric, uppers, _BINS)
        for entries, (key, upper) in zip(result, uppers.items(), strict=True):
            entries.append([upper, counts[key], twins.get(key)])
    return result


def _upper(head: Head, metric: str) -> float:
    high, most = head.value(metric, "p95"), head.value(metric, "max")
    # One query far out does not squeeze all others into the first bins.
    return _round_number(most if most <= 1.6 * high else 1.25 * high)


def _round_number(value: float) -> float:
    """The least of 1, 1.5, 2, 3, ... times a power of ten that is at least the value.

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
    """The image's number and grid, the weights of all positions, and which of them, from 0, the query is, if any."""
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
