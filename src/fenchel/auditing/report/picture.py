"""The image of a query, drawn three times: under attention's weights, under the exact ones, and with what moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fenchel.auditing.packed import Packing, unpacked
from fenchel.auditing.picture import Picture

__all__ = ["drawn_picture"]

_SIDE = 10  # of a patch in the drawing's own unit
_LEAST_MOVED = 0.02  # of the largest move: what is smaller is not drawn
_VEIL = 0.86


def drawn_picture(picture: Picture, query: int | None) -> str:
    """Three drawings as HTML; readable in grey, since what leaves is a ring and what comes a disc.

    Under either answer, a patch is the more visible the more weight it has.

    Args:
        picture: The image and the weights.
        query: Position of the query, from 1; None where it is no position of this image.

    Returns:
        HTML that is safe to put into a page: nothing in it comes from outside but the checked image.
    """
    first, exact = (unpacked(weights, Packing.FINE) for weights in (picture.first_order, picture.exact))
    patch = None if query is None else query - 1 - picture.extra
    marked = patch if patch is not None and 0 <= patch < picture.rows * picture.columns else None
    moved = [after - before for before, after in zip(first, exact, strict=True)]
    heaviest = max(*first[picture.extra :], *exact[picture.extra :], 1e-12)
    parts = [
        _drawing(picture, "attention (first order)", list(_veil(picture, first, heaviest)), marked),
        _drawing(picture, "exact", list(_veil(picture, exact, heaviest)), marked),
        _drawing(picture, "exact − attention", list(_moves(picture, moved)), marked),
    ]
    note = "The query’s patch has a frame. " if marked is not None else "The query is no patch. "
    note += "A disc is weight that the exact answer adds, a ring weight that it takes away, by area."
    if picture.extra:
        on = (f"{100 * sum(one[: picture.extra]):.3g} %" for one in (first, exact))
        note += " On tokens that are no patch lie {} of attention’s weight and {} of the exact one.".format(
            *on
        )
    return f'<div class="picture">{"".join(parts)}</div><p class="note">{note}</p>'


def _drawing(picture: Picture, title: str, shapes: Sequence[str], marked: int | None) -> str:
    width, height = picture.columns * _SIDE, picture.rows * _SIDE
    frame = ""
    if marked is not None:
        x, y = _corner(picture, marked)
        box = f'x="{x}" y="{y}" width="{_SIDE}" height="{_SIDE}" fill="none"'
        frame = (
            f'<rect {box} stroke="#000" stroke-width="1.8"/><rect {box} stroke="#fff" stroke-width="0.8"/>'
        )
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
        f'<image href="{picture.image}" width="{width}" height="{height}" preserveAspectRatio="none"/>'
        f"{''.join(shapes)}{frame}</svg><figcaption>{title}</figcaption></figure>"
    )


def _corner(picture: Picture, patch: int) -> tuple[int, int]:
    row, column = divmod(patch, picture.columns)
    return column * _SIDE, row * _SIDE


def _veil(picture: Picture, weights: Sequence[float], heaviest: float) -> Iterator[str]:
    """A patch without weight is nearly black, the heaviest one is as it was."""
    for patch, weight in enumerate(weights[picture.extra :]):
        x, y = _corner(picture, patch)
        # The square root, as of the discs: a patch with a tenth of the weight can still be seen.
        opacity = round(_VEIL * (1 - (weight / heaviest) ** 0.5), 3)
        if opacity > 0:
            yield f'<rect x="{x}" y="{y}" width="{_SIDE}" height="{_SIDE}" fill="#000" fill-opacity="{opacity}"/>'


def _moves(picture: Picture, moved: Sequence[float]) -> Iterator[str]:
    yield (
        f'<rect width="{picture.columns * _SIDE}" height="{picture.rows * _SIDE}" fill="#000" fill-opacity="0.6"/>'
    )
    own = moved[picture.extra :]
    largest = max(map(abs, own), default=0.0)
    for patch, change in enumerate(own):
        if largest == 0 or abs(change) < _LEAST_MOVED * largest:
            continue
        x, y = _corner(picture, patch)
        radius = round(0.46 * _SIDE * (abs(change) / largest) ** 0.5, 2)
        look = 'fill="#a9d0fb"' if change > 0 else 'fill="none" stroke="#ffb454" stroke-width="1.1"'
        if change < 0:
            radius = round(max(radius - 0.55, 0.3), 2)  # the stroke lies on both sides of the circle
        yield f'<circle cx="{x + _SIDE / 2:g}" cy="{y + _SIDE / 2:g}" r="{radius:g}" {look}/>'
