"""docs/models.md: its blocks run, and every model that it names is there."""

from __future__ import annotations

import re

import torch

from fenchel import models
from fenchel.cli.application import application
from fenchel.train import TASKS
from tests.pages import page, run_blocks

NAME = "docs/models.md"


def test_the_blocks_run_and_every_change_changes_the_answer() -> None:
    names = run_blocks(NAME)
    before, believing, exact = (names[name] for name in ("before", "believing", "exact"))
    assert not torch.allclose(before, believing)
    assert not torch.allclose(believing, exact)
    assert names["first_head"].exact.shape == (1, 4)


def test_what_it_names_is_there() -> None:
    rows = re.findall(r"^\| `([A-Z]\w+)` .*`fenchel (\w+)`", page(NAME), flags=re.MULTILINE)
    commands = {command.name for command in application.registered_commands}
    trained = {name for task in TASKS.values() for name in task.models}
    assert len(rows) == 5
    for model, command in rows:
        assert issubclass(getattr(models, model), torch.nn.Module)
        assert model.lower() in trained
        assert command in commands
