"""Norms of templates, and how far first order is from exact, against the width of a layer, with and without √d′."""

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from style import LINES, main, sheet

from fenchel import Discrete, InferenceProblem

WIDTHS = (64, 128, 256, 512, 1024, 2048)
ERRORS = (0.02, 0.05, 0.1, 0.2, 0.5)
TOKENS, HEADS, HEAD_WIDTH = 64, 8, 64
ARMS = {
    "heads": ("t = x/√d′, 8 heads", "exact"),
    "head_width": ("t = x/√d′, d′ = 64", "first_order"),
    "alpha": ("t = x, α = 1/√d′, 8 heads", "prediction"),
    "none": ("t = x, α = 1, 8 heads", "bound"),
}
PANELS = {
    "norm": "(a) ‖t‖²",
    "norm_and_alpha": "(b) α‖t‖²",
    "deviation": "(c) ‖λ* − αz‖ / ‖λ*‖",
    "total_variation": "(d) total variation",
}


def measure() -> dict[str, Any]:
    r"""One head on 64 normalised Gaussian tokens.

    The evidence is such that all problems have the first-order weights of
    :math:`\operatorname{softmax}\langle Kx_i, Qx\rangle/\sqrt{d'}`. Keys and
    queries are Gaussian, as initialised, so that scores have the variance 1 at every width.
    """
    points: list[dict[str, Any]] = []
    for width in WIDTHS:
        generator = torch.Generator().manual_seed(width)
        drawn: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
        x = torch.nn.functional.layer_norm(torch.randn(TOKENS, width, **drawn), (width,))
        maps = torch.randn(2, max(HEAD_WIDTH, width // HEADS), width, **drawn) / math.sqrt(width)
        point: dict[str, Any] = {"width": width}
        for arm in ARMS:
            head = HEAD_WIDTH if arm == "head_width" else width // HEADS
            key, query, root = *maps[:, :head], math.sqrt(head)
            scale, alpha = {"alpha": (1.0, 1 / root), "none": (1.0, 1.0)}.get(arm, (1 / root, 1.0))
            z = (x @ query.T @ key) / (root * scale * alpha)
            problem = InferenceProblem(Discrete(scale * x), z, alpha=alpha)
            first, exact = problem.solve("first_order"), problem.solve("exact", tol=1e-8)
            norm = (scale * x).square().sum(-1).mean()
            point[arm] = {
                "norm": norm,
                "norm_and_alpha": alpha * norm,
                "deviation": ((exact.dual - first.dual).norm(dim=-1) / exact.dual.norm(dim=-1)).mean(),
                "total_variation": (exact.weights - first.weights).abs().sum(-1).mean() / 2,
            }
        points.append(point)
    return {"points": points}


def draw(numbers: dict[str, Any]) -> Figure:
    """Norms, what α leaves of them, and deviations."""
    figure = sheet(2.5)
    panels: Any = figure.subplots(1, len(PANELS))
    for axes, (name, title) in zip(panels, PANELS.items(), strict=True):
        for arm, (label, style) in ARMS.items():
            line = [point[arm][name] for point in numbers["points"]]
            axes.plot(WIDTHS, line, **LINES[style], label=label)
        axes.set(xscale="log", yscale="log", xlabel="width d", title=title)
        axes.set_xticks(WIDTHS[1::2], map(str, WIDTHS[1::2]))
        axes.minorticks_off()
        axes.grid(visible=True)
        if name in ("deviation", "total_variation"):
            axes.set_yticks(ERRORS, map(str, ERRORS))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(ARMS))
    return figure


if __name__ == "__main__":
    main("width", measure, draw)
