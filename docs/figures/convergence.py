"""What solvers have certified of λ after each attention pass, on an easy and on a hard problem."""

from collections.abc import Iterator
from typing import Any

import torch
from matplotlib.figure import Figure
from style import INK, LINES, MUTED, main, sheet
from torch import Tensor

from fenchel import Discrete, InferenceProblem

SPREADS = {"(a) α·λmax of order one, as in trained encoders": 0.6, "(b) α·λmax of order ten": 2.2}
ASCENTS = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 128, 256, 512, 1024)
TOLERANCES = (1e-2, 1e-4, 1e-6, 1e-8, 1e-10)
STYLES: dict[str, dict[str, Any]] = {
    "fixed point, undamped": {"color": MUTED, "marker": "x", "linestyle": (0, (1, 1))},
    "gradient ascent": LINES["first_order"],
    "exact, by tolerance": LINES["exact"],
}


def measure() -> dict[str, Any]:
    r"""The bound :math:`\alpha\lVert\nabla\mathcal{D}(\lambda)\rVert/\lVert\lambda^\star\rVert` by pass."""
    problems = {}
    for title, spread in SPREADS.items():
        generator = torch.Generator().manual_seed(0)
        templates = spread * torch.randn(64, 16, generator=generator, dtype=torch.float64)
        z = torch.randn(64, 16, generator=generator, dtype=torch.float64)
        problem = InferenceProblem(Discrete(templates), z)
        length = problem.solve("exact", tol=1e-11).dual.norm(dim=-1)
        found = zip(STYLES, (fixed_point(problem), gradient_ascent(problem), exact(problem)), strict=True)
        curves = {name: [(n, *both(error / length)) for n, error in points] for name, points in found}
        variance = float(torch.linalg.eigvalsh(templates.T.cov(correction=0))[-1])
        problems[title] = {"largest_variance": variance, "solvers": curves}
    return problems


def both(values: Tensor) -> tuple[float, float]:
    """Median and largest."""
    return float(values.median()), float(values.max())


def fixed_point(problem: InferenceProblem) -> Iterator[tuple[float, Tensor]]:
    """λ ← α(z + μ − h(λ)), whose step is the gradient."""
    dual = problem.solve("first_order").dual
    for passes in range(1, 25):
        gradient = problem.dual_gradient(dual)
        yield passes, gradient.norm(dim=-1)
        dual = dual + gradient


def gradient_ascent(problem: InferenceProblem) -> Iterator[tuple[float, Tensor]]:
    """The papers' method, stopped after so many steps."""
    for steps in ASCENTS:
        dual = problem.solve("gradient_ascent", tol=1e-14, max_steps=steps, throw=False).dual
        yield steps + 1, problem.dual_gradient(dual).norm(dim=-1)


def exact(problem: InferenceProblem) -> Iterator[tuple[float, Tensor]]:
    """The exact solver at each tolerance, and what it certifies itself."""
    for tol in TOLERANCES:
        found = problem.solve("exact", tol=tol)
        yield float(found.steps.double().mean()) + 1, found.dual_error


def draw(numbers: dict[str, Any]) -> Figure:
    """A panel a problem: medians are marked, dotted lines are the worst query."""
    figure = sheet(3.0)
    panels: Any = figure.subplots(1, 2, sharey=True)
    for axes, (title, problem) in zip(panels, numbers.items(), strict=True):
        for name, points in problem["solvers"].items():
            passes, median, largest = zip(*points, strict=True)
            axes.plot(passes, median, **STYLES[name], label=name)
            axes.plot(passes, largest, color=STYLES[name]["color"], linewidth=0.8, linestyle=":")
        axes.axhline(1, color=INK, linewidth=0.4)
        axes.set(title=title, xscale="log", yscale="log", ylim=(1e-12, 30), xlabel="iterations a query")
        axes.grid(visible=True)
    panels[0].set_ylabel("certified relative error of λ (at most)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


if __name__ == "__main__":
    main("convergence", measure, draw)
