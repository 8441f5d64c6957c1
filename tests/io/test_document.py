from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fenchel.errors import InputError
from fenchel.io.schema import Positive, Record
from fenchel.io.storage import Form, json_text, read_document, sealed_text, write_document
from tests.damage import refuses, refuses_every_damage


class _Note(Record):
    words: list[str]
    weight: Positive


NOTE = Form("note", 2, _Note, "Write it again.")
VALUES = {"words": ["ä", "b"], "weight": 0.1}


def test_a_document_comes_back_and_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    write_document(path, NOTE, VALUES)
    assert read_document(path, NOTE) == VALUES
    written = json.loads(path.read_text(encoding="utf-8"))
    assert {name: written[name] for name in VALUES} == VALUES
    assert (written["format"], written["schema"]) == ("note", 2)


def test_the_digest_of_a_content_never_changes() -> None:
    digest = json.loads(sealed_text(NOTE, VALUES))["digest"]
    assert digest == "sha256:d418384a35e2daecc82febc49349890376e933593da0162040fff4c8ee7adb1a"


def test_anybody_can_check_a_digest_as_the_documentation_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    recipe = next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "hashlib" in code)
    path = tmp_path / "swap.json"
    write_document(path, NOTE, VALUES)
    code = compile(recipe.replace('"swap.json"', repr(str(path))), "docs/command-line.md", "exec")
    exec(code, {})  # noqa: S102 - it is our own page
    path.write_bytes(path.read_bytes().replace(b"0.1", b"0.2"))
    with pytest.raises(AssertionError):
        exec(code, {})  # noqa: S102


def test_any_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    write_document(path, NOTE, VALUES)
    refuses_every_damage(path, lambda: read_document(path, NOTE), count=400)


@pytest.mark.parametrize("dropped", ["digest", "format", "schema", "words"])
def test_a_field_that_was_removed_is_missed(tmp_path: Path, dropped: str) -> None:
    path = tmp_path / "note.json"
    written = json.loads(sealed_text(NOTE, VALUES))
    path.write_text(json_text({name: value for name, value in written.items() if name != dropped}))
    refuses(path, lambda: read_document(path, NOTE))


def test_another_layout_is_refused_and_other_line_ends_are_not(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    path.write_text(json.dumps(json.loads(sealed_text(NOTE, VALUES))))
    assert "changed after it was written" in refuses(path, lambda: read_document(path, NOTE))
    path.write_bytes(sealed_text(NOTE, VALUES).replace("\n", "\r\n").encode())
    assert read_document(path, NOTE) == VALUES


def test_another_kind_and_another_version_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    write_document(path, replace(NOTE, name="letter"), VALUES)
    assert "holds a letter, not a note. Write it again." in refuses(path, lambda: read_document(path, NOTE))
    write_document(path, replace(NOTE, version=3), VALUES)
    message = refuses(path, lambda: read_document(path, NOTE))
    assert "has schema 3 of a note, of a later version of fenchel; this one reads schema 2" in message


def test_an_earlier_version_without_a_digest_is_read_only_where_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    path.write_text(json_text({"schema": 1, **VALUES}), encoding="utf-8")
    message = refuses(path, lambda: read_document(path, NOTE))
    assert "has schema 1 and no digest, as an earlier version of fenchel wrote them" in message
    assert read_document(path, NOTE, unsealed_version=1) == VALUES
    path.write_text(json_text({"schema": 1, **VALUES, "weight": -1}), encoding="utf-8")
    message = refuses(path, lambda: read_document(path, NOTE, unsealed_version=1))
    assert "weight is -1; expected greater than 0" in message
    path.write_text(json_text({"schema": 2, **VALUES}), encoding="utf-8")
    message = refuses(path, lambda: read_document(path, NOTE, unsealed_version=1))
    assert "is no note that fenchel wrote: it has no digest" in message


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b"{}", b"\x00" * 99, b"[" * 10**6, b'{"a":1,"a":1}']
)
def test_what_is_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "note.json"
    path.write_bytes(content)
    assert "is no note" in refuses(path, lambda: read_document(path, NOTE))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"nothing\.json cannot be read: No such file or directory\. Write it again"
    ):
        read_document(tmp_path / "nothing.json", NOTE)
    with pytest.raises(InputError, match="is not a file"):
        read_document(tmp_path, NOTE)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is not a file"):
        read_document(tmp_path / "pipe", NOTE)


def test_a_giant_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "giant.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(
        InputError, match=r"giant\.json has 1099511627776 bytes, and a note has at most 268435456"
    ):
        read_document(tmp_path / "giant.json", NOTE)
