import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fenchel.auditing.advice import importance
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.examples import AttentionMatrix, HeadExample
from fenchel.auditing.heads import METRICS, AttentionModule, HeadKey
from fenchel.auditing.report import html as report_html
from fenchel.auditing.statistics import AuditStatistics
from fenchel.auditing.swap_effects import is_module, swap_effects
from fenchel.errors import InputError
from fenchel.io.storage import check_json
from fenchel.swap import SwapReport
from tests.auditing.report.samples import HOSTILE, manifest, sample_report
from tests.auditing.small_audits import files_of, small_audit, small_model
from tests.swap.small_swaps import small_swap


@pytest.fixture(scope="module")
def report() -> AuditReport:
    return small_audit()


def test_a_saved_report_is_read_as_it_was_and_its_files_say_the_same(
    report: AuditReport, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    out = tmp_path / "out"
    assert report.save(out) == out / "report.html"
    read = AuditReport.load(out)
    for name in ("heads", "far_queries", "matrices", "manifest", "summary"):
        assert getattr(read, name) == getattr(report, name)
    assert list(read.manifest) == list(report.manifest)
    assert len(read.matrices) == len(read.heads)
    read.save(tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(out)
    for name in ("heads", "summary", "manifest"):
        assert json.loads((out / f"{name}.json").read_text()) == getattr(report, name)
    assert pq.read_table(out / "heads.parquet").to_pylist() == report.heads
    examples = json.loads((out / "examples.json").read_text())
    for record, (key, far) in zip(examples, report.far_queries.items(), strict=True):
        further, matrix = record.pop("further"), record.pop("matrix")
        assert tuple(check_json(list[HeadExample], [record, *further])) == far
        assert check_json(AttentionMatrix, matrix) == report.matrices[key]


def test_the_summary_is_the_mean_over_queries(report: AuditReport) -> None:
    kind = report.summary["kinds"]["encoder_self"]
    assert [layer["layer"] for layer in kind["layers"]] == [1, 2]
    assert (kind["heads"], kind["queries"]) == (8, sum(record["queries"] for record in report.heads))
    for metric in (*METRICS, "newton_steps"):
        for layer in kind["layers"]:
            means = [r[f"{metric}_mean"] for r in report.heads if r["layer"] == layer["layer"]]
            assert layer[f"{metric}_mean"] == pytest.approx(sum(means) / 4, rel=1e-12)
        both = [layer[f"{metric}_mean"] for layer in kind["layers"]]
        assert kind[f"{metric}_mean"] == pytest.approx(sum(both) / 2, rel=1e-12)


def test_the_table_of_pandas_holds_the_records() -> None:
    report = sample_report({"encoder_self": (1, 2)}, queries=20, unbounded=True)
    table = report.to_pandas()
    assert list(table.columns) == list(report.statistics.record_keys())
    assert len(table) == 2
    for record, (_, row) in zip(report.heads, table.iterrows(), strict=True):
        for name, value in record.items():
            if value is None and name.endswith("_se"):
                assert np.isnan(np.asarray(row[name]))  # not known
            else:
                assert bool(row[name] == (math.inf if value is None else value))
    assert table["certificate_mean"].iloc[0] == math.inf
    assert str(table["queries"].dtype) == "int64"
    assert AuditReport(manifest(), AuditStatistics()).to_pandas().empty


def test_the_notebook_has_the_heat_map_of_the_report_unless_it_is_huge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = sample_report({"encoder_self": (2, 3)}, queries=30, model=HOSTILE)
    html = report._repr_html_()
    cells = re.findall(r'<td style="[^"]*" title="([^"]*)">', html)
    assert cells == [
        f"layer {head['layer']}, head {head['head']}: {head['total_variation_mean']:.3f}"
        for head in report.heads
    ]
    assert not re.search(r"<(script|a|img|style|link)\b", html)
    monkeypatch.setattr(report_html, "_MOST_CELLS", 5)
    assert "the map is in report.html" in report._repr_html_()


@pytest.fixture(scope="module")
def swapped() -> SwapReport:
    return small_swap(model=small_model(), per_head=True, layers=[2], alphas=[0.8, 1.2])


def test_heads_stand_beside_what_changes_when_they_infer_exactly(
    report: AuditReport, swapped: SwapReport
) -> None:
    from scipy.stats import spearmanr

    effects: Any = report.beside_swap(swapped).effects
    assert [head.key for head in effects.heads] == [HeadKey("encoder_self", 2, head) for head in (1, 2, 3, 4)]
    for head in effects.heads:
        record = next(r for r in report.heads if (r["layer"], r["head"]) == head.key[1:])
        assert head.deviations["total_variation"] == record["total_variation_mean"]
        record = swapped.condition("exact", layer=2, head=head.key.head)
        found = (head.effect, head.low, head.high)
        assert found == tuple(record[f"hidden_change{end}"] for end in ("", "_low", "_high"))
        controls = [
            swapped.condition("first_order", alpha, layer=2, head=head.key.head) for alpha in (0.8, 1.2)
        ]
        assert head.same_by_alpha == tuple(sorted(control["hidden_change"] for control in controls))
    for name in ("total_variation", "mean_error"):
        deviations = [head.deviations[name] for head in effects.heads]
        found: Any = spearmanr(deviations, [head.effect for head in effects.heads])
        assert effects.rank_correlation[name] == pytest.approx(found.statistic)
    assert (effects.note, report.effects) == ("", None)
    with pytest.raises(InputError, match=r"swap is 3; expected the result of fenchel\.swap\.swap"):
        report.beside_swap(3)  # pyright: ignore[reportArgumentType]


def test_an_effect_of_a_module_of_several_layers_is_said_to_be_of_all(
    report: AuditReport, swapped: SwapReport
) -> None:
    (module,) = (module for (_, layer), module in report.modules.items() if layer == 2)
    shared = dict.fromkeys(report.modules, module)
    effects = swap_effects(report.manifest, report.heads, shared, swapped)
    assert len(effects.heads) == 8
    assert "in all layers of its module" in effects.note
    heads = [head.key for head in effects.heads]
    assert importance(heads, report.manifest, shared).passes == 2 * 4 + 2
    assert importance(heads, report.manifest, report.modules).passes == 2 * 8 + 2


def test_a_swap_of_something_else_is_refused(report: AuditReport, swapped: SwapReport) -> None:
    for audited, manifested, of_records, message in (
        ({}, {"model": "other"}, {}, "model: 'BertModel' in the audit, 'other' in the swap"),
        ({}, {"text_sha256": "ab"}, {}, "text sha256: .* in the swap"),
        ({"alpha": 0.5}, {}, {}, r"alpha: 0\.5 in the audit, 1\.0 in every swap"),
        ({}, {}, {"where": "model"}, r"no head with the exact estimator alone.*--per-head"),
        ({"layers": [1]}, {}, {}, "no audited head was swapped alone"),
    ):
        conditions = [{**record, **of_records} for record in swapped.conditions]
        other: Any = SimpleNamespace(manifest={**swapped.manifest, **manifested}, conditions=conditions)
        with pytest.raises(InputError, match=message):
            (small_audit(**audited) if audited else report).beside_swap(other)


def test_layers_are_told_by_their_modules() -> None:
    for audited, swapped, same in (
        ("encoder.layer.0.attention", "layer.0.attention", True),
        ("decoder.layer.0.attention", "layer.0.attention", False),
        ("layer.0.attention", "decoder.layer.0.attention", False),
        ("decoder.layers.0.attention", "model.decoder.layers.0.attention", True),
        ("layer.10.attention", "layer.0.attention", False),
    ):
        modules: Any = {("encoder_self", 1): AttentionModule("encoder_self", 1, audited, 1)}
        assert is_module({"module": swapped}, HeadKey("encoder_self", 1, 1), modules) is same
