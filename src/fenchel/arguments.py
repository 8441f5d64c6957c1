"""What arguments may be: rules, and the table of those that several functions share.

A rule is what a value has to be, the words for it, and the value as the package takes it. Ranges are wider than
anybody's need and narrower than what makes memory or time run out before an error is seen. A number that ends in a
tensor has to be one in float32, in which most of them compute. torch is imported only by the rules that need it.
"""

from __future__ import annotations

import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final

from fenchel.errors import FenchelError, InputError

__all__ = [
    "ARGUMENTS",
    "ESTIMATORS",
    "MOST_LAYERS",
    "AbstractRule",
    "Device",
    "Dtype",
    "Flag",
    "Maybe",
    "Number",
    "NumbersFromOne",
    "OneOf",
    "PathName",
    "Text",
    "Unfit",
    "Whole",
    "checked",
    "listed",
    "shown",
]

_LONGEST_SHOWN = 60
_DIGITS_SHOWN = 20


class Unfit(ValueError):  # noqa: N818 - it never leaves this package
    """A value that a rule refuses. Its message, if any, takes the place of the value in what the user reads."""


@dataclass(frozen=True)
class AbstractRule(ABC):
    """What a value has to be."""

    @property
    @abstractmethod
    def expected(self) -> str:
        """The rule in words, to stand after "expected"."""

    @abstractmethod
    def fit(self, value: Any) -> Any:
        """The value as the rest of the package takes it.

        Raises:
            Unfit: If the value breaks the rule.
        """

    def member(self, value: Any) -> Any:
        """One of several values, by this rule; the message says which."""
        try:
            return self.fit(value)
        except Unfit:
            raise Unfit(f"holds {shown(value)}") from None

    def check(self, name: str, value: Any, error: type[FenchelError] = InputError) -> Any:
        """The value as the rest of the package takes it.

        Args:
            name: What the user calls the argument.
            value: What was given.
            error: What to raise.

        Returns:
            The value: a Python number for a number of numpy, a ``Path`` for the name of one, and so on.

        Raises:
            FenchelError: Of the type ``error``, if the value breaks the rule: "NAME is VALUE; expected RULE."

        Example:
            >>> from fenchel.arguments import Whole
            >>> Whole(1, 100, "8").check("batch size", 0)
            Traceback (most recent call last):
            fenchel.errors.InputError: batch size is 0; expected a whole number from 1 to 100, such as 8.
        """
        try:
            return self.fit(value)
        except Unfit as reason:
            got = str(reason) or f"is {shown(value)}"
        raise error(f"{name} {got}; expected {self.expected}.")


@dataclass(frozen=True)
class Maybe(AbstractRule):
    """Another rule, or None.

    Attributes:
        rule: For what is not None.
    """

    rule: AbstractRule

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return self.rule.expected

    def fit(self, value: Any) -> Any:
        """See ``AbstractRule``."""
        return None if value is None else self.rule.fit(value)


def shown(value: Any) -> str:
    """A value in a few words on one line, however large it is.

    Example:
        >>> shown("a b"), shown(10**5000), shown([1, 2])
        ("'a b'", 'a number of 5,001 digits', '[1, 2]')
    """
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
        except Exception:  # what somebody else's class, or a number too long to be written, makes of repr
            return f"a {type(value).__name__}"
    return f"a {type(value).__name__}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def listed(value: Any, limit: int, *, hashable: bool = False) -> list[Any]:
    """What a collection holds, read no further than a limit.

    Args:
        value: Neither a string nor a mapping.
        limit: How many values there may be.
        hashable: Whether they are to be kept in a dictionary.

    Raises:
        Unfit: If it is no collection, or empty, or larger.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise Unfit
    try:
        found = list(islice(value, limit + 1))
    except TypeError:  # such as a tensor without dimensions
        raise Unfit from None
    if not found:
        raise Unfit("is empty")
    if len(found) > limit:
        raise Unfit(f"holds more than {limit:,} values")
    if hashable and any(getattr(type(one), "__hash__", None) is None for one in found):
        raise Unfit
    return found


_FLOAT32_LEAST = 2.0**-126  # below it digits are lost one by one
_FLOAT32_MOST = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True)
class Whole(AbstractRule):
    """A whole number in a range; True and False are none.

    Attributes:
        least: The smallest.
        most: The largest.
        example: One of them.
        unit: What is counted, such as "of bytes".
    """

    least: int
    most: int
    example: str
    unit: str = ""

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        unit = f" {self.unit}" if self.unit else ""
        return f"a whole number{unit} from {self.least:,} to {self.most:,}, such as {self.example}"

    def fit(self, value: Any) -> int:
        """See ``AbstractRule``."""
        # Almost every number is of this type, and the check of an abstract one takes most of the time of a call.
        if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise Unfit
        number = int(value)
        if not self.least <= number <= self.most:
            raise Unfit
        return number


@dataclass(frozen=True)
class Number(AbstractRule):
    """A finite number in a range; True and False are none.

    Attributes:
        example: One of them.
        above: All are larger.
        least: All are at least that.
        below: All are smaller.
        most: All are at most that.
        in_float32: Whether float32 has to hold it, neither as infinity nor, if it is not 0, with fewer digits.
    """

    example: str
    above: float = -math.inf
    least: float = -math.inf
    below: float = math.inf
    most: float = math.inf
    in_float32: bool = False

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        bounds = [
            f"{word} {bound:g}"
            for word, bound in (
                ("above", self.above),
                ("at least", self.least),
                ("below", self.below),
                ("at most", self.most),
            )
            if math.isfinite(bound)
        ]
        words = f"a finite number {' and '.join(bounds)}".rstrip()
        return f"{words}{' that float32 can hold' if self.in_float32 else ''}, such as {self.example}"

    def fit(self, value: Any) -> float:
        """See ``AbstractRule``."""
        number = value if type(value) is float else _as_float(value)
        # False for NaN, and for infinity where there are no bounds too; numbers of a graph have no isfinite.
        if not self.above < number < self.below:
            raise Unfit
        if not self.least <= number <= self.most:
            raise Unfit
        if self.in_float32 and number and not _FLOAT32_LEAST <= abs(number) <= _FLOAT32_MOST:
            raise Unfit
        return number


def _as_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        raise Unfit
    try:
        return float(value)
    except (OverflowError, ValueError):
        raise Unfit from None


@dataclass(frozen=True)
class NumbersFromOne(AbstractRule):
    """Whole numbers from 1, such as those of layers; given in any order, taken in order and each once.

    Attributes:
        most: The largest.
    """

    most: int

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return f"whole numbers from 1 to {self.most:,}, such as [1, 2], or None for all"

    def fit(self, value: Any) -> tuple[int, ...] | None:
        """See ``AbstractRule``."""
        if value is None:
            return None
        rule = Whole(1, self.most, "1")
        return tuple(sorted({rule.member(one) for one in listed(value, self.most)}))


_LONGEST_PATH = 4095
_LONGEST_NAME = 255


@dataclass(frozen=True)
class OneOf(AbstractRule):
    """One of a few names.

    Attributes:
        names: The names.
    """

    names: tuple[str, ...]

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return f"one of {', '.join(self.names)}"

    def fit(self, value: Any) -> str:
        """See ``AbstractRule``."""
        if not isinstance(value, str) or value not in self.names:
            raise Unfit
        return value


@dataclass(frozen=True)
class Flag(AbstractRule):
    """True or False."""

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return "True or False"

    def fit(self, value: Any) -> bool:
        """See ``AbstractRule``."""
        if not isinstance(value, bool):
            raise Unfit
        return value


@dataclass(frozen=True)
class Text(AbstractRule):
    """Words of which results can be written: neither empty nor with characters that UTF-8 has not.

    Attributes:
        what: What they are, such as "the name of a column".
    """

    what: str

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return self.what

    def fit(self, value: Any) -> str:
        """See ``AbstractRule``."""
        if not isinstance(value, str) or not value.strip():
            raise Unfit
        return _writable(value)


@dataclass(frozen=True)
class PathName(AbstractRule):
    """The name of a file or folder, whether or not it is there.

    Attributes:
        what: What it is of, such as "a folder for the results".
    """

    what: str

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return f"the path of {self.what}"

    def fit(self, value: Any) -> Path:
        """See ``AbstractRule``."""
        if not isinstance(value, str | os.PathLike):
            raise Unfit
        name = os.fspath(value)
        # Path("") is the folder where one happens to be, which nobody who wrote '' has asked for.
        if not isinstance(name, str) or not name.strip() or (isinstance(value, str) and "\0" in name):
            raise Unfit
        _writable(name)
        if len(name.encode()) > _LONGEST_PATH or any(
            len(part.encode()) > _LONGEST_NAME for part in Path(name).parts
        ):
            raise Unfit(f"is {shown(name)}, a longer name than a file can have")
        try:
            return Path(name).expanduser()
        except RuntimeError as error:
            raise Unfit(f"is {shown(name)}: {error}".rstrip(".")) from None


def _writable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unfit(f"is {shown(text)}, which is no UTF-8 and can be written into no result") from None
    if "\0" in text:
        raise Unfit(f"is {shown(text)}, which has a NUL character")
    return text


@dataclass(frozen=True)
class Device(AbstractRule):
    """A device on which tensors can be added, found out by adding two.

    Example:
        >>> Device().check("device", "meta")
        Traceback (most recent call last):
        fenchel.errors.InputError: device is 'meta', which computes nothing; expected one that computes here: cpu.
    """

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return f"one that computes here: {', '.join(_devices())}"

    def fit(self, value: Any) -> str:
        """See ``AbstractRule``."""
        import torch

        if not isinstance(value, str | torch.device):
            raise Unfit
        name = str(value)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                device = torch.device(value)
        except Exception:  # which type it is depends on the name
            raise Unfit(f"is {shown(name)}, which torch does not know") from None
        if device.type == "meta":
            raise Unfit(f"is {shown(name)}, which computes nothing")
        if device.type == "cpu" and device.index:
            raise Unfit(f"is {shown(name)}, and torch has one cpu")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                works = float(torch.ones(2, device=device).sum()) == 2.0
        except Exception as error:  # which type it is depends on the device
            if "out of memory" in str(error):
                raise
            works = False
        if not works:
            raise Unfit(f"is {shown(name)}, which is not here or not in this build of torch")
        return name


def _devices() -> list[str]:
    import torch

    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [*cuda, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


_NAMES = ("auto", "bfloat16", "float16", "float32", "float64")


@dataclass(frozen=True)
class Dtype(AbstractRule):
    """A dtype of torch that attention computes in, or its name; ``auto`` for what there is.

    Example:
        >>> import torch
        >>> Dtype().check("dtype", torch.float16)
        'float16'
        >>> Dtype().check("dtype", torch.int64)
        Traceback (most recent call last):
        fenchel.errors.InputError: dtype is torch.int64; expected one of auto, bfloat16, float16, float32, float64.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """What can be given by name."""
        return _NAMES

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return f"one of {', '.join(_NAMES)}"

    def fit(self, value: Any) -> str:
        """See ``AbstractRule``."""
        if isinstance(value, str) and value in _NAMES:
            return value
        import torch

        if not isinstance(value, str | torch.dtype):
            raise Unfit
        name = str(value).removeprefix("torch.")
        if name not in _NAMES:
            raise Unfit(f"is {value}" if isinstance(value, torch.dtype) else "")
        return name


_INT32_MOST: Final = 2**31 - 1

MOST_LAYERS: Final = 10_000  # the largest models have some hundred

ESTIMATORS: Final = ("first_order", "second_order", "exact")
"""Estimators that attention can take, by name."""

_POSITIVE: Final[Mapping[str, Any]] = {"above": 0.0, "in_float32": True}
_SHARE: Final[Mapping[str, Any]] = {"least": 0.0, "below": 1.0}
_COUNT: Final = 10**9  # of tokens, images or pairs that are read one after the other

ARGUMENTS: Final[Mapping[str, AbstractRule]] = {
    # The problem. α and γ end in tensors, as factors and as divisors.
    "alpha": Number("1", **_POSITIVE),
    "scale": Number("0.125", in_float32=True),
    "radius": Number("1", **_POSITIVE),
    "momentum": Number("0.9", **_SHARE),
    "positive": Number("1", **_POSITIVE),  # widths, sharpnesses and powers of preferences and evidence
    "gamma": Maybe(Number("16", **_POSITIVE)),
    "order": Number("1.5", least=1.0, most=2.0),
    "relative": OneOf(("bregman", "csiszar")),
    "temperature": Number("1", **_POSITIVE),
    "modulus": Number("1", **_POSITIVE),
    "tol": Number("1e-4", above=0.0, below=1.0),
    "max_steps": Whole(1, 10**6, "100"),
    # Of a problem, which can be estimated without a step, to see how good the start is.
    "solver_steps": Whole(0, 10**7, "50"),
    "estimator": OneOf(ESTIMATORS),
    "reach": Maybe(Whole(0, 2**24, "128")),  # of a window, to one side
    "entries": Whole(1, 2**50, "4194304"),
    "size": Whole(1, 2**24, "8"),  # of a layer: more than any is wide, heads or positions
    # A pebibyte: more than any machine has, and still exact in float64.
    "memory_budget": Whole(1, 2**50, "536870912 (512 MB)", "of bytes"),
    # What torch, numpy and Python's random numbers all take.
    "count": Whole(1, _COUNT, "100"),
    "seed": Whole(0, _INT32_MOST, "0"),
    # Texts. A batch of a million windows is beyond every memory.
    "batch_size": Whole(1, 10**6, "8"),
    "max_length": Maybe(Whole(1, 10**7, "512")),
    "stride": Maybe(Whole(1, 10**7, "256")),
    "max_tokens": Maybe(Whole(1, 10**15, "100000")),
    "heads": NumbersFromOne(MOST_LAYERS),
    "model_name": PathName("a folder, or a name on the hub such as bert-base-uncased"),
    "loader": Maybe(PathName("a Python file with a function load(folder)")),
    "text": PathName("a file, or the name of a data set"),
    "images": PathName("a folder of images"),
    "pairs": PathName("a file of scored pairs"),
    "text_column": Maybe(Text("the name of a column, such as text")),
    "target_column": Maybe(Text("the name of a column, such as summary")),
    "column": Text("the name of a column, such as sentence_A"),
    "dtype": Dtype(),
    "figure": OneOf(("figure4", "figure5", "figures6-8")),
    # A rank correlation needs three pairs.
    "sample_pairs": Whole(3, 10**7, "10000"),
    "dropout": Number("0.2", **_SHARE),
    "width": Whole(1, 2**16, "256"),
    "head_count": Whole(1, 2**16, "8"),
    # Files and machines. Thirty years between savings are never.
    "directory": Maybe(PathName("a folder for the results")),
    "folder": PathName("a folder for the results"),
    "audit_folder": PathName("the folder of an audit"),
    "checkpoint_seconds": Number("60", least=0.0, most=1e9),
    "device": Maybe(Device()),
    "overwrite": Flag(),
}
"""Every argument that Python and the command line share, by the name that Python has for it."""


def checked(
    argument: str, value: Any, *, name: str | None = None, error: type[FenchelError] = InputError
) -> Any:
    """A value by the table's rule for an argument.

    Args:
        argument: A name in ``ARGUMENTS``.
        value: What was given.
        name: What to call it. Default: the argument with spaces for underscores, which is what it is called in Python
            and on the command line but for the signs between its words.
        error: What to raise.

    Returns:
        The value as the rest of the package takes it, such as an int for an integer of numpy.

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
