"""Loaders: their own folder is importable, the process stays as it was, and what is wrong is said in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from fenchel.errors import InputError
from fenchel.loading import load_run, refuse_beside_loader
from tests.loaders import LAYERS, written


def test_what_a_loader_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, run = written(tmp_path, LAYERS, "first_order")
    # Another loader imported a module of the same name before.
    other = type(sys)("common")
    other.__file__ = str(tmp_path / "elsewhere" / "common.py")
    monkeypatch.setitem(sys.modules, "common", other)
    path = list(sys.path)
    found = load_run(loader, str(run))
    assert type(found.model).__name__ == "Reader"
    assert next(iter(found.batches))["tokens"][3][0] == "[CLS]"
    assert found.manifest["loader"] == str(loader)
    assert found.manifest["loader_sha256"].startswith("sha256:")
    assert (sys.path, sys.modules["common"]) == (path, other)
    assert torch.equal(load_run(loader, run).model.classes.weight, found.model.classes.weight)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]


MODEL = "import torch\nmodel = torch.nn.Linear(2, 2)\ndef load(folder):\n    "


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1", r"has no function load\(folder\)"),
        ("load = 1", "has no function load"),
        ("import no_such_module", "loader .* raised ModuleNotFoundError: No module named 'no_such_module'"),
        ("def load(folder):\n    raise ValueError('no\\nweights')", r"load\(.*run'\) of .* ValueError: no weights"),
        ("import sys\ndef load(folder):\n    sys.exit('no data: give toy')", "SystemExit: no data: give toy"),
        ("def load():\n    return 1", "raised TypeError"),
        ("def load(folder):\n    return 5", r"returned 5; expected \(model, batches\)"),
        ("def load(folder):\n    return 1, []", r"returned \(1, \[\]\); expected \(model, batches\)"),
        (f"{MODEL}return model, ({{}} for _ in range(2))", "batches that are a generator; expected a list"),
        (f"{MODEL}return model, 5", "batches that are 5; expected a list"),
        (f"{MODEL}return model, {{'x': torch.ones(1)}}", r"batches that are \{'x': tensor.*; expected a list"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_loader_is_said_in_one_line(tmp_path: Path, code: str, message: str) -> None:
    loader, run = tmp_path / "loader.py", tmp_path / "run"
    loader.write_text(code)
    run.mkdir()
    path = list(sys.path)
    with pytest.raises(InputError, match=message) as caught:
        load_run(loader, run)
    assert "\n" not in str(caught.value)
    assert sys.path == path


def test_files_and_folders_that_are_not_there(tmp_path: Path) -> None:
    loader = tmp_path / "loader.txt"
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load_run(loader, tmp_path)
    loader.write_text("")
    with pytest.raises(InputError, match=r"is no Python file; expected one that ends in \.py"):
        load_run(loader, tmp_path)
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        load_run(loader, tmp_path / "nowhere")
    with pytest.raises(InputError, match="model is a Linear; expected the folder of a run"):
        load_run(loader, torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match="revision was given beside a loader"):
        refuse_beside_loader(loader, texts=None, revision="main")
    refuse_beside_loader(None, texts="a.txt")
