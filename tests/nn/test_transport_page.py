"""What docs/transport.md shows is what happens."""

import re

import pytest
import torch

from tests.pages import page, python_blocks, run_blocks

PAGE = "docs/transport.md"


@pytest.mark.filterwarnings("ignore::fenchel.errors.CostWarning")
def test_blocks_run_in_order_and_print_what_their_comments_say(capsys):
    with torch.random.fork_rng(devices=[]):
        run_blocks(PAGE)
    promised = re.findall(r"print\(.*\)  # (.*)", "".join(python_blocks(PAGE)))
    assert len(promised) >= 8
    assert capsys.readouterr().out.splitlines() == promised


def test_every_option_of_the_layer_is_named():
    from fenchel.nn import TransportAttention

    kept = {"embed_dim", "num_heads", "bias", "batch_first", "device", "dtype"}  # as in torch's own layer
    for name in TransportAttention.__init__.__annotations__.keys() - kept - {"return"}:
        assert f"`{name}`" in page(PAGE), name
