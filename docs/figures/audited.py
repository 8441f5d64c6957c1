"""Two pictures of an audit: by layer, and against what the covariance of the templates predicts.

``python docs/figures/audited.py deviations FOLDER`` or ``covariance FOLDER``, with the folder of an audit that was made
with ``--baseline twin``.
"""

import sys
from statistics import mean
from typing import Any

from matplotlib.figure import Figure
from style import LINES, MUTED, main, sheet

from fenchel.auditing import AuditReport

SHOWN = {
    "relative_deviation": ("deviation of λ", "‖λ* − αz‖ / ‖λ*‖"),
    "total_variation": ("weight that moves", "total variation"),
    "mean_error": ("error of the mean", "‖ĥ − h*‖ / ‖h*‖"),
}
CALLED = {"model": "trained model", "twin": "untrained twin"}


def measure(folder: str) -> dict[str, Any]:
    """The mean of each head, of the model and of its untrained twin, by kind and layer."""
    report = AuditReport.load(folder)
    if not report.twin_heads:
        sys.exit(f"{folder} has no untrained twin to compare with. Audit with --baseline twin.")
    found: dict[str, Any] = {}
    for who, heads in (("model", report.heads), ("twin", report.twin_heads)):
        for head in heads:
            values = {name: head[f"{name}_mean"] for name in (*SHOWN, "predicted_deviation", "certificate")}
            layer = found.setdefault(head["kind"], {}).setdefault(head["layer"], {"model": [], "twin": []})
            layer[who].append(values)
    audit = {name: report.manifest.get(name) for name in ("model", "texts", "tokens", "space", "alpha")}
    return {"audit": audit, "kinds": {kind: list(layers.values()) for kind, layers in found.items()}}


def of_layers(layers: list[Any], who: str, metric: str) -> list[float]:
    """The mean over heads of each layer."""
    return [mean(head[metric] for head in layer[who] if head[metric] is not None) for layer in layers]


def draw_deviations(numbers: dict[str, Any]) -> Figure:
    """A row a kind of attention, a column a measure: lines are means by layer, circles single heads."""
    kinds = numbers["kinds"]
    figure = sheet(2.6 * len(kinds))
    panels: Any = figure.subplots(len(kinds), len(SHOWN), squeeze=False)
    for row, (kind, layers) in zip(panels, kinds.items(), strict=True):
        numbered = range(1, len(layers) + 1)
        for axes, (metric, (title, label)) in zip(row, SHOWN.items(), strict=True):
            for n, layer in zip(numbered, layers, strict=True):
                dots = [head[metric] for head in layer["model"]]
                axes.plot([n] * len(dots), dots, "o", color=LINES["model"]["color"], mfc="white", ms=2.6)
            for who, called in CALLED.items():
                axes.plot(numbered, of_layers(layers, who, metric), **LINES[who], label=called)
            if metric == "relative_deviation":
                bound = of_layers(layers, "model", "certificate")
                axes.plot(numbered, bound, **LINES["bound"], label="certified, at most")
            axes.set(title=title, xlabel="layer", ylabel=label, ylim=(0, None))
            axes.grid(visible=True)
        if len(kinds) > 1:
            row[0].set_ylabel(f"{kind}\n{SHOWN['relative_deviation'][1]}")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def draw_covariance(numbers: dict[str, Any]) -> Figure:
    """A row a kind of attention: solved against predicted deviation of every head, and both measures by layer."""
    kinds = numbers["kinds"]
    figure = sheet(2.5 * len(kinds))
    panels: Any = figure.subplots(len(kinds), 3, squeeze=False)
    for (scatter, *by_layer), (kind, layers) in zip(panels, kinds.items(), strict=True):
        numbered = range(1, len(layers) + 1)
        for who, called in CALLED.items():
            heads = [head for layer in layers for head in layer[who]]
            drawn = LINES[who] | {"linestyle": "none", "markersize": 3.6}
            solved = [head["relative_deviation"] for head in heads]
            scatter.plot([head["predicted_deviation"] for head in heads], solved, **drawn, label=called)
            for axes, metric in zip(by_layer, ("relative_deviation", "total_variation"), strict=True):
                axes.plot(numbered, of_layers(layers, who, metric), **LINES[who])
                axes.set(title=SHOWN[metric][0], xlabel="layer", ylabel=SHOWN[metric][1], ylim=(0, None))
        scatter.axline((0, 0), slope=1, color=MUTED, linewidth=0.8, zorder=0)
        scatter.set(title=f"{kind}: solved against predicted", ylabel="solved")
        scatter.set_xlabel("predicted by the covariance")
        for axes in (scatter, *by_layer):
            axes.grid(visible=True)
    panels[0][0].legend()
    return figure


if __name__ == "__main__":
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in ("deviations", "covariance"):
        sys.exit("usage: python docs/figures/audited.py deviations|covariance FOLDER")
    main(name, measure, draw_deviations if name == "deviations" else draw_covariance)
