"""Preferences over positions, before any query meets a key: masks, windows, ALiBi, T5's buckets, products."""

from typing import Any

import torch
from matplotlib.figure import Figure
from style import COLOURS, INK, LINES, main, sheet

from fenchel.nn import preference

KEYS, QUERY = 32, 20


def preferences() -> dict[str, tuple[Any, str]]:
    """Each with its formula; what would be learned has values that show its form."""
    buckets = preference.RelativePosition(heads=1, buckets=12, max_distance=24)
    shifted = preference.QuadraticPosition(heads=1, width=2.0)
    window = preference.GaussianWindow(heads=1, width=3.0)
    with torch.no_grad():
        steps = torch.arange(6, dtype=torch.float32)
        buckets.relative_attention_bias.weight.copy_(torch.cat([-0.55 * steps, -0.9 * steps])[:, None])
        shifted.drift.fill_(2 * float(shifted.curvature) * 5.0)
    return {
        "causal": (preference.Causal(), "u = 0 for j > i"),
        "sliding window": (preference.Window(4, 4), "u = 0 for |i − j| > 4"),
        "dilated window": (preference.Window(12, 12, dilation=3), "every third key"),
        "ALiBi × causal": (preference.Causal() * preference.ALiBi(heads=1) ** 64.0, "log u = −(i − j)/4"),
        "T5's buckets": (buckets, "log u = w of the bucket of j − i"),
        "Gaussian window": (window, "log u = −(i − j)²/2σ², σ = 3"),
        "quadratic, shifted by 5": (shifted, "log u = −a(i − j)² + b(i − j)"),
        "Gaussian × causal": (
            preference.Causal() * window,
            "preferences multiply",
        ),
    }


def measure() -> dict[str, Any]:
    """The normalised preference (queries, keys) of each."""
    inputs = preference.AttentionInputs(1, 1, KEYS, KEYS, torch.device("cpu"), torch.float64)
    panels = []
    for name, (one, formula) in preferences().items():
        log_u = one.double()(inputs)
        if log_u.dtype == torch.bool:
            log_u = torch.zeros(log_u.shape, dtype=torch.float64).masked_fill(~log_u, -torch.inf)
        weights = log_u.detach().expand(1, 1, KEYS, KEYS)[0, 0].softmax(-1)
        panels.append({"name": name, "formula": formula, "weights": weights})
    return {"panels": panels}


def draw(numbers: dict[str, Any]) -> Figure:
    """Each as a matrix, darker where more is believed than elsewhere in the row, and one of its rows below."""
    figure = sheet(5.1)
    grid: Any = figure.subplots(4, 4, height_ratios=[3.0, 1.0] * 2, sharex=True)
    for place, panel in enumerate(numbers["panels"]):
        matrix, profile = grid[2 * (place // 4)][place % 4], grid[2 * (place // 4) + 1][place % 4]
        weights = torch.tensor(panel["weights"])
        shades = (weights / weights.amax(1, keepdim=True)).numpy()
        matrix.imshow(shades, cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
        matrix.axhline(QUERY, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
        matrix.set_title(panel["name"], parse_math=False)
        line = {"color": LINES["model"]["color"], "linewidth": 1.0}
        profile.step(range(KEYS), panel["weights"][QUERY], where="mid", **line)
        profile.set(ylim=(0, None), yticks=[])
        profile.set_xlabel(panel["formula"], fontsize=7, parse_math=False)
        matrix.set_ylabel("query i" if place % 4 == 0 else "")
    return figure


if __name__ == "__main__":
    main("positions", measure, draw)
