"""Audits that take a second: a tiny random model, a tokenizer with a token a word, and texts to read."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.run import audit
from fenchel.progress import Progress
from tests.io.test_windows import word_tokenizer
from tests.tiny_models import tiny_model

__all__ = ["WORDS_KNOWN", "Interrupting", "files_of", "small_audit", "small_model", "some_texts"]

WORDS_KNOWN = 60


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
    yield from (matrix.to_json() for _, matrix in sorted(report.matrices.items()))
