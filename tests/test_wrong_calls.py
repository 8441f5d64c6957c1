"""Whatever is called wrongly says so in one line that names the argument, in the words of this package."""

from typing import Any

import pytest

from fenchel.errors import FenchelError
from tests.wrong_calls import layers, ops, preferences, problems
from tests.wrong_calls.values import Target, Together

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore::fenchel.errors.CostWarning"),
]

TARGETS = [*problems.TARGETS, *ops.TARGETS, *layers.TARGETS, *preferences.TARGETS]


def outcome(target: Target, argument: str, value: Any) -> str | None:
    """What is wrong with how a wrong value is met, or None."""
    changes = value if isinstance(value, Together) else {argument: value}
    try:
        target.call(**{**target.rightly(), **changes})
    except FenchelError as error:
        said = str(error)
        if not isinstance(error, target.error):
            return f"{type(error).__name__} {said}"
        return said if "\n" in said or argument not in said or len(said) > 700 else None
    except Exception as error:
        return f"{type(error).__name__} {error}"[:200]
    return "accepted"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_refused_in_one_line_that_names_the_argument(target: Target) -> None:
    target.call(**target.rightly())
    failures = [
        f"{argument} {kind}: {found}"
        for argument, makers in target.wrongly.items()
        for kind, make in makers.items()
        if (found := outcome(target, argument, make())) is not None
    ]
    assert failures == []


def test_thousands_of_wrong_calls_are_made() -> None:
    assert sum(len(makers) for target in TARGETS for makers in target.wrongly.values()) > 2500


def test_a_value_that_is_taken_or_refused_in_other_words_is_found() -> None:
    def call(size: int) -> None:
        if size < 0:
            raise ValueError("size is negative")

    target = Target("call", call, dict, {})
    assert outcome(target, "size", 3) == "accepted"
    assert outcome(target, "size", -3) == "ValueError size is negative"
