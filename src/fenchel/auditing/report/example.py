"""The worst heads, each with the query at which its two answers differ most: text, tokens, weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fenchel.auditing.heads import HeadKey
from fenchel.auditing.report.findings import METRIC_NAMES, Findings, Head
from fenchel.runs.number import reading, short

if TYPE_CHECKING:
    from fenchel.auditing.examples import HeadExample
    from fenchel.auditing.results import AuditResults

__all__ = ["Bar", "Card", "marked", "worst_heads"]

_WORD_MARKS = re.compile(r"^(?:##|[▁ĠĊ]+)|(?:</w>|@@)$")
_MOST_CARDS = 6
_REACH = 12  # tokens to each side of the query in an example's context


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
    """One of the worst heads.

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
    example: HeadExample | None
    context: tuple[str, str, str]
    bars: list[Bar]
    longest: str


def _ordinal(rank: int) -> str:
    return f"{rank}{({1: 'st', 2: 'nd', 3: 'rd'}).get(rank, 'th')}"


def marked(context: str, token: str, position: int) -> tuple[str, str, str]:
    """Part a context at its query's token.

    Tokenizers mark word starts and endings on tokens (``##ing``, ``▁the``); the text has no such marks. Where
    the token occurs more than once, the place is taken that is nearest to where it should be: a context
    reaches as far to both sides of its query, except at the beginning of a window.

    Args:
        context: The text around the query.
        token: The query's token.
        position: Its position in the window, from 1.

    Returns:
        What stands before the token, the token and what stands after; where the token does not occur, all of
        the context, and nothing twice.

    Example:
        >>> marked("we were walking home", "##ing", 5)
        ('we were walk', 'ing', ' home')
    """
    piece = re.escape(_WORD_MARKS.sub("", token).strip())
    before = min(_REACH, max(position - 1, 0))
    expected = len(context) * before / (before + _REACH)
    # A whole word first, so that "a" does not light up inside another word.
    for pattern in (rf"(?<!\w){piece}(?!\w)", rf"(?<!\w){piece}", piece) if piece else ():
        places = list(re.finditer(pattern, context, re.IGNORECASE))
        if places:
            place = min(places, key=lambda match: abs((match.start() + match.end()) / 2 - expected))
            return context[: place.start()], place.group(), context[place.end() :]
    return context, "", ""


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


def worst_heads(report: AuditResults, findings: Findings) -> list[Card]:
    """The six worst heads, taken in turn from the rankings by total variation and by output error."""
    by_key = {head.key: head for head in findings.heads}
    cards = []
    for key, why in _reasons(findings).items():
        example = report.examples.get(key)
        bars, longest = _bars(example) if example is not None else ([], 0.0)
        context = (
            marked(example.context, example.token, example.position) if example is not None else ("", "", "")
        )
        cards.append(Card(by_key[key], why, example, context, bars, short(longest)))
    return cards
