"""Kernel regression as attention: its matrix at several bandwidths, its fits, and how well it predicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fenchel.figures.figure_kind import FigureKind, Numbers, rounded
from fenchel.figures.sheet import heatmap, lettered, ruled, sheet
from fenchel.inference import InferenceProblem
from fenchel.preference import Discrete
from fenchel.runs.style import INK, LINES, MUTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fenchel.auditing.results import AuditResults

__all__ = ["KERNEL_REGRESSION", "kernel_weights"]

_TRAINING, _TESTS, _NOISE, _END, _SEED = 50, 50, 0.5, 5.0, 0
_SHOWN = (1.0, 4.0, 16.0)
_EXPONENTS = [exponent / 4 for exponent in range(-8, 25)]
_STYLES = (
    {"color": LINES["first_order"]["color"], "linestyle": (0, (5, 1.5))},
    {"color": LINES["exact"]["color"], "linestyle": "-"},
    {"color": "#d98a00", "linestyle": (0, (1.5, 1))},
)


def kernel_weights(places: Tensor, training: Tensor, w: float) -> Tensor:
    r"""The weights of Nadaraya and Watson, from the inference problem that they are the first order of.

    .. math:: p_i(x) \propto e^{-w^2(x - x_i)^2/2} \propto u_i\,e^{\alpha\langle x_i, x\rangle},
        \qquad u_i \propto e^{-w^2 x_i^2/2},\; z = x,\; \alpha = w^2

    Args:
        places: Where to predict, (m,).
        training: Templates x_i, (n,).
        w: One over the bandwidth.

    Returns:
        A row a place, (m, n).

    Example:
        >>> kernel_weights(torch.tensor([0.0]), torch.tensor([-1.0, 1.0]), 2.0).tolist()
        [[0.5, 0.5]]
    """
    u = Discrete(training.unsqueeze(-1), log_weights=-(w**2) * training.square() / 2)
    return InferenceProblem(u, places.unsqueeze(-1), alpha=w**2).solve("first_order").weights


def measure(audit: AuditResults | None = None) -> dict[str, Any]:
    """Noisy values of 2 sin x + x^0.8, regressed by attention at every bandwidth.

    Returns:
        Training and test points, matrices and fits at some w, and mean squared errors at all, those of the softmax
        *of* the kernel among them.

    Reference:
        Murphy 2022, section 15.4.2 and figure 15.17. Notes on it print the softmax of the kernel itself, a double
        exponential whose weights are all within a factor e of each other.
    """
    draw = torch.Generator().manual_seed(_SEED)
    training = (_END * torch.rand(_TRAINING, generator=draw, dtype=torch.float64)).sort().values
    values = _truth(training) + _NOISE * torch.randn(_TRAINING, generator=draw, dtype=torch.float64)
    tests = torch.linspace(0, _END, _TESTS + 1, dtype=torch.float64)[:-1]
    truth = _truth(tests)
    errors = []
    for exponent in _EXPONENTS:
        w = 2.0**exponent
        errors.append(
            {
                "w": w,
                "train": _error(kernel_weights(training, training, w) @ values, values),
                "test": _error(kernel_weights(tests, training, w) @ values, truth),
                "softmax_of_kernel": _error(_softmax_of_kernel(tests, training, w) @ values, truth),
            }
        )
    return rounded(
        {
            "training": training,
            "values": values,
            "tests": tests,
            "truth": truth,
            "noise": _NOISE,
            "shown": [
                {
                    "w": w,
                    "weights": (weights := kernel_weights(tests, training, w)),
                    "fit": weights @ values,
                }
                for w in _SHOWN
            ],
            "errors": errors,
            "best": min(errors, key=lambda record: record["test"]),
            "mean_alone": _error(values.mean().expand_as(truth), truth),
        }
    )


def _truth(x: Tensor) -> Tensor:
    return 2 * x.sin() + x**0.8


def _softmax_of_kernel(places: Tensor, training: Tensor, w: float) -> Tensor:
    return torch.softmax(torch.exp(-(w**2) * (places[:, None] - training).square() / 2), -1)


def _error(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).square().mean())


def caption(numbers: Numbers) -> str:
    """What is seen."""
    best, widest, last = numbers["best"], numbers["errors"][0], numbers["errors"][-1]
    printed = min(record["softmax_of_kernel"] for record in numbers["errors"])
    return (
        f"Kernel regression is first-order attention: templates are the {len(numbers['training'])} "
        "training points xᵢ, z = x, α = w², u ∝ exp(−w²xᵢ²/2). (a–c) Its matrix: as w grows the band "
        "narrows. (d, e) Fits and mean squared errors (test: against the noiseless curve at "
        f"{len(numbers['tests'])} points). The test error is least at w = {best['w']:.3g} "
        f"({best['test']:.3f}); from there on the training error goes on falling, to {last['train']:.3f}: "
        "overfitting. The softmax of the kernel itself, as it is sometimes printed, keeps all weights "
        f"within a factor e at any w: {printed:.2f} at best, where the mean of all values has "
        f"{numbers['mean_alone']:.2f}. Data: 2 sin x + x^0.8, noise {numbers['noise']:g}; w from "
        f"{widest['w']:g} to {last['w']:g}."
    )


def draw(numbers: Numbers) -> Figure:
    """Matrices above, fits and errors below."""
    figure = sheet(4.7, caption(numbers))
    grid = figure.add_gridspec(2, 6, height_ratios=(1.0, 1.15))
    above = [figure.add_subplot(grid[0, 2 * place : 2 * place + 2]) for place in range(3)]
    fits, errors = figure.add_subplot(grid[1, :3]), figure.add_subplot(grid[1, 3:])
    drawn: Any = None
    for axes, shown in zip(above, numbers["shown"], strict=True):
        drawn = heatmap(axes, shown["weights"], highest=1.0, power=0.5)
        axes.set_xlabel("training points, in order of x")
    above[0].set_ylabel("test points, in order of x")
    figure.colorbar(drawn, ax=above, label="weight", pad=0.01, aspect=14, ticks=[0, 0.01, 0.1, 0.3, 0.6, 1])
    _draw_fits(fits, numbers)
    _draw_errors(errors, numbers)
    lettered(
        [*above, fits, errors],
        [*(f"weights, w = {shown['w']:g}" for shown in numbers["shown"]), "fits", "errors against w"],
    )
    return figure


def _draw_fits(axes: Any, numbers: Numbers) -> None:
    axes.plot(
        numbers["training"],
        numbers["values"],
        "o",
        color=MUTED,
        markersize=2.6,
        label="training",
        linestyle="none",
    )
    axes.plot(numbers["tests"], numbers["truth"], color=INK, linewidth=0.8, label="truth")
    for shown, style in zip(numbers["shown"], _STYLES, strict=True):
        axes.plot(numbers["tests"], shown["fit"], label=f"w = {shown['w']:g}", **style)
    axes.set_xlabel("x")
    axes.set_ylabel("y")
    axes.legend(ncols=2)
    ruled(axes)


def _draw_errors(axes: Any, numbers: Numbers) -> None:
    places = [record["w"] for record in numbers["errors"]]
    for name, label, style in (
        ("train", "training", {"color": LINES["first_order"]["color"], "linestyle": (0, (5, 1.5))}),
        ("test", "test", {"color": LINES["exact"]["color"], "linestyle": "-"}),
        ("softmax_of_kernel", "test, softmax of the kernel", {"color": MUTED, "linestyle": (0, (1, 1))}),
    ):
        axes.plot(places, [record[name] for record in numbers["errors"]], label=label, **style)
    best = numbers["best"]
    axes.plot(best["w"], best["test"], LINES["exact"]["marker"], color=LINES["exact"]["color"], markersize=5)
    axes.annotate(
        f"least: {best['test']:.3f} at w = {best['w']:.3g}", (best["w"], best["test"]), (0.28, 0.06),
        ha="left", va="center",
        fontsize=7, arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.6, "shrinkB": 4},
    )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, None)
    axes.set_xlabel("w, one over the bandwidth")
    axes.set_ylabel("mean squared error")
    axes.legend()
    ruled(axes)


KERNEL_REGRESSION = FigureKind(
    name="kernel-regression",
    summary="Nadaraya and Watson's, as attention: matrices, fits and errors by bandwidth",
    measure=measure,
    caption=caption,
    draw=draw,
)
