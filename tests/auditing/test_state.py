"""A saved audit: whatever byte, part or field of it is wrong is said, and nothing is reported from it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.merge import merge
from fenchel.auditing.state import STATE_FILE, STATE_FORM, AuditState
from fenchel.auditing.table import QUERIES, TWIN_QUERIES
from fenchel.errors import InputError
from fenchel.io.storage import read_document, write_document
from tests.auditing.small_audits import Interrupting, files_of, small_audit
from tests.damage import damaged_contents, refuses, refuses_every_damage

Saved = dict[str, Any]


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished audit; not to be changed."""
    folder = tmp_path_factory.mktemp("audit")
    small_audit(directory=folder, baseline="twin")
    return folder


@pytest.fixture
def folder(saved_once: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "audit"
    shutil.copytree(saved_once, copy)
    return copy


def test_any_damage_is_refused(folder: Path) -> None:
    refuses_every_damage(folder / STATE_FILE, lambda: AuditState.read(folder))


def test_every_command_refuses_a_damaged_state_and_leaves_every_file(folder: Path) -> None:
    path = folder / STATE_FILE
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[-3] ^= 16
    path.write_bytes(bytes(damaged))
    before = files_of(folder)
    assert "--overwrite" in refuses(path, lambda: small_audit(directory=folder, resume=True))
    refuses(path, lambda: small_audit(directory=folder))
    refuses(path, lambda: AuditReport.load(folder))
    refuses(path, lambda: merge([folder], folder.parent / "out", partial=True))
    assert files_of(folder) == before
    small_audit(directory=folder, overwrite=True, baseline="twin")
    assert path.read_bytes() == content


def _twice(saved: Saved) -> None:
    saved["examples"].append({**saved["examples"][0], "position": 2})


def _field(*path: str | int, to: Any) -> Callable[[Saved], None]:
    def apply(saved: Saved) -> None:
        found: Any = saved
        for name in path[:-1]:
            found = found[name]
        if to is KeyError:
            del found[path[-1]]
        else:
            found[path[-1]] = to

    return apply


WRONG: dict[str, Callable[[Saved], None]] = {
    "no table": _field("table", to=KeyError),
    "a table without parts": _field("table", "parts", to=KeyError),
    "a part elsewhere": _field("table", "parts", 0, to="../00000-0123456789abcdef.parquet"),
    "a part that is not there": _field("table", "parts", 0, to="00000-0123456789abcdef.parquet"),
    "a part of the twin that is not there": _field("twin", "parts", 0, to="00000-0123456789abcdef.parquet"),
    "a part by number": _field("table", "parts", 0, to=7),
    "words without an id": _field("table", "words", to={"w1": "w1"}),
    "words of numbers": _field("table", "words", to={"1": 1}),
    "no twin": _field("twin", to=KeyError),
    "a twin without parts": _field("twin", to={}),
    "another baseline": _field("manifest", "baseline", to="sister"),
    "no modules": _field("modules", to=KeyError),
    "a module of another kind": _field("modules", 0, "kind", to="sideways"),
    "no model": _field("manifest", "model", to=KeyError),
    "an empty model": _field("manifest", "model", to=""),
    "alpha x": _field("manifest", "alpha", to="x"),
    "alpha 0": _field("manifest", "alpha", to=0),
    "alpha true": _field("manifest", "alpha", to=True),
    "another space": _field("manifest", "space", to="outer"),
    "negative documents": _field("manifest", "documents", to=-3),
    "half a token": _field("manifest", "tokens", to=0.5),
    "no shard": _field("manifest", "shard", to="all of it"),
    "a shard that is not there": _field("manifest", "shard", to="4/4"),
    "a shard twice": _field("manifest", "shard", to="1,1/4"),
    "another schema": _field("manifest", "schema", to=1),
    "a negative cursor": _field("cursor", "window", to=-1),
    "a cursor with more": _field("cursor", "where", to=1),
    "finished 1": _field("finished", to=1),
    "no examples": _field("examples", to=None),
    "an example at position 0": _field("examples", 0, "position", to=0),
    "an example without a template": _field("examples", 0, "templates", to="none"),
    "a negative weight": _field("examples", 0, "templates", 0, "exact", to=-0.5),
    **{
        f"an example without its {name}": _field("examples", 0, name, to=KeyError)
        for name in ("pattern", "context_token", "passage")
    },
    "an example with a key": _field("examples", 0, "key", to=1),
    "two examples of one pattern": _twice,
    "a passage with a weight too few": _field("examples", 0, "passage", "exact", to="AAA="),
    "a passage in another writing": _field("examples", 0, "passage", "exact", to="?"),
    "no matrices": _field("matrices", to=KeyError),
    "a matrix with a key too few": _field("matrices", 0, "key_positions", to=[1]),
    "a matrix without a query": _field("matrices", 0, "query_positions", to=[]),
    "a matrix with other words": _field("matrices", 0, "keys", to=["one"]),
    "more": _field("more", to=1),
}  # fmt: skip


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_what_no_audit_can_have_saved_is_refused_though_it_is_sealed(
    saved_once: Path, tmp_path: Path, change: Callable[[Saved], None]
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


def test_a_swap_is_no_audit(folder: Path) -> None:
    from fenchel.swap.run import STATE_FORM as SWAP_FORM

    write_document(folder / STATE_FILE, SWAP_FORM, read_document(folder / STATE_FILE, STATE_FORM))
    message = refuses(folder / STATE_FILE, lambda: AuditReport.load(folder))
    assert "holds a saved swap, not a saved audit" in message


@pytest.mark.parametrize("name", [QUERIES, TWIN_QUERIES])
def test_parts_that_are_damaged_missing_or_of_another_audit_are_refused(folder: Path, name: str) -> None:
    (part,) = (folder / name).iterdir()
    content = part.read_bytes()
    (other,) = (folder / (TWIN_QUERIES if name == QUERIES else QUERIES)).iterdir()
    for damaged in (*damaged_contents(content, 6), other.read_bytes()):
        part.write_bytes(damaged)
        refuses(part, lambda: AuditReport.load(folder))
        refuses(part, lambda: small_audit(directory=folder, baseline="twin", resume=True))
        refuses(part, lambda: merge([folder], folder.parent / "out", partial=True))
    part.unlink()
    with pytest.raises(InputError, match=f"{re.escape(str(part))} cannot be read: No such file"):
        AuditReport.load(folder)
    part.write_bytes(content)
    AuditReport.load(folder)


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
