"""How the reports read and write numbers: a missing one is a dash, an unbounded one is ∞."""

from __future__ import annotations

import math

__all__ = ["INFINITE", "MISSING", "count", "decimal", "percent", "plain", "reading", "short"]

MISSING = "–"
INFINITE = "∞"


def reading(value: object) -> float | None:
    """A recorded number as a float; None where there is none.

    Infinity may be spelt out, as JSON needs it; NaN stands for nothing measured.

    Args:
        value: A number, ``None``, or the spelling of one.

    Returns:
        The number, possibly ``inf``; None for ``None``, NaN and text that is no number.

    Example:
        >>> reading("inf"), reading(None), reading(float("nan")), reading(2)
        (inf, None, None, 2.0)
    """
    if not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _unusual(value: float | None) -> str | None:
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return INFINITE if value > 0 else f"−{INFINITE}"
    return None


def _scientific(value: float) -> str:
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def decimal(value: float | None) -> str:
    """A number for tables and tooltips: about four digits, written so that columns line up.

    Example:
        >>> [decimal(v) for v in (0.05312, 0.44, 1.5, 23.46, 2e-6, 0.0, 123456.0, float("inf"), None)]
        ['0.0531', '0.4400', '1.500', '23.46', '2.0e-6', '0', '1.2e5', '∞', '–']
    """
    unusual = _unusual(value)
    if unusual is not None or value is None:
        return unusual or MISSING
    size = abs(value)
    if size == 0:
        return "0"
    if size < 1e-4 or size >= 1e5:
        return _scientific(value)
    return f"{value:.{4 if size < 1 else 3 if size < 10 else 2 if size < 100 else 1}f}"


def short(value: float | None) -> str:
    """A number for a cell or the corner of a panel: the papers' three decimals, fewer where it is large.

    Example:
        >>> [short(v) for v in (0.0531, 0.00002, 1.234, 12.34, 123.4, 1e9, float("inf"))]
        ['0.053', '0.000', '1.23', '12.3', '123', '1.0e9', '∞']
    """
    unusual = _unusual(value)
    if unusual is not None or value is None:
        return unusual or MISSING
    size = abs(value)
    if size >= 1e4:
        return _scientific(value)
    return f"{value:.{3 if size < 1 else 2 if size < 10 else 1 if size < 100 else 0}f}"


def percent(value: float | None) -> str:
    r"""A share for a sentence, to two digits; the space before the sign does not break.

    Example:
        >>> [percent(v).replace("\u202f", " ") for v in (0.0531, 0.243, 0.00042, 0.0, 1.732, float("inf"))]
        ['5.3 %', '24 %', '0.042 %', '0 %', '173 %', '∞']
    """
    unusual = _unusual(value)
    if unusual is not None or value is None:
        return unusual or MISSING
    if value == 0:
        return "0\u202f%"
    hundredths = 100 * value
    digits = max(0, 1 - math.floor(math.log10(abs(hundredths))))
    return f"{hundredths:.{min(digits, 6)}f}\u202f%"


def count(value: float | None) -> str:
    """A count with its thousands parted.

    Example:
        >>> count(1234567)
        '1,234,567'
    """
    return MISSING if value is None else f"{int(value):,}"


def plain(value: object) -> str:
    """A setting as its user would write it: no digits that say nothing.

    Example:
        >>> plain(1.0), plain(0.0001), plain("input"), plain(None)
        ('1', '0.0001', 'input', '–')
    """
    return MISSING if value is None else f"{value:g}" if isinstance(value, float) else str(value)
