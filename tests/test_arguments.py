"""The table of arguments: what is refused, in which words, and what becomes of what is taken."""

from __future__ import annotations

import inspect
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fenchel
from fenchel.arguments import ARGUMENTS as SHARED
from fenchel.arguments import MOST_LAYERS, shown
from fenchel.errors import FenchelError, InputError, ProblemError
from fenchel.options import AuditOptions, ReproduceOptions, SwapOptions, declared
from fenchel.swap import swap

ARGUMENTS = dict(SHARED) | {
    option.name: option.rule
    for model in (ReproduceOptions, AuditOptions, SwapOptions)
    for option in declared(model)
    if option.name not in ("closeness", "shard", "columns", "tol", "model", *SHARED)
}
HUGE = 10**5000
WORTHLESS = [float("nan"), math.inf, -math.inf, HUGE, -HUGE, "", "many", "\udcff", b"1", object(), [], {}, 1j]
WORDS = {"text_column", "target_column", "label_column", "column", "revision"}
NUMBERS = sorted(name for name, rule in ARGUMENTS.items() if rule.kind in (int, float))


def checked(
    name: str, value: object, *, called: str | None = None, error: type[FenchelError] = InputError
) -> Any:
    return ARGUMENTS[name].check(called or name.replace("_", " "), value, error)


def test_templates_may_be_turned_round_by_their_scale():
    assert checked("scale", -1) == -1.0


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "value", [*WORTHLESS, True, False, -(10**50), 10**60, "1", [1], 2**200 + 0.5], ids=shown
)
def test_no_number_takes_what_is_no_number_or_out_of_every_range(name, value):
    with pytest.raises(InputError, match=rf"^{name.replace('_', ' ')} .*; expected ") as caught:
        checked(name, value)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    sorted(
        set(ARGUMENTS)
        - set(NUMBERS)
        - WORDS
        - {"directory", "folder", "audit_folder", "images", "text", "pairs", "loader", "model_name"}
    ),
)
@pytest.mark.parametrize(
    "value", [float("nan"), HUGE, "", "many", "\udcff", b"1", object(), 1j, {}, [[]]], ids=shown
)
def test_nothing_else_takes_them_either(name, value):
    with pytest.raises(InputError, match=rf"^{name.replace('_', ' ')} .*; expected ") as caught:
        checked(name, value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    sorted(
        WORDS | {"directory", "folder", "audit_folder", "images", "text", "pairs", "loader", "model_name"}
    ),
)
@pytest.mark.parametrize("value", ["", " ", "a\0b", "\ud800", 3, b"a", ["a"]], ids=shown)
def test_names_are_words_that_a_result_can_hold(name, value):
    with pytest.raises(InputError, match=rf"^{name.replace('_', ' ')} is .*; expected "):
        checked(name, value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "alpha",
            1e39,
            r"alpha is 1e\+39; expected a finite number above 0 that float32 can hold, such as 1\.",
        ),
        ("alpha", 1e-39, "alpha is 1e-39; expected a finite number above 0 that float32 can hold"),
        ("seed", 2**70, r"seed is a number of 22 digits; expected a whole number from 0 to 2,147,483,647"),
        (
            "batch_size",
            HUGE,
            r"batch size is a number of 5,001 digits; expected a whole number from 1 to 1,000,000",
        ),
        (
            "heads",
            1,
            r"heads is 1; expected whole numbers from 1 to 10,000, such as \[1, 2\], or None for all",
        ),
        ("layers", "all", "layers is 'all'; expected whole numbers from 1"),
        ("layers", range(1, 10**10), "layers holds more than 10,000 values"),
        ("layers", [1, True], "layers holds True"),
        ("alphas", [0.5, "1"], "alphas holds '1'; expected 1 to 1,000 numbers above 0"),
        ("estimators", ["exact", "best"], "estimators names 'best'; expected some of second_order, exact"),
        (
            "device",
            "meta",
            "device is 'meta', which computes nothing; expected one that computes here: .*cpu",
        ),
        ("device", "cpu:1", "device is 'cpu:1', and torch has one cpu"),
        ("device", "xla", "device is 'xla', which is not here or not in this build of torch"),
        ("device", "cuda:99", "device is 'cuda:99', which is not here"),
        ("device", 0, "device is 0; expected one that computes here"),
        ("directory", "", "directory is ''; expected the path of a folder for the results"),
        ("checkpoint_seconds", -1, "checkpoint seconds is -1; expected a finite number at least 0"),
    ],
    ids=shown,
)
def test_messages(name, value, message):
    with pytest.raises(InputError, match=f"^{message}"):
        checked(name, value)


def test_the_caller_chooses_name_and_error():
    with pytest.raises(ProblemError, match=r"^γ is 0; expected a finite number above 0"):
        checked("gamma", 0, called="γ", error=ProblemError)


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("alpha", np.float32(0.5), 0.5),
        ("alpha", np.int64(2), 2.0),
        ("alpha", Fraction(1, 4), 0.25),
        ("alpha", Decimal("0.125"), 0.125),
        ("batch_size", np.int32(8), 8),
        ("max_tokens", None, None),
        ("layers", {3, 1}, (1, 3)),
        ("layers", np.array([2, 2]), (2,)),
        ("heads", range(1, 4), (1, 2, 3)),
        ("heads", None, None),
        ("layers", [MOST_LAYERS], (MOST_LAYERS,)),
        ("alphas", (1, 0.5), (1.0, 0.5)),
        ("device", torch.device("cpu"), "cpu"),
        ("device", "cpu:0", "cpu:0"),
        ("directory", Path("a"), Path("a")),
        ("directory", "~/a", Path.home() / "a"),
        ("dropout", 0, 0.0),
    ],
)
def test_what_is_taken_is_as_the_rest_of_the_package_takes_it(name, value, taken):
    found = checked(name, value)
    assert found == taken
    assert type(found) is type(taken)


@pytest.mark.parametrize("function", [fenchel.audit, swap])
def test_defaults_are_in_range(function):
    checked_here = 0
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is inspect.Parameter.empty or name not in ARGUMENTS:
            continue
        if parameter.default is not None:
            checked(name, parameter.default)
            checked_here += 1
    assert checked_here > 0


def test_examples_in_the_words_are_in_range():
    for name in NUMBERS:
        example = ARGUMENTS[name].expected.rpartition("such as ")[2].split(" ")[0]
        checked(name, float(example) if "." in example or "e" in example else int(example))
