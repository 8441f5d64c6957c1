"""What tests of several examples do: train, write data, audit and swap a run, and see that something is refused."""

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import pytest
import torch
from torch import Tensor

import common
import fenchel
import reading
from fenchel.errors import InputError
from fenchel.swap import swap

WHOLE = reading.toy


class KilledError(Exception):
    """In the place of a signal."""


@cache
def few_toys(name: str) -> datasets.DatasetDict:
    """A tenth of the toy data for reading."""
    return datasets.DatasetDict({split: rows.take(len(rows) // 10) for split, rows in WHOLE(name).items()})


def trained(task: Any, options: Any, out: Path, **told: Any) -> dict[str, Any]:
    """The metrics of a training in a folder."""
    return common.Training(task, options(**{"out": str(out), "quiet": True, **told})).run()


def parquet(folder: Path, split: str = "train", **columns: Any) -> str:
    """A folder with a split of a data set."""
    folder.mkdir(exist_ok=True)
    datasets.Dataset.from_dict(columns).to_parquet(str(folder / f"{split}.parquet"))
    return str(folder)


def refuses(make: Callable[..., Any], cases: Iterable[tuple[dict[str, Any], str]]) -> None:
    """Each case is refused in a line that says this."""
    for told, said in cases:
        with pytest.raises(InputError, match=said):
            make(**told)


def one_by_one(model: Any, read: Tensor, words: Tensor) -> Tensor:
    """The scores of words that a model says one after another, of which each knows those before it."""
    state, found = model.read(read), []
    for place in range(words.shape[1]):
        scores, state = model.step(words[:, : place + 1], state)
        found.append(scores)
    return torch.stack(found, 1)


def audited(script: ModuleType, run: Path, **options: Any) -> list[Any]:
    """The heads of an audit of a run."""
    report: Any = fenchel.audit(str(run), loader=script.__file__, max_tokens=300, **options)
    return report.heads


def check_swap(script: ModuleType, run: Path, loss: float) -> None:
    """Exact inference changes what a run says, whose loss a swap measures as the mean of its examples'."""
    options: Any = {"estimators": ("exact",), "alphas": (0.5,), "bootstrap": 100}
    report = swap(str(run), loader=script.__file__, **options)
    assert abs(report.arm("model")["loss"] - loss) < 1e-4
    assert report.arm("exact")["hidden_change"] > 1e-6
