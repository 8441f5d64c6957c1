"""The pages of the examples hold the numbers that were recorded."""

import json
import re
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.pages import ROOT, page

RESULTS = ROOT / "docs" / "results"
SECTIONS = {
    "reading-trec": ("reading", "TREC"),
    "reading-sst2": ("reading", "SST-2"),
    "reading-sick": ("reading", "SICK"),
    "reading-cad-nli": ("reading", "Counterfactual SNLI"),
    "translation": ("sweeps", "Translation"),
    "pretraining-blanks": ("sweeps", "Blanks"),
    "pretraining-pairs": ("sweeps", "With and without the translation"),
    "pretraining-trec": ("sweeps", "Fine-tuned on TREC"),
    "captions-by-heart": ("sweeps", "Captions by heart"),
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


def interval(values: list[float]) -> list[float]:
    half = [float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))] if len(values) > 1 else []
    return [float(np.mean(values)), *half]


@pytest.mark.parametrize("name", SECTIONS)
def test_tables_are_what_was_recorded(name: str) -> None:
    """Means and paired differences to the arm without one, or to the mean of its own kind, from the runs."""
    text, found = section(*SECTIONS[name]), recorded(name)
    rows, labels = table(text), {cell["arm"]: cell["label"] for cell in found["cells"]}
    assert set(rows) == set(labels.values())
    runs: dict[str, dict[int, float]] = {arm: {} for arm in labels}
    for run in found["runs"]:
        (metric,) = (one for one in run if one.startswith("test_"))
        runs[run["arm"]][run["seed"]] = run[metric]
    plain = next(arm for arm, label in labels.items() if rows[label][1] == "–")
    for arm, label in labels.items():
        control = "demo-mean" if arm.startswith("demo") else plain
        pairs = [value - runs[control][seed] for seed, value in runs[arm].items() if seed in runs[control]]
        for cell, values in zip(rows[label], (list(runs[arm].values()), pairs), strict=False):
            shown = numbers(cell)
            if values is pairs and arm == control:
                assert shown == []
                continue
            step = 10.0 ** -len(re.findall(r"\d\.(\d+)", cell)[0])  # of the last digit that is shown
            # One seed has no interval; "± –" stands for one that leaves what the quantity can be.
            expected = interval(values)[: 1 if "± –" in cell else 2]
            assert shown == pytest.approx(expected, abs=0.51 * step)
    assert f"(results/{name}.json), commit " in text
    assert f"images/{name}.png" in text


@pytest.mark.parametrize("name", RERUNS)
def test_cells_that_were_run_again_are_on_the_page_and_within_the_recorded_interval(name: str) -> None:
    text, found = section(RERUNS[name], "Run again with this script"), recorded(name)
    rows = [*table(text).values()]
    for cell in found["cells"]:
        told = recorded(cell["recorded_in"].removesuffix(".json"))
        runs = [run for run in told["runs"] if run["arm"] == cell["arm"]]
        for metric, kept in cell["recorded"].items():
            before = [run.get(f"test_{metric}", run["curves"][f"test_{metric}"][-1]) for run in runs]
            assert [kept["mean"], kept["half_width"]] == pytest.approx(interval(before), abs=6e-5)
            values = cell["test"][metric]
            assert all(abs(value - kept["mean"]) <= kept["half_width"] for value in values)
            assert len(values) == len(found["seeds"])
            mean = [sum(values) / len(values)] if len(values) > 1 else []
            row = rows.pop(0)
            shown = [number for one in row for number in numbers(one)]
            step = 10.0 ** -len(re.findall(r"\d\.(\d+)", row[0])[0])  # of the last digit that is shown
            assert shown == pytest.approx([kept["mean"], kept["half_width"], *values, *mean], abs=0.51 * step)
    assert not rows
    assert f"(results/{name}.json), commit {found['commit']}" in text


def test_the_sweep_on_the_page_is_the_one_that_was_recorded() -> None:
    text = page("docs/sweeps.md").split("## An example\n")[1].split("\n## ")[0]
    found, rows = recorded("sweep-toy"), table(text)
    assert list(rows) == list(found["arms"])
    for arm, row in found["arms"].items():
        entry = row["metrics"]["accuracy"]
        for place, kind in ((1, "mean"), (2, "difference")):
            shown = numbers(rows[arm][place])
            expected = [] if kind not in entry else [entry[kind]["mean"], entry[kind]["half_width"]]
            assert shown == pytest.approx(expected, rel=1e-3)


EXAMPLES = {
    "sparse-trec": ("Sparse attention on TREC", "mean read_zero, mean ask_zero, interval accuracy, more accuracy"),
    "noisy-memories": (
        "Noisy memories", "interval right, interval follows_well, interval follows_badly, first parameters",
    ),
    "where-it-is": ("Where it is", "interval right, interval distance, interval inside"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_that_were_run_in_full_are_shown_as_recorded(name: str) -> None:
    title, columns = EXAMPLES[name]
    runs, rows = recorded(f"example-{name}")["runs"], table(section("examples", title))
    assert rows.keys() == runs.keys()
    for arm, found in runs.items():
        for cell, column in zip(rows[arm], columns.split(", "), strict=True):
            form, key = column.split()
            values = [one[key] for one in found]
            more = [
                one[key] - other[key] for one, other in zip(found, runs.get("softmax", found), strict=True)
            ]
            expected = {
                "mean": interval(values)[:1],
                "interval": interval(values),
                "first": values[:1],
                "more": [] if arm == "softmax" else interval(more),
            }[form]
            digits = re.findall(r"\d\.(\d+)", cell)
            assert numbers(cell) == pytest.approx(
                expected, abs=0.51 * 10.0 ** -len(digits[0] if digits else "")
            )
    assert name != "where-it-is" or (ROOT / "docs" / "images" / "where-it-is.png").exists()


def test_the_page_on_which_heads_matter_shows_what_is_printed_of_its_record():
    import which_heads

    lines = "\n".join(which_heads.printed(recorded("which-heads")["summary"]))
    zero, _ = (part.split("\n\n", 1)[1] for part in re.split(r"\n\n(?=Spearman)", lines))
    assert zero.strip() in page("docs/which-heads.md")


SEEDS = {
    "gaze": {
        "readout, first order: bits": "models/readout, first_order/bits",
        "readout, exact: bits": "models/readout, exact/bits",
        "history: bits": "models/history, first_order/bits",
        "Q among O: slope": "search/Q among O: bottom-up/slope",
        "O among Q: slope": "search/O among Q: bottom-up/slope",
    },
    "probe": {
        "adjacent words": "models/adjacent words/uuas",
        "layer 0": "models/layer 0/uuas",
        "best layer": "models/layer BEST/uuas",
        "best layer, exact": "models/layer BEST, exact/uuas",
        "best layer, untrained": "models/layer BEST, untrained/uuas",
    },
    "explain": {
        "words: gradient, τ to attention": "encoders/words/trained/gradient: tau to attention",
        "lstm: gradient, τ to attention": "encoders/lstm/trained/gradient: tau to attention",
        "words: hidden share": "encoders/words/trained/hidden share",
        "words: other weights, distance": "encoders/words/trained/other weights: distance",
        "words: adversarial weights, agrees": "encoders/words/models/adversarial weights/agrees",
        "words: another seed, agrees": "encoders/words/models/another seed/agrees",
    },
}


@pytest.mark.parametrize("name", SEEDS)
def test_other_seeds_are_shown_as_recorded(name: str) -> None:
    rows, places = table(section(name, "Other seeds")), SEEDS[name]
    others = sorted(one.stem for one in RESULTS.glob(f"{name}-seed*.json"))
    assert [recorded(one)["options"]["seed"] for one in others] == list(range(1, len(others) + 1))
    assert rows.keys() == places.keys()
    for row, place in places.items():
        expected = []
        for found in map(recorded, (name, *others)):
            for part in place.replace("BEST", str(found.get("best"))).split("/"):
                found = found[part]
            expected.append("{:.3f} ± {:.3f}".format(*found).replace("-", "−"))
        assert rows[row] == expected
