"""What is asked, line by line: where each stands, and what is wrong with a file."""

from __future__ import annotations

import gzip

import pytest

from fenchel.answering import lines_of_file, lines_of_texts
from fenchel.errors import InputError


def test_lines_know_where_they_stand(tmp_path):
    file = tmp_path / "asked.txt"
    file.write_bytes("\ufeffa dog\u2028barks\r\nzwei Männer".encode())
    lines = lines_of_file(file)
    assert [line.text for line in lines] == ["a dog\u2028barks", "zwei Männer"]
    assert lines[1].where == f"{file}, line 2"
    packed = tmp_path / "asked.txt.gz"
    packed.write_bytes(gzip.compress(b"one\ntwo\n"))
    assert [line.text for line in lines_of_file(packed)] == ["one", "two"]
    assert [line.where for line in lines_of_texts(["a", "b"], what="question")] == [
        "question 1",
        "question 2",
    ]
    assert lines_of_texts("one text")[0].text == "one text"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty; expected a text a line"),
        (b"a\n\nb\n", "line 2 is empty"),
        (b"a\n  \n", "line 2 is empty"),
        ("a\nMänner\n".encode("latin-1"), "line 2 is not UTF-8: byte 0xe4"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, content, said):
    file = tmp_path / "asked.txt"
    file.write_bytes(content)
    with pytest.raises(InputError, match=said):
        lines_of_file(file)


def test_what_is_no_file_or_no_text(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        lines_of_file(tmp_path / "none.txt")
    with pytest.raises(InputError, match="is a folder"):
        lines_of_file(tmp_path)
    with pytest.raises(InputError, match="there is no sentence"):
        lines_of_texts([])
    with pytest.raises(InputError, match="sentence 2 is 3; expected a text"):
        lines_of_texts(["a", 3])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="sentence 1 is empty"):
        lines_of_texts([" "])
