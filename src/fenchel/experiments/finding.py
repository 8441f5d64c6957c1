"""What an experiment shows, in words that follow from its intervals."""

from __future__ import annotations

from collections.abc import Sequence

from fenchel.experiments.cell import Cell

__all__ = ["findings", "signed"]

_ENOUGH = 3


def signed(value: float, decimals: int = 4) -> str:
    """A difference with its sign, a real minus, and no sign where it is nothing.

    Example:
        >>> signed(0.01234), signed(-0.5, 1), signed(-0.00001)
        ('+0.0123', '−0.5', '0.0000')
    """
    written = f"{value:+.{decimals}f}".replace("-", "−")
    return written[1:] if not float(f"{value:.{decimals}f}") else written


def findings(
    cells: Sequence[Cell], base: str, *, higher_is_better: bool = True, decimals: int = 4
) -> tuple[str, ...]:
    """A sentence for every arm that is compared with the baseline.

    Args:
        cells: Of the table.
        base: The baseline as tables show it; a cell that is compared with another arm says so.
        higher_is_better: Whether more of the headline is.
        decimals: How many it is written with.

    Returns:
        Sentences that call a difference one only where its interval leaves zero out.
    """
    said: list[str] = []
    for cell in cells:
        if cell.difference is None:
            continue
        control = cell.control or base
        where = f"{cell.data}, learning rate {cell.learning_rate:g}: {cell.label} minus {control} is"
        mean, low, high = cell.difference.mean, cell.difference.low, cell.difference.high
        count = cell.difference.count
        if low is None or high is None:
            said.append(
                f"{where} {signed(mean, decimals)} with one seed, which has no interval and shows nothing."
            )
            continue
        verdict = (
            f"{cell.label} {'gains' if (mean > 0) == higher_is_better else 'loses'}"
            if cell.difference.excludes_zero
            else "zero is within the interval: no difference is shown"
        )
        few = " (an interval of two is wide)" if count < _ENOUGH else ""
        interval = ", ".join(signed(end, decimals) for end in (low, high))
        said.append(f"{where} {signed(mean, decimals)} [{interval}] over {count} seeds{few}: {verdict}.")
    return tuple(said)
