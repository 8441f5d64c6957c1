"""What docs/transformers.md shows is what happens."""

import json

import torch

from benchmarks.families import BEGIN, END, TOLERANCE
from benchmarks.families import page as families_page
from benchmarks.recording import RESULTS
from tests.pages import page, run_blocks
from tests.tiny_models import DISPATCHING

NAME = "docs/transformers.md"
PAGE = page(NAME)


def test_the_examples_run(capsys):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        names = run_blocks(NAME)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    assert printed[0].startswith("('encoder.layer.0.attention.self', 'encoder.layer.1.attention.self')")
    assert not torch.equal(names["exact"], names["second"])
    assert not torch.equal(names["exact"], names["mixed"])
    assert bool((names["sparse"][1, ..., 3] == 0).all())
    assert not torch.equal(names["partly"], names["exact"])
    assert names["written"].shape == (2, 9)
    assert names["alpha"].grad.abs().min() > 0


def test_the_list_of_families_is_that_of_the_results_and_has_every_family_that_is_tested():
    found = json.loads((RESULTS / "families.json").read_text())
    assert f"{BEGIN}\n{families_page(found)}\n{END}" in PAGE
    named = {"clip_text": "clip_text_model"}
    assert {named.get(family, family) for family in DISPATCHING} <= found["works"].keys()
    assert max(found["works"].values()) <= TOLERANCE
    assert not found["wrong"]
