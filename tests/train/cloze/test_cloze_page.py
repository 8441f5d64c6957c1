"""The page on blanks: its examples run, and what it says of defaults is true."""

from __future__ import annotations

import pytest

from fenchel.train import ClozeOptions
from tests.pages import page, run_blocks


def test_the_examples_run(tmp_path):
    pytest.importorskip("transformers")
    names = run_blocks("docs/cloze.md")
    assert names["first"].shape == (2, 1, 30)
    assert names["moved"].max().item() > 0
    assert names["difference"].item() < 1e-5
    assert names["again"].configuration()["last"] == "standard"
    from tests.train.cloze.small_blanks import filled

    filled(tmp_path, epochs=1)
    text, blanks, maps = names["said"](tmp_path, "the [MASK] barks loudly .")
    assert text.endswith(" barks loudly .")
    assert len(blanks) == 1
    assert len(maps) == 2


def test_it_says_what_the_defaults_are():
    options, words = ClozeOptions(data="wikitext2"), " ".join(page("docs/cloze.md").split())
    assert f"({options.vocabulary:,} words in small letters" in words
    assert f"Passages are whole sentences of one article, up to {options.longest} words" in words
    assert f"--set shares={options.shares}" in words
    assert f"--set rate={options.rate}" in words
