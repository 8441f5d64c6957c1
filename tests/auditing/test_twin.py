"""The untrained twin: the same questions to random weights, counted, saved, resumed and merged like the model's own."""

import copy
import re
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fenchel.auditing import run, twin
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.merge import merge
from fenchel.auditing.report.html import command
from fenchel.auditing.twin import TwinCost, twin_line, untrained_twin
from fenchel.errors import ModelError
from tests.auditing.small_audits import small_audit, small_model, some_texts


def few(**options: Any) -> AuditReport:
    """An audit of few texts with its twin."""
    return small_audit(some_texts(3), **{"baseline": "twin", **options})


def test_the_twin_has_the_numbers_of_a_model_with_those_weights() -> None:
    model, state = small_model(), torch.get_rng_state()
    report = few(model=model, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert few(model=model, seed=1).twin_heads != report.twin_heads
    torch.manual_seed(5)
    random = type(model)(copy.deepcopy(model.config)).double().eval()
    assert report.twin_heads == few(model=random, baseline="none").heads
    assert report.heads == few(model=model, baseline="none").heads != report.twin_heads
    assert (report.manifest["baseline"], report.manifest["twin"]) == ("twin", "audited")
    assert [pattern.key for pattern in report.twin_patterns] == [pattern.key for pattern in report.patterns]


def test_shards_of_which_one_lacks_it_have_none_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few(directory=tmp_path, shard=(0, 2), baseline="auto")
    monkeypatch.setattr(twin, "MOST_PARAMETERS", 10)
    few(directory=tmp_path, shard=(1, 2), baseline="auto")
    merged = merge(tmp_path)
    assert merged.twin is None
    assert merged.manifest["twin"] == "not audited on every shard"


def test_one_that_would_take_long_is_left_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: Any = None
    for step, unit in ((40, "minutes"), (40_000, "hours")):
        clock = lambda step=step: TwinCost(now=count(step=step).__next__)  # noqa: E731
        monkeypatch.setattr(run, "TwinCost", clock)
        left = few(baseline="auto", directory=tmp_path / unit)
        assert left.twin is None
        assert re.match(rf"not audited: it would take about \d+ {unit}", left.manifest["twin"])
    endless = small_audit(iter(some_texts(3)), baseline="auto")  # nobody knows how much is left
    assert endless.manifest["twin"].startswith("not audited: it takes longer than a minute")
    assert "--baseline twin" in twin_line(left.manifest)
    monkeypatch.setattr(twin, "MOST_PARAMETERS", 10)
    assert few(baseline="auto").manifest["twin"].startswith("not audited: the model has ")
    assert few().twin_heads


class _Remote(torch.nn.Module):
    __module__ = "transformers_modules.somebody.model"


class _Demanding(torch.nn.Module):
    base_model_prefix = "model"
    config = SimpleNamespace()

    def __init__(self, config: Any, size: int) -> None:
        super().__init__()


def test_a_twin_that_cannot_be_built_is_one_line_and_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    for model, message in (
        (_Remote(), "_Remote is custom code of the model, which is not run"),
        (_Demanding(None, 1), "_Demanding cannot be built from its configuration alone: .*'size'"),
    ):
        with pytest.raises(ModelError, match=message):
            untrained_twin(model, 0)
    model = small_model()
    monkeypatch.setattr(type(model), "__module__", _Remote.__module__)
    assert twin_line(few(model=model, baseline="auto").manifest).endswith("to build an untrained twin.")


def test_a_folder_has_it_unless_it_is_given_up_which_leaves_no_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, alone = few(baseline=None, directory=tmp_path / "kept"), few(baseline=None)
    assert kept.manifest["baseline"] == "auto"
    assert "baseline='auto'" in command(kept.manifest), "with which --resume agrees"
    assert kept.twin_heads == AuditReport.load(tmp_path / "kept").twin_heads != []
    assert (alone.manifest["baseline"], alone.manifest["twin"], alone.twin) == ("none", "not audited", None)
    answers = iter([None, None, "it takes longer than a minute", *[None] * 99])
    monkeypatch.setattr("fenchel.auditing.twin.TwinCost.too_much", lambda *_: next(answers))
    report = few(directory=tmp_path / "left", baseline="auto", checkpoint_seconds=0)
    assert "longer than a minute" in report.manifest["twin"]
    assert not list((tmp_path / "left").glob("twin/*"))
