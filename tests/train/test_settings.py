"""What ``--set KEY=VALUE`` takes: the options of a model, as their documentation names them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fenchel.errors import InputError
from fenchel.train import LoopOptions
from fenchel.train.settings import parsed_settings, settings_of


@dataclass(frozen=True, kw_only=True)
class Own(LoopOptions):
    """Options of a model.

    Attributes:
        depth: How many layers,
            as many as wanted.
        tied: Whether weights are shared.
        open: Whether it is; None where nobody knows.
        rate: A share; None for all.

    Raises:
        InputError: Never.
    """

    depth: int = 2
    tied: bool = True
    open: bool | None = None
    rate: float | None = None
    word: str | None = "a"


def test_they_are_documented_and_read_as_what_they_are():
    known = settings_of(Own, without=list(settings_of(LoopOptions)))
    assert list(known) == ["depth", "tied", "open", "rate", "word"]
    assert known["depth"].help == "How many layers, as many as wanted.  [default: 2]"
    assert known["tied"].help == "Whether weights are shared.  [default: yes]"
    assert known["open"].help.endswith("nobody knows.  [default: none]")
    assert known["rate"].help.endswith("[default: none]")
    written = ["depth=3", "tied=no", "rate=0.5", "word=none", "depth=4", "open=yes"]
    assert parsed_settings(written, known) == {
        "depth": 4,
        "tied": False,
        "rate": 0.5,
        "word": None,
        "open": True,
    }
    assert parsed_settings(["word=a=b", "rate=none"], known) == {"word": "a=b", "rate": None}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("depth", "expected KEY=VALUE"),
        ("width=3", "with a KEY of depth, tied"),
        ("depth=2.5", "--set depth is '2.5'; expected a whole number"),
        ("depth=none", "expected a whole number"),
        ("rate=much", "expected a number"),
        ("tied=1", "expected yes or no"),
        ("", "expected KEY=VALUE"),
    ],
)
def test_what_is_none_is_refused(written, said):
    known = settings_of(Own, without=list(settings_of(LoopOptions)))
    with pytest.raises(InputError, match=said):
        parsed_settings([written], known)


def test_a_model_without_options_of_its_own_says_so():
    with pytest.raises(InputError, match="no other options"):
        parsed_settings(["depth=1"], {})
