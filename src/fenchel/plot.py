"""Pictures of attention weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fenchel.arguments import shown
from fenchel.errors import InputError, require_packages
from fenchel.io.runs import atomic_path

__all__ = ["heatmap"]

_ENDINGS = (".png", ".svg", ".pdf")


def heatmap(
    weights: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    path: str | Path,
    *,
    title: str | None = None,
) -> Path:
    """Draw weights between two sequences of tokens, such as the sentences of a pair.

    White is 0, and the darkest colour the largest weight. Dollar signs in labels do not begin a formula.

    Args:
        weights: (m, n), floating-point, finite and non-negative: row i holds the weights of query i over n templates.
        rows: The m labels of the queries.
        columns: The n labels of the templates.
        path: The file to write, ``.png``, ``.svg`` or ``.pdf``; an existing one is replaced.
        title: Title above the cells.

    Returns:
        The path.

    Raises:
        InputError: If the weights cannot be drawn, the number of labels does not match, or the path has another ending.
        MissingExtraError: If matplotlib is not installed; it comes with ``fenchel[report]``.

    Example:
        >>> import tempfile, torch
        >>> folder = tempfile.mkdtemp()
        >>> heatmap(torch.eye(2), ["ein", "Hund"], ["a", "dog"], f"{folder}/pair.png").name
        'pair.png'
    """
    values = _checked(weights)
    for name, labels, count in (("rows", rows, values.shape[0]), ("columns", columns, values.shape[1])):
        if len(labels) != count:
            raise InputError(
                f"{name} has {len(labels)} labels; expected {count}, for weights {tuple(values.shape)}."
            )
    path = Path(path)
    if path.suffix.lower() not in _ENDINGS:
        raise InputError(f"path is {str(path)!r}; expected a name that ends in {', '.join(_ENDINGS)}.")
    require_packages("report", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height, width = (min(0.6 + 0.26 * count, 40.0) for count in values.shape)
    figure = Figure(figsize=(width + 0.6, height))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(values.numpy(), cmap="Purples", vmin=0.0, aspect="auto", interpolation="nearest")
    plain: dict[str, Any] = {"parse_math": False}
    axes.set_xticks(range(len(columns)), columns, rotation=90, **plain)
    axes.set_yticks(range(len(rows)), rows, **plain)
    axes.xaxis.tick_top()
    if title is not None:
        axes.set_title(title, **plain)
    figure.colorbar(image, ax=axes, label="weight", shrink=0.8)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=150, bbox_inches="tight")
    return path


def _checked(weights: Tensor) -> Tensor:
    """The weights on the CPU in float32."""
    if not isinstance(weights, Tensor) or weights.dim() != 2 or not weights.is_floating_point():
        raise InputError(f"weights is {shown(weights)}; expected a floating tensor (m, n).")
    if not weights.numel():
        raise InputError(
            f"weights have shape {tuple(weights.shape)}; expected one row and one column at least."
        )
    values = weights.detach().float().cpu()
    if not bool(values.isfinite().all()) or bool((values < 0).any()):
        raise InputError(
            "weights hold numbers that are not finite or below 0; expected weights of distributions."
        )
    return values
