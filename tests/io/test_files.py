import errno
import json
import os
from pathlib import Path

import pytest

from fenchel.errors import OutputError
from fenchel.io.files import atomic_path, check_writable, write_text
from fenchel.io.storage import write_json


def failing(number: int):
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def write_half(path: Path) -> None:
    path.write_text("half")
    raise RuntimeError("in the middle")


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_text(path, "one\r\n")
    write_text(path, "zwölf\n")
    assert path.read_bytes() == "zwölf\n".encode()
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]


def test_an_exception_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    write_json(path, [1])
    with pytest.raises(RuntimeError, match="in the middle"), atomic_path(path) as temporary:
        write_half(temporary)
    assert json.loads(path.read_text()) == [1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["numbers.json"]


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
    assert "\n" not in str(caught.value)
    assert "what was written before is intact" in str(caught.value)
    assert json.loads(path.read_text()) == [1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["numbers.json"]


def test_a_full_disk_is_met_for_real(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    path = tmp_path / "numbers.json"
    with pytest.raises(OutputError, match="the disk is full"), atomic_path(path):
        Path("/dev/full").write_text("never")
    assert list(tmp_path.iterdir()) == []


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
