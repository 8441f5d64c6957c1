"""Spotlight, zoom lens, filter and attenuation as preferences over places, where a louder thing stands elsewhere.

The spotlight: Crick 1984; the zoom lens: Eriksen and St. James 1986; filter: Broadbent 1958; attenuation: Treisman
1969.
"""

from typing import Any

import torch
from matplotlib.figure import Figure
from style import COLOURS, INK, LINES, main, sheet
from torch import Tensor

from fenchel import Discrete, InferenceProblem

SIDE, ALPHA, TARGET, DISTRACTOR, CUE = 17, 6.0, (6, 5), (11, 12), (6.5, 5.0)
WIDTHS = [0.75 * 2 ** (step / 3) for step in range(16)]


def measure() -> dict[str, Any]:
    """Search a scene for a feature that a target matches, and a distractor elsewhere matches better."""
    scene = 0.12 * torch.randn(SIDE, SIDE, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    wanted = torch.eye(8, dtype=torch.float64)[0]
    scene[TARGET] += 0.8 * wanted
    scene[DISTRACTOR] += 0.8 * 1.25 * wanted
    rows, columns = torch.meshgrid(*[torch.arange(SIDE, dtype=torch.float64)] * 2, indexing="ij")
    square = (rows - CUE[0]) ** 2 + (columns - CUE[1]) ** 2
    inside = square <= 9
    beliefs = {
        "none: uniform": torch.zeros_like(square),
        "spotlight, σ = 1.5": -square / (2 * 1.5**2),
        "zoom lens, σ = 6": -square / (2 * 6.0**2),
        "filter: u = 0 outside": torch.zeros_like(square).masked_fill(~inside, -torch.inf),
        "attenuation: u × 0.02": torch.where(inside, 1.0, 0.02).double().log(),
    }
    found = {name: answer(scene, log_u, wanted) for name, log_u in beliefs.items()}
    widths = []
    for width in WIDTHS:
        one = answer(scene, -square / (2 * width**2), wanted)
        widths.append({"width": width, "first_order": one["first_order"], "exact": one["exact"]})
    match = {"target": float(scene[TARGET][0]), "distractor": float(scene[DISTRACTOR][0])}
    return {"match": match, "beliefs": found, "widths": widths}


def answer(scene: Tensor, log_u: Tensor, wanted: Tensor) -> dict[str, Any]:
    """The preference, first-order weights, and what target and distractor get at first order and exactly."""
    problem = InferenceProblem(Discrete(scene.flatten(0, 1), log_u.flatten()), wanted[None], alpha=ALPHA)
    first, exact = (problem.solve(name).weights.view(SIDE, SIDE) for name in ("first_order", "exact"))
    parts = {"target": TARGET, "distractor": DISTRACTOR}
    return {
        "preference": log_u.flatten().softmax(-1).view(SIDE, SIDE),
        "weights": first,
        "first_order": {name: float(first[place]) for name, place in parts.items()},
        "exact": {name: float(exact[place]) for name, place in parts.items()},
    }


def draw(numbers: dict[str, Any]) -> Figure:
    """Beliefs above, attention below, weights by the lens's width beside them; colours are square roots."""
    figure = sheet(2.75)
    beliefs = numbers["beliefs"]
    left, right = figure.subfigures(1, 2, width_ratios=(len(beliefs), 2.1))
    panels: Any = left.subplots(2, len(beliefs))
    for place, (name, belief) in enumerate(beliefs.items()):
        for axes, weights in zip(panels[:, place], (belief["preference"], belief["weights"]), strict=True):
            axes.imshow(torch.tensor(weights).sqrt().numpy(), cmap=COLOURS, vmin=0)
            for (row, column), marker in ((TARGET, "o"), (DISTRACTOR, "s")):
                for colour, width in ((INK, 2.2), ("white", 0.9)):
                    axes.plot(column, row, marker, markersize=8, mfc="none", mec=colour, mew=width)
            axes.set(xticks=[], yticks=[])
        panels[0, place].set_title(name.replace(", ", "\n").replace(": ", ":\n"), fontsize=7)
        said = belief["first_order"]
        weights = f"target {said['target']:.2f}\ndistractor {said['distractor']:.2f}"
        panels[1, place].set_xlabel(weights, fontsize=7)
    panels[0, 0].set_ylabel("belief u")
    panels[1, 0].set_ylabel("attention p")
    axes = right.subplots()
    for part, marker, fill in (("target", "o", None), ("distractor", "s", "white")):
        for name in ("first_order", "exact"):
            style = LINES[name] | {"marker": marker, "markevery": 3, "mfc": fill}
            weights = [one[name][part] for one in numbers["widths"]]
            axes.plot(WIDTHS, weights, **style, label=f"{part}, {name.replace('_', ' ')}")
    axes.set(xscale="log", xlabel="lens's width σ, in places", ylabel="weight", ylim=(0, 1.38))
    axes.legend(fontsize=6.5, loc="upper right")
    axes.grid(visible=True)
    return figure


if __name__ == "__main__":
    main("spotlight", measure, draw)
