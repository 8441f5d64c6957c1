"""Tests that are frozen are there and unchanged."""

from tests.frozen import ROOT, digest, listed


def test_frozen_tests_are_unchanged():
    assert len(listed()) > 10
    changed = [path for path, recorded in listed().items() if digest(ROOT / path) != recorded]
    assert changed == [], "a frozen test changes only where a name moves; python -m tests.frozen records that"
