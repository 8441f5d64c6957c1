"""What docs/transformers.md shows is what happens."""

from __future__ import annotations

import re

import torch

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


def test_the_table_lists_every_family_that_is_tested():
    rows = re.findall(r"^\| (\w+) \| \d+ \| (\S+) \| (\S+) \|$", PAGE, flags=re.MULTILINE)
    assert tuple(family for family, _, _ in rows) == DISPATCHING
    assert all(float(difference) <= 2e-5 * max(1.0, float(largest)) for _, difference, largest in rows)
