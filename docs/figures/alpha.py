"""Deviation and error of first order against α, with what one attention pass certifies."""

from typing import Any

import torch
from matplotlib.figure import Figure
from style import LINES, main, sheet
from torch import Tensor

from fenchel import Discrete, InferenceProblem

DEVIATIONS = (
    ("deviation_at_most", "certified by one pass: at most", "bound"),
    ("deviation", "solved", "exact"),
    ("predicted_deviation", "predicted by the covariance", "prediction"),
)
ERRORS = (
    ("error_at_most", "certified: at most", "bound"),
    ("error", "output, first order", "first_order"),
    ("second_order_error", "output, second order", "second_order"),
    ("total_variation", "weights, first order (total variation)", "twin"),
)


def measure() -> dict[str, Any]:
    r"""256 queries over 64 Gaussian templates at every α.

    .. math:: \frac{\lVert\lambda^\star - \alpha z\rVert}{\lVert\lambda^\star\rVert}
        \approx \alpha\frac{\lVert\Sigma\lambda\rVert}{\lVert\lambda\rVert}
        \le \frac{\lVert\hat h - \mu\rVert}{\lVert z\rVert - \lVert\hat h - \mu\rVert}
    """
    generator = torch.Generator().manual_seed(0)
    templates = torch.randn(64, 16, generator=generator, dtype=torch.float64)
    z = torch.randn(256, 16, generator=generator, dtype=torch.float64)
    u, covariance = Discrete(templates), templates.T.cov(correction=0)
    points = []
    for exponent in range(-12, 7):
        alpha = 2.0 ** (exponent / 2)
        problem = InferenceProblem(u, z, alpha=alpha)
        first, second, exact = (problem.solve(name) for name in ("first_order", "second_order", "exact"))
        moved = (exact.mean - u.mean()).norm(dim=-1)
        values = {
            "deviation": (exact.dual - first.dual).norm(dim=-1) / exact.dual.norm(dim=-1),
            "predicted_deviation": alpha * (second.dual @ covariance).norm(dim=-1) / second.dual.norm(dim=-1),
            "deviation_at_most": first.mean_error / (z.norm(dim=-1) - first.mean_error).clamp(min=0),
            "error": (exact.mean - first.mean).norm(dim=-1) / moved,
            "second_order_error": (exact.mean - second.mean).norm(dim=-1) / moved,
            "error_at_most": first.mean_error / moved,
            "total_variation": (exact.weights - first.weights).abs().sum(-1) / 2,
        }
        points.append({"alpha": alpha, **{name: tenths(value) for name, value in values.items()}})
    return {"points": points}


def tenths(values: Tensor) -> list[float]:
    """The tenth, the half and nine tenths of the values."""
    shares = torch.tensor([0.1, 0.5, 0.9], dtype=values.dtype)
    return values.quantile(shares, interpolation="nearest").tolist()  # of two, an infinite one would make NaN


def draw(numbers: dict[str, Any]) -> Figure:
    """The deviation of λ on the left, the error of the mean on the right."""
    figure = sheet(2.9)
    panels: Any = figure.subplots(1, 2)
    for axes, shown in zip(panels, (DEVIATIONS, ERRORS), strict=True):
        for name, label, style in shown:
            points = [(one["alpha"], *one[name]) for one in numbers["points"] if None not in one[name]]
            alpha, low, middle, high = zip(*points, strict=True)
            axes.plot(alpha, middle, **LINES[style], label=label, markevery=2)
            axes.fill_between(alpha, low, high, color=LINES[style]["color"], alpha=0.18, linewidth=0)
        axes.set(xscale="log", yscale="log", xlabel="α, the reliability of the evidence")
        axes.legend()
        axes.grid(visible=True)
    panels[0].set(title="(a) deviation of λ", ylabel="‖λ* − αz‖ / ‖λ*‖")
    panels[1].set(title="(b) true error", ylabel="‖ĥ − h*‖ / ‖h* − μ‖; total variation")
    return figure


if __name__ == "__main__":
    main("alpha", measure, draw)
