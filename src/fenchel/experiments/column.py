"""What a table shows of runs besides their headline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fenchel.experiments.interval import MeanInterval, mean_interval
from fenchel.experiments.record import CURVE_DECIMALS, SECONDS_DECIMALS, RunRecord

__all__ = ["Column", "decimals_of", "shown_columns"]


@dataclass(frozen=True)
class Column:
    """A measure of a run.

    Attributes:
        curve: What a run's curves call it, such as ``test_bleu``; the last epoch that has it counts.
        label: As tables show it.
        decimals: How many are written.
    """

    curve: str
    label: str
    decimals: int = 4

    def value(self, record: RunRecord) -> float | None:
        """Of a run, as files have it; None where it was never measured."""
        curve = record.curves.get(self.curve, ())
        found = next((value for value in reversed(curve) if value is not None), None)
        return None if found is None else round(found, CURVE_DECIMALS)


_COSTS: Mapping[str, tuple[Callable[[RunRecord], float], str]] = {
    "Parameters": (lambda record: float(record.parameters), "{:,.0f}"),
    "Minutes a run": (lambda record: round(record.seconds, SECONDS_DECIMALS) / 60, "{:,.1f}"),
}


def decimals_of(most: float) -> int:
    """How many decimals a measure is written with: two where it goes to more than 1, as BLEU does.

    Args:
        most: What it is at most.

    Example:
        >>> decimals_of(1.0), decimals_of(100.0), decimals_of(float("inf"))
        (4, 2, 4)
    """
    return 2 if 1 < most < float("inf") else 4


def shown_columns(columns: Sequence[Column], records: Sequence[RunRecord], *, costs: bool) -> dict[str, str]:
    """What stands in a line of a table beside the headline.

    Args:
        columns: Of the comparison.
        records: The finished runs of the line.
        costs: Whether parameters and time are among it.

    Returns:
        By label; a mean with half of its 95 % interval, parameters and the mean time.
    """
    shown: dict[str, str] = {}
    for column in columns:
        found = [value for record in records if (value := column.value(record)) is not None]
        shown[column.label] = _written(mean_interval(found), column.decimals) if found else "–"
    for label, (of, form) in _COSTS.items() if costs else ():
        values = [of(record) for record in records]
        shown[label] = form.format(sum(values) / len(values)) if values else "–"
    return shown


def _written(found: MeanInterval, decimals: int) -> str:
    mean = f"{found.mean:.{decimals}f}".replace("-", "−")
    return mean if found.half_width is None else f"{mean} ± {found.half_width:.{decimals}f}"
