"""Kernel regression as first-order attention: matrices, fits and errors by bandwidth (Murphy 2022, section 15.4.2)."""

from typing import Any

import torch
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from style import COLOURS, INK, LINES, MUTED, main, sheet
from torch import Tensor

from fenchel import Discrete, InferenceProblem

SHOWN = (1.0, 4.0, 16.0)
STYLES = (LINES["first_order"], LINES["exact"], LINES["prediction"])


def weights(places: Tensor, training: Tensor, w: float) -> Tensor:
    r"""Nadaraya and Watson's weights (m, n), from the inference problem that they are the first order of.

    .. math:: p_i(x) \propto e^{-w^2(x - x_i)^2/2} \propto u_i\,e^{\alpha\langle x_i, x\rangle},
        \qquad u_i \propto e^{-w^2 x_i^2/2},\; z = x,\; \alpha = w^2
    """
    u = Discrete(training[:, None], log_weights=-(w**2) * training.square() / 2)
    return InferenceProblem(u, places[:, None], alpha=w**2).solve("first_order").weights


def softmax_of_kernel(places: Tensor, training: Tensor, w: float) -> Tensor:
    """What is sometimes printed in its place: all weights are within a factor e of each other, whatever w is."""
    return torch.exp(-(w**2) * (places[:, None] - training).square() / 2).softmax(-1)


def truth(x: Tensor) -> Tensor:
    """The curve without noise."""
    return 2 * x.sin() + x**0.8


def measure() -> dict[str, Any]:
    """Fifty noisy values, regressed at every w from 1/4 to 64."""
    generator = torch.Generator().manual_seed(0)
    training = (5 * torch.rand(50, generator=generator, dtype=torch.float64)).sort().values
    values = truth(training) + 0.5 * torch.randn(50, generator=generator, dtype=torch.float64)
    tests = torch.linspace(0, 5, 51, dtype=torch.float64)[:-1]
    errors = []
    for w in [2.0 ** (exponent / 4) for exponent in range(-8, 25)]:
        found = {
            "train": weights(training, training, w) @ values - values,
            "test": weights(tests, training, w) @ values - truth(tests),
            "softmax_of_kernel": softmax_of_kernel(tests, training, w) @ values - truth(tests),
        }
        errors.append({"w": w, **{name: float(one.square().mean()) for name, one in found.items()}})
    shown = [{"w": w, "weights": (p := weights(tests, training, w)), "fit": p @ values} for w in SHOWN]
    mean_alone = float((values.mean() - truth(tests)).square().mean())
    points = {"training": training, "values": values, "tests": tests, "truth": truth(tests)}
    return points | {"shown": shown, "errors": errors, "mean_alone": mean_alone}


def draw(numbers: dict[str, Any]) -> Figure:
    """Matrices above, fits and errors below."""
    figure = sheet(4.7)
    grid = figure.add_gridspec(2, 6, height_ratios=(1.0, 1.15))
    matrices = [figure.add_subplot(grid[0, 2 * place : 2 * place + 2]) for place in range(3)]
    drawn: Any = None
    for axes, shown, letter in zip(matrices, numbers["shown"], "abc", strict=True):
        drawn = axes.imshow(shown["weights"], cmap=COLOURS, norm=PowerNorm(0.5, 0, 1), aspect="auto")
        axes.set(title=f"({letter}) weights, w = {shown['w']:g}", xlabel="training points, in order of x")
    matrices[0].set_ylabel("test points, in order of x")
    figure.colorbar(drawn, ax=matrices, label="weight", pad=0.01, ticks=[0, 0.01, 0.1, 0.3, 0.6, 1])
    fits, errors = figure.add_subplot(grid[1, :3]), figure.add_subplot(grid[1, 3:])
    fits.plot(numbers["training"], numbers["values"], "o", color=MUTED, markersize=2.6, label="training")
    fits.plot(numbers["tests"], numbers["truth"], color=INK, linewidth=0.8, label="truth")
    for shown, style in zip(numbers["shown"], STYLES, strict=True):
        fits.plot(numbers["tests"], shown["fit"], **style | {"marker": None}, label=f"w = {shown['w']:g}")
    fits.set(title="(d) fits", xlabel="x", ylabel="y")
    rows = numbers["errors"]
    names = {"train": "training", "test": "test", "softmax_of_kernel": "test, softmax of the kernel"}
    styles = LINES["first_order"], LINES["exact"], LINES["bound"]
    for (name, label), style in zip(names.items(), styles, strict=True):
        values = [one[name] for one in rows]
        errors.plot([one["w"] for one in rows], values, **style | {"marker": None}, label=label)
    best = min(rows, key=lambda one: one["test"])
    errors.plot(best["w"], best["test"], "D", color=LINES["exact"]["color"])
    errors.set(title=f"(e) errors; least: {best['test']:.3f} at w = {best['w']:.3g}", xscale="log")
    errors.set(xlabel="w, one over the bandwidth", ylabel="mean squared error", ylim=(0, None))
    for axes in (fits, errors):
        axes.legend(ncols=2)
        axes.grid(visible=True)
    return figure


if __name__ == "__main__":
    main("kernel-regression", measure, draw)
