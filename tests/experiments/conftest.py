"""Data sets of a handful of images under the names of the real ones, and figures that are not drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenchel.errors import InputError
from fenchel.experiments import ExperimentReport
from tests.experiments.small_experiments import few_images

KNOWN = ("fashion-mnist", "cifar10", "cifar100")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes experiments read a handful of images, and write the figure's caption in place of drawing it."""

    def loaded(name: str):
        if name not in KNOWN:
            raise InputError(f"data is {name!r}; expected one of {', '.join(KNOWN)}.")
        return few_images(name, note="JPEG, lossy" if name == "cifar10" else "")

    def write_caption(report: ExperimentReport, path: Path) -> None:
        path.write_text(f"{len(report.records)} of {report.planned} runs")

    monkeypatch.setattr("fenchel.experiments.run.loaded", loaded)
    monkeypatch.setattr("fenchel.experiments.figure.write_curves", write_caption)
