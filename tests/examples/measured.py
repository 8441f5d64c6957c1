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


def check_run(script: ModuleType, run: Path, kinds: list[str], **options: Any) -> dict[str, Tensor]:
    """Losses and scores of a run's examples, of which no document is left out, as audits and swaps read them.

    A swap measures the mean of the losses, and exact inference changes what the run says.
    """
    model, batches = script.load(run)
    assert not model.training
    with torch.no_grad():
        said = [(batch, model(**batch["inputs"])) for batch in batches]
    measures = [name for name in ("loss", "score") if name in batches[0]]
    found = {name: torch.cat([batch[name](output) for batch, output in said]).double() for name in measures}
    if "score" in found:
        assert 0 <= float(found["score"].min()) <= float(found["score"].max()) <= 1
    documents = [one for batch in batches for one in batch["documents"]]
    assert sorted({*documents}) == [*range(1, max(documents) + 1)]
    assert {len(values) for values in found.values()} == {len(documents)}
    assert [head["kind"] for head in audited(script, run, **options)] == kinds
    options = {"estimators": ("exact",), "alphas": (0.5,), "bootstrap": 100}
    report = swap(str(run), loader=script.__file__, **options)
    assert abs(report.condition("model")["loss"] - float(found["loss"].mean())) < 1e-4
    assert report.condition("exact")["hidden_change"] > 1e-6
    return found
