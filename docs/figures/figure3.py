"""Figure 3 of the paper: first-order and exact mean as α falls, with the disc that the certificate gives.

The paper prints the weights 0.3, 0.4 and 0.6, which sum to 1.3 and are normalised here; it gives neither templates nor
z, so both are ours.
"""

from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Polygon
from style import INK, LINES, MUTED, main, sheet

from fenchel import Discrete, InferenceProblem

TEMPLATES = [[-0.9, -0.4], [0.9, -0.6], [0.1, 0.9]]
WEIGHTS, EVIDENCE, ALPHAS = [0.3, 0.4, 0.6], [0.6, 0.5], (4.0, 2.0, 1.0, 0.5)


def measure() -> dict[str, Any]:
    r"""Both means for every α, and the radius :math:`\lVert\hat h - \mu\rVert` within which they are (section 6)."""
    templates = torch.tensor(TEMPLATES, dtype=torch.float64)
    u = Discrete(templates, torch.tensor(WEIGHTS, dtype=torch.float64).log())
    z = torch.tensor([EVIDENCE], dtype=torch.float64)
    panels = []
    for alpha in ALPHAS:
        problem = InferenceProblem(u, z, alpha=alpha)
        first, exact = problem.solve("first_order"), problem.solve("exact", tol=1e-10)
        means = {"first_order": first.mean[0], "exact": exact.mean[0]}
        apart = {"apart": (first.mean - exact.mean).norm(), "apart_at_most": first.mean_error[0]}
        panels.append({"alpha": alpha, **means, **apart})
    given = {"templates": templates, "weights": u.weights()[0], "mean": u.mean()[0], "evidence": z[0]}
    return given | {"panels": panels}


def draw(numbers: dict[str, Any]) -> Figure:
    """A panel an α: the triangle of templates, both means, and the discs that must hold the exact one."""
    figure = sheet(5.3)
    mean = torch.tensor(numbers["mean"])
    tip, blue = mean + torch.tensor(numbers["evidence"]), LINES["first_order"]["color"]
    panels: Any = figure.subplots(2, 2, sharex=True, sharey=True).flatten()
    for axes, panel in zip(panels, numbers["panels"], strict=True):
        first, radius = torch.tensor(panel["first_order"]), panel["apart_at_most"]
        # The smaller disc needs only that φ is convex: seen from h*, ĥ and μ stand at a right angle or wider.
        for centre, size, colour in ((first, radius, "#dfe9f5"), ((first + mean) / 2, radius / 2, "#b9d0ea")):
            axes.add_patch(Circle(centre.tolist(), size, facecolor=colour, edgecolor=blue, linewidth=0.6))
        axes.add_patch(Polygon(TEMPLATES, fill=False, edgecolor=MUTED, linewidth=0.6, linestyle=":"))
        for number, (place, weight) in enumerate(zip(TEMPLATES, WEIGHTS, strict=True), 1):
            size = 380 * weight / sum(WEIGHTS)
            axes.scatter(*place, s=size, facecolor="#f0a63c", edgecolor=INK, linewidth=0.6, zorder=3)
            name = f"t{number}: {weight:g}/1.3"
            axes.annotate(name, place, (9, 7), textcoords="offset points", fontsize=7)
        axes.annotate("", tip.tolist(), mean.tolist(), arrowprops={"arrowstyle": "-|>", "color": INK})
        axes.text(*(tip + 0.04).tolist(), "μ + z", fontsize=7)
        drawn = {"linestyle": "none", "markeredgecolor": "white", "zorder": 5}
        axes.plot(*mean.tolist(), "+", color=INK, markersize=7, label="μ, preference's mean")
        axes.plot(*panel["first_order"], **LINES["first_order"] | drawn, markersize=8, label="ĥ, first order")
        axes.plot(*panel["exact"], **LINES["exact"] | drawn, label="h*, exact")
        said = f"α = {panel['alpha']:g}\n{panel['apart']:.3f} apart\ncertified: at most {radius:.3f}"
        axes.text(-1.7, 1.12, said, va="top", linespacing=1.4)
        axes.set(aspect="equal", xlim=(-1.75, 1.25), ylim=(-0.85, 1.15))
        axes.axis("off")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    return figure


if __name__ == "__main__":
    main("figure3", measure, draw)
