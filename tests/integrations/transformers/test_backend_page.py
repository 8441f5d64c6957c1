"""What docs/transformers.md shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from tests.tiny_models import DISPATCHING

PAGE = (Path(__file__).parents[3] / "docs" / "transformers.md").read_text()


def test_the_examples_run(capsys):
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 5
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for code in blocks:
            exec(compile(code, "docs/transformers.md", "exec"), names)  # noqa: S102 - our own page
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    assert printed[0].startswith("('encoder.layer.0.attention.self', 'encoder.layer.1.attention.self')")
    assert not torch.equal(names["exact"], names["second"])
    assert not torch.equal(names["exact"], names["mixed"])
    assert names["written"].shape == (2, 9)
    assert names["alpha"].grad.abs().min() > 0


def test_the_table_lists_every_family_that_is_tested():
    rows = re.findall(r"^\| (\w+) \| \d+ \| (\S+) \| (\S+) \|$", PAGE, flags=re.MULTILINE)
    assert tuple(family for family, _, _ in rows) == DISPATCHING
    assert all(float(difference) <= 2e-5 * max(1.0, float(largest)) for _, difference, largest in rows)
