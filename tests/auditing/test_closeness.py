"""Audits under a closeness: numbers worked out by another way, models that attend otherwise, files, commands."""

import html
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fenchel
from fenchel import KL, Tsallis
from fenchel.auditing.report.findings import headline
from fenchel.closeness.tsallis import closeness_name
from fenchel.errors import InputError, ModelError
from fenchel.integrations.capture import Capture
from fenchel.integrations.transformers import register
from tests.auditing.small_audits import small_audit, small_model, some_texts
from tests.auditing.test_measure import by_definition, problem_of
from tests.cli.conftest import SMALL, Command, command, saved  # noqa: F401 - fixtures
from tests.pages import text_of
from tests.tiny_models import configured, tiny_inputs, tiny_model

NAMED = {"sparsemax": Tsallis(2), "entmax15": Tsallis(1.5)}


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


@pytest.mark.parametrize(
    ("name", "space"), [*((name, "key") for name in NAMED), (None, "key"), (None, "input")]
)
def test_numbers_are_those_of_every_query_by_definition(name: str | None, space: Any) -> None:
    inputs, calls = tiny_inputs("bert", padding="left"), []
    model = tiny_model("bert", attn_implementation=f"fenchel_{name or 'first_order'}")
    with Capture(model, space=space, consume=calls.append) as capture:
        capture.run(inputs)
    problems = [problem_of(call, space, closeness=NAMED.get(name or "")) for call in calls]
    layers = [by_definition(problem) for problem in problems]
    options: dict[str, Any] = {"space": space, "tol": 1e-6, "heads": [1, 3], "closeness": name}
    for record in fenchel.audit(model, None, [inputs], **options).heads:
        call, head = calls[record["layer"] - 1], record["head"] - 1
        assert record["queries"] == int((inputs["attention_mask"] == 1).sum())
        for metric, values in layers[record["layer"] - 1].items():
            counted = values[:, head][call.counted].numpy()
            summaries = {"mean": counted.mean(), "max": counted.max()}
            summaries |= {f"p{percent}": np.percentile(counted, percent) for percent in (50, 95)}
            for statistic, expected in summaries.items():
                shown = record[f"{metric}_{statistic}"]
                found = torch.inf if shown is None else shown
                assert found == pytest.approx(expected, rel=2e-4), (record["layer"], head, metric, statistic)


def test_a_model_of_softmax_is_refused_unless_even_so() -> None:
    model = small_model()
    with pytest.raises(ModelError, match=r"uses softmax, but the audit measures.*--even-so"):
        small_audit(model=model, closeness="entmax15")
    before = model.config._attn_implementation
    texts = some_texts(3)
    forced = small_audit(texts, model=model, closeness="entmax15", even_so=True)
    plain = small_audit(texts, model=model)
    assert model.config._attn_implementation == before
    assert (forced.manifest["closeness"], forced.manifest["even_so"]) == ("tsallis:1.5", True)
    assert all(suggestion.command is None for suggestion in forced.suggestions)
    assert headline(forced)[0].startswith("The audit measures tsallis:1.5, which the model does not use")
    assert "closeness" not in plain.manifest
    assert "even_so" not in small_audit(texts[:1], model=model, even_so=True).manifest
    own = tiny_model("bert", vocab_size=64, attn_implementation="fenchel_sparsemax")
    with pytest.raises(ModelError, match=r"uses tsallis:2, .* pass --closeness tsallis:2"):
        small_audit(model=own)
    # What the model computes stays softmax: the first layer's inputs are those of either audit, and so are its queries.
    ours, theirs = forced.heads[0], plain.heads[0]
    assert ours["queries"] == theirs["queries"]
    assert ours["total_variation_mean"] != theirs["total_variation_mean"]


def test_files_pages_and_twins(tmp_path: Path) -> None:
    model = tiny_model("bert", vocab_size=64, attn_implementation="fenchel_entmax15")
    options: dict[str, Any] = {"closeness": "entmax15", "directory": tmp_path / "out", "texts": some_texts(3)}
    report = small_audit(model=model, baseline="twin", **options)
    assert report.manifest["twin"] == "audited"
    page = html.unescape((tmp_path / "out" / "report.html").read_text())
    assert "the closeness is Tsallis of order 1.5 (1.5-entmax)" in page
    assert "closeness='tsallis:1.5'" in page
    # Weights that a report shows are those of the closeness: some are zero.
    assert '"first_order": 0.0' in (tmp_path / "out" / "examples.json").read_text()
    other: dict[str, Any] = {**options, "closeness": "sparsemax", "even_so": True}
    with pytest.raises(InputError, match=r"differ in closeness: 'tsallis:1.5' there, 'tsallis:2'") as caught:
        small_audit(model=model, **other, baseline="twin", resume=True)
    assert "Templates are" not in str(caught.value)
    small_audit(model=model, **{**other, "directory": tmp_path / "other"})
    with pytest.raises(InputError, match=r"cannot be compared.*closeness"):
        fenchel.compare(tmp_path / "out", tmp_path / "other")


def test_names() -> None:
    assert [closeness_name(x) for x in (None, "softmax", "kl", KL())] == [None] * 4
    assert {closeness_name(x) for x in (Tsallis(2), "sparsemax", "tsallis:2.0")} == {"tsallis:2"}
    assert closeness_name(Tsallis(torch.tensor([[1.25]]))) == "tsallis:1.25"
    assert closeness_name("tsallis:1.5:temperature=0.5:csiszar") == "tsallis:1.5:csiszar:temperature=0.5"
    names = ["tsallis", "tsallis:3", "tsallis:1.5:warm", "tsallis:x", "tsallis:1.5:temperature=-1", "entmax"]
    wrong: Any
    for wrong in [*names, 1.5, Tsallis, Tsallis(torch.tensor([[1.2], [1.4]])), ["sparsemax"]]:
        with pytest.raises(InputError, match=r"closeness is .*expected tsallis:ORDER"):
            closeness_name(wrong)


def test_the_command(command: Command, tmp_path: Path) -> None:  # noqa: F811 - fixtures
    base = ["audit", saved(tmp_path / "model", "bert"), *SMALL["audit"].split()]
    (tmp_path / "text.txt").write_text("\n".join(some_texts(3)))
    base += ["--text", tmp_path / "text.txt"]
    # A model says in its configuration what it was trained with; save_pretrained leaves that out.
    configured(tmp_path / "model", attn_implementation="fenchel_entmax15")
    own = command(*base, "--closeness", "tsallis:1.5", "--out", tmp_path / "own")
    assert own.code == 0, own.err
    page = (tmp_path / "own" / "report.html").read_text()
    assert "--closeness tsallis:1.5" in text_of(page)
