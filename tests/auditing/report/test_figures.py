from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fenchel.auditing.report import write_figures
from fenchel.auditing.report.figures import MOST_COLUMNS, MOST_ROWS, _by_head, _by_layer, evenly
from fenchel.auditing.report.findings import Findings
from fenchel.drawing import short
from fenchel.errors import MissingExtraError, OutputError
from tests.auditing.report.samples import sample_report

pytest.importorskip("matplotlib")


def size_of_png(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def texts(figure) -> list[str]:
    return [text.get_text() for part in (figure, *figure.axes) for text in part.texts]


def test_two_files_and_nothing_else_are_written(tmp_path: Path) -> None:
    paths = write_figures(sample_report({"encoder_self": (2, 3)}), tmp_path)
    assert [path.name for path in paths] == ["figure4.png", "figure5.png"]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert all(width > 300 and height > 200 for width, height in map(size_of_png, paths))


def test_every_mean_is_printed() -> None:
    report = sample_report({"encoder_self": (2, 3), "cross": (1, 2)})
    findings = Findings.of(report)
    by_layer, by_head = texts(_by_layer(report, findings)), texts(_by_head(report, findings))
    for key in report.statistics.keys():  # noqa: SIM118
        assert short(report.statistics.mean("relative_deviation", *key)) in by_head
        assert short(report.statistics.mean("relative_deviation", *key[:2])) in by_layer
    assert "Cross-attention" in by_layer
    assert "Cross-attention" in by_head
    assert any(
        "Model demo, text pride-and-prejudice.txt, space input" in " ".join(t.split()) for t in by_head
    )


def test_one_kind_needs_no_title() -> None:
    report = sample_report({"encoder_self": (1, 1)})
    assert "Encoder self-attention" not in texts(_by_head(report, Findings.of(report)))


def test_the_mean_stands_at_its_place() -> None:
    report = sample_report({"encoder_self": (1, 1)})
    (axes,) = _by_head(report, Findings.of(report)).axes
    lines: Any = [lines for lines in axes.collections if hasattr(lines, "get_segments")][-1]
    (segment,) = lines.get_segments()
    mean = report.statistics.mean("relative_deviation", "encoder_self", 1, 1)
    assert segment[0][0] == pytest.approx(0.88 * mean / 0.5)


def test_a_large_model_is_thinned_and_the_figure_says_so() -> None:
    report = sample_report({"decoder_self": (26, 18)}, queries=3)
    figure = _by_head(report, Findings.of(report))
    words = " ".join(texts(figure))
    assert f"{MOST_ROWS} of 26 layers and {MOST_COLUMNS} of 18 heads, evenly spread" in words
    assert "Layer 26" in words
    assert "Head 18" in words
    width, height = figure.get_size_inches()
    assert width < 20
    assert height < 22


def test_evenly_keeps_both_ends() -> None:
    assert evenly(range(1, 65), 16)[0] == 1
    assert evenly(range(1, 65), 16)[-1] == 64
    assert len(set(evenly(range(1, 65), 16))) == 16
    assert evenly([3, 4], 16) == [3, 4]


def test_a_name_is_neither_mathematics_nor_a_missing_glyph(tmp_path: Path) -> None:
    # Either would warn, and warnings are errors here.
    write_figures(sample_report({"encoder_self": (1, 1)}, model=r"$\alpha_{$ 模型 🙂 \n"), tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"figure4\.png"):
        write_figures(sample_report({"encoder_self": (1, 1)}), tmp_path / "absent")


def test_pyplot_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # to import it would raise
    write_figures(sample_report({"cross": (1, 1)}), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"figure4.png", "figure5.png"}


def test_matplotlib_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"matplotlib is not installed.*fenchel\[report\]"):
        write_figures(sample_report({"cross": (1, 1)}), tmp_path)
