"""In which layers and heads the change of a swap arises: bars of layers and maps of heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fenchel.drawing import level, short

if TYPE_CHECKING:
    from fenchel.swap.swap_tables import SwapTables

__all__ = ["HeadMap", "LayerBars", "Stack", "head_maps", "stacks"]

_MOST_HEADS = 12


@dataclass(frozen=True)
class LayerBars:
    """A layer.

    Attributes:
        layer: Its number.
        bars: By arm, the change of its output and the bar's length, in percent of the longest.
        alone: By estimator, the change at the model's output where only this layer was swapped; empty where none was.
    """

    layer: int
    bars: list[tuple[str, float, float]]
    alone: dict[str, float]


@dataclass(frozen=True)
class Stack:
    """The layers of an encoder or of a decoder.

    Attributes:
        name: As the model calls it.
        layers: From the first.
    """

    name: str
    layers: list[LayerBars]


@dataclass(frozen=True)
class HeadMap:
    """What one head alone does to the model's output when it infers by an estimator.

    Attributes:
        estimator: Which.
        heads: The numbers of the columns.
        rows: A layer's number and, for each head, its CSS class and its number; None where there is none.
        highest: The upper end of the scale, which all estimators share.
        farthest: The records of the heads that change it most, each with the least and the greatest change that the
            control gives in the same place, if it was run there.
    """

    estimator: str
    heads: list[int]
    rows: list[tuple[int, list[tuple[str, str] | None]]]
    highest: float
    farthest: list[tuple[dict[str, Any], tuple[float, float] | None]]

    @property
    def width(self) -> str:
        """How wide the map is, as the CSS class that decides when its numbers are shown."""
        return "few" if len(self.heads) <= 8 else "several" if len(self.heads) <= 12 else "many"

    @property
    def height(self) -> str:
        """How tall the map is, as the CSS class of its rows."""
        return "low" if len(self.rows) <= 16 else "tall"


def stacks(tables: SwapTables) -> list[Stack]:
    """The change of every layer's output under the estimators and under the control that is nearest to exact."""
    nearest = {record["estimator"]: record["nearest_alpha"] for record in tables.results["smoothing"]}
    alpha = nearest.get("exact", next(iter(nearest.values()), None))
    shown = [
        record for record in tables.layers if record["estimator"] != "first_order" or record["alpha"] == alpha
    ]
    longest = max((record["hidden_change"] for record in shown), default=0.0) or 1.0
    names = list(dict.fromkeys(record["stack"] for record in shown))
    of_layers = [name for name in names if name != "output"]
    alone = {
        (record["layer"], record["estimator"]): record["hidden_change"]
        for record in tables.arms
        if record["where"] == "layer" and not record["control"] and len(of_layers) == 1
    }
    found = []
    for name in names:
        layers = []
        for layer in sorted({record["layer"] for record in shown if record["stack"] == name}):
            own = [record for record in shown if (record["stack"], record["layer"]) == (name, layer)]
            bars = [
                (_called(record), record["hidden_change"], round(100 * record["hidden_change"] / longest, 2))
                for record in sorted(own, key=lambda record: _ORDER.index(record["estimator"]))
            ]
            single = {
                kind: value for (place, kind), value in alone.items() if place == layer and name in of_layers
            }
            layers.append(LayerBars(layer, bars, single))
        found.append(Stack(name, layers))
    return found


def head_maps(tables: SwapTables) -> list[HeadMap]:
    """A map an estimator; none where no head was swapped alone."""
    heads = [record for record in tables.arms if record["where"] == "head" and not record["control"]]
    highest = max((record["hidden_change"] for record in heads), default=0.0)
    return [
        _head_map(tables, [record for record in heads if record["estimator"] == estimator], highest)
        for estimator in dict.fromkeys(record["estimator"] for record in heads)
    ]


def _head_map(tables: SwapTables, records: list[dict[str, Any]], highest: float) -> HeadMap:
    changes = {(record["layer"], record["head"]): record["hidden_change"] for record in records}
    columns = sorted({head for _, head in changes})
    rows = [
        (
            layer,
            [
                (f"q{level(changes[layer, head], highest)}", short(changes[layer, head]))
                if (layer, head) in changes
                else None
                for head in columns
            ],
        )
        for layer in sorted({layer for layer, _ in changes})
    ]
    farthest = sorted(records, key=lambda record: -record["hidden_change"])[:_MOST_HEADS]
    return HeadMap(
        estimator=records[0]["estimator"],
        heads=columns,
        rows=rows,
        highest=highest,
        farthest=[(record, _by_alpha(tables, record)) for record in farthest],
    )


def _by_alpha(tables: SwapTables, record: dict[str, Any]) -> tuple[float, float] | None:
    same = [
        other["hidden_change"]
        for other in tables.arms
        if other["control"] and (other["layer"], other["head"]) == (record["layer"], record["head"])
    ]
    return (min(same), max(same)) if same else None


_ORDER = ("exact", "second_order", "first_order")


def _called(record: dict[str, Any]) -> str:
    return {"exact": "exact", "second_order": "second"}.get(record["estimator"], "control")
