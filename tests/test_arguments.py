"""The table of arguments: what is refused, in which words, and what becomes of what is taken."""

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
from fenchel.run_options import AuditOptions, ReproduceOptions, SwapOptions, declared

ARGUMENTS = dict(SHARED) | {
    option.name: option.rule
    for model in (ReproduceOptions, AuditOptions, SwapOptions)
    for option in declared(model).values()
    if option.name not in ("closeness", "shard", "columns", "tol", "model", *SHARED)
}
HUGE = 10**5000
WORTHLESS = [float("nan"), math.inf, -math.inf, HUGE, -HUGE, "", "many", "\udcff", b"1", object(), [], {}, 1j]
WORDS = {
    "text_column", "target_column", "label_column", "column", "revision", "directory", "folder", "audit_folder",
    "images", "text", "pairs", "loader", "model_name",
}  # fmt: skip
NUMBERS = sorted(name for name, rule in ARGUMENTS.items() if rule.kind in (int, float))


def checked(name: str, value: object, called: str = "", error: type[FenchelError] = InputError) -> Any:
    return ARGUMENTS[name].check(called or name.replace("_", " "), value, error)


NO_NUMBERS = [*WORTHLESS, True, False, -(10**50), 10**60, "1", [1], 2**200 + 0.5]
NOTHING = [float("nan"), HUGE, "", "many", "\udcff", b"1", object(), 1j, {}, [[]]]
NO_WORDS = ["", " ", "a\0b", "\ud800", 3, b"a", ["a"]]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_no_argument_takes_what_is_of_another_kind_or_out_of_every_range(name):
    for value in NO_NUMBERS if name in NUMBERS else NO_WORDS if name in WORDS else NOTHING:
        with pytest.raises(InputError, match=rf"^{name.replace('_', ' ')} .*; expected ") as caught:
            checked(name, value)
        assert len(str(caught.value)) < 300


MORE: list[tuple[str, Any]] = [
    *(("alpha", value) for value in (1e39, 1e-39)), ("seed", 2**70), ("heads", 1), ("checkpoint_seconds", -1),
    *(("layers", value) for value in ("all", range(1, 10**10), [1, True])), ("alphas", [0.5, "1"]),
    ("estimators", ["exact", "best"]), *(("device", value) for value in ("meta", "cpu:1", "xla", "cuda:99", 0)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), MORE, ids=shown)
def test_what_is_of_the_right_kind_may_be_out_of_range(name, value):
    with pytest.raises(InputError, match=rf"^{name.replace('_', ' ')} ") as caught:
        checked(name, value)
    assert len(str(caught.value)) < 300


TAKEN: list[tuple[str, Any, Any]] = [
    *(("alpha", value, 0.25) for value in (np.float32(0.25), Fraction(1, 4), Decimal("0.25"))),
    ("alpha", np.int64(2), 2.0), ("scale", -1, -1.0), ("dropout", 0, 0.0), ("batch_size", np.int32(8), 8),
    *((name, None, None) for name in ("max_tokens", "heads")), ("heads", range(1, 4), (1, 2, 3)),
    ("layers", {3, 1}, (1, 3)), ("layers", np.array([2, 2]), (2,)), ("layers", [MOST_LAYERS], (MOST_LAYERS,)),
    ("alphas", (1, 0.5, 1), (0.5, 1.0)), ("device", torch.device("cpu"), "cpu"), ("device", "cpu:0", "cpu:0"),
    ("directory", Path("a"), Path("a")), ("directory", "~/a", Path.home() / "a"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "taken"), TAKEN)
def test_what_is_taken_is_as_the_rest_of_the_package_takes_it(name, value, taken):
    found = checked(name, value)
    assert found == taken
    assert type(found) is type(taken)


def test_examples_in_the_words_are_in_range_and_the_caller_chooses_name_and_error():
    with pytest.raises(ProblemError, match=r"^γ is 0; expected a finite number above 0"):
        checked("gamma", 0, called="γ", error=ProblemError)
    for name in NUMBERS:
        example = ARGUMENTS[name].expected.rpartition("such as ")[2].split(" ")[0]
        checked(name, float(example) if "." in example or "e" in example else int(example))


def test_a_name_of_the_command_line_is_answered_with_that_of_python():
    with pytest.raises(TypeError, match=r"there is no option 'out'; expected 'directory'\.$"):
        AuditOptions.checked(out="audit")
    with pytest.raises(TypeError, match=r"there is no option 'text'; expected 'texts'\.$"):
        fenchel.audit("demo", text="demo")
    with pytest.raises(TypeError, match="there is no option 'outt'; expected one of whole_file, "):
        AuditOptions.checked(outt="audit")
