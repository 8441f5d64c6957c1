"""Audits of runs through a loader: the same numbers as by hand, token texts in the report, the file in the manifest."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fenchel
from fenchel.auditing.report import render_html, summary_sentence
from fenchel.auditing.report.html import command
from fenchel.errors import InputError
from fenchel.integrations.backend import use_backend
from fenchel.loading import load_run
from fenchel.nn import MultiheadAttention
from fenchel.nn.preference import Causal
from tests.auditing.small_audits import small_audit, small_model
from tests.loaders import LAYERS, TRANSFORMERS, written

CODES = {"layers": (LAYERS, "exact"), "transformers": (TRANSFORMERS, "fenchel_exact")}


@pytest.mark.parametrize("name", CODES)
def test_a_run_is_audited_through_its_loader(tmp_path: Path, name: str) -> None:
    loader, run = written(tmp_path, *CODES[name])
    report = fenchel.audit(str(run), loader=loader, directory=tmp_path / "audit", baseline="none")
    found = load_run(loader, run)
    if name == "layers":
        by_hand = fenchel.audit(found.model.eval(), None, list(found.batches), space="key")
        assert [head["gap_mean"] for head in by_hand.heads] == [head["gap_mean"] for head in report.heads]
    manifest = report.manifest
    assert (manifest["model"], manifest["space"], manifest["reads"]) == (str(run), "key", "examples")
    assert (manifest["loader"], manifest["documents"], manifest["tokens"]) == (str(loader), 12, 54)
    assert manifest["loader_sha256"] == found.sha256
    assert "uses the exact estimator" in manifest["estimator"]
    assert "estimator" not in manifest["convention"], "of the model; other audits are compared with it"
    assert {head["queries"] for head in report.heads} == {54}
    assert f"--loader {loader}" in command(manifest)
    example = next(iter(report.far_queries.values()))[0]
    assert example.token.strip() in {"[CLS]", "cat", "sat", "mat", "dog", "ran", "."}
    page = render_html(report)
    assert "[CLS]" in page
    assert "The model uses the exact estimator; attention here is the first-order solution" in page
    assert "Attention is the first-order solution" not in page
    assert "with first-order attention in place of its own, " in summary_sentence(report)
    assert all(item.command is None or f"--loader {loader}" in item.command for item in report.suggestions)
    again = fenchel.audit(str(run), loader=loader, directory=tmp_path / "audit", baseline="none", resume=True)
    assert again.heads == report.heads
    loader.write_text(loader.read_text() + "\n# changed\n")
    with pytest.raises(InputError, match="loader sha256"):
        fenchel.audit(str(run), loader=loader, directory=tmp_path / "audit", baseline="none", resume=True)


def test_an_audit_inside_use_backend_names_the_estimator() -> None:
    model = small_model()
    with use_backend(model, "exact", layers=[1]):
        inside = small_audit(model=model)
    outside = small_audit(model=model)
    assert inside.heads[-1]["mean_error_mean"] != outside.heads[-1]["mean_error_mean"]
    assert "uses the exact estimator" in inside.manifest["estimator"]
    assert "estimator" not in outside.manifest
    assert "Attention is the first-order solution" in render_html(outside)


class Writer(nn.Module):
    """An encoder, and a decoder that attends to itself and to the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.encode, self.decode, self.cross = (MultiheadAttention(8, 2, batch_first=True) for _ in range(3))
        self.decode.preference = Causal()

    def forward(self, source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        x, y = self.embed(source), self.embed(target)
        x = x + self.encode(x, x, x, key_padding_mask=~mask)[0]
        y = y + self.decode(y, y, y)[0]
        return y + self.cross(y, x, x, key_padding_mask=~mask)[0]


@pytest.mark.parametrize("length", [4, 6])
def test_tokens_of_an_encoder_and_of_a_decoder_are_told_apart(length: int) -> None:
    torch.manual_seed(0)
    source, target = torch.randint(1, 20, (2, 6)), torch.randint(1, 20, (2, length))
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    batch = {
        "inputs": {"source": source, "target": target, "mask": mask},
        "counted": mask,
        "tokens": [["a1", "a2", "a3", "a4", "a5", "a6"], ["a1", "a2", "a3", "a4"]],
        "tokens_decoder": [[f"b{place}" for place in range(count)] for count in (length, length - 1)],
    }
    report = fenchel.audit(Writer().eval(), None, [batch], space="key")
    queries = {head["kind"]: head["queries"] for head in report.heads}
    assert queries == {"encoder_self": 10, "decoder_self": 2 * length - 1, "cross": 2 * length - 1}
    for key, (example, *_) in report.far_queries.items():
        asked, read = {"encoder_self": "aa", "decoder_self": "bb", "cross": "ba"}[key.kind]
        assert example.token.startswith(asked)
        assert {template.token[0] for template in example.templates} == {read}
