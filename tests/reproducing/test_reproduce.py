import json
from pathlib import Path
from typing import Any

import pytest

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.run import audit
from fenchel.errors import ModelError
from fenchel.reproducing import Reproduction, finding, layer_rows, markdown, reproduce, terminal_table
from tests.auditing.small_audits import some_texts
from tests.cli.conftest import saved
from tests.pages import assert_unabridged, shown

SMALL: dict[str, Any] = {"max_length": 12, "batch_size": 2}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("bert"), "bert")


@pytest.fixture(scope="module")
def found(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reproduction, Path]:
    folder = tmp_path_factory.mktemp("reproduced")
    return reproduce("figure5", some_texts(), model=str(bert), directory=folder, **SMALL), folder


def test_our_numbers_are_those_of_the_audits_below(found: tuple[Reproduction, Path]) -> None:
    report, folder = found
    [result] = report.panels
    there = AuditReport.load(folder / "audit")
    assert (there.manifest["space"], there.manifest["alpha"]) == ("input", 1.0)
    for records, rows, beside in (
        (there.heads, result.ours, result.beside),
        (there.twin_heads, result.twin, result.twin_beside),
    ):
        means = {(head["layer"], head["head"]): head["relative_deviation_mean"] for head in records}
        assert means == {
            (layer, head): value
            for layer, row in enumerate(rows, start=1)
            for head, value in enumerate(row, start=1)
        }
        for metric, values in beside.items():
            layers = [
                [head[f"{metric}_mean"] for head in records if head["layer"] == layer] for layer in (1, 2)
            ]
            assert list(values) == pytest.approx([sum(layer) / len(layer) for layer in layers])
    assert result.ours != result.twin
    assert report.problems == 2 * there.summary["queries"]


def test_the_files_say_what_the_report_says(found: tuple[Reproduction, Path]) -> None:
    report, folder = found
    written = json.loads((folder / "figure5.json").read_text())
    assert written["panels"] == json.loads(json.dumps(report.to_json()["panels"]))
    assert (folder / "figure5.md").read_text() == markdown(report)
    text = markdown(report)
    assert "| 1 | 0.092 | 0.040 |" in text
    assert f"| 2 | {report.panels[0].ours[1][0]:.3f} |" in text
    assert finding(report) in repr(report)
    rows = layer_rows(report.panels[0])  # one a layer of whichever has more
    assert (len(rows), rows[0][1], rows[2][2:]) == (12, "0.072 (0.033–0.142)", ["–"] * 5)


def test_the_other_figure_of_one_audit_costs_no_other(bert: Path, found: tuple[Reproduction, Path]) -> None:
    _, folder = found
    before = (folder / "audit" / "state.json").stat().st_mtime_ns
    report = reproduce("figure4", some_texts(), model=str(bert), directory=folder, resume=True, **SMALL)
    assert (folder / "audit" / "state.json").stat().st_mtime_ns == before
    assert [result.panel.name for result in report.panels] == ["figure 4a"]
    means = [sum(row) / len(row) for row in found[0].panels[0].ours]
    assert [row[0] for row in report.panels[0].ours] == pytest.approx(means)
    lacks = reproduce("figures6-8", some_texts(), model=str(bert), directory=folder, resume=True, **SMALL)
    assert [result.panel.name for result in lacks.panels] == ["figure 6"]
    assert lacks.missing == ("figure 7 (decoder self)", "figure 8 (cross)")
    assert "Not shown, since the model has no such attention: figure 7" in markdown(lacks)


def test_t5_stands_under_the_papers_scale_and_its_own(tmp_path: Path) -> None:
    t5 = saved(tmp_path / "t5", "t5")
    report = reproduce("figures6-8", some_texts(3), model=str(t5), directory=tmp_path, **SMALL)
    kinds = ["encoder_self", "decoder_self", "cross"]
    panels = [(result.panel.name, result.panel.kind) for result in report.panels]
    assert panels == [(f"figure {number}", kind) for number, kind in enumerate(kinds, 6)]
    assert report.missing == ()
    layers = reproduce("figure4", some_texts(3), model=str(t5), directory=tmp_path, resume=True, **SMALL)
    panels = [(result.panel.name, result.panel.kind) for result in layers.panels]
    assert panels == [("figure 4b", kind) for kind in kinds]
    theirs, own = (AuditReport.load(tmp_path / name) for name in ("audit", "audit-own-scale"))
    assert (theirs.manifest["template_scale"], own.manifest.get("template_scale")) == ("sqrt_d", None)
    for result in report.panels:
        assert result.own_scale is not None
        for audited, rows in ((theirs, result.ours), (own, result.own_scale)):
            found = [
                audited.statistics.mean("relative_deviation", result.panel.kind, 1, head) for head in (1, 2)
            ]
            assert list(rows[0][:2]) == pytest.approx(found)
        assert result.ours != result.own_scale
    assert (tmp_path / "figures6-8.md").read_text().count("| Twin's | Own scale |") == 3
    assert "own_scale" in json.loads((tmp_path / "figures6-8.json").read_text())["panels"][0]
    assert_unabridged(terminal_table(report))
    assert all(f".{word}" in shown(terminal_table(report), 80) for word in ("020 – .038", "028 – .041"))


def test_models_that_cannot_be_audited_so_are_refused_without_advice_that_cannot_be_followed(
    tmp_path: Path,
) -> None:
    folder = saved(tmp_path / "gpt2", "gpt2")
    with pytest.raises(ModelError, match="has decoder self attention only, but figure5 shows encoder self"):
        reproduce("figure5", some_texts(), model=str(folder), directory=tmp_path / "out", **SMALL)
    assert not (tmp_path / "out").exists()
    folder = saved(tmp_path / "llama", "llama")
    with pytest.raises(ModelError, match=r"rotary position.*cannot be made with this model") as raised:
        reproduce("figure4", some_texts(), model=str(folder), **SMALL)
    assert "space='key'" not in str(raised.value)


def test_the_options_reach_the_audit(bert: Path, tmp_path: Path) -> None:
    recorded = {"max_tokens": 20, "tol": 1e-3, "dtype": "float64", "max_length": 12}
    given: dict[str, Any] = {**recorded, "batch_size": 2}
    report = reproduce("figure5", some_texts(), model=str(bert), directory=tmp_path, seed=3, **given)
    assert ({"seed": 3} | recorded).items() <= AuditReport.load(tmp_path / "audit").manifest.items()
    own = audit(str(bert), None, some_texts(), space="input", **given)
    assert [value for row in report.panels[0].ours for value in row] == [
        head["relative_deviation_mean"] for head in own.heads
    ]
