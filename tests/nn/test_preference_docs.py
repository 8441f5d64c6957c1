"""What docs/preferences.md shows is what happens, and its tables name what exists."""

from __future__ import annotations

import re

import pytest
import torch

from fenchel import closeness, functional
from fenchel.nn import evidence, preference
from fenchel.nn.evidence import ScaledDot
from tests.nn.preferences import attention_inputs, perturbed
from tests.pages import page, python_blocks, run_blocks

NAME = "docs/preferences.md"
PAGE = page(NAME)


def test_examples_run_in_order(capsys):
    torch.manual_seed(0)
    names = run_blocks(NAME)
    printed = capsys.readouterr().out.splitlines()
    said = [
        comment for block in python_blocks(NAME) for comment in re.findall(r"print\(.*?\)  # (.*)", block)
    ]
    assert len(printed) == len(said) + 1
    for line, comment in zip(printed, said, strict=False):
        assert line.removeprefix("torch.Size(").replace("[", "(").replace("]", "").startswith(comment[:12])
    assert names["weights"].shape == (2, 10, 10)
    assert not names["weights"][..., 8:].any()
    assert (names["fused"] - names["dense"]).abs().max() < 1e-5


@pytest.mark.parametrize("module", [preference, evidence])
def test_every_name_is_on_the_page(module):
    public = {name for name in module.__all__ if not name.startswith("Abstract")} - {"ContextNetwork"}
    assert {name for name in public if name not in PAGE} == set()


def test_names_in_the_tables_exist():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    used = {
        name for row in rows for name in re.findall(r"\b([A-Z]\w+)\(", "".join(re.findall(r"`(.*?)`", row)))
    }
    assert len(used) > 15
    known = (preference, evidence, closeness)
    assert {name for name in used if not any(hasattr(module, name) for module in known)} == set()


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_without_evidence_the_weights_are_the_preference(estimator):
    inputs = attention_inputs(padded=False)
    additive = perturbed(preference.Additive(3, 6, hidden=4))(inputs)
    key = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    nothing = torch.zeros(2, 3, 5, 8, dtype=torch.float64)
    z, templates, scale = ScaledDot()(nothing, key)
    assert additive is not None
    arguments = {"log_preference": additive.detach(), "scale": scale, "estimator": estimator}
    weights = functional.attention_weights(z, templates, **arguments)
    torch.testing.assert_close(weights, additive.detach().softmax(-1))
    _, certificate = functional.attention_with_certificate(z, templates, key, **arguments)
    torch.testing.assert_close(certificate.gap, torch.zeros_like(certificate.gap))
