"""The scripts in docs/figures draw what independent computations give, and the recorded numbers are theirs."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
NUMBERS = ROOT / "docs" / "results" / "figures"
NAMES = (
    "alpha", "convergence", "figure3", "kernel_regression", "position_encodings", "positions", "spotlight",
    "width",
)  # fmt: skip

sys.path.insert(0, str(ROOT / "docs" / "figures"))
style = importlib.import_module("style")


def recorded(name: str) -> dict[str, Any]:
    return json.loads((NUMBERS / f"{name.replace('_', '-')}.json").read_text())


def numbers_of(value: Any) -> np.ndarray:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return np.concatenate([np.zeros(0), *map(numbers_of, value)])
    return np.array([value] if isinstance(value, float) else [])


@pytest.mark.parametrize("name", NAMES)
def test_recorded_numbers_are_those_of_the_script_and_can_be_drawn(name: str, tmp_path: Path) -> None:
    script, before = importlib.import_module(name), recorded(name)
    with mpl.rc_context(style.SETTINGS):
        script.draw(before).savefig(tmp_path / "picture.png", dpi=50)
    assert (tmp_path / "picture.png").stat().st_size > 1000
    assert (ROOT / "docs" / "images" / "figures" / f"{name.replace('_', '-')}.png").is_file()
    if name in ("alpha", "convergence"):  # they take seconds; what they solve is tested elsewhere
        return
    found = numbers_of(style.plain(script.measure()))
    np.testing.assert_allclose(found, numbers_of(before), rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("name", ["deviations", "covariance"])
def test_pictures_of_an_audit_can_be_drawn(name: str, tmp_path: Path) -> None:
    draw = getattr(importlib.import_module("audited"), f"draw_{name}")
    with mpl.rc_context(style.SETTINGS):
        draw(recorded(name)).savefig(tmp_path / "picture.png", dpi=50)
    assert (tmp_path / "picture.png").stat().st_size > 1000
