"""What docs/layers.md shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = (Path(__file__).parents[2] / "docs" / "layers.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_blocks_run_in_order_and_print_what_their_comments_say(capsys):
    names: dict[str, Any] = {}
    promised = []
    with torch.random.fork_rng(devices=[]):
        for block in BLOCKS:
            exec(compile(block, "docs/layers.md", "exec"), names)  # noqa: S102 - our own page
            promised += re.findall(r"# (tensor\([^)]*\))", block)
    printed = capsys.readouterr().out
    assert len(BLOCKS) == 7
    assert promised == ["tensor(True)"] * 4
    assert re.findall(r"tensor\((?:True|False)\)", printed) == promised
    assert "Causal() * ALiBi(" in printed
    assert "torch.Size([2, 4, 10])" in printed
    assert all(layer.in_proj_weight.grad.abs().max() > 0 for layer in names["model"])
