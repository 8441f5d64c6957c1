"""What the page shows of a head that is opened: its queries, its attention in a sentence, its histograms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fenchel.arguments import Kind
from fenchel.auditing.examples import HeadExample, Packing, unpacked
from fenchel.auditing.heads import METRICS, HeadKey
from fenchel.auditing.report.findings import METRIC_NAMES, STATISTICS, Findings, Head
from fenchel.auditing.report.plots import AXES
from fenchel.auditing.weight_moves import KEY_CLASSES
from fenchel.drawing import json_number, short

if TYPE_CHECKING:
    from fenchel.auditing.advice import HeadPattern
    from fenchel.auditing.examples import AttentionMatrix, HeadExample, Picture
    from fenchel.auditing.state import AuditState

_MOST_CARDS = 6


@dataclass(frozen=True)
class Bar:
    """The two weights of one template; widths are shares, in percent, of the card's longest bar."""

    position: int
    token: str
    is_query: bool
    first_order: str
    exact: str
    first_order_width: float
    exact_width: float


@dataclass(frozen=True)
class Card:
    """One of the farthest heads.

    Args:
        head: Its record.
        reasons: Why it is shown, such as "1st by total variation".
        example: The query, or None where the audit kept none.
        context: The text before the query's token, the token and the text after it.
        bars: The heaviest templates under either answer, in the order of the text.
        longest: The weight that the longest bar stands for.
    """

    head: Head
    reasons: list[str]
    example: HeadExample | None = None
    context: tuple[str, str, str] = ("", "", "")
    bars: Sequence[Bar] = ()
    longest: str = ""


def _ordinal(rank: int) -> str:
    return f"{rank}{({1: 'st', 2: 'nd', 3: 'rd'}).get(rank, 'th')}"


def marked(example: HeadExample) -> tuple[str, str, str]:
    """The sentence of an example before its query's token, the token, and what follows; nothing is there twice."""
    if example.context_token is None:
        return example.context, "", ""
    start, end = example.context_token
    return example.context[:start], example.context[start:end], example.context[end:]


def _bars(example: HeadExample) -> tuple[list[Bar], float]:
    longest = max((max(t.first_order, t.exact) for t in example.templates), default=0.0)
    unit = 100 / longest if longest > 0 else 0.0
    bars = [
        Bar(
            position=template.position,
            token=template.token,
            is_query=example.key.kind != "cross" and template.position == example.position,
            first_order=short(template.first_order),
            exact=short(template.exact),
            first_order_width=round(unit * template.first_order, 2),
            exact_width=round(unit * template.exact, 2),
        )
        for template in sorted(example.templates, key=lambda template: template.position)
    ]
    return bars, longest


def _reasons(findings: Findings) -> dict[HeadKey, list[str]]:
    ranked = {metric: findings.farthest(metric, _MOST_CARDS) for metric in ("total_variation", "mean_error")}
    reasons: dict[HeadKey, list[str]] = {}
    for rank in range(_MOST_CARDS):
        for metric, heads in ranked.items():
            if rank >= len(heads) or (len(reasons) == _MOST_CARDS and heads[rank].key not in reasons):
                continue
            place = "largest" if rank == 0 else f"{_ordinal(rank + 1)} largest"
            reasons.setdefault(heads[rank].key, []).append(f"{place} {METRIC_NAMES[metric].lower()}")
    return reasons


def farthest_heads(report: AuditState, findings: Findings) -> list[Card]:
    """The six farthest heads, taken in turn from the rankings by total variation and by output error."""
    by_key = {head.key: head for head in findings.heads}
    cards = []
    for key, why in _reasons(findings).items():
        example = report.examples.get(key)
        if example is None:
            cards.append(Card(by_key[key], why))
            continue
        bars, longest = _bars(example)
        cards.append(Card(by_key[key], why, example, marked(example), bars, short(longest)))
    return cards


MOST_QUERIES = 1_200

"""Queries that a page shows, over all heads; those of the heads that are farthest."""

MOST_MATRICES = 240

"""Heads whose attention in a sentence a page shows, likewise."""

KIND_PREFIXES: dict[Kind, str] = {"encoder_self": "encoder-", "decoder_self": "decoder-", "cross": "cross-"}

"""How the addresses of heads begin that are not of the report's first kind."""

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
    for most, of in ((_QUERIES_OF_A_HEAD, (_sentence, pattern)), (3, (_sentence,)), (2, ())):
        for example in examples:
            new = all(mark(example) not in map(mark, shown) for mark in (place, *of))
            if new and len(shown) < most:
                shown.append(example)
    return sorted(shown, key=lambda example: example.rank, reverse=True)


def _sentence(example: HeadExample) -> object:
    return example.document, example.window, example.context


def opened_data(report: AuditState, findings: Findings) -> dict[str, Any]:
    """Entries of the page's data, each a list with one entry a head, in the order of the rows.

    Args:
        report: The audit.
        findings: Its heads.
    """
    keys = [head.key for head in findings.heads]
    far = findings.farthest("total_variation", len(keys))
    most = max(1, min(_QUERIES_OF_A_HEAD, MOST_QUERIES // len(keys)))
    with_queries = {head.key for head in far[: MOST_QUERIES // most]}
    with_matrix = {head.key for head in far[:MOST_MATRICES]}
    texts, sentences, images = dict[Any, int](), dict[Any, int](), dict[Any, int]()
    patterns = {pattern.key: pattern for pattern in report.patterns}
    twin = Findings.of_twin(report)
    twins = {} if twin is None else {head.key: head for head in twin.heads}
    effects = {} if report.effects is None else {effect.key: effect for effect in report.effects.heads}
    return {
        "addresses": [head_address(key, findings.kinds) for key in keys],
        "twins": [_numbers(twins[key]) if key in twins else None for key in keys] if twins else None,
        "histograms": _histograms(report, findings),
        "queries": [
            [_query(one, texts, images) for one in shown_queries(report.far_queries.get(key, ()))[:most]]
            if key in with_queries
            else None
            for key in keys
        ],
        "matrices": [
            _matrix(report.matrices[key], sentences)
            if key in with_matrix and key in report.matrices
            else None
            for key in keys
        ],
        "patterns": [_moves(patterns[key]) if key in patterns else None for key in keys],
        "effects": [
            [_short(number) for number in (effects[key].effect, effects[key].low, effects[key].high)]
            if key in effects
            else None
            for key in keys
        ],
        "pictures": [
            _picture(key, one.position, one.picture, images)
            for key in _reasons(findings)
            if (one := report.examples.get(key)) is not None and one.picture is not None
        ],
        "changed": "" if report.effects is None else report.effects.changed,
        "classes": KEY_CLASSES,
        "positions": [
            [_short(found[name]) if name in found else None for name in KEY_CLASSES] if found else None
            for found in (report.statistics.positions(kind) for kind in findings.kinds)
        ],
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
    return [json_number(head.value(metric, statistic)) for metric in METRICS for statistic in STATISTICS]


def _histograms(report: AuditState, findings: Findings) -> list[list[list[Any]]]:
    """Of each head and axis: its upper end, the model's counts and the twin's; the last bin holds what lies beyond."""
    result: dict[HeadKey, list[list[Any]]] = {head.key: [] for head in findings.heads}
    for axis in AXES:
        uppers = {head.key: _upper(head, axis.metric) for head in findings.heads}
        counts = report.statistics.histograms(axis.metric, uppers, _BINS)
        twins = None if report.twin is None else report.twin.histograms(axis.metric, uppers, _BINS)
        for key, entries in result.items():
            entries.append([uppers[key], counts[key], None if twins is None else twins[key]])
    return list(result.values())


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
        for place, (piece, first, exact) in enumerate(zip(passage.pieces, *sides, strict=True)):
            weights.setdefault(passage.first_position + place, (piece.strip(), first, exact))
        result |= {
            "first": passage.first_position,
            "window": passage.window_tokens,
            "text": _number(texts, passage.pieces),
            "weights": [passage.first_order, passage.exact],
        }
    if example.picture is not None:
        result["picture"] = _picture(example.key, example.position, example.picture, images)
    if passage is None or example.key.kind == "cross":
        result["context"] = ["", "", example.context] if example.context_token is None else [*marked(example)]
    order = sorted(weights.items(), key=lambda item: (item[1][1] - item[1][2], item[0]))
    result["little"] = list(_named(order, 1))
    result["much"] = list(_named(order[::-1], -1))
    return result


def _picture(key: HeadKey, position: int, picture: Picture, images: dict[Any, int]) -> list[Any]:
    """The image's number and grid, the weights of all positions, and which of them, from 0, the query is, if any."""
    asked = None if key.kind == "cross" else position - 1
    image = _number(images, picture.image)
    weights = picture.first_order, picture.exact
    return [image, picture.rows, picture.columns, picture.extra, *weights, asked]


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
    return {
        "classes": [
            [
                _short(getattr(pattern.classes[name], side))
                for side in ("attention", "exact", "leaves", "reaches")
            ]
            for name in KEY_CLASSES
        ],
        "much": [
            [token.token, _short(token.net)] for token in pattern.too_much if -token.net >= _LEAST_NAMED
        ],
        "little": [
            [token.token, _short(token.net)] for token in pattern.too_little if token.net >= _LEAST_NAMED
        ],
    }
