"""The page on translation: its examples run, and its commands take the options that they name."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise

from fenchel.train import TranslationOptions
from fenchel.train.settings import parsed_settings, settings_of
from tests.pages import page, run_blocks


def test_the_examples_run():
    names = run_blocks("docs/translation.md")
    assert names["first"].shape == (2, 3, 50)
    assert not names["first"].equal(names["exact"])
    assert len(names["said"]) == 2
    assert callable(names["in_german"])


def test_the_trainings_can_be_asked_for():
    lines = re.findall(r"^fenchel train (.*)$", page("docs/translation.md"), flags=re.MULTILINE)
    assert len(lines) >= 4
    known = settings_of(TranslationOptions)
    for line in lines:
        written = shlex.split(line)
        pairs = dict(zip(written[::2], written[1::2], strict=True))
        named = {
            name.removeprefix("--"): value for name, value in pairs.items() if name not in ("--out", "--set")
        }
        settings = [value for name, value in pairwise(written) if name == "--set"]
        TranslationOptions(**named, **parsed_settings(settings, known))
