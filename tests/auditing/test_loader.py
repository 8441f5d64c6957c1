"""Audits of runs through a loader: the same numbers as by hand, token texts in the report, the file in the manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fenchel
from fenchel.auditing.capture import Capture
from fenchel.auditing.report import render_html
from fenchel.auditing.report.reproduce import command
from fenchel.errors import InputError, ModelError
from fenchel.runs.loader import load_run
from tests.loaders import LAYERS, TRANSFORMERS, written

CODES = {"layers": (LAYERS, "exact"), "transformers": (TRANSFORMERS, "fenchel_exact")}


@pytest.mark.parametrize("name", CODES)
def test_a_run_is_audited_through_its_loader(tmp_path: Path, name: str) -> None:
    loader, run = written(tmp_path, *CODES[name])
    report = fenchel.audit(str(run), loader=loader, directory=tmp_path / "audit", baseline="none")
    found = load_run(loader, run)
    by_hand = (
        fenchel.audit(found.model.eval(), None, list(found.batches), space="key")
        if name != "layers"
        else None
    )
    if by_hand is not None:
        assert [head["gap_mean"] for head in by_hand.heads] == [head["gap_mean"] for head in report.heads]
    manifest = report.manifest
    assert (manifest["model"], manifest["space"], manifest["reads"]) == (str(run), "key", "examples")
    assert (manifest["loader"], manifest["documents"], manifest["tokens"]) == (str(loader), 12, 54)
    assert manifest["loader_sha256"] == found.sha256
    assert "infers by its exact estimate" in manifest["convention"]
    assert {head["queries"] for head in report.heads} == {54}
    assert f"--loader {loader}" in command(manifest)
    example = next(iter(report.far_queries.values()))[0]
    assert example.passage is not None
    assert set(map(str.strip, example.passage.pieces)) <= {"[CLS]", "cat", "sat", "mat", "dog", "ran", "."}
    assert example.token.strip() in {"[CLS]", "cat", "sat", "mat", "dog", "ran", "."}
    assert "[CLS]" in render_html(report)
    assert all(item.command is None or f"--loader {loader}" in item.command for item in report.suggestions)
    again = fenchel.audit(str(run), loader=loader, directory=tmp_path / "audit", baseline="none", resume=True)
    assert again.heads == report.heads
    loader.write_text(loader.read_text() + "\n# changed\n")
    with pytest.raises(InputError, match="loader sha256"):
        fenchel.audit(str(run), loader=loader, directory=tmp_path / "audit", baseline="none", resume=True)


def test_a_model_of_transformers_attends_as_it_was_trained_while_it_is_captured(tmp_path: Path) -> None:
    loader, run = written(tmp_path, TRANSFORMERS, "fenchel_exact")
    found = load_run(loader, run)
    model, inputs = found.model.eval(), next(iter(found.batches))["inputs"]
    with torch.no_grad():
        own = model(**inputs).logits
        model.set_attn_implementation("fenchel_first_order")  # pyright: ignore[reportCallIssue]
        first = model(**inputs).logits
        model.set_attn_implementation("fenchel_exact")  # pyright: ignore[reportCallIssue]
    seen = []
    model.register_forward_hook(lambda *given: seen.append(given[2].logits))
    with Capture(model, space="key", consume=lambda call: None) as capture:
        capture.run(inputs)
    torch.testing.assert_close(seen[0], own, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(first, own, rtol=1e-2)


def test_what_is_not_given_beside_a_loader(tmp_path: Path) -> None:
    loader, run = written(tmp_path, LAYERS, "first_order")
    given: dict[str, Any] = {"texts": ["a"], "images": tmp_path, "revision": "main", "tokenizer": object()}
    for name, value in given.items():
        with pytest.raises(InputError, match=f"{name} was given beside a loader"):
            fenchel.audit(str(run), loader=loader, **{name: value})
    with pytest.raises(InputError, match="max length is an option of texts, and a loader was given"):
        fenchel.audit(str(run), loader=loader, max_length=5)
    with pytest.raises(ModelError, match=r"has no config\.json.*--loader examples/NAME\.py"):
        fenchel.audit(str(run), None, ["a text"])
    limited = fenchel.audit(str(run), loader=loader, max_tokens=10)
    assert limited.manifest["tokens"] == 18  # the first batch
