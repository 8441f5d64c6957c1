"""Two manifests differ in what they say, in the words that the user typed."""

from __future__ import annotations

import platform

import torch

import fenchel
from fenchel.io.folder import differences, versions

THERE = {"model": "bert", "batch_size": 8, "alpha": 1.0, "tokens": 5}


def test_each_difference_is_a_phrase_in_the_order_of_the_manifest():
    asked = {"device": "cpu", **THERE, "alpha": 2.0, "batch_size": 4}
    assert differences(THERE, asked) == [
        "batch size: 8 there, 4 asked for",
        "alpha: 1.0 there, 2.0 asked for",
        "device: None there, 'cpu' asked for",
    ]
    assert differences(THERE, asked, but={"alpha", "device", "batch_size"}) == []
    assert differences(THERE, dict(THERE)) == []


def test_what_is_said_of_the_two_can_be_chosen():
    assert differences({"seed": 0}, {"seed": 1}, said=("here", "in b")) == ["seed: 0 here, 1 in b"]


def test_versions_are_those_that_run():
    found = versions(7)
    assert list(found) == ["schema", "fenchel", "torch", "transformers", "python"]
    assert (found["schema"], found["fenchel"], found["torch"]) == (7, fenchel.__version__, torch.__version__)
    assert found["python"] == platform.python_version()
