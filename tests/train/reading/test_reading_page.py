"""The page on reading: its examples run, and its tables name what there is."""

from __future__ import annotations

from fenchel.models import classifier, pairs
from fenchel.models.word_states import ENCODERS
from tests.pages import page, run_blocks


def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_blocks("docs/reading.md")
    assert names["chances"].shape == (2, 2)
    assert names["there"].weights.shape == (1, 1, 3, 2)
    assert names["back"].weights.shape == (1, 1, 2, 3)
    assert names["result"].finished
    assert names["answer"].label in ("person", "place")


def test_every_choice_is_on_the_page():
    text = page("docs/reading.md")
    for name in (
        *ENCODERS,
        *classifier.POOLINGS,
        *classifier.PREFERENCES,
        *pairs.PREFERENCES,
        *pairs.COMPARISONS[:1],
    ):
        assert f"`{name}`" in text or f'"{name}"' in text, name
