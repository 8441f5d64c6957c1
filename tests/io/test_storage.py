"""Files of state: they come back as they were, say what they are, and are refused with any byte changed."""

import errno
import hashlib
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fenchel.errors import InputError, OutputError
from fenchel.io.runs import atomic_path, check_writable, write_text
from fenchel.io.storage import (
    Form,
    Mismatch,
    PositiveFloat,
    PositiveInt,
    Record,
    check_json,
    json_text,
    read_document,
    write_document,
    write_json,
)
from tests.damage import refuses


class _Note(Record):
    words: list[str]
    weight: PositiveFloat


NOTE = Form("note", 2, _Note, "Write it again.")
VALUES: dict[str, Any] = {"words": ["ä", "b"], "weight": 0.1}


def test_what_was_written_comes_back_and_its_bytes_never_change(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_document(path, NOTE, VALUES)
    assert read_document(path, NOTE) == VALUES
    written = path.read_bytes()
    write_document(path, NOTE, dict(reversed(VALUES.items())))
    assert path.read_bytes() == written
    assert (
        hashlib.sha256(written).hexdigest()
        == "550de64f5edfcfc9140863c3197aa31c7ba3525d0719e7e6b6b59d966ba0f0e8"
    )


def test_another_kind_another_version_and_wrong_values_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for form, values, message in (
        (replace(NOTE, name="letter"), VALUES, "holds a letter, not a note. Write it again."),
        (replace(NOTE, version=3), VALUES, "has schema 3 of a note, of a later version of fenchel"),
        (replace(NOTE, version=1), VALUES, "has schema 1 of a note, of an earlier version of fenchel"),
        (NOTE, {**VALUES, "weight": -1}, "weight is -1; expected greater than 0"),
        (NOTE, {"weight": 1.0}, "words is missing"),
    ):
        write_document(path, form, values)
        assert message in refuses(path, lambda: read_document(path, NOTE))


def test_what_is_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content, reason in (
        *((content, "it is not valid JSON") for content in (b"{", b"\xef\xbb\xbf{}", b"PK\x03\x04")),
        (b'"\xff"', "byte 0xff in position 1"),
        (b"[NaN]", "nan"),
        (b"[1e999]", "inf"),
        (b"1" * 5_000, "5000 digits"),
        (b'["\\ud800"]', "surrogates"),
        *((content, "recursion") for content in (b"[" * 10**6, b'{"a":' * 100_000 + b"1" + b"}" * 100_000)),
        *((content, ", not an object") for content in (b"[]", b"null")),
        *((content, "its digest is missing") for content in (b"{}", b'{"a":1,"a":1}')),
    ):
        path.write_bytes(content)
        message = refuses(path, lambda: read_document(path, NOTE))
        assert "is not a note" in message
        assert reason in message


def test_what_is_no_file_and_what_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "giant").open("wb") as file:
        file.truncate(1 << 40)
    for name, message in (
        ("nothing", r"nothing cannot be read: No such file or directory\. Write it again"),
        (".", "is not a file"),
        ("pipe", "pipe is not a file"),
        ("giant", "giant has 1099511627776 bytes; expected at most .* for a note"),
    ):
        with pytest.raises(InputError, match=message):
            read_document(tmp_path / name, NOTE)


def test_anybody_can_check_a_digest_as_the_documentation_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    recipe = next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "hashlib" in code)
    path = tmp_path / "swap.json"
    write_document(path, NOTE, {**VALUES, "words": ['\n "digest": "",', '"digest": "",']})
    code = compile(recipe.replace('"swap.json"', repr(str(path))), "docs/command-line.md", "exec")
    exec(code, {})  # noqa: S102 - it is our own page
    path.write_bytes(path.read_bytes().replace(b"0.1", b"0.2"))
    with pytest.raises(AssertionError):
        exec(code, {})  # noqa: S102


def test_another_layout_is_refused_and_other_line_ends_are_not(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    write_document(path, NOTE, VALUES)
    sealed = path.read_text()
    twice = sealed.replace('"weight": 0.1', '"weight": 0.2,\n "weight": 0.1')
    for text in (json.dumps(json.loads(sealed)), twice):
        path.write_text(text)
        assert "changed after it was written" in refuses(path, lambda: read_document(path, NOTE))
    path.write_bytes(sealed.replace("\n", "\r\n").encode())
    assert read_document(path, NOTE) == VALUES


def test_json_has_one_text_and_neither_infinity_nor_nan(tmp_path: Path) -> None:
    assert json_text({"b": 1, "a": "ä"}) == json_text({"a": "ä", "b": 1}) == '{\n "a": "ä",\n "b": 1\n}\n'
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write_json(tmp_path / "numbers.json", [value])
    assert list(tmp_path.iterdir()) == []


def failing(number: int):
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_what_is_synced_is_open_for_writing_as_windows_requires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl, modes = pytest.importorskip("fcntl"), []
    monkeypatch.setattr(
        os, "fsync", lambda file: modes.append(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE)
    )
    write_text(tmp_path / "page.html", "one")
    assert modes[0] == os.O_RDWR


def test_a_file_is_replaced_whole_or_not_at_all_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_text(path, "one\r\n")
    write_text(path, "zwölf\n")

    def half(temporary: Path) -> None:
        temporary.write_text("half")
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"), atomic_path(path) as temporary:
        half(temporary)
    assert path.read_bytes() == "zwölf\n".encode()
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]


def test_what_the_system_refuses_is_one_line_and_the_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "numbers.json"
    write_json(path, [1])
    for number, said in (
        (errno.ENOSPC, r"the disk is full\. Free some space"),
        (errno.EROFS, r"Read-only file system\. Choose a folder"),
        (errno.EIO, r"Input/output error\. Choose another folder"),
    ):
        monkeypatch.setattr(os, "fsync", failing(number))
        with pytest.raises(OutputError, match=rf"cannot write .*numbers\.json: {said}") as caught:
            write_json(path, [2])
        monkeypatch.undo()
        assert "earlier results are intact" in str(caught.value)
        assert json.loads(path.read_text()) == [1]
        assert [entry.name for entry in tmp_path.iterdir()] == ["numbers.json"]


def test_a_folder_is_made_and_cleared_of_what_was_left_half_written(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    check_writable(folder)
    (folder / ".fenchel-heads.json-12ab").write_text("half")
    (folder / "heads.json").write_text("[]")
    check_writable(folder)
    assert [entry.name for entry in folder.iterdir()] == ["heads.json"]


def test_folders_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    occupied = tmp_path / "out"
    occupied.write_text("a file")
    for folder in (occupied, occupied / "below"):
        with pytest.raises(OutputError, match="there is a file where a folder is expected"):
            check_writable(folder)
    assert occupied.read_text() == "a file"
    with pytest.raises(OutputError, match="bytes free and at least 1152921504606846976 are needed"):
        check_writable(tmp_path, needed_bytes=1 << 60)
    monkeypatch.setattr(Path, "write_bytes", failing(errno.EACCES))
    with pytest.raises(OutputError, match=r"Permission denied\. Choose a folder that you may write to"):
        check_writable(tmp_path)


class Layer(Record):
    heads: list[PositiveInt]


class Layers(Record):
    layers: list[Layer]


def test_a_mismatch_says_where_and_is_short() -> None:
    with pytest.raises(Mismatch, match=r"^file\.layers\[1\]\.heads\[2\] is 0; expected greater than or"):
        check_json(Layers, {"layers": [{"heads": []}, {"heads": [1, 2, 0]}]}, "file")
    with pytest.raises(Mismatch) as caught:
        check_json(Layers, {"layers": "x" * 10**6})
    assert len(str(caught.value)) < 200
