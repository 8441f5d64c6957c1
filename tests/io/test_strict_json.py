from __future__ import annotations

import math
from pathlib import Path

import pytest

from fenchel.errors import InputError
from fenchel.io.storage import json_text, parse_json, write_json


def test_json_is_the_same_bytes_for_the_same_content() -> None:
    assert json_text({"b": 1, "a": "ä"}) == json_text({"a": "ä", "b": 1}) == '{\n "a": "ä",\n "b": 1\n}\n'
    assert json_text({"a": 1}) != json_text({"a": 2})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_json_has_no_infinity_and_no_nan(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "numbers.json", [value])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [{}, [], None, 1.5, -(10**200), "ä\U0001f600", {"a": [{"b": True}, 1e308]}])
def test_what_is_written_is_parsed(value: object) -> None:
    assert parse_json(json_text(value).encode()) == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no JSON"),
        (b" \n", "no JSON"),
        (b"{", "no JSON"),
        (b"{} {}", "no JSON"),
        (b"\xef\xbb\xbf{}", "no JSON"),
        (b"\x80\x02}q\x00.", r"no UTF-8 text \(byte 0\)"),
        (b'"\xff"', r"no UTF-8 text \(byte 1\)"),
        (b'{"a": 1, "b": {"c": 1, "c": 1}}', "the key 'c' twice"),
        (b"[NaN]", "NaN, which is no JSON number"),
        (b"[-Infinity]", "-Infinity, which is no JSON number"),
        (b"[1e999]", "beyond float64"),
        (b"1" * 5_000, "an integer of 5000 digits"),
        (b'["\\ud800"]', "half of a surrogate pair"),
        (b"[" * 200_000 + b"]" * 200_000, "nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, bytes) else "",
)
def test_what_is_no_json_or_can_be_read_in_two_ways_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_json(content)
    assert "\n" not in str(caught.value)
