"""Audits that take a second: a tiny random model, a tokenizer with a token a word, and texts to read."""

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from polars import selectors
from torch import Tensor

from fenchel.arguments import Kind
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.run import audit
from fenchel.auditing.statistics import AuditStatistics
from fenchel.auditing.table import schema
from fenchel.auditing.weight_moves import MOVE_COLUMNS
from fenchel.io.runs import Progress, ProgressClock
from fenchel.io.storage import ParquetTable
from tests.io.test_windows import word_tokenizer
from tests.tiny_models import tiny_model

WORDS_KNOWN = 60

PLACE = ("kind", "layer", "head", "document", "window", "position")
"""The columns of the table that say which query a row is."""


def small_model(family: str = "bert") -> Any:
    """A tiny model whose vocabulary is that of ``word_tokenizer``."""
    return tiny_model(family, vocab_size=WORDS_KNOWN + 4)


def some_texts(count: int = 7, seed: int = 0) -> list[str]:
    """Documents of 1 to 30 words."""
    draw = random.Random(seed)  # noqa: S311
    return [
        " ".join(f"w{draw.randrange(WORDS_KNOWN)}" for _ in range(draw.randint(1, 30))) for _ in range(count)
    ]


def small_audit(texts: Any = None, *, model: Any = None, **options: Any) -> AuditReport:
    """``audit`` of a tiny BERT, without its twin."""
    given = {"max_length": 12, "stride": 8, "batch_size": 2, "baseline": "none", **options}
    return audit(model or small_model(), word_tokenizer(), texts or some_texts(), **given)


@contextmanager
def still_clock() -> Iterator[None]:
    """No time passes, so that two runs leave the same bytes."""
    with pytest.MonkeyPatch.context() as patched:
        for place in ("fenchel.auditing.run", "fenchel.swap.run"):
            patched.setattr(f"{place}.ProgressClock", partial(ProgressClock, now=lambda: 0.0))
        yield


def known_statistics(
    sites: Iterable[tuple[Kind, int, Sequence[int], Mapping[str, Tensor]]],
    words: dict[int, str] | None = None,
    *,
    in_a_document: int = 40,
) -> AuditStatistics:
    """Statistics of layers whose queries are known."""
    import polars as pl

    table = ParquetTable.temporary()
    for kind, layer, heads, columns in sites:
        several, count = next(iter(columns.values())).shape
        place = torch.arange(count).repeat(several)
        known: dict[str, Any] = {
            "kind": kind,
            "layer": layer,
            "head": torch.tensor(list(heads)).repeat_interleave(count).numpy(),
            "document": (1 + place // in_a_document).numpy(),
            "window": 1,
            "position": (1 + place % in_a_document).numpy(),
            "type": "word",
            "class": "rest",
            "weight": 1.0,
            "newton_steps": 3,
            "converged": True,
            **{name: values.flatten().numpy() for name, values in columns.items()},
        }
        typed = schema()
        empty = dict.fromkeys((*MOVE_COLUMNS, "token", "text", "leaves_token", "reaches_token"))
        frame = pl.DataFrame({name: known.get(name, empty.get(name, 0)) for name in typed})
        table.add([frame.with_columns(*(pl.col(name).cast(kind) for name, kind in typed.items()))])
    table.write()
    return AuditStatistics(table, words)


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """Every query of an audit, ordered by its place."""
    return AuditReport.load(directory).queries.sort(*PLACE).collect().to_dicts()


def assert_same_audit(one: Path, other: Path) -> None:
    """See that two folders hold the same rows, and files with the same numbers."""
    left, right = AuditReport.load(one), AuditReport.load(other)
    rows = [report.queries.sort(*PLACE).collect() for report in (left, right)]
    real = selectors.float()
    assert rows[0].drop(real).equals(rows[1].drop(real))
    np.testing.assert_allclose(*(each.select(real).to_numpy() for each in rows), rtol=1e-6, atol=1e-12)
    timed = {"seconds": 0, "estimated_seconds": 0}
    assert left.manifest | timed == right.manifest | timed
    assert_close(list(numbers_of(left)), list(numbers_of(right)))
    assert_close(left.twin_heads, right.twin_heads)
    assert_close(left.summary, right.summary)
    names = [{name for name in files_of(folder) if "/" not in name} for folder in (one, other)]
    assert names[0] == names[1]


def assert_close(one: Any, other: Any) -> None:
    """The same but for the order in which numbers were added."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_close(one[name], other[name])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_close(left, right)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-12, nan_ok=True)
    else:
        assert one == other


def files_of(directory: Path) -> dict[str, str]:
    """Name and hash of every file in a folder and below it."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


class Interrupting:
    """An observer that raises after some batches."""

    def __init__(self, after: int, error: BaseException) -> None:
        self.after = after
        self.error = error
        self.seen: list[Progress] = []
        self.calls: list[str] = []

    def started(self, manifest: Any) -> None:
        self.calls.append(f"started {manifest['model']}")

    def advanced(self, progress: Progress) -> None:
        self.seen.append(progress)
        if len(self.seen) == self.after:
            raise self.error

    def finished(self) -> None:
        self.calls.append("finished")


def numbers_of(report: AuditReport) -> Iterator[dict[str, Any]]:
    """The records, the queries that are shown and the matrices of a report."""
    yield from report.heads
    yield from (example.to_json() for _, some in sorted(report.far_queries.items()) for example in some)
    yield from (asdict(matrix) for _, matrix in sorted(report.matrices.items()))
