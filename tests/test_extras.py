"""What a run needs is asked for before it begins, and nothing is imported for that."""

from __future__ import annotations

import sys

import pytest

from fenchel.errors import MissingExtraError, require_packages


def test_packages_that_are_there_pass_without_being_imported():
    before = set(sys.modules)
    require_packages("dev", "this", "antigravity")
    assert not {"this", "antigravity"} & (set(sys.modules) - before)


def test_the_first_that_is_missing_is_named_with_its_extra():
    with pytest.raises(
        MissingExtraError, match=r"no_such is not installed\. Run: pip install 'fenchel\[report\]'"
    ):
        require_packages("report", "json", "no_such", "neither")
