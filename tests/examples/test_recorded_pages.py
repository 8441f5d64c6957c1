"""The pages of the examples hold the numbers that were recorded."""

import json
import re
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.pages import ROOT, page

RESULTS = ROOT / "docs" / "results"
SECTIONS = {
    "translation": ("sweeps", "Translation"),
    "pretraining-blanks": ("sweeps", "Blanks"),
    "pretraining-trec": ("sweeps", "Fine-tuned on TREC"),
    "captions-by-heart": ("sweeps", "Captions by heart"),
}

SHOWN = {"pretraining-trec": {"No pretraining", "MLM 80/10/10"}}  # of whose arms only these are in the table

READING = {
    "reading-trec": "TREC",
    "reading-sst2": "SST-2",
    "reading-sick": "SICK",
    "reading-cad-nli": "Counterfactual SNLI",
}

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


def results_of(found: dict[str, Any]) -> dict[str, dict[int, float]]:
    """The test result of each arm and seed."""
    runs: dict[str, dict[int, float]] = {cell["arm"]: {} for cell in found["cells"]}
    for run in found["runs"]:
        (metric,) = (one for one in run if one.startswith("test_"))
        runs[run["arm"]][run["seed"]] = run[metric]
    return runs


def compare(cell: str, expected: list[float]) -> None:
    """A cell holds these numbers, to its last digit."""
    step = 10.0 ** -len((re.findall(r"\d\.(\d+)", cell) or [""])[0])
    assert numbers(cell) == pytest.approx(expected, abs=0.51 * step)


def interval(values: list[float]) -> list[float]:
    """The mean and, of more than one, half the width of its interval."""
    half = [float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))] if len(values) > 1 else []
    return [float(np.mean(values)), *half]


def difference(values: dict[int, float], control: dict[int, float]) -> list[float]:
    """Of an arm from a control, paired by seed."""
    return interval([value - control[seed] for seed, value in values.items() if seed in control])


@pytest.mark.parametrize("name", SECTIONS)
def test_tables_are_what_was_recorded(name: str) -> None:
    """Means and paired differences to the arm without one, from the runs."""
    text, found = section(*SECTIONS[name]), recorded(name)
    rows, labels = table(text), {cell["label"]: cell["arm"] for cell in found["cells"]}
    assert set(rows) == SHOWN.get(name, set(labels))
    runs = results_of(found)
    plain = next(label for label in rows if rows[label][1] == "–")
    for label, row in rows.items():
        values = runs[labels[label]]
        compare(row[0], interval([*values.values()]))
        compare(row[1], [] if label == plain else difference(values, runs[labels[plain]]))
    assert f"(results/{name}.json), commit " in text
    assert f"images/{name}.png" in text


@pytest.mark.parametrize("name", READING)
def test_columns_of_the_texts_are_what_was_recorded(name: str) -> None:
    """Means of the two controls, and paired differences of the other arms to that of their kind."""
    found, text = recorded(name), section("reading", READING[name])
    rows, labels = table(section("reading", "Results")), {c["label"]: c["arm"] for c in found["cells"]}
    runs, column = results_of(found), [*READING].index(name)
    assert {label for label, row in rows.items() if row[column] != "–"} == set(labels)
    for label, arm in labels.items():
        control = "Demo, mean" if label.startswith("Demo") else "Mean"
        own = (
            interval([*runs[arm].values()])
            if label == control
            else difference(runs[arm], runs[labels[control]])
        )
        compare(rows[label][column], own)
    assert f"(results/{name}.json), commit " in text
    assert f"images/{name}.png" in text


@pytest.mark.parametrize("name", RERUNS)
def test_cells_that_were_run_again_are_on_the_page_and_within_the_recorded_interval(name: str) -> None:
    text, found = section(RERUNS[name], "Run again with this script"), recorded(name)
    shown = re.findall(r"([\d.]+) \(([\d.]+) ± ([\d.]+)\)", text)
    for cell in found["cells"]:
        told = recorded(cell["recorded_in"].removesuffix(".json"))
        runs = [run for run in told["runs"] if run["arm"] == cell["arm"]]
        for metric, kept in cell["recorded"].items():
            before = [run.get(f"test_{metric}", run["curves"][f"test_{metric}"][-1]) for run in runs]
            assert [kept["mean"], kept["half_width"]] == pytest.approx(interval(before), abs=6e-5)
            values = cell["test"][metric]
            assert all(abs(value - kept["mean"]) <= kept["half_width"] for value in values)
            assert len(values) == len(found["seeds"])
            compare(" ".join(shown.pop(0)), [float(np.mean(values)), kept["mean"], kept["half_width"]])
    assert not shown
    assert f"(results/{name}.json), commit {found['commit']}" in text


def test_the_sweep_on_the_page_is_the_one_that_was_recorded() -> None:
    text = page("docs/sweeps.md").split("## An example\n")[1].split("\n## ")[0]
    found, rows = recorded("sweep-toy"), table(text)
    assert list(rows) == list(found["arms"])
    for arm, row in found["arms"].items():
        entry = row["metrics"]["accuracy"]
        for cell, kind in zip(rows[arm][:2], ("mean", "difference"), strict=True):
            expected = [entry[kind]["mean"], entry[kind]["half_width"]] if kind in entry else []
            assert numbers(cell) == pytest.approx(expected, rel=1e-3)


EXAMPLES = {
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


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_that_were_run_in_full_are_shown_as_recorded(name: str) -> None:
    page_name, title, columns = EXAMPLES[name]
    runs, rows = recorded(name)["runs"], table(section(page_name, title))
    assert rows.keys() == runs.keys() - {"2", "4"}  # of the reversible layers
    for arm, row in rows.items():
        for cell, column in zip(row, re.split(r", (?=\w+ )", columns), strict=True):
            form, key = column.split(" ", 1)
            values = [one[key] for one in runs[arm] if key in one]
            if form == "more":
                pairs = zip(values, runs["softmax"], strict=True)
                values = [] if arm == "softmax" else [one - other[key] for one, other in pairs]
            expected = values if form == "first" else interval(values) if values else []
            compare(cell, expected[:1] if form in ("mean", "first") else expected)


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


SEEDS = {
    "gaze": {
        "bits: {}": "models/readout, first_order/bits",
        "`history` {}": "models/history, first_order/bits",
    },
    "probe": {"layer 0 {}": "models/layer 0/uuas", "best layer (3) {}": "models/layer BEST/uuas"},
    "explain": {"{} for words": "encoders/words/trained/gradient: tau to attention"},
}


@pytest.mark.parametrize("name", SEEDS)
def test_other_seeds_are_told_as_recorded(name: str) -> None:
    """Results of the other seeds, with intervals or as means alone, joined by "and"."""
    text = page(f"docs/{name}.md").split("## Other seeds\n")[1]
    others = [recorded(one) for one in sorted(one.stem for one in RESULTS.glob(f"{name}-seed*.json"))]
    assert [one["options"]["seed"] for one in others] == list(range(1, len(others) + 1))
    for words, place in SEEDS[name].items():
        results = []
        for found in others:
            cell = found
            for part in place.replace("BEST", str(found.get("best"))).split("/"):
                cell = cell[part]
            results.append(cell)
        told = {
            words.format(" and ".join(form.format(*one) for one in results).replace("-", "−"))
            for form in ("{:.3f}", "{:.3f} ± {:.3f}")
        }
        assert any(one in text for one in told), told
