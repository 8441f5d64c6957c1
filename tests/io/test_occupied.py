"""A folder says whether a run may begin in it, and nothing there is replaced unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenchel.errors import InputError
from fenchel.io.folder import RunKind, Saved


def read(folder: Path) -> Saved:
    return Saved("bert", {"document": 1, "token": 40}, finished=(folder / "state").read_text() == "finished")


KIND = RunKind("audit", "state", ("table", "page"), read)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
def test_where_nothing_is_a_run_may_begin(tmp_path, resume, overwrite):
    if not (resume and overwrite):
        KIND.refuse_occupied(tmp_path, resume=resume, overwrite=overwrite)
        KIND.refuse_occupied(tmp_path / "missing", resume=resume, overwrite=overwrite)
    assert KIND.saved(tmp_path) is None


@pytest.mark.parametrize(("state", "end"), [("finished", "finished"), ("half", "interrupted")])
def test_a_run_is_kept_unless_something_is_said(tmp_path, state, end):
    (tmp_path / "state").write_text(state)
    with pytest.raises(
        InputError, match=f"holds an audit of bert, {end} after 1 document and 40 tokens"
    ) as caught:
        KIND.refuse_occupied(tmp_path, resume=False, overwrite=False)
    assert "--resume" in str(caught.value)
    assert "--overwrite" in str(caught.value)
    KIND.refuse_occupied(tmp_path, resume=True, overwrite=False)
    KIND.refuse_occupied(tmp_path, resume=False, overwrite=True)
    assert KIND.saved(tmp_path) == Saved("bert", {"document": 1, "token": 40}, finished=state == "finished")


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["table", "page"])
def test_results_of_unknown_origin_are_replaced_only_by_overwriting(tmp_path, name, resume):
    (tmp_path / name).write_text("")
    with pytest.raises(InputError, match=r"holds results without the state that they came from \(state\)"):
        KIND.refuse_occupied(tmp_path, resume=resume, overwrite=False)
    KIND.refuse_occupied(tmp_path, resume=False, overwrite=True)


def test_keeping_and_discarding_contradict_each_other(tmp_path):
    with pytest.raises(InputError, match="--resume and --overwrite contradict each other"):
        KIND.refuse_occupied(tmp_path, resume=True, overwrite=True)
