"""The one table of arguments: what each may be, for Python and for the command line alike, and why.

Ranges are wider than anybody's need and narrower than what makes memory or time run out before an error is seen. A
number that ends in a tensor has to be one in float32, in which most of them compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fenchel.arguments.device import Device
from fenchel.arguments.dtype import Dtype
from fenchel.arguments.name import Flag, OneOf, PathName, SomeOf, Text
from fenchel.arguments.number import Number, Numbers, NumbersFromOne, Whole
from fenchel.arguments.part import Having
from fenchel.arguments.rule import AbstractRule, Maybe
from fenchel.errors import FenchelError, InputError

__all__ = ["ARGUMENTS", "ESTIMATORS", "MOST_LAYERS", "checked"]

_INT32_MOST: Final = 2**31 - 1

MOST_LAYERS: Final = 10_000
"""The largest number of a layer or head that can be asked for; the largest models have some hundred."""

ESTIMATORS: Final = ("first_order", "second_order", "exact")
"""Estimators that attention can take, by name."""

_POSITIVE: Final[Mapping[str, Any]] = {"above": 0.0, "in_float32": True}
_SHARE: Final[Mapping[str, Any]] = {"least": 0.0, "below": 1.0}
_COUNT: Final = 10**9  # of tokens, images or pairs that are read one after the other

ARGUMENTS: Final[Mapping[str, AbstractRule]] = {
    # The problem. α and γ end in tensors, as factors and as divisors.
    "alpha": Number("1", **_POSITIVE),
    "alphas": Numbers(Number("0.8", **_POSITIVE), "0.5, 0.8, 1.2"),
    "scale": Number("0.125", in_float32=True),
    "radius": Number("1", **_POSITIVE),
    "momentum": Number("0.9", **_SHARE),
    "positive": Number("1", **_POSITIVE),  # widths, sharpnesses and powers of preferences and evidence
    "gamma": Maybe(Number("16", **_POSITIVE)),
    "order": Number("1.5", least=1.0, most=2.0),
    "relative": OneOf(("bregman", "csiszar")),
    "temperature": Number("1", **_POSITIVE),
    "tol": Number("1e-4", above=0.0, below=1.0),
    "max_steps": Whole(1, 10**6, "100"),
    # Of a problem, which can be estimated without a step, to see how good the start is.
    "solver_steps": Whole(0, 10**7, "50"),
    "coordinates": OneOf(("auto", "gram", "template")),
    "estimator": OneOf(ESTIMATORS),
    "reach": Maybe(Whole(0, 2**24, "128")),  # of a window, to one side
    "entries": Whole(1, 2**50, "4194304"),
    "size": Whole(1, 2**24, "8"),  # of a layer: more than any is wide, heads or positions
    "estimators": SomeOf(("second_order", "exact")),
    "space": Maybe(OneOf(("input", "key"))),
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
    "queries": Maybe(Whole(1, _COUNT, "32")),
    "layers": NumbersFromOne(MOST_LAYERS),
    "heads": NumbersFromOne(MOST_LAYERS),
    "model_name": PathName("a folder, or a name on the hub such as bert-base-uncased"),
    "loader": Maybe(PathName("a Python file with a function load(folder)")),
    "text": PathName("a file, or the name of a data set"),
    "images": PathName("a folder of images"),
    "pairs": PathName("a file of scored pairs"),
    "text_column": Maybe(Text("the name of a column, such as text")),
    "target_column": Maybe(Text("the name of a column, such as summary")),
    "column": Text("the name of a column, such as sentence_A"),
    "baseline": Maybe(OneOf(("auto", "twin", "none"))),
    "revision": Maybe(Text("a branch, tag or commit, such as main")),
    "dtype": Dtype(),
    "figure": OneOf(("figure4", "figure5", "figures6-8")),
    # Swaps. A rank correlation needs three pairs; beyond 100,000 resamples an interval's digits change no more.
    "bootstrap": Whole(100, 100_000, "2000", "of resamples"),
    "max_pairs": Maybe(Whole(3, _COUNT, "1000")),
    "sample_pairs": Whole(3, 10**7, "10000"),
    "mask_probability": Number("0.15", above=0.0, below=1.0),
    "dropout": Number("0.2", **_SHARE),
    "width": Whole(1, 2**16, "256"),
    "head_count": Whole(1, 2**16, "8"),
    # Files and machines. Thirty years between savings are never.
    "directory": Maybe(PathName("a folder for the results")),
    "folder": PathName("a folder for the results"),
    "audit_folder": PathName("the folder of an audit"),
    "checkpoint_seconds": Number("60", least=0.0, most=1e9),
    "device": Maybe(Device()),
    "observer": Maybe(
        Having(("started", "advanced", "finished"), "an object with the methods started, advanced, finished")
    ),
    "resume": Flag(),
    "overwrite": Flag(),
    "keep_queries": Flag(),
    "even_so": Flag(),
    "whole_file": Flag(),
    "per_layer": Flag(),
    "per_head": Flag(),
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
