"""What stands between marks of a page is replaced, and nothing else."""

from __future__ import annotations

from website.marks import between_marks

PAGE = """# Title
<!-- results: one -->
old
<!-- end of results -->
between
<!-- results: two-b -->
<!-- end of results -->
<!-- catalogue: one -->
other
<!-- end of catalogue -->
"""


def test_what_is_made_replaces_what_was_there_and_again_the_same():
    said = {"one": r"new \\1"}
    filled = between_marks(PAGE, "results", said.get)
    assert filled == PAGE.replace("old\n", "\nnew \\\\1\n\n")
    assert between_marks(filled, "results", said.get) == filled
    assert between_marks(PAGE, "results", lambda _: None) == PAGE
    assert between_marks(PAGE, "nonsense", lambda _: "x") == PAGE
