"""The pages of the examples hold the numbers that were recorded."""

import json
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.pages import ROOT, page

RESULTS = ROOT / "docs" / "results"

TABLES = {
    "translation": ("sweeps", "Translation", "interval test, more test"),
    "pretraining-blanks": ("sweeps", "Blanks", "interval test, more test"),
    "pretraining-trec": ("sweeps", "Fine-tuned on TREC", "interval test, more test"),
    "captions-by-heart": ("sweeps", "Captions by heart", "interval test, more test"),
    "example-sparse-trec": (
        "examples", "Sparse attention on TREC", "mean read_zero, mean ask_zero, interval accuracy, more accuracy",
    ),
    "example-noisy-memories": (
        "examples", "Noisy memories",
        "interval right, interval follows_well, interval follows_badly, first parameters",
    ),
    "example-where-it-is": ("examples", "Where it is", "interval right, interval distance, interval inside"),
    "helmholtz": (
        "learners", "Helmholtz machine",
        "interval -log p(d), interval K(data, model), interval F, interval K(Q, P), interval K(exact, P)",
    ),
    "bandits": ("learners", "Bandits", "interval reward"),
    "distil": ("learners", "Distillation", "interval Spearman"),
    "glimpse": ("learners", "Glimpses", "interval right, interval distance"),
    "residual": ("residual", "Residual attention", "interval right, interval features"),
    "reversible": (
        "residual", "Reversible layers", "interval plain MB, interval reversible MB, interval times slower",
    ),
}  # fmt: skip
"""Of each record its page, section and what the columns of the first table there are of."""

SHOWN = {"pretraining-trec": {"No pretraining", "MLM 80/10/10"}, "reversible": {"1", "8"}}
"""Of records that have more conditions than their table."""

READING = ["reading-trec", "reading-sst2", "reading-sick", "reading-cad-nli"]

RERUNS = {
    "rerun-reading": "reading",
    "rerun-vision": "ot-vit",
    "rerun-translation": "translation",
    "rerun-captioning": "captions",
    "rerun-fill_mask": "cloze",
}


def recorded(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def numbers(cell: str) -> list[float]:
    found = re.findall(r"[+−]?\d[\d,]*\.?\d*", cell.split("(")[0])
    return [float(one.replace("−", "-").replace(",", "")) for one in found]


def table(section: str) -> dict[str, list[str]]:
    """The cells of each row by its first, of the first table of a section."""
    lines = section.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|---"))
    rows = []
    for line in lines[first + 1 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return {name: cells for name, *cells in rows}


def section(name: str, title: str) -> str:
    return re.split(rf"\n##+ {title}\n", page(f"docs/{name}.md"))[1].split("\n### ")[0].split("\n## ")[0]


def runs_of(found: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The runs of each arm; of those of sweeps the seed and the result of the test."""
    if isinstance(found["runs"], dict):
        return found["runs"]
    labels = {cell["arm"]: cell["label"] for cell in found["cells"]}
    runs: dict[str, list[dict[str, Any]]] = {label: [] for label in labels.values()}
    for run in found["runs"]:
        (metric,) = (one for one in run if one.startswith("test_"))
        runs[labels[run["arm"]]].append({"seed": run["seed"], "test": run[metric]})
    return runs


def compare(cell: str, expected: list[float]) -> None:
    """A cell holds these numbers, to its last digit."""
    step = 10.0 ** -len((re.findall(r"\d\.(\d+)", cell) or [""])[0])
    assert numbers(cell) == pytest.approx(expected, abs=0.51 * step)


def interval(values: list[float]) -> list[float]:
    """The mean and, of more than one, half the width of its interval."""
    half = [float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))] if len(values) > 1 else []
    return [float(np.mean(values)), *half]


def more(runs: list[dict[str, Any]], control: list[dict[str, Any]], key: str) -> list[float]:
    """The difference from a control, paired by seed."""
    before = {run.get("seed", place): run[key] for place, run in enumerate(control)}
    pairs = [(run[key], run.get("seed", place)) for place, run in enumerate(runs)]
    return interval([value - before[seed] for value, seed in pairs if seed in before])


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_what_was_recorded(name: str) -> None:
    """Of "more" the arm without a difference is the control."""
    *place, columns = TABLES[name]
    runs, rows = runs_of(recorded(name)), table(section(*place))
    assert rows.keys() == SHOWN.get(name, runs.keys())
    for arm, row in rows.items():
        for at, (cell, column) in enumerate(zip(row, re.split(r", (?=\w+ )", columns), strict=True)):
            form, key = column.split(" ", 1)
            if form == "more":
                control = next(label for label in rows if rows[label][at] == "–")
                compare(cell, [] if arm == control else more(runs[arm], runs[control], key))
                continue
            values = [one[key] for one in runs[arm] if key in one]
            expected = values if form == "first" else interval(values) if values else []
            compare(cell, expected[:1] if form in ("mean", "first") else expected)


@pytest.mark.parametrize("name", READING)
def test_columns_of_the_texts_are_what_was_recorded(name: str) -> None:
    """Means of the two controls, and paired differences of the other arms to that of their kind."""
    runs, rows, column = runs_of(recorded(name)), table(section("reading", "Results")), READING.index(name)
    assert {label for label, row in rows.items() if row[column] != "–"} == runs.keys()
    for label, own in runs.items():
        control = "Demo, mean" if label.startswith("Demo") else "Mean"
        alone = interval([run["test"] for run in own])
        compare(rows[label][column], alone if label == control else more(own, runs[control], "test"))


@pytest.mark.parametrize("name", RERUNS)
def test_cells_that_were_run_again_are_on_the_page_and_within_the_recorded_interval(name: str) -> None:
    text, found = section(RERUNS[name], "Run again with this script"), recorded(name)
    shown = re.findall(r"([\d.]+) \(([\d.]+) ± ([\d.]+)\)", text)
    for cell in found["cells"]:
        for metric, kept in cell["recorded"].items():
            values = cell["test"][metric]
            assert all(abs(value - kept["mean"]) <= kept["half_width"] for value in values)
            compare(" ".join(shown.pop(0)), [float(np.mean(values)), kept["mean"], kept["half_width"]])
    assert not shown


def test_the_sweep_on_the_page_is_the_one_that_was_recorded() -> None:
    text = page("docs/sweeps.md").split("## An example\n")[1].split("\n## ")[0]
    found, rows = recorded("sweep-toy"), table(text)
    assert list(rows) == list(found["arms"])
    for arm, row in found["arms"].items():
        entry = row["metrics"]["accuracy"]
        for cell, kind in zip(rows[arm][:2], ("mean", "difference"), strict=True):
            expected = [entry[kind]["mean"], entry[kind]["half_width"]] if kind in entry else []
            assert numbers(cell) == pytest.approx(expected, rel=1e-3)


def test_the_page_on_which_heads_matter_shows_what_is_printed_of_its_record():
    lines = "\n".join(import_module("which_heads").printed(recorded("which-heads")["summary"]))
    zero, _ = (part.split("\n\n", 1)[1] for part in re.split(r"\n\n(?=Spearman)", lines))
    text = page("docs/which-heads.md").split("## What predicts")[1].split("## What the table shows")[0]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert set(rows) <= set(zero.strip().splitlines())
    assert len(rows) == 10


PRINTED = {"gaze": (0, 1, 5, -1), "explain": (0, 1, 2, 3, 4, -1), "probe": (0, 1, 2, -1)}
"""Of the script of each page, the columns of its first table that the page has."""


@pytest.mark.parametrize("name", PRINTED)
def test_tables_are_what_is_printed_of_the_record(name: str) -> None:
    lines = [*import_module(name).printed(recorded(name))]
    text = page(f"docs/{name}.md").split("## Other seeds")[0]
    shown = {line for line in text.splitlines() if line.startswith("|")}
    first = lines[: [*lines, ""].index("")]
    columns = {"|".join(line.split("|")[at] for at in PRINTED[name]) for line in first}
    assert columns <= shown <= columns | set(lines)


SEEDS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "gaze": {
        "bits: {}": lambda found: found["models"]["readout, first_order"]["bits"],
        "`history` {}": lambda found: found["models"]["history, first_order"]["bits"],
    },
    "probe": {
        "layer 0 {}": lambda found: found["models"]["layer 0"]["uuas"],
        "best layer (3) {}": lambda found: found["models"][f"layer {found['best']}"]["uuas"],
    },
    "explain": {"{} for words": lambda found: found["encoders"]["words"]["trained"]["gradient: tau to attention"]},
}  # fmt: skip


@pytest.mark.parametrize("name", SEEDS)
def test_other_seeds_are_told_as_recorded(name: str) -> None:
    """Results of the other seeds, with intervals or as means alone, joined by "and"."""
    text = page(f"docs/{name}.md").split("## Other seeds\n")[1]
    others = [recorded(one.stem) for one in sorted(RESULTS.glob(f"{name}-seed*.json"))]
    assert [one["options"]["seed"] for one in others] == list(range(1, len(others) + 1))
    for words, of in SEEDS[name].items():
        forms = "{:.3f}", "{:.3f} ± {:.3f}"
        told = [" and ".join(form.format(*of(one)) for one in others).replace("-", "−") for form in forms]
        assert any(words.format(one) in text for one in told), told
