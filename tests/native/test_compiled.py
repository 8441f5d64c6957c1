"""The compiled library: what it is built from, where it is kept, what happens where it cannot be had."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from fenchel.native import compiled as module
from fenchel.native import status, switched
from tests.native.needed import NATIVE

ALONE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("compiled", sys.argv[1])
compiled = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compiled)
print(compiled.status())
"""

AUDITED = """
import torch
from fenchel.closeness.response import SoftmaxResponse
from fenchel.native import status
from fenchel.solver.coordinates import GramCoordinates
from fenchel.solver.newton import Newton
from fenchel.solver.rows import Rows

templates = torch.linspace(-1, 1, 40).reshape(8, 5)
response = SoftmaxResponse.to_preference(torch.zeros(1, 1, 8).log_softmax(-1))
scores = torch.linspace(-2, 2, 24).reshape(1, 3, 8)
rows = Rows(response, response.rest, torch.ones(1, 1, 1), scores, torch.ones(1, 3, 1))
state = Newton(GramCoordinates((templates @ templates.T)[None]), tol=1e-3).start(rows)
print(status())
print(float(state.weights.square().sum()) - float(scores.softmax(-1).square().sum()))
"""


def said(folder: Path, code: str = ALONE, **environment: str) -> str:
    """What a process of its own prints."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder), **environment}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(module.__file__)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_without_a_compiler_torch_computes_and_says_why(tmp_path: Path) -> None:
    status_line, apart = said(tmp_path, AUDITED, CC="/nonexistent").splitlines()
    assert status_line == "torch: CC=/nonexistent is no command"
    assert abs(float(apart)) < 1e-5
    assert list((tmp_path / "fenchel").iterdir()) == []


def test_a_compiler_that_fails_is_no_error(tmp_path: Path) -> None:
    false = tmp_path / "cc"
    false.write_text("#!/bin/sh\necho no >&2\nexit 1\n")
    false.chmod(0o755)
    assert said(tmp_path, CC=str(false)) == f"torch: {false} does not compile C11"


def test_a_compiler_that_writes_nothing_is_no_error(tmp_path: Path) -> None:
    false = tmp_path / "cc"
    false.write_text("#!/bin/sh\nexit 0\n")
    false.chmod(0o755)
    assert said(tmp_path, CC=str(false)).startswith("torch: FileNotFoundError")


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    assert said(tmp_path / "taken").startswith("torch: NotADirectoryError")


def test_the_environment_switches_it_off(tmp_path: Path) -> None:
    assert said(tmp_path, FENCHEL_NATIVE="0") == "torch: FENCHEL_NATIVE=0"
    assert list(tmp_path.iterdir()) == []


def test_importing_compiles_nothing(tmp_path: Path) -> None:
    code = "import fenchel, fenchel.auditing, fenchel.native"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert list(tmp_path.iterdir()) == []


@NATIVE
def test_a_switch_holds_inside() -> None:
    assert status() == "native"
    with switched(False):
        assert module.loaded() is None
        assert status() == "off"
        with switched(True):
            assert module.loaded() is not None
        assert module.loaded() is None
    assert module.loaded() is not None


@NATIVE
def test_it_is_built_once_and_found_again(tmp_path: Path) -> None:
    module.build(tmp_path)
    (built,) = tmp_path.iterdir()
    written = built.stat().st_mtime_ns
    module.build(tmp_path)
    assert [path.stat().st_mtime_ns for path in tmp_path.iterdir()] == [written]


@NATIVE
@pytest.mark.parametrize("damage", [b"", b"not a library", None])
def test_a_damaged_library_is_built_anew(tmp_path: Path, damage: bytes | None) -> None:
    module.build(tmp_path)
    (built,) = tmp_path.glob("*.so")
    content = built.read_bytes()
    kept = tmp_path / "damaged" / built.name
    kept.parent.mkdir()
    kept.write_bytes(content[: len(content) // 2] if damage is None else damage)
    module.build(kept.parent)
    assert [path.stem.rpartition("-")[2] for path in kept.parent.iterdir()] == [
        hashlib.sha256(path.read_bytes()).hexdigest()[:24] for path in kept.parent.iterdir()
    ]


@NATIVE
def test_another_source_is_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module.build(tmp_path)
    other = tmp_path / "other.c"
    *same, changed = module.SOURCES
    other.write_bytes(changed.read_bytes() + b"\n/* changed */\n")
    monkeypatch.setattr(module, "SOURCES", (*same, other))
    module.build(tmp_path)
    assert len(list(tmp_path.glob("*.so"))) == 2


@NATIVE
def test_processes_may_build_at_the_same_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: said(tmp_path), range(2)))
    assert found == ["native"] * 2
    left = list((tmp_path / "fenchel").iterdir())
    assert [path.suffix for path in left] == [".so"] * len(left)


@NATIVE
def test_a_library_that_computes_wrongly_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "rows.c"
    right, *others = module.SOURCES
    wrong.write_text(right.read_text().replace("0.693359375f", "0.69f"))
    monkeypatch.setattr(module, "SOURCES", (wrong, *others))
    with pytest.raises(Exception, match="wrong exponentials"):
        module.build(tmp_path)


@NATIVE
def test_exponentials_are_right_to_two_units() -> None:
    x = torch.cat((torch.linspace(-87, 0, 200_001), -torch.logspace(-12, 1.9, 50_000))).double()
    narrow, wide = x.float(), x.clone()
    found = module.loaded()
    assert found is not None
    exact = narrow.double().exp()
    found.fenchel_exponentials(
        ctypes.c_void_p(narrow.data_ptr()), ctypes.c_void_p(wide.data_ptr()), ctypes.c_int64(x.numel())
    )
    assert float(((narrow.double() - exact) / exact).abs().max()) < 2 * 2**-24
    assert float(((wide - x.exp()) / x.exp()).abs().max()) < 3 * 2**-53
