"""What docs/layers.md shows is what happens."""

import re

import pytest
import torch

from tests.pages import python_blocks, run_blocks

PAGE = "docs/layers.md"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_blocks_run_in_order_and_print_what_their_comments_say(capsys):
    with torch.random.fork_rng(devices=[]):
        names = run_blocks(PAGE)
    promised = re.findall(r"# (tensor\([^)]*\))", "".join(python_blocks(PAGE)))
    printed = capsys.readouterr().out
    assert promised == ["tensor(True)"] * 4
    assert re.findall(r"tensor\((?:True|False)\)", printed) == promised
    assert "Causal() * ALiBi(" in printed
    assert "torch.Size([2, 4, 10])" in printed
    assert "Tsallis(<(4, 1)>)" in printed
    assert names["seen"].shape == names["heard"].shape == (2, 5, 32)
    assert names["density"].covariance().shape == (2, 4, 5, 2, 2)
    assert names["span"].mean().shape == (2, 4, 5, 1)
    assert names["recalled"].shape == names["measured"].shape == (2, 10, 32)
    assert names["responsibilities"].shape == (2, 10, 10)
    assert all(layer.in_proj_weight.grad.abs().max() > 0 for layer in names["model"])
