import json
from pathlib import Path

import pytest

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.examples import AttentionMatrix, HeadExample
from fenchel.auditing.heads import METRICS
from fenchel.errors import InputError
from tests.auditing.small_audits import files_of, small_audit, some_texts


@pytest.fixture(scope="module")
def report() -> AuditReport:
    return small_audit()


def test_a_saved_report_is_read_as_it_was(report: AuditReport, tmp_path: Path) -> None:
    page = report.save(tmp_path / "out")
    assert page == tmp_path / "out" / "report.html"
    read = AuditReport.load(tmp_path / "out")
    assert read.heads == report.heads
    assert read.far_queries == report.far_queries
    assert read.matrices == report.matrices
    assert len(read.matrices) == len(read.heads)
    assert list(read.manifest.items()) == list(report.manifest.items())
    assert read.summary == report.summary
    read.save(tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(tmp_path / "out")


def test_the_files_say_what_the_report_says(report: AuditReport, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    report.save(tmp_path)
    assert json.loads((tmp_path / "heads.json").read_text()) == report.heads
    assert pq.read_table(tmp_path / "heads.parquet").to_pylist() == report.heads
    assert json.loads((tmp_path / "summary.json").read_text()) == report.summary
    assert json.loads((tmp_path / "manifest.json").read_text()) == report.manifest
    examples = json.loads((tmp_path / "examples.json").read_text())
    for record, (key, far) in zip(examples, report.far_queries.items(), strict=True):
        further, matrix = record.pop("further"), record.pop("matrix")
        assert tuple(map(HeadExample.from_json, [record, *further])) == far
        assert AttentionMatrix.from_json(matrix) == report.matrices[key]
    assert [(record["layer"], record["head"]) for record in examples] == [
        (record["layer"], record["head"]) for record in report.heads
    ]
    assert "</html>" in (tmp_path / "report.html").read_text()


def test_the_summary_is_the_mean_over_queries(report: AuditReport) -> None:
    kind = report.summary["kinds"]["encoder_self"]
    assert [layer["layer"] for layer in kind["layers"]] == [1, 2]
    assert kind["heads"] == 8
    assert kind["queries"] == sum(record["queries"] for record in report.heads) == report.summary["queries"]
    for metric in METRICS:
        for layer in kind["layers"]:
            means = [r[f"{metric}_mean"] for r in report.heads if r["layer"] == layer["layer"]]
            assert layer[f"{metric}_mean"] == pytest.approx(sum(means) / 4, rel=1e-12)
        both = [layer[f"{metric}_mean"] for layer in kind["layers"]]
        assert kind[f"{metric}_mean"] == pytest.approx(sum(both) / 2, rel=1e-12)
    steps = [layer["newton_steps_mean"] for layer in kind["layers"]]
    assert kind["newton_steps_mean"] == pytest.approx(sum(steps) / 2, rel=1e-12)
    assert "seconds" not in json.dumps(report.summary)


def test_another_audit_is_not_overwritten(report: AuditReport, tmp_path: Path) -> None:
    other = small_audit(some_texts(seed=8))
    other.save(tmp_path)
    files = files_of(tmp_path)
    with pytest.raises(InputError, match=r"holds another audit; they differ in .*text sha256"):
        report.save(tmp_path)
    assert files_of(tmp_path) == files
    other.save(tmp_path)
    assert files_of(tmp_path) == files
    report.save(tmp_path, overwrite=True)
    assert AuditReport.load(tmp_path).heads == report.heads
