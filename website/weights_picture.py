"""Weights of a small inference as a picture in the page: what is believed, what attention says, what is exact."""

from __future__ import annotations

from html import escape

from torch import Tensor

__all__ = ["weights_picture"]

_CELL, _GAP, _TITLE = 18, 26, 20


def weights_picture(panels: dict[str, Tensor], described: str) -> str:
    """Matrices side by side, queries down and keys across; a weight is the darkness of its cell.

    Args:
        panels: (queries, keys) each, weights of every row summing to one at most, by what is written above.
        described: What a screen reader says.

    Returns:
        An ``svg`` element in the colour of the text, legible on light and on dark.

    Example:
        >>> import torch
        >>> weights_picture({"u": torch.tensor([[0.5, 0.5]])}, "even").count("<rect")
        3
    """
    drawn, left = [], 0
    height = 0
    for title, weights in panels.items():
        rows, columns = weights.shape
        drawn.append(f'<text x="{left}" y="12">{escape(title)}</text>')
        for row in range(rows):
            for column in range(columns):
                weight = float(weights[row, column].clamp(0, 1))
                x, y = left + column * _CELL, _TITLE + row * _CELL
                said = f"query {row + 1}, key {column + 1}: {weight:.3f}"
                drawn.append(
                    f'<rect x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}" fill-opacity="{weight**0.5:.3f}">'
                    f"<title>{said}</title></rect>"
                )
        wide = max(columns * _CELL, 8 * len(title))
        drawn.append(
            f'<rect x="{left - 1.5}" y="{_TITLE - 1.5}" width="{columns * _CELL + 2}" height="{rows * _CELL + 2}" '
            'fill="none" stroke="currentColor" stroke-opacity="0.4"/>'
        )
        left += wide + _GAP
        height = max(height, _TITLE + rows * _CELL + 2)
    width = left - _GAP + 4
    return (
        f'<svg class="weights" viewBox="-2 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(described, quote=True)}" fill="currentColor" font-size="12">{"".join(drawn)}</svg>'
    )
