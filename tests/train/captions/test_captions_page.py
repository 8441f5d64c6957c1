"""The page on captions: its examples run, and its commands take the options that they name."""

from __future__ import annotations

from tests.pages import page, run_blocks


def test_the_examples_run():
    names = run_blocks("docs/captions.md")
    assert names["first"]["logits"].shape == (2, 3, 50)
    assert names["moved"].shape == (2, 3)
    assert names["moved"].max().item() > 0
    assert callable(names["said"])


def test_it_says_what_its_images_are_too_few_for():
    assert "far too little to caption any other image" in " ".join(page("docs/captions.md").split())
