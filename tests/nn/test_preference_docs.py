"""What docs/preferences.md and docs/evidence.md show is what happens, and their tables name what exists."""

import re

import pytest
import torch

from fenchel import closeness
from fenchel.nn import evidence, preference
from tests.pages import page, python_blocks, run_blocks

NAME = "docs/preferences.md"
PAGE = page(NAME)
EVIDENCE = "docs/evidence.md"


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


def test_evidence_runs():
    names = run_blocks(EVIDENCE)
    assert names["content"].evidence is not None
    assert names["output"].shape == (2, 10, 32)


@pytest.mark.parametrize(("module", "text"), [(preference, PAGE), (evidence, page(EVIDENCE))])
def test_every_name_is_on_the_page(module, text):
    public = {name for name in module.__all__ if not name.startswith("Abstract")} - {"ContextNetwork"}
    assert {name for name in public if name not in text} == set()


def test_names_in_the_tables_exist():
    rows = [line for line in (PAGE + page(EVIDENCE)).splitlines() if line.startswith("| ")]
    used = {
        name for row in rows for name in re.findall(r"\b([A-Z]\w+)\(", "".join(re.findall(r"`(.*?)`", row)))
    }
    assert len(used) > 15
    known = (preference, evidence, closeness)
    assert {name for name in used if not any(hasattr(module, name) for module in known)} == set()
