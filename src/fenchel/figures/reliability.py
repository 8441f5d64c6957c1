"""How first order worsens as the evidence counts for more: deviation, error and certificate against α."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fenchel.figures.figure_kind import FigureKind, Numbers, rounded
from fenchel.figures.sheet import lettered, ruled, sheet
from fenchel.inference import InferenceProblem
from fenchel.preference import Discrete
from fenchel.runs.style import LINES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fenchel.auditing.results import AuditResults

__all__ = ["RELIABILITY"]

_TEMPLATES, _WIDTH, _QUERIES, _SEED = 64, 16, 256, 0
_EXPONENTS = [exponent / 2 for exponent in range(-12, 7)]
_QUANTILES = {"low": 0.1, "median": 0.5, "high": 0.9}


def measure(audit: AuditResults | None = None) -> dict[str, Any]:
    r"""Solve the same queries at every α.

    .. math:: \frac{\lVert\lambda^\star - \alpha z\rVert}{\lVert\lambda^\star\rVert}
        \approx \alpha\frac{\lVert\Sigma\lambda\rVert}{\lVert\lambda\rVert}
        \le \frac{\lVert\hat h - \mu\rVert}{\lVert z\rVert - \lVert\hat h - \mu\rVert}

    The first is what the papers report, the second needs the covariance alone, the third is certified by one attention
    pass (and says something only where it is positive).

    Returns:
        For each α the tenth, the half and nine tenths of the queries' values.
    """
    draw = torch.Generator().manual_seed(_SEED)
    templates = torch.randn(_TEMPLATES, _WIDTH, generator=draw, dtype=torch.float64)
    z = torch.randn(_QUERIES, _WIDTH, generator=draw, dtype=torch.float64)
    u = Discrete(templates)
    points = []
    for exponent in _EXPONENTS:
        alpha = 2.0**exponent
        problem = InferenceProblem(u, z, alpha=alpha)
        first, second = problem.solve("first_order"), problem.solve("second_order")
        exact = problem.solve("exact", tol=1e-9)
        moved = (exact.mean - u.mean()).norm(dim=-1)
        bound = first.mean_error / (z.norm(dim=-1) - first.mean_error).clamp(min=0)
        predicted = alpha * (second.dual @ _covariance(templates)).norm(dim=-1) / second.dual.norm(dim=-1)
        values = {
            "deviation": (exact.dual - first.dual).norm(dim=-1) / exact.dual.norm(dim=-1),
            "predicted_deviation": predicted,
            "deviation_at_most": bound,
            "error": (exact.mean - first.mean).norm(dim=-1) / moved,
            "second_order_error": (exact.mean - second.mean).norm(dim=-1) / moved,
            "error_at_most": first.mean_error / moved,
            "total_variation": (exact.weights - first.weights).abs().sum(-1) / 2,
        }
        points.append({"alpha": alpha, **{name: _quantiles(value) for name, value in values.items()}})
    return rounded(
        {
            "templates": _TEMPLATES,
            "width": _WIDTH,
            "queries": _QUERIES,
            "largest_variance": float(torch.linalg.eigvalsh(_covariance(templates))[-1]),
            "points": points,
        }
    )


def _covariance(templates: Tensor) -> Tensor:
    centred = templates - templates.mean(0)
    return centred.T @ centred / len(templates)


def _quantiles(values: Tensor) -> dict[str, float]:
    # With interpolation between neighbours an infinite one would make NaN of two.
    return {
        name: float(torch.quantile(values, fraction, interpolation="nearest"))
        for name, fraction in _QUANTILES.items()
    }


def caption(numbers: Numbers) -> str:
    """What is seen."""
    at_one = next(point for point in numbers["points"] if point["alpha"] == 1)
    deviation, error, varied = (at_one[name]["median"] for name in ("deviation", "error", "total_variation"))
    return (
        "(a) The papers' relative deviation of λ, solved: for small α it grows in proportion, as the "
        "templates' covariance alone predicts; one attention pass certifies at most the upper line "
        "(nothing where that ends). (b) What this does to the output, relative to how far inference moves "
        "it, and to the weights. The certificate is the way that attention itself went, ‖ĥ − μ‖. At α = 1 "
        f"the deviation is {deviation:.2f}, the output is off by {error:.2f}, and {varied:.2f} of the "
        f"weight would have to move. Medians of {numbers['queries']} queries, bands from the tenth to nine "
        f"tenths; {numbers['templates']} Gaussian templates in {numbers['width']} dimensions, uniform "
        "preference, z Gaussian; all certified to 1e-9."
    )


def draw(numbers: Numbers) -> Figure:
    """Deviation on the left, errors on the right."""
    figure = sheet(2.9, caption(numbers))
    left, right = figure.subplots(1, 2)
    _curves(
        left,
        numbers,
        (
            ("deviation_at_most", "certified by one pass: at most", "bound"),
            ("deviation", "solved", "exact"),
            ("predicted_deviation", "predicted by the covariance", "prediction"),
        ),
    )
    left.set_ylabel("‖λ* − αz‖ / ‖λ*‖")
    _curves(
        right,
        numbers,
        (
            ("error_at_most", "certified: at most", "bound"),
            ("error", "output, first order", "first_order"),
            ("second_order_error", "output, second order", "second_order"),
            ("total_variation", "weights, first order (total variation)", "twin"),
        ),
    )
    right.set_ylabel("‖ĥ − h*‖ / ‖h* − μ‖; total variation", fontsize=7.5)
    lettered([left, right], ["deviation of λ", "true error"])
    return figure


def _curves(axes: Any, numbers: Numbers, shown: tuple[tuple[str, str, str], ...]) -> None:
    for name, label, style in shown:
        points = [point for point in numbers["points"] if point[name]["median"] is not None]
        places = [point["alpha"] for point in points]
        drawn = {**LINES[style], "label": label, "markevery": 2}
        axes.plot(places, [point[name]["median"] for point in points], **drawn)
        banded = [point for point in points if point[name]["high"] is not None]
        axes.fill_between(
            [point["alpha"] for point in banded],
            [point[name]["low"] for point in banded],
            [point[name]["high"] for point in banded],
            color=drawn["color"], alpha=0.18, linewidth=0,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("α, the reliability of the evidence")
    axes.legend()
    ruled(axes)


RELIABILITY = FigureKind(
    name="alpha",
    summary="deviation and true error against α, with what one attention pass certifies",
    measure=measure,
    caption=caption,
    draw=draw,
)
