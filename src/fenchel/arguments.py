"""Rules for the values of arguments, and the table of arguments that several functions share.

A rule checks and converts a value, and describes what is expected. Ranges are wider than any use needs, and narrow
enough to raise an error before memory or time run out. Numbers that become tensors have to be representable in float32,
the dtype of most computations. Only the rules that need torch import it.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final, Literal

from fenchel.errors import FenchelError, InputError

_LONGEST_SHOWN = 60
_DIGITS_SHOWN = 20


class InvalidValue(ValueError):  # noqa: N818 - it never leaves this package
    """Raised by a rule for an invalid value. Its message, if any, replaces "is VALUE" in the error that users see."""


@dataclass(frozen=True)
class Rule:
    """A rule for the value of an argument.

    Attributes:
        words: The rule in words, after "expected", or a function that returns them.
        take: Converts a value to the type that the package uses; raises ``InvalidValue`` for an invalid one.
        kind: Type of the command-line option: ``bool``, ``int``, ``float``, ``str``, names to choose from, or a list of
            ``int``, ``float`` or ``str``; ``int`` among names is any whole number.
        optional: Whether None is also accepted.
    """

    words: str | Callable[[], str]
    take: Callable[[Any], Any]
    kind: Any = str
    optional: bool = False

    @property
    def expected(self) -> str:
        """The rule in words."""
        return self.words if isinstance(self.words, str) else self.words()

    def fit(self, value: Any) -> Any:
        """The converted value.

        Raises:
            InvalidValue: If it is invalid.
        """
        return None if self.optional and value is None else self.take(value)

    def member(self, value: Any) -> Any:
        """The converted value of a member of a collection; the message shows the member."""
        try:
            return self.fit(value)
        except InvalidValue:
            raise InvalidValue(f"holds {shown(value)}") from None

    def check(self, name: str, value: Any, error: type[FenchelError] = InputError) -> Any:
        """The converted value.

        Args:
            name: Name of the argument in the message.
            value: The value.
            error: Type of the error.

        Returns:
            The value: a Python number for a number of numpy, a ``Path`` for a path's name, and so on.

        Raises:
            FenchelError: Of the type ``error``, if the value is invalid: "NAME is VALUE; expected RULE."

        Example:
            >>> from fenchel.arguments import whole
            >>> whole(1, 100, "8").check("batch size", 0)
            Traceback (most recent call last):
            fenchel.errors.InputError: batch size is 0; expected a whole number from 1 to 100, such as 8.
        """
        try:
            return self.fit(value)
        except InvalidValue as reason:
            got = str(reason) or f"is {shown(value)}"
        raise error(f"{name} {got}; expected {self.expected}.")


def maybe(rule: Rule) -> Rule:
    """The same rule, which also accepts None."""
    return replace(rule, optional=True)


def shown(value: Any) -> str:
    """A short description of a value, on one line.

    Example:
        >>> shown("a b"), shown(10**5000), shown([1, 2])
        ("'a b'", 'a number of 5,001 digits', '[1, 2]')
        >>> shown(InputError)
        'the class InputError, not an object InputError(...)'
    """
    if isinstance(value, type):
        instead = "" if value.__module__ == "builtins" else f", not an object {value.__name__}(...)"
        return f"the class {value.__name__}{instead}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_DIGITS_SHOWN:
        # Python writes no number of more than 4,300 digits out.
        digits = int(value.bit_length() * math.log10(2))
        return f"a number of {digits + (abs(value) >= 10**digits):,} digits"
    if isinstance(value, str | bytes):
        return _cut(repr(value[: 2 * _LONGEST_SHOWN]))
    if (
        value is None
        or isinstance(value, bool | Real | Decimal | Path)
        or type(value) in (list, tuple, dict, set)
    ):
        try:
            return _cut(" ".join(repr(value).split()))
        except Exception:  # repr of a foreign class, or of a number with too many digits
            return f"a {type(value).__name__}"
    return f"a {type(value).__name__}"


def number_of(number: int, one: str, several: str = "") -> str:
    """A number with the word for what is counted, by default with an s for several.

    Example:
        >>> number_of(1, "head"), number_of(1200, "query", "queries")
        ('1 head', '1,200 queries')
    """
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


_LONGEST_REASON = 300


def reason_of(error: BaseException) -> str:
    r"""The message of an exception, on one line and without a full stop; that of the system for errors of it.

    Example:
        >>> reason_of(ValueError("two\nlines.")), reason_of(KeyError()), reason_of(OSError(28, "No space left"))
        ('two lines', 'KeyError', 'No space left')
    """
    message = (isinstance(error, OSError) and error.strerror) or str(error)
    return " ".join(message.split())[:_LONGEST_REASON].rstrip(".") or type(error).__name__


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def listed(value: Any, limit: int, *, hashable: bool = False) -> list[Any]:
    """The members of a collection, read up to a limit.

    Args:
        value: Neither a string nor a mapping.
        limit: Maximum number of members.
        hashable: Whether members have to be hashable.

    Raises:
        InvalidValue: If it is not a collection, or empty, or larger.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidValue
    try:
        result = list(islice(value, limit + 1))
    except TypeError:  # such as a tensor without dimensions
        raise InvalidValue from None
    if not result:
        raise InvalidValue("is empty")
    if len(result) > limit:
        raise InvalidValue(f"has more than {limit:,} values")
    if hashable and any(getattr(type(one), "__hash__", None) is None for one in result):
        raise InvalidValue
    return result


def whole(least: int, most: int, example: str, unit: str = "") -> Rule:
    """A whole number in a range, not a bool.

    Args:
        least: The smallest.
        most: The largest.
        example: An example for the message.
        unit: What is counted, such as "of bytes".
    """

    def fit(value: Any) -> int:
        # Nearly all numbers are of this type, and isinstance with an abstract class is slow.
        if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise InvalidValue
        result = int(value)
        if not least <= result <= most:
            raise InvalidValue
        return result

    words = f"a whole number{f' {unit}' if unit else ''} from {least:,} to {most:,}, such as {example}"
    return Rule(words, fit, int)


_FLOAT32_LEAST = 2.0**-126  # below it digits are lost one by one
_FLOAT32_MOST = (2 - 2**-23) * 2.0**127


def number(
    example: str,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
    in_float32: bool = False,
) -> Rule:
    """A finite number in a range, not a bool.

    Args:
        example: An example for the message.
        above: Exclusive lower bound.
        least: Inclusive lower bound.
        below: Exclusive upper bound.
        most: Inclusive upper bound.
        in_float32: Whether it has to be 0 or in the range of normal float32 numbers.
    """

    def fit(value: Any) -> float:
        result = value if type(value) is float else _as_float(value)
        # False for NaN, and without bounds for infinity; symbolic numbers have no isfinite.
        if not (above < result < below and least <= result <= most):
            raise InvalidValue
        if in_float32 and result and not _FLOAT32_LEAST <= abs(result) <= _FLOAT32_MOST:
            raise InvalidValue
        return result

    named = {"above": above, "at least": least, "below": below, "at most": most}
    bounds = " and ".join(f"{word} {bound:g}" for word, bound in named.items() if math.isfinite(bound))
    words = f"a finite number {bounds}".rstrip() + (" that float32 can represent" if in_float32 else "")
    return Rule(f"{words}, such as {example}", fit, float)


def _as_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        raise InvalidValue
    try:
        return float(value)
    except (OverflowError, ValueError):
        raise InvalidValue from None


def numbers(rule: Rule, most: int = 1000, words: str = "") -> Rule:
    """One or more numbers, each checked by the same rule; sorted, without duplicates.

    Args:
        rule: The rule.
        most: The largest number of them.
        words: The rule of all in words. Default: that of each.
    """

    def fit(value: Any) -> tuple[Any, ...]:
        return tuple(sorted({rule.member(one) for one in listed(value, most)}))

    return Rule(words or f"1 to {most:,} numbers, each {rule.expected}", fit, list[rule.kind])


def where(fits: Callable[[Any], bool], words: str, kind: Any = str) -> Rule:
    """A rule for values that a function accepts; they are not converted."""

    def take(value: Any) -> Any:
        if not fits(value):
            raise InvalidValue
        return value

    return Rule(words, take, kind)


def one_of(*names: str) -> Rule:
    """One of several names."""
    return where(lambda value: isinstance(value, str) and value in names, f"one of {', '.join(names)}", names)


def some_of(*names: str) -> Rule:
    """One or more of several names, in the given order, without duplicates."""

    def fit(value: Any) -> tuple[str, ...]:
        result = dict.fromkeys(listed(value, 1000, hashable=True))
        for name in result:
            if name not in names:
                raise InvalidValue(f"names {shown(name)}")
        return tuple(result)

    return Rule(f"some of {', '.join(names)}", fit, list[str])


def of_type(kind: type, words: str) -> Rule:
    """An instance of a class."""
    return where(lambda value: isinstance(value, kind), words, kind)


FLAG: Final = of_type(bool, "True or False")


def text(what: str) -> Rule:
    """A string that is not empty and can be written in UTF-8.

    Args:
        what: Its description, such as "the name of a column".
    """

    def fit(value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise InvalidValue
        return _writable(value)

    return Rule(what, fit)


_LONGEST_PATH = 4095
_LONGEST_NAME = 255


def path_name(what: str) -> Rule:
    """The path of a file or folder, which need not exist.

    Args:
        what: Its description, such as "a folder for the results".
    """
    return Rule(f"the path of {what}", _as_path)


def _as_path(value: Any) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise InvalidValue
    name = os.fspath(value)
    # Path("") would be the current folder.
    if not isinstance(name, str) or not name.strip():
        raise InvalidValue
    _writable(name)
    too_long = any(len(part.encode()) > _LONGEST_NAME for part in Path(name).parts)
    if too_long or len(name.encode()) > _LONGEST_PATH:
        raise InvalidValue(f"is {shown(name)}, which is too long for a file name")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise InvalidValue(f"is {shown(name)}: {reason_of(error)}") from None


_UNWRITABLE = re.compile("[\\0\ud800-\udfff]")


def unwritable(text: str) -> str:
    r"""Why a string is no text: a NUL character, or half of a surrogate pair, which JSON allows; empty if it is one.

    Example:
        >>> unwritable("a\0b"), unwritable("a b")
        ('character 2 is NUL', '')
    """
    found = _UNWRITABLE.search(text)
    if found is None:
        return ""
    kind = "NUL" if found[0] == "\0" else f"{found[0]!a}, an unpaired surrogate"
    return f"character {found.start() + 1} is {kind}"


def _writable(text: str) -> str:
    if reason := unwritable(text):
        raise InvalidValue(f"is {shown(text)}, whose {reason}")
    return text


def _as_device(value: Any) -> str:
    """A device that can compute, tested by a sum."""
    import torch

    if not isinstance(value, str | torch.device):
        raise InvalidValue
    name = str(value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            device = torch.device(value)
            works = float(torch.ones(2, device=device).sum()) == 2.0
        except Exception as error:  # which type it is depends on the name and the device
            if "out of memory" in str(error):
                raise
            works = False
    # torch accepts other numbers of its only CPU.
    if not works or (name.startswith("cpu:") and name != "cpu:0"):
        raise InvalidValue(f"is {shown(name)}")
    return name


def _devices() -> str:
    import torch

    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    result = [*cuda, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]
    return f"an available one: {', '.join(result)}"


_DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")


def _as_dtype(value: Any) -> str:
    """A floating-point dtype of torch, or its name; ``auto`` for that of the model."""
    if not isinstance(value, str):
        import torch

        if not isinstance(value, torch.dtype):
            raise InvalidValue
    name = str(value).removeprefix("torch.")
    if name not in _DTYPES:
        raise InvalidValue("" if isinstance(value, str) else f"is {value}")
    return name


_INT32_MOST: Final = 2**31 - 1

MOST_LAYERS: Final = 10_000  # the largest models have hundreds

_NUMBERS: Final = f"whole numbers from 1 to {MOST_LAYERS:,}, such as [1, 2], or None for all"

# Names of the estimators of attention.
ESTIMATORS: Final = ("first_order", "second_order", "exact")

Kind = Literal["encoder_self", "decoder_self", "cross"]
"""Kind of attention of a layer."""

KINDS: Final[tuple[Kind, ...]] = ("encoder_self", "decoder_self", "cross")
"""The three kinds of attention in a transformer, in the order of reports."""

# Names of the kinds of attention in reports and errors.
KIND_NAMES: Final[Mapping[Kind, str]] = {
    "encoder_self": "Encoder self-attention",
    "decoder_self": "Decoder self-attention",
    "cross": "Cross-attention",
}

_POSITIVE: Final[Mapping[str, Any]] = {"above": 0.0, "in_float32": True}
_SHARE: Final[Mapping[str, Any]] = {"least": 0.0, "below": 1.0}
_COUNT: Final = 10**9  # of tokens, images or pairs that are read one after the other

# Rules of the arguments that Python and the command line share, by their names in Python.
ARGUMENTS: Final[Mapping[str, Rule]] = {
    # The problem. α and γ become tensors, as factors and as divisors.
    "alpha": number("1", **_POSITIVE),
    "scale": number("0.125", in_float32=True),
    "radius": number("1", **_POSITIVE),
    "momentum": number("0.9", **_SHARE),
    "positive": number("1", **_POSITIVE),  # widths, sharpnesses and powers of preferences and evidence
    "gamma": maybe(number("16", **_POSITIVE)),
    "order": number("1.5", least=1.0, most=2.0),
    "relative": one_of("bregman", "csiszar"),
    "temperature": number("1", **_POSITIVE),
    "modulus": number("1", **_POSITIVE),
    "tol": number("1e-4", above=0.0, below=1.0),
    "max_steps": whole(1, 10**6, "100"),
    # Of a problem; without a step the estimate is that of the starting point.
    "solver_steps": whole(0, 10**7, "50"),
    "estimator": one_of(*ESTIMATORS),
    "reach": maybe(whole(0, 2**24, "128")),  # of a window, to one side
    "entries": whole(1, 2**50, "4194304"),
    "size": whole(1, 2**24, "8"),  # of a layer: more than any is wide, heads or positions
    # A pebibyte: more than any machine has, and still exact in float64.
    "memory_budget": whole(1, 2**50, "536870912 (512 MB)", "of bytes"),
    # What torch, numpy and Python's random numbers all take.
    "count": whole(1, _COUNT, "100"),
    "seed": whole(0, _INT32_MOST, "0"),
    # Texts. A batch of a million windows is beyond every memory.
    "batch_size": whole(1, 10**6, "8"),
    "max_length": maybe(whole(1, 10**7, "512")),
    "stride": maybe(whole(1, 10**7, "256")),
    "max_tokens": maybe(whole(1, 10**15, "100000")),
    "heads": maybe(numbers(whole(1, MOST_LAYERS, "1"), MOST_LAYERS, _NUMBERS)),
    "model_name": path_name("a folder, or a name on the hub such as bert-base-uncased"),
    "loader": maybe(path_name("a Python file with a function load(folder)")),
    "text": path_name("a file, or the name of a data set"),
    "images": path_name("a folder of images"),
    "pairs": path_name("a file of scored pairs"),
    "text_column": maybe(text("the name of a column, such as text")),
    "target_column": maybe(text("the name of a column, such as summary")),
    "label_column": maybe(text("the name of a column, such as label")),
    "column": text("the name of a column, such as sentence_A"),
    "dtype": Rule(f"one of {', '.join(_DTYPES)}", _as_dtype, _DTYPES),
    "figure": one_of("figure4", "figure5", "figures6-8"),
    # A rank correlation needs three pairs.
    "sample_pairs": whole(3, 10**7, "10000"),
    "dropout": number("0.2", **_SHARE),
    "width": whole(1, 2**16, "256"),
    "head_count": whole(1, 2**16, "8"),
    # Files and machines. Thirty years between savings are never.
    "directory": maybe(path_name("a folder for the results")),
    "folder": path_name("a folder"),
    "audit_folder": path_name("the folder of an audit"),
    "checkpoint_seconds": number("60", least=0.0, most=1e9),
    "device": maybe(Rule(_devices, _as_device)),
    "overwrite": FLAG,
}


def checked(
    argument: str, value: Any, *, name: str | None = None, error: type[FenchelError] = InputError
) -> Any:
    """The value of an argument, checked and converted by its rule in ``ARGUMENTS``.

    Args:
        argument: A name in ``ARGUMENTS``.
        value: The value.
        name: Its name in the message. Default: the argument with spaces for underscores.
        error: Type of the error.

    Returns:
        The converted value, such as an int for an integer of numpy.

    Raises:
        FenchelError: Of the type ``error``: "NAME is VALUE; expected RULE."

    Example:
        >>> checked("alpha", 1)
        1.0
        >>> checked("checkpoint_seconds", float("nan"))
        Traceback (most recent call last):
        fenchel.errors.InputError: checkpoint seconds is nan; expected a finite number at least 0 and at most \
1e+09, such as 60.
    """
    return ARGUMENTS[argument].check(argument.replace("_", " ") if name is None else name, value, error)
