"""What docs/attention.md shows is what happens."""

import inspect

import torch

from fenchel import functional as F
from tests.pages import page, run_blocks

PAGE = "docs/attention.md"


def test_blocks_run_in_order():
    torch.manual_seed(0)
    names = run_blocks(PAGE)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        names["query"], names["key"], names["value"], attn_mask=names["causal"]
    )
    torch.testing.assert_close(names["attention"], theirs)
    assert float((names["exact"] - names["attention"]).abs().max()) > 1e-3
    assert names["weights"].shape == (2, 4, 10, 10)
    assert names["certificate"].gap.shape == (2, 4, 10)
    assert 0.45 < float(names["zeros"]) < 1
    assert float(names["raw"].grad.abs().min()) > 0
    assert names["memory"].shape == names["settled"].shape == names["read"].shape == (2, 4, 10, 16)
    torch.testing.assert_close(names["softmax"], F.attention(names["query"], names["means"], names["means"]))
    assert names["bounds"].gap.shape == (2, 4, 10)
    assert float(names["bias"].grad.abs().max()) > 0
    assert names["alpha"].grad.shape == (4, 1)


def test_every_argument_and_every_function_is_on_the_page():
    text = page(PAGE)
    assert [name for name in inspect.signature(F.attention).parameters if name not in text] == []
    assert [name for name in F.__all__ if name not in text and not name.startswith("Attention")] == []
