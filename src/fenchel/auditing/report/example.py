"""The heads farthest from exact, each with the query at which its two answers differ most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fenchel.auditing.heads import HeadKey
from fenchel.auditing.picture import Picture
from fenchel.auditing.report.findings import METRIC_NAMES, Findings, Head
from fenchel.auditing.report.picture import drawn_picture
from fenchel.drawing import reading, short

if TYPE_CHECKING:
    from fenchel.auditing.examples import HeadExample
    from fenchel.auditing.results import AuditResults

__all__ = ["Bar", "Card", "farthest_heads", "marked"]

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
        picture: The image that the query is of, as HTML; empty where the input is none.
    """

    head: Head
    reasons: list[str]
    example: HeadExample | None
    context: tuple[str, str, str]
    bars: list[Bar]
    longest: str
    picture: str = ""


def _ordinal(rank: int) -> str:
    return f"{rank}{({1: 'st', 2: 'nd', 3: 'rd'}).get(rank, 'th')}"


def marked(example: HeadExample) -> tuple[str, str, str]:
    """The sentence of an example before its query's token, the token, and what follows; nothing is there twice."""
    if example.context_token is None:
        return example.context, "", ""
    start, end = example.context_token
    return example.context[:start], example.context[start:end], example.context[end:]


def _bars(example: HeadExample) -> tuple[list[Bar], float]:
    weights = [(t, reading(t.first_order) or 0.0, reading(t.exact) or 0.0) for t in example.templates]
    longest = max((max(first, exact) for _, first, exact in weights), default=0.0)
    unit = 100 / longest if longest > 0 else 0.0
    bars = [
        Bar(
            position=template.position,
            token=template.token,
            is_query=example.key.kind != "cross" and template.position == example.position,
            first_order=short(first),
            exact=short(exact),
            first_order_width=round(unit * first, 2),
            exact_width=round(unit * exact, 2),
        )
        for template, first, exact in sorted(weights, key=lambda weight: weight[0].position)
    ]
    return bars, longest


def _picture(example: HeadExample, picture: Picture) -> str:
    return drawn_picture(picture, None if example.key.kind == "cross" else example.position)


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


def farthest_heads(report: AuditResults, findings: Findings) -> list[Card]:
    """The six farthest heads, taken in turn from the rankings by total variation and by output error."""
    by_key = {head.key: head for head in findings.heads}
    cards = []
    for key, why in _reasons(findings).items():
        example = report.examples.get(key)
        bars, longest = _bars(example) if example is not None else ([], 0.0)
        context = marked(example) if example is not None else ("", "", "")
        picture = "" if example is None or example.picture is None else _picture(example, example.picture)
        cards.append(Card(by_key[key], why, example, context, bars, short(longest), picture))
    return cards
