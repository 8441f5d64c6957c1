"""What types of position encodings say of a pair of positions, and who uses which.

The table is table 3 of Cordonnier et al. 2020.
"""

from typing import Any

import torch
from matplotlib.figure import Figure
from style import COLOURS, GRID, LINES, main, sheet
from torch import Tensor

from fenchel.integrations.transformers import load_model
from fenchel.nn import sinusoids

TYPES = ("sinusoids", "learned", "quadratic", "relative")
TABLE = {
    "Vaswani et al. 2017 (Transformer)": "sinusoids",
    "Radford et al. 2018 (GPT)": "learned",
    "Devlin et al. 2018 (BERT)": "learned",
    "Dai et al. 2019 (Transformer-XL)": "sinusoids, relative",
    "Yang et al. 2019 (XLNet)": "sinusoids, relative",
    "Bello et al. 2019 (images)": "learned, relative",
    "Ramachandran et al. 2019 (images)": "learned, relative",
    "Cordonnier et al. 2020 (images)": "sinusoids, learned, quadratic, relative",
}
POSITIONS, WIDTH, SIGMA = 48, 384, 6.0


def measure() -> dict[str, Any]:
    """A matrix a type: cosines of absolute encodings, u of quadratic and relative ones, which are log-preferences."""
    model, _, _ = load_model("demo")
    table = model.get_parameter("embeddings.position_embeddings.weight").detach()
    learned, places = cosines(table[:POSITIONS].double()), torch.arange(POSITIONS)
    distance = places - places[:, None]
    means = [learned.diagonal(int(shift)).mean() for shift in distance.flatten()]
    relative = torch.stack(means).view_as(learned)
    left = (learned - relative).square().sum() / (learned - learned.mean()).square().sum()
    return {
        "sinusoids": cosines(sinusoids(places.double(), WIDTH)),
        "learned": learned,
        "quadratic": (-distance.double().square() / (2 * SIGMA**2)).exp(),
        "relative": relative,
        "relative_share": float(1 - left),  # of the variance of the learned encoding's cosines
    }


def cosines(encoding: Tensor) -> Tensor:
    """Of all pairs of rows."""
    unit = encoding / encoding.norm(dim=-1, keepdim=True)
    return unit @ unit.T


def draw(numbers: dict[str, Any]) -> Figure:
    """Four matrices above, the table below."""
    figure = sheet(4.5)
    grid = figure.add_gridspec(2, len(TYPES), height_ratios=(1.0, 1.35))
    panels = [figure.add_subplot(grid[0, place]) for place in range(len(TYPES))]
    for axes, name, letter in zip(panels, TYPES, "abcd", strict=True):
        drawn = axes.imshow(numbers[name], cmap=COLOURS, vmin=0, vmax=1)
        axes.set(title=f"({letter}) {name}", xlabel="key position j")
    panels[0].set_ylabel("query position i")
    figure.colorbar(drawn, ax=panels, pad=0.01, aspect=14, label="cosine, or u", extend="min")
    axes = figure.add_subplot(grid[1, :])
    for row, used in enumerate(TABLE.values()):
        for column, name in enumerate(TYPES):
            large = name in used
            colour = LINES["model"]["color"] if large else GRID
            axes.plot(column, row, "o", color=colour, markersize=6 if large else 2.5)
    axes.set_yticks(range(len(TABLE)), TABLE, fontsize=8)
    axes.set_xticks(range(len(TYPES)), TYPES, fontsize=8)
    axes.set(xlim=(-0.5, 3.5), ylim=(len(TABLE) - 0.5, -0.5))
    axes.xaxis.tick_top()
    return figure


if __name__ == "__main__":
    main("position-encodings", measure, draw)
