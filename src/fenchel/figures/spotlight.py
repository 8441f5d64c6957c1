"""The spotlight and the zoom lens as preferences: where attention lands when a louder thing stands elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fenchel.figures.figure_kind import FigureKind, Numbers, rounded
from fenchel.figures.sheet import colours, ruled, sheet
from fenchel.inference import InferenceProblem
from fenchel.preference import Discrete
from fenchel.runs.style import INK, LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fenchel.auditing.results import AuditResults

__all__ = ["SPOTLIGHT"]

_SIDE, _SEED, _ALPHA = 17, 3, 6.0
_TARGET, _DISTRACTOR, _CUE = (6, 5), (11, 12), (6.5, 5.0)
_FEATURES, _NOISE, _MATCH, _LOUDER = 8, 0.12, 0.8, 1.25
_WIDTHS = [0.75 * 2 ** (step / 3) for step in range(16)]
_RADIUS, _ATTENUATED = 3.0, 0.02


def measure(audit: AuditResults | None = None) -> dict[str, Any]:
    """Search a scene for a feature, from four beliefs about where.

    Every place of a square has features; the target's match the evidence well, the distractor's even better, the
    others' are noise. A spotlight is a preference around the cue, a zoom lens one of another width; a filter lets
    nothing through from elsewhere, attenuation little.

    Returns:
        The beliefs with first-order and exact weights, what each gives target and distractor, and the same by width.

    Reference:
        The spotlight: Crick 1984; the zoom lens: Eriksen and St. James 1986; filter: Broadbent 1958; attenuation:
        Treisman 1969.
    """
    draw = torch.Generator().manual_seed(_SEED)
    scene = _NOISE * torch.randn(_SIDE, _SIDE, _FEATURES, generator=draw, dtype=torch.float64)
    wanted = torch.zeros(_FEATURES, dtype=torch.float64)
    wanted[0] = 1.0
    scene[_TARGET] += _MATCH * wanted
    scene[_DISTRACTOR] += _MATCH * _LOUDER * wanted
    rows, columns = torch.meshgrid(*[torch.arange(_SIDE, dtype=torch.float64)] * 2, indexing="ij")
    square = (rows - _CUE[0]) ** 2 + (columns - _CUE[1]) ** 2
    inside = square <= _RADIUS**2
    beliefs = {
        "none: uniform": torch.zeros_like(square),
        "spotlight, σ = 1.5": -square / (2 * 1.5**2),
        "zoom lens, σ = 6": -square / (2 * 6.0**2),
        "filter: u = 0 outside": torch.zeros_like(square).masked_fill(~inside, -torch.inf),
        f"attenuation: u × {_ATTENUATED}": torch.where(inside, 1.0, _ATTENUATED).double().log(),
    }
    templates = scene.reshape(-1, _FEATURES)
    return rounded(
        {
            "side": _SIDE,
            "alpha": _ALPHA,
            "target": _TARGET,
            "distractor": _DISTRACTOR,
            "cue": _CUE,
            "scene": scene,
            "wanted": wanted,
            "match": {"target": float(scene[_TARGET][0]), "distractor": float(scene[_DISTRACTOR][0])},
            "beliefs": [
                {"name": name, **_answer(templates, log_weights, wanted)}
                for name, log_weights in beliefs.items()
            ],
            "widths": [
                {"width": width, **_given(_answer(templates, -square / (2 * width**2), wanted))}
                for width in _WIDTHS
            ],
        }
    )


def _answer(templates: Tensor, log_weights: Tensor, wanted: Tensor) -> dict[str, Any]:
    u = Discrete(templates, log_weights=log_weights.reshape(-1))
    problem = InferenceProblem(u, wanted[None], alpha=_ALPHA)
    first, exact = problem.solve("first_order"), problem.solve("exact", tol=1e-9)
    found: dict[str, Any] = {"preference": log_weights.reshape(-1).softmax(-1).reshape(_SIDE, _SIDE)}
    for name, estimate in (("first_order", first), ("exact", exact)):
        weights = estimate.weights.reshape(_SIDE, _SIDE)
        found[name] = {
            "weights": weights,
            "target": float(weights[_TARGET]),
            "distractor": float(weights[_DISTRACTOR]),
        }
    return found


def _given(answer: dict[str, Any]) -> dict[str, Any]:
    """What target and distractor get, without the maps."""
    return {
        name: {part: answer[name][part] for part in ("target", "distractor")}
        for name in ("first_order", "exact")
    }


def caption(numbers: Numbers) -> str:
    """What is seen."""
    uniform, spot, lens, filtered, _ = numbers["beliefs"]
    match = numbers["match"]
    return (
        f"A scene of {numbers['side']} × {numbers['side']} places is searched for a feature (α = "
        f"{numbers['alpha']:g}): the target (circle) matches it by {match['target']:.2f}, a distractor "
        f"(square) elsewhere by {match['distractor']:.2f}. Above: what is believed of the place "
        "beforehand; below: first-order attention (colours: square roots). Without "
        f"a belief the distractor gets more ({uniform['first_order']['distractor']:.2f} against "
        f"{uniform['first_order']['target']:.2f}); in the spotlight the target "
        f"{spot['first_order']['target']:.2f} and the distractor "
        f"{_share(spot['first_order']['distractor'])}; a wide lens gives the target "
        f"{lens['first_order']['target']:.2f}. A filter gives the distractor "
        f"{filtered['first_order']['distractor']:g} whatever it shows; attenuation leaves it a part. "
        "Right: what both get as the lens widens. Exact inference gives the target less: the more the "
        "mean has moved, the less of the evidence is left to pull, λ* = α(z + μ − h*)."
    )


def draw(numbers: Numbers) -> Figure:
    """Beliefs above, attention below, weights by width beside them."""
    figure = sheet(2.75, caption(numbers))
    beliefs = numbers["beliefs"]
    parts: Any = figure.subfigures(1, 2, width_ratios=(len(beliefs), 2.1))
    left, right = parts
    panels: Any = left.subplots(2, len(beliefs))
    for place, belief in enumerate(beliefs):
        _map(panels[0][place], belief["preference"], numbers)
        _map(panels[1][place], belief["first_order"]["weights"], numbers)
        name, _, rest = belief["name"].partition(": ")
        title = name.replace(", ", "\n") + (f":\n{rest}" if rest else "")
        panels[0][place].set_title(title, fontsize=7, loc="center", parse_math=False)
        found = belief["first_order"]
        panels[1][place].set_xlabel(
            f"target {_share(found['target'])}\ndistractor {_share(found['distractor'])}", fontsize=7
        )
    panels[0][0].set_ylabel("belief u")
    panels[1][0].set_ylabel("attention p")
    axes = right.subplots()
    widths = [record["width"] for record in numbers["widths"]]
    for part, filled in (("target", True), ("distractor", False)):
        for estimator, called in (("first_order", "first order"), ("exact", "exact")):
            style = LINES[estimator]
            axes.plot(
                widths,
                [record[estimator][part] for record in numbers["widths"]],
                color=style["color"],
                marker="o" if filled else "s",
                linestyle=style["linestyle"],
                markerfacecolor=style["color"] if filled else "white",
                markevery=3,
                label=f"{part}, {called}",
            )
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.set_xlabel("lens's width σ, in places")
    axes.set_ylabel("weight")
    axes.set_ylim(0, 1.38)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    axes.legend(fontsize=6.5, loc="upper right", borderaxespad=0.1)
    ruled(axes)
    return figure


def _share(weight: float) -> str:
    return "< 0.01" if 0 < weight < 0.005 else f"{weight:.2f}"


def _map(axes: Axes, weights: list[list[float]], numbers: Numbers) -> None:
    highest = max(map(max, weights))
    shares = [[(weight / highest) ** 0.5 for weight in row] for row in weights]
    axes.imshow(shares, cmap=colours(), vmin=0, vmax=1, interpolation="nearest")
    for (row, column), marker in ((numbers["target"], "o"), (numbers["distractor"], "s")):
        axes.plot(
            column,
            row,
            marker,
            markersize=8,
            markerfacecolor="none",
            markeredgecolor=INK,
            markeredgewidth=2.2,
        )
        axes.plot(
            column,
            row,
            marker,
            markersize=8,
            markerfacecolor="none",
            markeredgecolor="white",
            markeredgewidth=0.9,
        )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["top", "right"]].set_visible(True)


SPOTLIGHT = FigureKind(
    name="spotlight",
    summary="spotlight, zoom lens, filter and attenuation as preferences over places",
    measure=measure,
    caption=caption,
    draw=draw,
)
