"""Whatever is called wrongly says so in one line that names the argument, in the words of this package."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fenchel
from fenchel import nn
from fenchel.errors import FenchelError, InputError
from fenchel.nn import preference
from fenchel.swap import swap
from tests.auditing.small_audits import small_model, some_texts
from tests.io.test_windows import word_tokenizer
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
        target.call(**{**target.rightly, **changes})
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
    target.call(**target.rightly)
    failures = [
        f"{argument} {kind}: {found}"
        for argument, makers in target.wrongly.items()
        for kind, make in makers.items()
        if (found := outcome(target, argument, make())) is not None
    ]
    assert failures == []


def test_thousands_of_wrong_calls_are_made() -> None:
    assert sum(len(makers) for target in TARGETS for makers in target.wrongly.values()) > 2500


class NotSetUp(preference.AbstractPreference):
    def __init__(self) -> None:
        self.period = 2


ATTEND: Any = nn.MultiheadAttention
TOKENS = torch.zeros(2, 5, 16)
SAID: dict[str, Callable[[], Any]] = {
    "estimator is the class Exact, not an object Exact(...)": lambda: ATTEND(16, 4, estimator=fenchel.Exact),
    "closeness is the class Tsallis, not an object": lambda: ATTEND(16, 4, closeness=fenchel.Tsallis),
    "preference is a NotSetUp that is not set up": lambda: ATTEND(16, 4, preference=NotSetUp()),
    "is a NotSetUp that is not set up": lambda: NotSetUp() ** 2.0,
    "low and high are numbers, which do not determine": lambda: fenchel.Box(0, 1),
    "has attention layer 1": lambda: nn.use_estimator(ATTEND(16, 4), "exact", layers=[2]).__enter__(),
    "expected (height, width) with height · width = 5": lambda: nn.ContinuousAttention(16, 4, dimensions=2)(
        TOKENS, grid=(2, 2)
    ),
    "max_keys=3, but the last position, counted from 1, is 5": lambda: ATTEND(
        16, 4, batch_first=True, preference=preference.LearnedBias(4, 3, 3)
    )(TOKENS[:, :3], TOKENS, TOKENS, query_offset=0),
}


@pytest.mark.parametrize("said", SAID)
def test_a_message_says_what_to_write(said: str) -> None:
    with pytest.raises(FenchelError, match=re.escape(said)):
        SAID[said]()


ANYTHING: list[Any] = [
    5, 1.5, object(), b"x", torch.zeros(2), torch.nn.Linear(2, 2), int, lambda: 0, float("nan"), 10**5000, "\ud800",
    (1, 2, 3), [None], [1], [[]], {"a": 1},
]  # fmt: skip
MODEL, TOKENIZER, TEXTS = small_model(), word_tokenizer(), some_texts()


def audit(**given: Any) -> Any:
    return fenchel.audit(**{"model": MODEL, "tokenizer": TOKENIZER, "texts": TEXTS, **given})


def swapped(**given: Any) -> Any:
    return swap(**{"model": MODEL, "tokenizer": TOKENIZER, "texts": TEXTS, **given})


BOTH = "model tokenizer texts loader observer resume overwrite directory device"
DOORS: list[tuple[Callable[..., Any], str]] = [
    *((audit, name) for name in f"{BOTH} shard dtype revision keep_queries".split()),
    *((swapped, name) for name in f"{BOTH} pairs columns per_layer estimators".split()),
]


@pytest.mark.parametrize(("door", "name"), DOORS, ids=lambda part: getattr(part, "__name__", part))
def test_anything_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FENCHEL_DATA", raising=False)
    for value in ANYTHING:
        with pytest.raises(FenchelError) as caught:
            door(**{name: value})
        assert len(str(caught.value)) < 1000
    assert list(tmp_path.iterdir()) == []


IDS: list[tuple[Any, str]] = [
    ({"input_ids": torch.tensor([[1, 999]])}, "token id 999 is out of range; expected 0 to 63"),
    ({"input_ids": torch.tensor([[1, -1]])}, "token id -1 is out of range"),
    ({"input_ids": torch.rand(1, 4)}, "model input 1 has input_ids of shape"),
    ({"input_ids": torch.tensor([1, 2])}, r"\(batch, tokens\), at least one token\. For .*unsqueeze"),
    ({"input_ids": torch.zeros(1, 0).long()}, "at least one token"),
]


@pytest.mark.parametrize(("inputs", "message"), IDS, ids=[message for _, message in IDS])
def test_model_inputs_that_no_model_takes(inputs, message):
    with pytest.raises(InputError, match=message):
        audit(tokenizer=None, texts=[inputs])


def test_what_a_generator_raises_is_the_callers():
    def texts() -> Any:
        yield "w1 w2"
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        audit(texts=texts())
