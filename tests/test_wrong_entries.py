"""``audit`` and ``swap`` called with anything: refused in one line, before anything is made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fenchel
from fenchel.arguments import shown
from fenchel.errors import FenchelError, InputError
from fenchel.swap import swap
from tests.auditing.small_audits import small_model, some_texts
from tests.io.test_windows import word_tokenizer

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


@pytest.mark.parametrize("value", ANYTHING, ids=lambda value: ascii(shown(value)))
@pytest.mark.parametrize(("door", "name"), DOORS, ids=lambda part: getattr(part, "__name__", part))
def test_anything_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door, name, value):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FENCHEL_DATA", raising=False)
    with pytest.raises(FenchelError) as caught:
        door(**{name: value})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert list(tmp_path.iterdir()) == []


IDS: list[tuple[dict[str, Any], str]] = [
    ({"input_ids": torch.tensor([[1, 999]])}, "there is a token 999, and the model knows the tokens 0 to 63"),
    ({"input_ids": torch.tensor([[1, -1]])}, "there is a token -1"),
    ({"input_ids": torch.rand(1, 4)}, "model input 1 has input_ids of shape"),
    ({"input_ids": torch.tensor([1, 2])}, "has no batch dimension; expected \\(batch, tokens\\)"),
    ({"input_ids": torch.zeros(1, 0).long()}, "of one token at least"),
    ({"input_ids": "w1"}, "not a mapping of names to tensors"),
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
