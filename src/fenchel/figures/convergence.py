"""How solvers reach λ*: what is certified after each pass of attention, by mixing, Newton's method and ascent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fenchel.figures.figure_kind import FigureKind, Numbers, rounded
from fenchel.figures.sheet import lettered, ruled, sheet
from fenchel.inference import InferenceProblem
from fenchel.layout import DEFAULT_MEMORY_BUDGET, layout_of
from fenchel.preference import Discrete
from fenchel.runs.style import INK, LINES, MUTED
from fenchel.solver.coordinates import GramCoordinates, coordinates_for
from fenchel.solver.mixing import mixing_from
from fenchel.solver.newton import Newton, by_conjugate_gradients
from fenchel.solver.rows import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fenchel.auditing.results import AuditResults

__all__ = ["CONVERGENCE"]

_TEMPLATES, _WIDTH, _QUERIES, _SEED = 64, 16, 64, 0
_SPREADS = (("α·λmax of order one, as in trained encoders", 0.6), ("α·λmax of order ten", 2.2))
_LEAST = 1e-12
_MIXINGS, _NEWTON_STEPS, _ALONE = 24, 14, 24
_ASCENTS = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 128, 256, 362, 512, 1024)
_TOLERANCES = (1e-2, 1e-4, 1e-6, 1e-8, 1e-10)
_STYLES: dict[str, dict[str, Any]] = {
    "fixed_point": {
        "label": "fixed point, undamped",
        "color": MUTED,
        "marker": "x",
        "linestyle": (0, (1, 1)),
    },
    "gradient_ascent": {"label": "gradient ascent", **LINES["first_order"]},
    "mixing": {"label": "mixing", "color": "#d98a00", "marker": "s", "linestyle": (0, (4, 2))},
    "newton": {"label": "Newton, conjugate gradients", **LINES["exact"]},
    "exact": {"label": "exact, by tolerance", "color": INK, "marker": "*", "linestyle": "none"},
}


def measure(audit: AuditResults | None = None) -> dict[str, Any]:
    r"""Run every solver for as many steps as it has, and certify where it is after each.

    What is shown bounds the error: :math:`\lVert\lambda - \lambda^\star\rVert/\lVert\lambda^\star\rVert \le
    \alpha\lVert\nabla\mathcal{D}(\lambda)\rVert/\lVert\lambda^\star\rVert`. A pass is what one attention pass costs:
    the logits of all templates and the mean of weights, in Gram coordinates one product.

    Returns:
        For either problem and each solver, passes and the median and largest bound over its queries.
    """
    problems = []
    for title, spread in _SPREADS:
        draw = torch.Generator().manual_seed(_SEED)
        templates = spread * torch.randn(_TEMPLATES, _WIDTH, generator=draw, dtype=torch.float64)
        z = torch.randn(_QUERIES, _WIDTH, generator=draw, dtype=torch.float64)
        problem = InferenceProblem(Discrete(templates), z)
        length = problem.solve("exact", tol=1e-11).dual.norm(dim=-1)
        centred = templates - templates.mean(0)
        problems.append(
            {
                "title": title,
                "largest_variance": float(torch.linalg.eigvalsh(centred.T @ centred / _TEMPLATES)[-1]),
                "solvers": {
                    "fixed_point": _curve(_fixed_point(problem), length),
                    "gradient_ascent": _curve(_gradient_ascent(problem), length),
                    "mixing": _curve(_mixing(problem), length),
                    "newton": _curve(_newton(problem), length),
                    "exact": _curve(_exact(problem), length),
                },
            }
        )
    return rounded(
        {"templates": _TEMPLATES, "width": _WIDTH, "queries": _QUERIES, "least": _LEAST, "problems": problems}
    )


def _curve(points: Iterator[tuple[float, Tensor]], length: Tensor) -> list[dict[str, float]]:
    """Passes so far, and α‖∇𝒟‖/‖λ*‖ over the queries, until the last is below what is shown."""
    found = []
    for passes, gradient in points:
        relative = gradient / length
        found.append({"passes": passes, "median": float(relative.median()), "largest": float(relative.max())})
        if float(relative.max()) < _LEAST:
            break
    return found


def _fixed_point(problem: InferenceProblem) -> Iterator[tuple[float, Tensor]]:
    """λ ← α(z + μ − h(λ)), whose step is the gradient."""
    dual = problem.solve("first_order").dual
    for passes in range(1, _ALONE + 1):
        gradient = problem.dual_gradient(dual)
        yield passes, gradient.norm(dim=-1)
        dual = dual + gradient


def _gradient_ascent(problem: InferenceProblem) -> Iterator[tuple[float, Tensor]]:
    for steps in _ASCENTS:
        dual = problem.solve("gradient_ascent", tol=1e-14, max_steps=steps, throw=False).dual
        yield steps + 1, problem.dual_gradient(dual).norm(dim=-1)


def _first(problem: InferenceProblem, tol: float) -> tuple[GramCoordinates, Newton, Any]:
    """Newton's method at the first-order point of all queries, in Gram coordinates."""
    ((_, _, block),) = layout_of(problem).blocks(DEFAULT_MEMORY_BUDGET, 24, 8)
    coordinates = coordinates_for(block, "gram")
    assert isinstance(coordinates, GramCoordinates)  # noqa: S101 - what was asked for
    method = Newton(coordinates, tol=tol, direction=by_conjugate_gradients)
    return coordinates, method, method.start(Rows.of(block, coordinates.evidence_of(block)))


def _mixing(problem: InferenceProblem) -> Iterator[tuple[float, Tensor]]:
    coordinates, _, first = _first(problem, 1e-14)
    square, mixing = first.square.squeeze(-1), mixing_from(coordinates, first)
    for passes in range(1, _MIXINGS + 1):
        yield passes, square.clamp(min=0).sqrt().flatten()
        square = mixing.step(first.rows, coordinates)


def _newton(problem: InferenceProblem) -> Iterator[tuple[float, Tensor]]:
    _, method, state = _first(problem, 1e-14)
    rows = state.error.numel()
    for _ in range(_NEWTON_STEPS + 1):
        yield method.operator_products / rows, state.square.clamp(min=0).sqrt().flatten()
        state = method.step(state, torch.ones_like(state.stalled))


def _exact(problem: InferenceProblem) -> Iterator[tuple[float, Tensor]]:
    for tol in _TOLERANCES:
        found = problem.solve("exact", tol=tol, coordinates="gram")
        yield found.operator_products / found.steps.numel(), found.dual_error


def caption(numbers: Numbers) -> str:
    """What is seen."""
    easy, hard = numbers["problems"]
    return (
        "What is certified of λ after so many passes over the templates, each of the cost of one "
        "attention pass: the error is at most α‖∇D(λ)‖, with D the dual, here over ‖λ*‖. Marked: medians "
        f"of {numbers['queries']} queries; thin and dotted: the worst of them. α = 1, "
        f"{numbers['templates']} Gaussian templates in {numbers['width']} dimensions whose largest "
        f"variance is {easy['largest_variance']:.1f} in (a) and {hard['largest_variance']:.0f} in (b). All "
        "begin at first-order attention. The undamped fixed point does not converge. Mixing gains most a "
        "pass in (a) and nothing in (b), where Newton's method takes over. The exact solver (stars: its "
        "worst query, asked for 1e-2, 1e-4, ... 1e-10) mixes first, leaves to Newton's method the queries "
        "that do not fall, and ends when the last is certified."
    )


def draw(numbers: Numbers) -> Figure:
    """A panel a problem."""
    figure = sheet(3.0, caption(numbers))
    panels: Any = figure.subplots(1, len(numbers["problems"]), sharey=True)
    for axes, problem in zip(panels, numbers["problems"], strict=True):
        for name, style in _STYLES.items():
            points, least = problem["solvers"][name], numbers["least"]
            if name == "exact":
                _curve_of(axes, points, "largest", least, {**style, "markersize": 8})
                continue
            _curve_of(axes, points, "median", least, {**style, "markersize": 3.5})
            if name != "fixed_point":
                thin = {"color": style["color"], "linewidth": 0.8, "linestyle": ":"}
                _curve_of(axes, points, "largest", least, thin)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(numbers["least"], 30)
        axes.set_xlabel("attention passes a query")
        ruled(axes)
    panels[0].set_ylabel("certified relative error of λ (at most)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), handlelength=2.6)
    lettered(panels, [problem["title"] for problem in numbers["problems"]])
    return figure


def _curve_of(
    axes: Axes, points: Sequence[Numbers], which: str, least: float, style: Mapping[str, Any]
) -> None:
    """The points up to the first that is below what is shown."""
    first = next((place for place, point in enumerate(points) if point[which] <= least), len(points))
    axes.plot(
        [point["passes"] for point in points[: first + 1]],
        [max(point[which], least) for point in points[: first + 1]],
        **style,
    )


CONVERGENCE = FigureKind(
    name="convergence",
    summary="what solvers have certified after each pass: mixing, Newton, ascent, exact",
    measure=measure,
    caption=caption,
    draw=draw,
)
