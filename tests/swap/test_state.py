"""A saved swap: whatever byte or field of it is wrong is said, and no table is made from it."""

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import polars
import pytest
import torch

from fenchel.errors import InputError
from fenchel.io.batches import Cursor
from fenchel.io.storage import ParquetTable, read_document, write_document
from fenchel.swap import SwapReport
from fenchel.swap.run import MEASUREMENTS, OLD_STATE_FILE, STATE_FILE, STATE_FORM, SwapState
from tests.auditing.small_audits import Interrupting
from tests.damage import field, ill_formed, refuses
from tests.swap.small_swaps import small_swap

ROOT = Path(__file__).parents[2]
OPTIONS: dict[str, Any] = {"estimators": ["exact"], "alphas": (0.7, 1.0)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of an interrupted swap; of finished ones, also of sentences: tests/test_damage.py."""
    with pytest.raises(KeyboardInterrupt):
        small_swap("bert", **OPTIONS, directory=tmp_path, observer=Interrupting(6, KeyboardInterrupt()))
    return tmp_path


@pytest.fixture
def saved(folder: Path) -> dict[str, Any]:
    return read_document(folder / STATE_FILE, STATE_FORM)


def resumed(folder: Path) -> SwapReport:
    return small_swap("bert", **OPTIONS, directory=folder, resume=True)


WRONG: dict[str, Callable[[Any], object]] = {
    "stacks that are no numbers": field("manifest", "stacks", to={"layers": "two"}),
    "modules without a kind": field("manifest", "modules", to=[{"layer": 1, "name": "a", "number": 1}]),
    "no parts": field("parts", to=[]),
    "a part elsewhere": field("parts", to=["../00000-0123456789abcdef.parquet"]),
    "half a token": field("cursor", "tokens", to=0.5),
    "more": field("more", to=1),
}


def test_what_no_swap_can_have_saved_is_refused_though_it_is_sealed(
    folder: Path, saved: dict[str, Any]
) -> None:
    parts = {name: part for name, part in saved.items() if name != "manifest"}  # which may hold any option
    for _, change in (*WRONG.items(), *ill_formed(parts)):
        changed = deepcopy(saved)
        change(changed)
        write_document(folder / STATE_FILE, STATE_FORM, changed)
        refuses(folder / STATE_FILE, lambda: SwapState.read(folder))


def test_measurements_are_read_as_often_as_wanted_written_or_not(tmp_path: Path) -> None:
    state = SwapState({}, ParquetTable(tmp_path / "a [b] *"))
    state.add({"documents": torch.tensor([2, 1]), "hidden": torch.rand(2, 3, 4)}, Cursor(2, 1, 9, 2))
    first, again = state.measured(), state.measured()
    state.table.write()
    assert state.table.scan().collect().equals(state.table.rows())
    for found in (first, again, state.measured()):
        assert found["documents"].tolist() == [1, 2]
        assert torch.equal(found["hidden"], first["hidden"])


def test_measurements_of_other_conditions_are_another_swap(folder: Path, saved: dict[str, Any]) -> None:
    rows = SwapState.read(folder).table.rows()
    fewer = polars.Series("hidden", rows["hidden"].to_numpy()[:, 1:])
    table = ParquetTable(folder / MEASUREMENTS)
    table.add([rows.with_columns(fewer)])
    table.write()
    write_document(folder / STATE_FILE, STATE_FORM, {**saved, "parts": table.names})
    with pytest.raises(
        InputError, match=r"another swap than .*; they differ in number of conditions: 3 there, 4"
    ):
        resumed(folder)


def test_the_state_of_an_earlier_version_is_neither_resumed_nor_lost(folder: Path) -> None:
    (folder / STATE_FILE).rename(folder / OLD_STATE_FILE)
    with pytest.raises(InputError, match=r"holds results without their state file \(swap-state.json\)"):
        resumed(folder)


@pytest.mark.parametrize("name", ["swap-sick-test.json", "swap-sick-1500.json"])
def test_published_tables_are_read(tmp_path: Path, name: str) -> None:
    shutil.copy(ROOT / "docs" / "results" / name, tmp_path / "swap.json")
    report = SwapReport.load(tmp_path)
    assert report.finding == json.loads((tmp_path / "swap.json").read_text())["finding"]
