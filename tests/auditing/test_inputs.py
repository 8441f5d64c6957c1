"""What is loaded: models that run where and as asked, loaders with their own folder, packages that a run needs."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fenchel.auditing.inputs import RunModel, evaluating, load_run, refuse_beside_loader, seeded
from fenchel.errors import InputError, MissingExtraError, require_packages
from fenchel.run_options import ReadingOptions
from tests.loaders import LAYERS, written
from tests.tiny_models import tiny_model


def loaded(**options):
    return RunModel.of(tiny_model("bert"), None, ReadingOptions.checked(**options))


@pytest.mark.parametrize("dtype", [None, "auto", "float32", "torch.float32", torch.float32])
def test_a_dtype_by_name_or_as_torch_has_it(dtype):
    assert loaded(dtype=dtype).model.dtype == (torch.float64 if dtype in (None, "auto") else torch.float32)


def test_a_device_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = torch.zeros

    def without_float64(*size: int, **kind: Any) -> torch.Tensor:
        if kind.get("dtype") == torch.float64:
            raise TypeError(f"{kind['device']} has no float64")
        return zeros(*size, **kind)

    monkeypatch.setattr(torch, "zeros", without_float64)
    with pytest.raises(InputError, match=r"device is cpu, but .*float64"):
        loaded()


def test_a_revision_is_asked_of_names_alone_and_a_dtype_is_one_that_attention_computes_in():
    with pytest.raises(InputError, match="revision 'main' was given with a model that is already loaded"):
        loaded(revision="main")
    expected = r"dtype is .*; expected one of auto, bfloat16, float16, float32"
    for dtype in ("int8", "half", torch.complex64, torch.float8_e4m3fn):
        with pytest.raises(InputError, match=expected):
            loaded(dtype=dtype)


def test_a_loaded_model_is_left_as_it_was():
    model = tiny_model("bert").train()
    model.embeddings.eval()
    state = torch.get_rng_state()
    with evaluating(model), seeded(3, model):
        assert not any(module.training for module in model.modules())
        first = torch.rand(2)
    with seeded(3, model):
        assert torch.equal(torch.rand(2), first)
    assert model.training
    assert not model.embeddings.training
    assert torch.equal(torch.get_rng_state(), state)


def test_what_a_loader_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, run = written(tmp_path, LAYERS, "first_order")
    # Another loader imported a module of the same name before.
    other = type(sys)("beside")
    other.__file__ = str(tmp_path / "elsewhere" / "beside.py")
    monkeypatch.setitem(sys.modules, "beside", other)
    path = list(sys.path)
    found = load_run(loader, str(run))
    assert type(found.model).__name__ == "Reader"
    assert next(iter(found.batches))["tokens"][3][0] == "[CLS]"
    assert found.manifest["loader"] == str(loader)
    assert found.manifest["loader_sha256"].startswith("sha256:")
    assert (sys.path, sys.modules["beside"]) == (path, other)
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
    with pytest.raises(InputError, match=message):
        load_run(loader, run)
    assert sys.path == path


def test_files_and_folders_that_are_not_there(tmp_path: Path) -> None:
    loader, text = tmp_path / "loader.py", tmp_path / "loader.txt"
    loader.write_text("")
    text.write_text("")
    for code, run, message in (
        (tmp_path / "none.py", tmp_path, "cannot be read: No such file"),
        (text, tmp_path, r"is not a Python file; expected one that ends in \.py"),
        (loader, tmp_path / "nowhere", r"there is no folder .*nowhere"),
        (loader, torch.nn.Linear(2, 2), "model is a Linear; expected the path of the folder of a run"),
    ):
        with pytest.raises(InputError, match=message):
            load_run(code, run)
    with pytest.raises(InputError, match="revision was given with a loader"):
        refuse_beside_loader(loader, texts=None, revision="main")
    refuse_beside_loader(None, texts="a.txt")


def test_packages_that_are_there_are_not_imported_and_the_first_that_is_missing_is_named_with_its_extra():
    before = set(sys.modules)
    require_packages("dev", "this", "antigravity")
    assert not {"this", "antigravity"} & (set(sys.modules) - before)
    with pytest.raises(MissingExtraError, match=r"no_such is not installed\. Run: pip install .*\[report\]'"):
        require_packages("report", "json", "no_such", "neither")
