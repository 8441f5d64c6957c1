"""Data sets of a handful of images under the names of the real ones, and figures that are not drawn."""

from __future__ import annotations

import pytest

from tests.experiments.small_experiments import read_few_images


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes experiments read a handful of images, and write a figure's numbers in place of drawing it."""
    read_few_images(monkeypatch)
