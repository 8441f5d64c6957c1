"""Numbers, colours, intervals and tables for pages and terminals."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial, wraps
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from fenchel.errors import require_packages

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

# ColorBrewer's YlGnBu in perceptually equal steps (in Oklab), of monotone lightness, so that it can be read in grey.
# Colours from light to dark, of the CSS classes ``q0`` to ``q23``.
SCALE: Final = (
    "#fffdde", "#f9fbcf", "#f2fabf", "#ebf7b1", "#def2b2", "#d1edb3", "#c1e7b5", "#a9ddb8",
    "#90d3ba", "#78cabc", "#64c2c0", "#4ebac3", "#3bb0c3", "#2fa3c2", "#2296c1", "#1e86bb",
    "#2074b3", "#2262aa", "#2353a3", "#24459c", "#253695", "#1d2c80", "#13246a", "#0a1c55",
)  # fmt: skip

LEVELS: Final = len(SCALE)

# Number of steps on each side of the scale of differences, the CSS classes ``less by8`` to ``more by8``.
STEPS: Final = 8


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def luminance(colour: str) -> float:
    """Relative luminance of a colour, 0 for black and 1 for white.

    Example:
        >>> luminance("#000000"), round(luminance("#ffffff"), 6)
        (0.0, 1.0)
    """
    red, green, blue = (_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def level(value: float, highest: float) -> int:
    """Index into the scale for a value from 0 to ``highest``.

    Example:
        >>> level(0.0, 1.0), level(0.5, 1.0), level(1.0, 1.0), level(0.0, 0.0)
        (0, 12, 23, 0)
    """
    if highest <= 0:
        return 0
    return min(LEVELS - 1, max(0, int(LEVELS * value / highest)))


def ink(colour: str) -> str:
    """Colour of text on a colour: near-black or white, whichever contrasts more.

    Example:
        >>> ink("#fffdde"), ink("#0a1c55")
        ('#10131a', '#fff')
    """
    return "#fff" if (luminance(colour) + 0.05) ** 2 < 1.05 * 0.05 else "#10131a"


def change_style(value: float | None, highest: float | None) -> str:
    """CSS class of a difference, where ``highest`` is the upper end of the scale.

    Example:
        >>> [change_style(value, 1.0) for value in (0.5, -1.0, 0.001, 0.0, None)]
        ['more by4', 'less by8', 'more by1', '', 'missing']
    """
    if value is None:
        return "missing"
    if value == 0 or not highest:
        return ""
    step = min(STEPS, math.ceil(STEPS * abs(value) / highest - 1e-9))
    return f"{'more' if value > 0 else 'less'} by{step}" if step > 0 else ""


def stylesheet(colours: tuple[str, ...]) -> str:
    """CSS rules of the classes ``q0``, ``q1``, ... with a readable colour of text on each."""
    return "".join(
        f".q{step}{{background:{colour};color:{ink(colour)}}}" for step, colour in enumerate(colours)
    )


def json_number(value: float | None, decimals: int | None = None) -> float | str | None:
    """A number for the data of a page, in JSON: six significant digits, or ``decimals``; infinity as a string.

    Example:
        >>> json_number(0.12345678), json_number(0.12345678, 2), json_number(math.inf), json_number(math.nan)
        (0.123457, 0.12, 'inf', None)
    """
    if value is None or math.isnan(value):
        return None
    if math.isinf(value):
        return "inf"
    return float(f"{value:.6g}") if decimals is None else round(value, decimals)


MISSING = "–"
INFINITE = "∞"


def _of_finite(written: Callable[[float], str]) -> Callable[[float | None], str]:
    """Extend a format of finite numbers to None, NaN and infinities."""

    @wraps(written)
    def extended(value: float | None) -> str:
        if value is None or math.isnan(value):
            return MISSING
        if math.isinf(value):
            return INFINITE if value > 0 else f"−{INFINITE}"
        return written(value)

    return extended


def _scientific(value: float, digits: int = 1) -> str:
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


@_of_finite
def decimal(value: float) -> str:
    """A number for tables and tooltips: about four digits, aligned in columns.

    Example:
        >>> [decimal(v) for v in (0.05312, 0.44, 1.5, 23.46, 2e-6, 0.0, 123456.0, float("inf"), None)]
        ['0.0531', '0.4400', '1.500', '23.46', '2.0e-6', '0', '1.2e5', '∞', '–']
    """
    size = abs(value)
    if size == 0:
        return "0"
    if size < 1e-4 or size >= 1e5:
        return _scientific(value)
    return f"{value:.{4 if size < 1 else 3 if size < 10 else 2 if size < 100 else 1}f}"


@_of_finite
def short(value: float) -> str:
    """A number for a cell or the corner of a panel: the papers' three decimals, fewer where it is large.

    Example:
        >>> [short(v) for v in (0.0531, 0.0, 0.00002, 1.234, 12.34, 123.4, 1e9, float("inf"))]
        ['0.053', '0.000', '2e-5', '1.23', '12.3', '123', '1.0e9', '∞']
    """
    size = abs(value)
    if 0 < size < 5e-4:
        return _scientific(value, 0)
    if size >= 1e4:
        return _scientific(value)
    return f"{value:.{3 if size < 1 else 2 if size < 10 else 1 if size < 100 else 0}f}"


@_of_finite
def percent(value: float) -> str:
    r"""A share in percent with two digits and a no-break space.

    Example:
        >>> [percent(v).replace("\u202f", " ") for v in (0.0531, 0.243, 0.00042, 0.0, 1.732, float("inf"))]
        ['5.3 %', '24 %', '0.042 %', '0 %', '173 %', '∞']
    """
    if value == 0:
        return "0\u202f%"
    hundredths = 100 * value
    digits = max(0, 1 - math.floor(math.log10(abs(hundredths))))
    return f"{hundredths:.{min(digits, 6)}f}\u202f%"


def signed(value: float | None) -> str:
    """A difference with its sign and about three digits.

    Example:
        >>> signed(0.00331), signed(-1.5), signed(None), signed(0.0)
        ('+0.0033', '−1.50', '–', '0')
    """
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    size = abs(value)
    digits = 2 if size >= 1 else 3 if size >= 0.1 else 4 if size >= 1e-3 else 6 if size >= 1e-5 else 0
    text = f"{size:.{digits}f}" if digits else f"{size:.0e}"
    return ("+" if value > 0 else "−") + text


def short_size(value: float | None) -> str:
    """The size of a difference for a cell: three decimals without a zero before the point, one digit below 0.001.

    Example:
        >>> [short_size(v) for v in (0.0123, -1.5, 0.0034, 0.00013, 0.0, None)]
        ['.012', '1.50', '.003', '1e-4', '0', '–']
    """
    if value is None or value == 0:
        return MISSING if value is None else "0"
    size = abs(value)
    return _scientific(size, 0) if size < 1e-3 else short(size).removeprefix("0")


def signed_short(value: float | None) -> str:
    """A difference for a cell: its sign and its size.

    Example:
        >>> [signed_short(v) for v in (0.0123, -1.5, 0.0, 0.0001, None)]
        ['+.012', '−1.50', '0', '+1e-4', '–']
    """
    return ("" if not value else "+" if value > 0 else "−") + short_size(value)


def bracketed(low: float | None, high: float | None) -> str:
    """An interval of a difference; a dash for None.

    Example:
        >>> bracketed(-0.001, 0.0031), bracketed(None, None)
        ('[−0.0010, +0.0031]', '–')
    """
    return MISSING if low is None or high is None else f"[{signed(low)}, {signed(high)}]"


def count(value: float | None) -> str:
    """A count with separators of thousands.

    Example:
        >>> count(1234567)
        '1,234,567'
    """
    return MISSING if value is None else f"{int(value):,}"


def plain(value: object) -> str:
    """A setting without superfluous digits.

    Example:
        >>> plain(1.0), plain(0.0001), plain("input"), plain(None)
        ('1', '0.0001', 'input', '–')
    """
    return MISSING if value is None else f"{value:g}" if isinstance(value, float) else str(value)


_MARGIN = 4.0  # percent, to tell finite values from infinite ones


def position(value: float, low: float, high: float) -> float:
    """Position of a value on an axis from ``low`` to ``high``, in percent; infinite values are at 0 and 100.

    Example:
        >>> position(0.0, 0.0, 2.0), position(1.0, 0.0, 2.0), position(float("inf"), 0.0, 2.0)
        (4.0, 50.0, 100.0)
    """
    if math.isinf(value):
        return 0.0 if value < 0 else 100.0
    return round(_MARGIN + (100 - 2 * _MARGIN) * (value - low) / (high - low or 1.0), 2)


@dataclass(frozen=True)
class Whisker:
    """A value and its interval on an axis, in percent.

    Attributes:
        low_at: Start of the interval; the value, or the start of the axis, if it is unknown.
        high_at: End of the interval, likewise.
        at: Position of the value; None if there is none.
    """

    low_at: float
    high_at: float
    at: float | None

    @property
    def width(self) -> float:
        """Length of the interval."""
        return round(self.high_at - self.low_at, 2)


# A value, and the ends of its interval.
Span = tuple[float | None, float | None, float | None]


def whiskers(spans: Iterable[Span], *, through: float = 0.0) -> tuple[list[Whisker], float]:
    """Values with their intervals on one axis that includes ``through``, and the position of ``through``.

    Example:
        >>> whiskers([(1.0, None, 2.0)])
        ([Whisker(low_at=50.0, high_at=96.0, at=50.0)], 4.0)
    """
    spans = list(spans)
    finite = [value for value in chain.from_iterable(spans) if value is not None and math.isfinite(value)]
    least, greatest = min([through, *finite]), max([through, *finite])
    place = partial(position, low=least, high=greatest)

    def whisker(value: float | None, low: float | None, high: float | None) -> Whisker:
        at = None if value is None else place(value)
        unknown = place(least) if at is None else at
        return Whisker(unknown if low is None else place(low), unknown if high is None else place(high), at)

    return [whisker(*span) for span in spans], place(through)


def duration(seconds: float) -> str:
    """A duration in words.

    Example:
        >>> duration(0.42), duration(75.0), duration(7300.0)
        ('0.4 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole} s" if minutes else f"{whole} s"


def titled_table(title: str, *headings: str, left: Collection[str] = ()) -> Table:
    """An empty table of rich with a title, which is not parsed as markup.

    Args:
        title: The title.
        *headings: Headings of its columns, whose cells fold where they are too wide.
        left: The headings of those that are aligned on the left.

    Raises:
        MissingExtraError: If rich is not installed.
    """
    require_packages("cli", "rich")
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left", pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right", overflow="fold")
    return table


def stacked(*parts: Any) -> RenderableType:
    """Tables of rich and sentences, stacked; a sentence is a text, or a text and its style.

    Raises:
        MissingExtraError: If rich is not installed.
    """
    require_packages("cli", "rich")
    from rich.console import Group
    from rich.text import Text

    sentences = ((part, "") if isinstance(part, str) else part for part in parts)
    return Group(*(Text(*part) if isinstance(part, tuple) else part for part in sentences))
