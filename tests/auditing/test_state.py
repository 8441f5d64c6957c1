"""A saved audit: whatever byte, part or field of it is wrong is said, and nothing is reported from it."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.state import STATE_FILE, STATE_FORM, AuditState
from fenchel.auditing.table import QUERIES
from fenchel.errors import InputError
from fenchel.io.storage import read_document, write_document
from tests.auditing.small_audits import Interrupting, small_audit
from tests.damage import Change, field

Saved = dict[str, Any]


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished audit; not to be changed."""
    folder = tmp_path_factory.mktemp("audit")
    small_audit(directory=folder, baseline="twin")
    return folder


def _twice(saved: Saved) -> None:
    saved["examples"].append({**saved["examples"][0], "position": 2})


WRONG: dict[str, Change] = {
    "no table": field("table", to=KeyError),
    "a table without parts": field("table", "parts", to=KeyError),
    "a part elsewhere": field("table", "parts", 0, to="../00000-0123456789abcdef.parquet"),
    "a part that is not there": field("table", "parts", 0, to="00000-0123456789abcdef.parquet"),
    "a part of the twin that is not there": field("twin", "parts", 0, to="00000-0123456789abcdef.parquet"),
    "a part by number": field("table", "parts", 0, to=7),
    "words without an id": field("table", "words", to={"w1": "w1"}),
    "words of numbers": field("table", "words", to={"1": 1}),
    "no twin": field("twin", to=KeyError),
    "a twin without parts": field("twin", to={}),
    "another baseline": field("manifest", "baseline", to="sister"),
    "no modules": field("modules", to=KeyError),
    "a module of another kind": field("modules", 0, "kind", to="sideways"),
    "no model": field("manifest", "model", to=KeyError),
    "an empty model": field("manifest", "model", to=""),
    "alpha x": field("manifest", "alpha", to="x"),
    "alpha 0": field("manifest", "alpha", to=0),
    "alpha true": field("manifest", "alpha", to=True),
    "another space": field("manifest", "space", to="outer"),
    "negative documents": field("manifest", "documents", to=-3),
    "half a token": field("manifest", "tokens", to=0.5),
    "no shard": field("manifest", "shard", to="all of it"),
    "a shard that is not there": field("manifest", "shard", to="4/4"),
    "a shard twice": field("manifest", "shard", to="1,1/4"),
    "another schema": field("manifest", "schema", to=1),
    "a negative cursor": field("cursor", "window", to=-1),
    "a cursor with more": field("cursor", "where", to=1),
    "finished 1": field("finished", to=1),
    "no examples": field("examples", to=None),
    "an example at position 0": field("examples", 0, "position", to=0),
    "an example without a template": field("examples", 0, "templates", to="none"),
    "a negative weight": field("examples", 0, "templates", 0, "exact", to=-0.5),
    **{
        f"an example without its {name}": field("examples", 0, name, to=KeyError)
        for name in ("pattern", "context_token", "passage")
    },
    "an example with a key": field("examples", 0, "key", to=1),
    "two examples of one pattern": _twice,
    "a passage with a weight too few": field("examples", 0, "passage", "exact", to="AAA="),
    "a passage in another writing": field("examples", 0, "passage", "exact", to="?"),
    "no matrices": field("matrices", to=KeyError),
    "a matrix with a key too few": field("matrices", 0, "key_positions", to=[1]),
    "a matrix without a query": field("matrices", 0, "query_positions", to=[]),
    "a matrix with other words": field("matrices", 0, "keys", to=["one"]),
    "more": field("more", to=1),
}  # fmt: skip


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_what_no_audit_can_have_saved_is_refused_though_it_is_sealed(
    saved_once: Path, tmp_path: Path, change: Change
) -> None:
    folder = tmp_path / "audit"
    shutil.copytree(saved_once, folder)
    saved = read_document(folder / STATE_FILE, STATE_FORM)
    change(saved)
    write_document(folder / STATE_FILE, STATE_FORM, saved)
    with pytest.raises(InputError) as caught:
        AuditState.read(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_part_that_no_state_names_is_removed_when_an_audit_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        small_audit(directory=tmp_path, observer=Interrupting(2, KeyboardInterrupt()))
    stray = tmp_path / QUERIES / "00001-0123456789abcdef.parquet"
    stray.write_bytes(b"killed between a part and the state")
    report = small_audit(directory=tmp_path, resume=True)
    assert not stray.exists()
    assert {record["queries"] for record in report.heads} == {report.manifest["tokens"]}


def test_an_audit_of_the_first_version_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "state.safetensors").write_bytes(b"counts")
    with pytest.raises(InputError, match=f"{re.escape(str(tmp_path))} holds an audit of fenchel 0.1"):
        AuditReport.load(tmp_path)
