"""What stands between marks of a page is replaced, and nothing else."""

from __future__ import annotations

from fenchel.catalogue.page import between_marks, marked_names

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


def test_names_are_those_of_their_kind_in_order():
    assert marked_names(PAGE, "results") == ("one", "two-b")
    assert marked_names(PAGE, "catalogue") == ("one",)
    assert marked_names("nothing", "results") == ()


def test_what_is_made_replaces_what_was_there_and_again_the_same():
    said = {"one": r"new \\1"}
    filled = between_marks(PAGE, "results", said.get)
    assert filled == PAGE.replace("old\n", "\nnew \\\\1\n\n")
    assert between_marks(filled, "results", said.get) == filled
    assert between_marks(PAGE, "results", lambda _: None) == PAGE
    assert between_marks(PAGE, "nonsense", lambda _: "x") == PAGE
