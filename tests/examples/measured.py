"""Audits and swaps of runs of the examples, through their loaders."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets

import fenchel
import reading
from fenchel.swap import swap

WHOLE = reading.toy


@cache
def few_toys(name: str) -> datasets.DatasetDict:
    """A tenth of the toy data for reading."""
    return datasets.DatasetDict({split: rows.take(len(rows) // 10) for split, rows in WHOLE(name).items()})


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
