"""``fenchel figure``: the list, figures of nothing and of audits, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fenchel.figures import FIGURES
from tests.auditing.small_audits import files_of
from tests.cli.conftest import plain_run


@pytest.fixture(scope="module")
def audit(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("audit")
    return plain_run(place, "audit", model, "--max-length", "12", "--device", "cpu", "--baseline", "twin")


@pytest.mark.parametrize("arguments", [(), ("--list",)])
def test_the_list(command, arguments):
    done = command("figure", *arguments)
    assert done.code == 0
    assert done.err == ""
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines] == list(FIGURES)
    assert all(kind.summary in line for kind, line in zip(FIGURES.values(), lines, strict=True))
    assert max(map(len, lines)) <= 110
    assert {line.split()[0] for line in lines if "AUDIT" in line} == {"covariance", "deviations"}


def test_a_figure_of_the_theory(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = command("figure", "figure3")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == f"Figure: {Path('figures') / 'figure3.png'}"
    assert done.out.splitlines()[0] == json.loads(Path("figures/figure3.json").read_text())["caption"]
    files = files_of(tmp_path / "figures")
    assert set(files) == {"figure3.json", "figure3.png", "figure3.svg"}
    assert command("figure", "figure3", "--out", "figures").code == 0
    assert files_of(tmp_path / "figures") == files


def test_figures_of_an_audit(command, audit, tmp_path):
    out = ("--out", tmp_path / "figures")
    for name in ("deviations", "covariance"):
        done = command("figure", name, audit, *out)
        assert done.code == 0, done.err
        assert "every exact solution is certified" in done.out
        assert done.out.splitlines()[-1] == f"Figure: {tmp_path / 'figures' / f'{name}.png'}"
    assert len(files_of(tmp_path / "figures")) == 6


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("figur3",), 3, "did you mean figure3?"),
        (("figure5",), 3, "fenchel reproduce figure5"),
        (("zzzz",), 3, "expected one of figure3, alpha"),
        (("",), 3, "figure is ''"),
        (("deviations",), 3, "is made of an audit, and none was given"),
        (("figure3", "somewhere"), 3, "figure3 is made of no audit, and 'somewhere' was given"),
        (("deviations", "nowhere"), 3, "nowhere is not there"),
        (("figure3", "--list"), 2, "--list was given with the figure figure3"),
        (("--overwrite",), 2, "--overwrite was given without a figure"),
        (("figure3", "--out", ""), 3, "out is ''"),
        (("figure3", "--outt", "x"), 2, "No such option: --outt"),
        (("figure3", "a", "b"), 2, "extra argument"),
    ],
)
def test_what_is_refused(command, tmp_path, monkeypatch, arguments, code, said):
    monkeypatch.chdir(tmp_path)
    done = command("figure", *arguments)
    assert done.code == code
    assert said in done.line
    assert done.out == ""
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_audit(command, audit, tmp_path):
    out = ("--out", tmp_path / "figures")
    (tmp_path / "empty").mkdir()
    done = command("figure", "deviations", tmp_path / "empty", *out)
    assert done.code == 3
    assert "holds no audit: there is no state.safetensors" in done.line
    (tmp_path / "file").write_text("")
    assert "is a file" in command("figure", "deviations", tmp_path / "file", *out).line
    assert (
        "there is a file where a folder is expected"
        in command("figure", "figure3", "--out", tmp_path / "file").line
    )
    content = bytearray((audit / "state.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "empty" / "state.safetensors").write_bytes(content)
    assert (
        "its digest is not that of its content"
        in command("figure", "deviations", tmp_path / "empty", *out).line
    )
    assert not (tmp_path / "figures").exists()


def test_an_audit_of_another_version(command, audit, tmp_path, monkeypatch):
    from dataclasses import replace

    from fenchel.auditing import state

    found = state.AuditState.read(audit)
    monkeypatch.setattr(state, "STATE_FORM", replace(state.STATE_FORM, version=99))
    found.write(tmp_path)
    monkeypatch.undo()
    done = command("figure", "deviations", tmp_path, "--out", tmp_path / "figures")
    assert done.code == 3
    assert "schema 99 of a saved audit, of a later version of fenchel" in done.line
    assert not (tmp_path / "figures").exists()


def test_another_audit_in_the_same_folder(command, audit, tmp_path):
    from fenchel.auditing.state import AuditState

    out = ("--out", tmp_path / "figures")
    assert command("figure", "deviations", audit, *out).code == 0
    files = files_of(tmp_path / "figures")
    state, other = AuditState.read(audit), tmp_path / "other"
    state.manifest["seed"] = 1
    other.mkdir()
    state.write(other)
    refused = command("figure", "deviations", other, *out)
    assert refused.code == 3
    assert "deviations.json holds the figure deviations of something else" in refused.line
    assert files_of(tmp_path / "figures") == files
    assert command("figure", "deviations", other, *out, "--overwrite").code == 0
    assert files_of(tmp_path / "figures") != files
