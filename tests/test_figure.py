"""A figure is written in the format of its name, the same way each time, and never half."""

from __future__ import annotations

import pytest

from fenchel.drawing import write_figure
from fenchel.errors import OutputError


def drawn():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1, 1))
    figure.add_subplot().plot([0, 1], [0, 1])
    return figure


def test_each_file_has_the_format_of_its_name_and_the_same_bytes_again(tmp_path):
    paths = [tmp_path / "a.png", tmp_path / "a.svg"]
    write_figure(drawn, {"svg.hashsalt": "a"}, paths, extra="report")
    before = [path.read_bytes() for path in paths]
    assert before[0].startswith(b"\x89PNG")
    assert b"<svg" in before[1]
    write_figure(drawn, {"svg.hashsalt": "a"}, paths, extra="report")
    assert [path.read_bytes() for path in paths] == before


def test_settings_are_those_of_the_figure_alone(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    write_figure(drawn, {"lines.linewidth": 9}, [tmp_path / "thick.png"], extra="report")
    assert dict(matplotlib.rcParams) == before
    write_figure(drawn, {}, [tmp_path / "thin.png"], extra="report")
    assert (tmp_path / "thick.png").read_bytes() != (tmp_path / "thin.png").read_bytes()


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(OutputError, match=r"cannot write .*a\.png"):
        write_figure(drawn, {}, [tmp_path / "missing" / "a.png"], extra="report")
