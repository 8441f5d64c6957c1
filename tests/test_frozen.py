"""Tests that are frozen are there and unchanged."""

from tests.frozen import ROOT, digest, listed


def test_frozen_tests_are_unchanged():
    assert len(listed()) > 10
    changed = [path for path, recorded in listed().items() if digest(ROOT / path) != recorded]
    assert changed == [], "a frozen test changes only where a name moves; python -m tests.frozen records that"


def test_a_changed_file_has_another_digest(tmp_path):
    path, other = tmp_path / "a.py", tmp_path / "b.py"
    path.write_bytes(b"assert 1 == 1\r\n")
    other.write_bytes(b"assert 1 == 1\n")
    assert digest(path) == digest(other)
    other.write_bytes(b"assert 1 == 2\n")
    assert digest(path) != digest(other)
