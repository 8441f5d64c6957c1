"""An attention map in a terminal: both estimators side by side in five shades, certificates at the end of the rows."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence

from torch import Tensor

from fenchel.answering.attention_map import AttentionMap, Grid
from fenchel.runs.number import decimal, short

__all__ = ["terminal_map"]

_SHADES = " ░▒▓█"
_LONGEST_NAME = 16
_TALLEST_HEADING = 10
_GAP = "   "
_ENDS = 22  # what stands behind the maps
_NARROWEST = "first order"
_BOUNDS = (0.05, 0.2, 0.4, 0.7)


def terminal_map(drawn: AttentionMap, *, width: int = 80) -> str:
    """Lines for a terminal.

    A cell is the darker the heavier its weight: blank below 0.05, then up to 0.2, 0.4, 0.7 and above. Cells of an image
    are drawn as they lie in it, query by query, in shares of the heaviest of each.

    Args:
        drawn: The map.
        width: Of the terminal, in characters; the two maps stand one above the other where they would not fit.
    """
    if drawn.grid is not None:
        return _grids(drawn, drawn.grid, width)
    names = [_cut(name, _LONGEST_NAME) for name in drawn.queries]
    margin = max(map(_wide, names), default=0)
    columns = max(2 * len(drawn.keys), len(_NARROWEST))
    beside = margin + 1 + 2 * columns + len(_GAP) + _ENDS <= width
    said = f"{drawn.title}: rows are queries, columns keys. Weights: {_legend()}."
    ends = [
        f"{decimal(float(moved))}  ≤ {short_bound(float(error))}{'' if solved else ' !'}"
        for moved, error, solved in zip(drawn.moved, drawn.error, drawn.solved, strict=True)
    ]
    lines = textwrap.wrap(said, width)
    if beside:
        titles = (_fitted("first order", columns), _fitted("exact", columns), "moved  certified")
        lines.append(f"{' ' * margin} {_GAP.join(titles)}")
        lines += [f"{' ' * margin} {_padded(row, columns)}{_GAP}{row}" for row in _heading(drawn.keys)]
        lines += [
            f"{_padded(name, margin)} {_padded(_row(first), columns)}{_GAP}{_padded(_row(exact), columns)}{_GAP}{end}"
            for name, first, exact, end in zip(names, drawn.first_order, drawn.exact, ends, strict=True)
        ]
    else:
        for called, weights in (("first order", drawn.first_order), ("exact", drawn.exact)):
            last = called == "exact"
            lines.append(
                f"{' ' * margin} {called}{' (with what moved, and its certificate)' if last else ''}"
            )
            lines += [f"{' ' * margin} {row}" for row in _heading(drawn.keys)]
            lines += [
                f"{_padded(name, margin)} {_row(row)}{_GAP + end if last else ''}"
                for name, row, end in zip(names, weights, ends, strict=True)
            ]
    return _joined(lines, drawn)


def _joined(lines: list[str], drawn: AttentionMap) -> str:
    if not bool(drawn.solved.all()):
        lines = [
            *lines,
            "! not solved to the tolerance: its exact weights are as far off as the certificate says.",
        ]
    return "\n".join(line.rstrip() for line in lines)


def _grids(drawn: AttentionMap, grid: Grid, width: int) -> str:
    """Cells of an image, query by query, first order to the left of exact."""
    said = f"{drawn.title}: for every query first order, and exact beside it. Shares of its heaviest cell: {_legend()}."
    lines = textwrap.wrap(said, width)
    wide = max(2 * 2 * grid.columns + len(_GAP), _ENDS + _LONGEST_NAME)
    in_a_row = max(1, (width + len(_GAP)) // (wide + len(_GAP)))
    blocks = [_grid_block(drawn, grid, query) for query in range(len(drawn.queries))]
    for begin in range(0, len(blocks), in_a_row):
        lines.append("")
        for beside in zip(*blocks[begin : begin + in_a_row], strict=True):
            lines.append(_GAP.join(_padded(line, wide) for line in beside))
    return _joined(lines, drawn)


def _grid_block(drawn: AttentionMap, grid: Grid, query: int) -> list[str]:
    solved = "" if drawn.solved[query] else " !"
    moved, error = float(drawn.moved[query]), short_bound(float(drawn.error[query]))
    block = [f"{_cut(drawn.queries[query], _LONGEST_NAME)}  {decimal(moved)}  ≤ {error}{solved}"]
    both = [
        (weights[query] / weights[query].max().clamp_min(1e-12)).view(grid.rows, grid.columns)
        for weights in (drawn.first_order, drawn.exact)
    ]
    block += [f"{_row(first)}{_GAP}{_row(exact)}" for first, exact in zip(*both, strict=True)]
    return block


def short_bound(value: float) -> str:
    """A bound that is not rounded down.

    Example:
        >>> short_bound(1.21e-9), short_bound(0.0), short_bound(0.25)
        ('2e-9', '0', '0.250')
    """
    if value == 0:
        return "0"
    if value >= 0.001:
        return short(value)
    mantissa, _, exponent = f"{value:.6e}".partition("e")
    leading = int(float(mantissa)) + (float(mantissa) > int(float(mantissa)))
    power = int(exponent)
    return f"1e{power + 1}" if leading == 10 else f"{leading}e{power}"


def _legend() -> str:
    parts = [f"{shade} above {bound:g}" for shade, bound in zip(_SHADES[1:], _BOUNDS, strict=True)]
    return ", ".join(parts)


def _row(weights: Tensor) -> str:
    return "".join(2 * _SHADES[sum(weight > bound for bound in _BOUNDS)] for weight in weights.tolist())


def _heading(keys: Sequence[str]) -> list[str]:
    """The names of the columns, written from top to bottom."""
    cut = [_cut(key, _TALLEST_HEADING) for key in keys]
    height = max(map(len, cut), default=0)
    rows = []
    for line in range(height):
        letters = [key[line - height + len(key)] if line >= height - len(key) else " " for key in cut]
        rows.append("".join(_padded(letter, 2) for letter in letters))
    return rows


def _cut(text: str, longest: int) -> str:
    clean = "".join(character if character.isprintable() else "�" for character in text)
    return clean if len(clean) <= longest else f"{clean[: longest - 1]}…"


def _wide(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _wide(text))


def _fitted(text: str, width: int) -> str:
    return _padded(_cut(text, width) if width else "", width)
