"""Pictures of attention weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.image import imread

from fenchel.errors import InputError
from fenchel.plot import heatmap


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_draws_any_labels(tmp_path: Path, ending: str) -> None:
    weights = torch.rand(3, 40, generator=torch.Generator().manual_seed(0), requires_grad=True)
    rows, columns = ["$a_{$", "<b>", "\\frac"], ["long " * 8, *("x" for _ in range(39))]
    path = heatmap(weights, rows, columns, tmp_path / f"pair.{ending}", title="$100 & <script>")
    assert path.stat().st_size > 1000
    assert list(tmp_path.iterdir()) == [path]
    if ending == "svg":
        text = path.read_text()
        assert "<script>" not in text
        assert "http" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
            "http://creativecommons.org", ""
        ).replace("https://matplotlib.org", "")


def test_larger_weights_are_darker(tmp_path: Path) -> None:
    path = heatmap(torch.tensor([[0.0, 1.0], [0.5, 0.0]]), ["a", "b"], ["c", "d"], tmp_path / "pair.png")
    pixels = torch.from_numpy(imread(path)[..., :3].copy()).sum(-1)
    cells = [
        values
        for values, count in zip(*pixels.round(decimals=3).unique(return_counts=True), strict=True)
        if count > 400
    ]
    assert len(cells) >= 3  # white, and the two shades


def test_refuses_what_cannot_be_drawn(tmp_path: Path) -> None:
    good: dict[str, Any] = {
        "weights": torch.eye(2),
        "rows": ["a", "b"],
        "columns": ["c", "d"],
        "path": tmp_path / "a.png",
    }
    wrong = {
        "weights": [
            torch.eye(2).long(),
            torch.zeros(2),
            torch.zeros(0, 2),
            -torch.eye(2),
            torch.eye(2) / 0,
            [[1.0]],
        ],
        "rows": [["a"]],
        "columns": [["c", "d", "e"]],
        "path": [tmp_path / "a.txt"],
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(InputError, match=name):
                heatmap(**good | {name: value})
    assert not list(tmp_path.iterdir())
