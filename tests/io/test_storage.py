"""Files of state: they come back as they were, say what they are, and are refused with any byte changed."""

import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from fenchel.errors import InputError, OutputError
from fenchel.io.runs import atomic_path, check_writable, write_text
from fenchel.io.storage import (
    Form,
    Mismatch,
    PositiveFloat,
    PositiveInt,
    Record,
    TensorSchema,
    check_json,
    check_tensors,
    json_text,
    parse_json,
    read_document,
    read_tensors,
    sealed_text,
    write_document,
    write_json,
    write_tensors,
)
from tests.damage import refuses


class _Note(Record):
    words: list[str]
    weight: PositiveFloat


NOTE = Form("note", 2, _Note, "Write it again.")
VALUES: dict[str, Any] = {"words": ["ä", "b"], "weight": 0.1}


def tensors_to_save() -> dict[str, torch.Tensor]:
    return {"counts": torch.arange(5), "maxima": torch.tensor([0.1, math.inf])}


@dataclass(frozen=True)
class Kind:
    """A kind of file: how it is written and read, and the SHA-256 of a file with ``VALUES``."""

    write: Callable[[Path, Form, Any], None]
    read: Callable[[Path, Form], Any]
    sha256: str

    def __str__(self) -> str:
        return self.write.__name__


def document(path: Path, form: Form, values: Any) -> None:
    write_document(path, form, values)


def tensors(path: Path, form: Form, values: Any) -> None:
    write_tensors(path, form, tensors_to_save(), values)


KINDS = [
    Kind(document, read_document, "550de64f5edfcfc9140863c3197aa31c7ba3525d0719e7e6b6b59d966ba0f0e8"),
    Kind(
        tensors,
        lambda *given: read_tensors(*given)[1],
        "6b0593dd68daabfab0c15f0304b0945fae5aaac652a88f36219cf5069647e5b2",
    ),
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


@every_kind
def test_what_was_written_comes_back_and_its_bytes_never_change(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "file"
    kind.write(path, NOTE, VALUES)
    assert kind.read(path, NOTE) == VALUES
    written = path.read_bytes()
    kind.write(path, NOTE, dict(reversed(VALUES.items())))
    assert path.read_bytes() == written
    assert hashlib.sha256(written).hexdigest() == kind.sha256


@every_kind
def test_another_kind_another_version_and_wrong_values_are_told_apart(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "file"
    for form, values, message in (
        (replace(NOTE, name="letter"), VALUES, "holds a letter, not a note. Write it again."),
        (replace(NOTE, version=3), VALUES, "has schema 3 of a note, of a later version of fenchel"),
        (replace(NOTE, version=1), VALUES, "has schema 1 of a note, of an earlier version of fenchel"),
        (NOTE, {**VALUES, "weight": -1}, "weight is -1; expected greater than 0"),
        (NOTE, {"weight": 1.0}, "words is missing"),
    ):
        kind.write(path, form, values)
        assert message in refuses(path, lambda: kind.read(path, NOTE))


@every_kind
@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b"{}", b"\0" * 99, b"[" * 10**6, b'{"a":1,"a":1}', b"\x80\x04\x95.", b"PK\x03\x04" * 32]
    + [size.to_bytes(8, "little") + b"{}" * 50 for size in (1 << 40, (1 << 64) - 1, 99_999_999)],
)  # fmt: skip
def test_what_is_something_else_is_refused(tmp_path: Path, kind: Kind, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert "is not a note" in refuses(path, lambda: kind.read(path, NOTE))


@every_kind
def test_what_is_no_file_is_refused(tmp_path: Path, kind: Kind) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, message in (
        ("nothing", r"nothing cannot be read: No such file or directory\. Write it again"),
        (".", "is not a file"),
        ("pipe", "pipe is not a file"),
    ):
        with pytest.raises(InputError, match=message):
            kind.read(tmp_path / name, NOTE)


def test_a_giant_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "giant.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(
        InputError, match=r"giant\.json has 1099511627776 bytes; expected at most .* for a note"
    ):
        read_document(tmp_path / "giant.json", NOTE)


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


def test_another_layout_is_refused_and_other_line_ends_are_not(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    path.write_text(json.dumps(json.loads(sealed_text(NOTE, VALUES))))
    assert "changed after it was written" in refuses(path, lambda: read_document(path, NOTE))
    path.write_bytes(sealed_text(NOTE, VALUES).replace("\n", "\r\n").encode())
    assert read_document(path, NOTE) == VALUES


def test_an_earlier_version_without_a_digest_is_read_only_where_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    path.write_text(json_text({"schema": 1, **VALUES}), encoding="utf-8")
    assert "of this version of fenchel: its digest is missing" in refuses(
        path, lambda: read_document(path, NOTE)
    )
    assert read_document(path, NOTE, unsealed_version=1) == VALUES
    path.write_text(json_text({"schema": 1, **VALUES, "weight": -1}), encoding="utf-8")
    message = refuses(path, lambda: read_document(path, NOTE, unsealed_version=1))
    assert "weight is -1; expected greater than 0" in message
    path.write_text(json_text({"schema": 2, **VALUES}), encoding="utf-8")
    refuses(path, lambda: read_document(path, NOTE, unsealed_version=1))


def test_tensors_come_back_from_a_file_that_safetensors_reads(tmp_path: Path) -> None:
    path, saved = tmp_path / "state.safetensors", tensors_to_save()
    tensors(path, NOTE, VALUES)
    read, _ = read_tensors(path, NOTE)
    assert read.keys() == saved.keys()
    assert all(
        torch.equal(read[name], saved[name]) and read[name].dtype == saved[name].dtype for name in read
    )
    with safe_open(str(path), framework="pt") as file:
        sealed, _, described = file.metadata()["fenchel"].partition(" ")
    assert json.loads(described) == {"format": "note", "schema": 2, "description": VALUES}
    digits = sealed.removeprefix("sha256:").encode()
    content = path.read_bytes()
    assert sealed == "sha256:" + hashlib.sha256(content.replace(digits, b"0" * 64)).hexdigest()


def test_a_tensor_that_claims_gigabytes_is_refused_before_they_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    header = {"a": {"dtype": "F64", "shape": [1 << 40], "data_offsets": [0, 1 << 43]}}
    described = f"sha256:{'0' * 64} {json_text({'format': 'note', 'schema': 2, 'description': VALUES})}"
    text = json.dumps({"__metadata__": {"fenchel": described}, **header}, separators=(",", ":")).encode()
    content = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256(content).hexdigest().encode()
    path.write_bytes(content.replace(b"0" * 64, digest, 1))
    assert "is not a note" in refuses(path, lambda: read_tensors(path, NOTE))


def test_json_has_one_text_and_neither_infinity_nor_nan(tmp_path: Path) -> None:
    assert json_text({"b": 1, "a": "ä"}) == json_text({"a": "ä", "b": 1}) == '{\n "a": "ä",\n "b": 1\n}\n'
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write_json(tmp_path / "numbers.json", [value])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"{} {}", "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b'"\xff"', "not valid JSON .*byte 0xff in position 1"),
        (b'{"a": 1, "b": {"c": 1, "c": 1}}', "the key 'c' twice"),
        (b"[NaN]", "not valid JSON .*nan"),
        (b"[-Infinity]", "not valid JSON .*inf"),
        (b"[1e999]", "not valid JSON .*inf"),
        (b"1" * 5_000, "not valid JSON .*5000 digits"),
        (b'["\\ud800"]', "not valid JSON .*surrogates"),
        (b"[" * 200_000 + b"]" * 200_000, "nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, bytes) else "",
)
def test_what_is_no_json_or_can_be_read_in_two_ways_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_json(content)


def failing(number: int):
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


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


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, r"cannot write .*numbers\.json: the disk is full\. Free some space"),
        (errno.EROFS, r"cannot write .*numbers\.json: Read-only file system\. Choose a folder"),
        (errno.EACCES, r"cannot write .*numbers\.json: Permission denied\. Choose a folder"),
        (errno.EIO, r"cannot write .*numbers\.json: Input/output error\. Choose another folder"),
    ],
)
def test_what_the_system_refuses_is_one_line_and_the_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    path = tmp_path / "numbers.json"
    write_json(path, [1])
    monkeypatch.setattr(os, "fsync", failing(number))
    with pytest.raises(OutputError, match=message) as caught:
        write_json(path, [2])
    monkeypatch.undo()
    assert "earlier results are intact" in str(caught.value)
    assert json.loads(path.read_text()) == [1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["numbers.json"]


def test_a_folder_is_made_and_cleared_of_what_was_left_half_written(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    check_writable(folder)
    (folder / ".fenchel-heads.json-12ab").write_text("half")
    (folder / ".fenchel-figures").mkdir()
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


SCHEMA = {
    "totals": TensorSchema(torch.int64, ("rows",), least=0),
    "values": TensorSchema(torch.float32, ("rows", 2), finite=False),
    "places": TensorSchema(torch.int64, ("filled",), rising=True),
}


def some_tensors(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    tensors = {"totals": torch.tensor([1, 0]), "values": torch.ones(2, 2), "places": torch.tensor([3, 4, 9])}
    return {**tensors, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"more": torch.zeros(1)}, "tensor more is there"),
        ({"places": None}, "tensor places is missing"),
        (
            {"totals": torch.tensor([1, -1])},
            "tensor totals is -1 somewhere; expected finite numbers of at least 0",
        ),
        ({"totals": torch.tensor([1.0, 0.0])}, r"tensor totals is of float32 \(2\); expected int64 \(2\)"),
        ({"totals": torch.tensor(1)}, r"tensor totals is of int64 \(\); expected int64 \(rows\)"),
        ({"values": torch.ones(3, 2)}, r"tensor values is of float32 \(3, 2\); expected float32 \(2, 2\)"),
        ({"values": torch.tensor([[1.0, math.nan]] * 2)}, "tensor values is nan somewhere; expected numbers"),
        ({"places": torch.tensor([3, 3])}, "tensor places is not increasing"),
    ],
)
def test_named_dimensions_are_the_same_everywhere_and_what_no_tensor_may_be(
    changes: dict[str, torch.Tensor | None], message: str
) -> None:
    infinite = some_tensors(values=torch.full((2, 2), math.inf))
    for dimensions in ({}, {"rows": 2}):
        assert check_tensors(infinite, SCHEMA, dimensions) == {"rows": 2, "filled": 3}
    with pytest.raises(Mismatch, match=r"tensor totals is of int64 \(2\); expected int64 \(3\)"):
        check_tensors(infinite, SCHEMA, {"rows": 3})
    strict = {**SCHEMA, "values": TensorSchema(torch.float32, ("rows", 2))}
    with pytest.raises(Mismatch, match="tensor values is inf somewhere; expected finite numbers"):
        check_tensors(infinite, strict)
    changed = {name: one for name, one in {**some_tensors(), **changes}.items() if one is not None}
    with pytest.raises(Mismatch, match=message):
        check_tensors(changed, SCHEMA)
