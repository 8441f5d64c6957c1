"""Figure 3 of the paper: attention's mean beside that of its inference as α falls, with what the certificate says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fenchel.figures.figure_kind import FigureKind, Numbers, rounded
from fenchel.figures.sheet import sheet
from fenchel.inference import InferenceProblem
from fenchel.preference import Discrete
from fenchel.runs.style import INK, LINES, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fenchel.auditing.results import AuditResults

__all__ = ["FIGURE3", "PRINTED_WEIGHTS"]

PRINTED_WEIGHTS = (0.3, 0.4, 0.6)
"""As the paper prints them. They sum to 1.3."""

_TEMPLATES = ((-0.9, -0.4), (0.9, -0.6), (0.1, 0.9))
_EVIDENCE = (0.6, 0.5)
_ALPHAS = (4.0, 2.0, 1.0, 0.5)
_SUBSCRIPTS = "₀₁₂₃"
_BALL, _HALF = "#dfe9f5", "#b9d0ea"


def measure(audit: AuditResults | None = None) -> dict[str, Any]:
    r"""Both means for every α, and the ball that the certificate puts around attention's.

    .. math:: \lVert\hat h - h^\star\rVert \le \lVert\nabla\mathcal{D}(\alpha z)\rVert = \lVert\hat h - \mu\rVert

    Since φ is convex, :math:`\langle h^\star - \hat h, \lambda^\star - \alpha z\rangle \ge 0`, and therefore h* even
    lies in the ball whose diameter goes from :math:`\hat h` to μ.

    Returns:
        Templates, weights, μ, z, and for each α the means, how far apart they are, and the certificate's radius.

    Reference:
        Section 6, figure 3, of which the paper gives neither templates nor z; these are ours.
    """
    templates = torch.tensor(_TEMPLATES, dtype=torch.float64)
    u = Discrete(templates, torch.tensor(PRINTED_WEIGHTS, dtype=torch.float64).log())
    z = torch.tensor([_EVIDENCE], dtype=torch.float64)
    panels = []
    for alpha in _ALPHAS:
        problem = InferenceProblem(u, z, alpha=alpha)
        first, exact = problem.solve("first_order"), problem.solve("exact", tol=1e-10)
        panels.append(
            {
                "alpha": alpha,
                "first_order": first.mean[0],
                "exact": exact.mean[0],
                "apart": float((first.mean - exact.mean).norm()),
                "apart_at_most": float(first.mean_error),
                "relative_deviation": float((exact.dual - first.dual).norm() / exact.dual.norm()),
            }
        )
    mean = u.mean()[0]
    return rounded(
        {
            "templates": templates,
            "printed_weights": PRINTED_WEIGHTS,
            "weights": u.weights()[0],
            "mean": mean,
            "evidence": z[0],
            "panels": panels,
        }
    )


def caption(numbers: Numbers) -> str:
    """What is seen."""
    total = sum(numbers["printed_weights"])
    apart = ", ".join(f"{panel['apart']:.3f}" for panel in numbers["panels"])
    return (
        "First-order attention (ĥ, circle) nears the inferred mean (h*, diamond) as α falls: they are "
        f"{apart} apart. From attention's output alone, h* is certified to lie in the disc around ĥ whose "
        "rim passes through μ; since φ is convex it even lies in the inner disc, whose diameter is from ĥ "
        f"to μ. After the paper's figure 3: its weights 0.3, 0.4, 0.6 sum to {total:.1f} and are "
        "normalised here; it gives neither templates nor z, so both are ours."
    )


def draw(numbers: Numbers) -> Figure:
    """A panel an α."""
    figure = sheet(5.3, caption(numbers))
    panels: Any = figure.subplots(2, 2, sharex=True, sharey=True).flatten()
    for axes, panel in zip(panels, numbers["panels"], strict=True):
        _panel(axes, numbers, panel)
        _name_templates(axes, numbers)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), handletextpad=0.4)
    return figure


def _panel(axes: Axes, numbers: Numbers, panel: Numbers) -> None:
    from matplotlib.patches import Circle, Polygon

    first, exact, mean = (_pair(one) for one in (panel["first_order"], panel["exact"], numbers["mean"]))
    middle = ((first[0] + mean[0]) / 2, (first[1] + mean[1]) / 2)
    radius = panel["apart_at_most"]
    axes.add_patch(
        Circle(first, radius, facecolor=_BALL, edgecolor=LINES["first_order"]["color"], linewidth=0.8)
    )
    axes.add_patch(
        Circle(middle, radius / 2, facecolor=_HALF, edgecolor=LINES["first_order"]["color"], linewidth=0.4)
    )
    axes.add_patch(Polygon(numbers["templates"], fill=False, edgecolor=MUTED, linewidth=0.6, linestyle=":"))
    for place, weight in zip(numbers["templates"], numbers["weights"], strict=True):
        label = "templates, area ∝ weight" if place is numbers["templates"][0] else None
        axes.scatter(
            *place, s=380 * weight, facecolor="#f0a63c", edgecolor=INK, linewidth=0.6, zorder=3, label=label
        )
    tip = (mean[0] + numbers["evidence"][0], mean[1] + numbers["evidence"][1])
    axes.annotate(
        "",
        tip,
        mean,
        arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0},
    )
    axes.text(tip[0] + 0.05, tip[1] + 0.02, "μ + z", ha="left", va="center", fontsize=7)
    axes.plot(
        *mean,
        "+",
        color=INK,
        markersize=7,
        markeredgewidth=1.4,
        label="μ, preference's mean",
        linestyle="none",
    )
    first_style, exact_style = LINES["first_order"], LINES["exact"]
    axes.plot(
        *first, first_style["marker"], color=first_style["color"], markeredgecolor="white", markersize=8,
        label="ĥ, first order", zorder=5, linestyle="none",
    )  # fmt: skip
    axes.plot(
        *exact, exact_style["marker"], color=exact_style["color"], markeredgecolor="white", markersize=5,
        label="h*, exact", zorder=6, linestyle="none",
    )  # fmt: skip
    axes.text(-1.7, 1.12, f"α = {panel['alpha']:g}", ha="left", va="top", fontsize=11, weight="bold")
    axes.text(
        -1.7, 0.9, f"{panel['apart']:.3f} apart\ncertified: at most {radius:.3f}", ha="left", va="top", fontsize=7.5,
        linespacing=1.4,
    )  # fmt: skip
    axes.set_aspect("equal")
    axes.set_xlim(-1.75, 1.25)
    axes.set_ylim(-0.85, 1.15)
    axes.axis("off")


def _pair(numbers: Sequence[float]) -> tuple[float, float]:
    return numbers[0], numbers[1]


def _name_templates(axes: Axes, numbers: Numbers) -> None:
    from matplotlib.patheffects import withStroke

    places = zip(numbers["templates"], numbers["printed_weights"], strict=True)
    for number, (place, weight) in enumerate(places, start=1):
        above = place[1] > 0
        axes.text(
            place[0] - (0.12 if above else 0), place[1] + (0.09 if above else -0.12),
            f"t{_SUBSCRIPTS[number]}: {weight:g}/1.3", ha="right" if above else "center",
            va="center" if above else "top", fontsize=7,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip


FIGURE3 = FigureKind(
    name="figure3",
    summary="the paper's: attention nears its inference as α falls; the certificate's ball",
    measure=measure,
    caption=caption,
    draw=draw,
)
