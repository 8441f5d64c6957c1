"""Audits of models with attention layers of ``fenchel.nn``: seen as the layers infer, or refused."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

import fenchel
from fenchel import Tsallis
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.inputs import load_run
from fenchel.auditing.report import render_html
from fenchel.auditing.report.html import command
from fenchel.errors import CaptureError, InputError, ModelError
from fenchel.integrations.backend import use_backend
from fenchel.integrations.capture import Capture
from fenchel.integrations.sites import AttentionCall, AttentionSite
from fenchel.nn import MultiheadAttention, use_estimator
from fenchel.nn.evidence import Content
from fenchel.nn.preference import AbstractPreference, AttentionInputs, Causal
from tests.auditing.small_audits import small_audit, small_model
from tests.auditing.test_measure import by_definition, problem_of
from tests.loaders import LAYERS, TRANSFORMERS, written
from tests.nn.small_layers import HEADS, WIDTH, build, heads
from tests.normal import drawn
from tests.tiny_models import Encoder, ViT, tiny_model

TOKENS = 5


class LooksAtContent(AbstractPreference):
    """A preference of each query of each input: what it would like before it meets a key."""

    def __init__(self) -> None:
        super().__init__()
        self.taste = nn.Linear(WIDTH, TOKENS, dtype=torch.float64)

    @override
    def forward(self, inputs: AttentionInputs) -> Tensor:
        assert inputs.query_inputs is not None
        return self.taste(inputs.query_inputs)[:, None, :, : inputs.keys]


def layer(**options: Any) -> Any:
    made = build(**options)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


def tokens() -> Tensor:
    return drawn(2, TOKENS, WIDTH)


def audited(model: nn.Module, inputs: dict[str, Tensor], **options: Any) -> AuditReport:
    return fenchel.audit(model, None, [inputs], **{"tol": 1e-9, **options})


def agree(
    report: AuditReport,
    made: Any,
    alphas: Sequence[float],
    x: Tensor | None = None,
    *,
    log_u: Tensor | None = None,
    counted: Tensor | None = None,
    closeness: Any = None,
    number: int = 1,
    rel: float = 1e-6,
) -> None:
    """See that the means of a layer's heads are those of its weights and the definitions."""
    x = tokens() if x is None else x
    query, key, _ = (part.detach() for part in heads(made, x))
    counted = torch.ones(x.shape[:2], dtype=torch.bool) if counted is None else counted
    site = AttentionSite("layer", "encoder_self", 1, HEADS)
    key_weight = made.in_proj_weight.detach()[WIDTH : 2 * WIDTH].unflatten(0, (HEADS, -1))
    call = AttentionCall(
        site, query, key, (WIDTH // HEADS) ** -0.5, log_u, counted, x.detach(), key_weight, None
    )
    alpha = torch.tensor(alphas, dtype=torch.float64)[:, None]
    expected = by_definition(problem_of(call, report.manifest["space"], alpha, closeness))
    records = [record for record in report.heads if record["layer"] == number]
    assert len(records) == HEADS
    for head, record in enumerate(records):
        for name in ("relative_deviation", "total_variation", "mean_error", "gap"):
            # Numbers are counted as float32.
            value = float(expected[name][:, head][counted].mean())
            assert record[f"{name}_mean"] == pytest.approx(value, rel=rel), name


@pytest.mark.parametrize("space", ["input", "key"])
def test_numbers_of_every_layer_are_those_of_its_weights(space: str) -> None:
    torch.manual_seed(0)
    model = Encoder(layer(), layer(alpha=0.3)).eval()
    seen: list[Tensor] = []
    model.layers[1].register_forward_pre_hook(lambda _module, given: seen.append(given[0]))
    report = audited(model, {"tokens": tokens()}, space=space)
    agree(report, model.layers[0], [1.0] * HEADS)
    agree(report, model.layers[1], [0.3] * HEADS, seen[0], number=2)
    assert [record["queries"] for record in report.heads] == [2 * TOKENS] * 2 * HEADS
    assert {record["kind"] for record in report.heads} == {"encoder_self"}


@pytest.mark.parametrize("space", ["input", "key"])
def test_a_preference_of_each_query_and_the_padding_are_the_layers_own(space: str) -> None:
    torch.manual_seed(2)
    taste = LooksAtContent()
    made = layer(preference=taste)
    padding = torch.zeros(2, TOKENS, dtype=torch.bool)
    padding[1, 3:] = True
    with torch.no_grad():
        log_u = taste.taste(tokens())[:, None].masked_fill(padding[:, None, None], -torch.inf)
    report = audited(Encoder(made).eval(), {"tokens": tokens(), "padding": padding}, space=space)
    agree(report, made, [1.0] * HEADS, log_u=log_u, counted=~padding)
    assert report.heads[0]["queries"] == TOKENS + 3


@pytest.mark.parametrize("space", ["input", "key"])
def test_layers_with_a_closeness_are_audited_under_it(space: str) -> None:
    torch.manual_seed(1)
    near, spec = Tsallis(1.3, "csiszar", temperature=0.7), "tsallis:1.3:csiszar:temperature=0.7"
    made = layer(closeness=near, alpha=0.8, preference=Causal())
    model, causal = Encoder(made).eval(), torch.full((1, 1, TOKENS, TOKENS), -torch.inf).double().triu(1)
    report = audited(model, {"tokens": tokens()}, space=space, closeness=spec)
    agree(report, made, [0.8] * HEADS, log_u=causal, closeness=near, rel=1e-4)
    assert {record["kind"] for record in report.heads} == {"decoder_self"}
    with pytest.raises(ModelError, match=r"uses tsallis:1\.3:csiszar.*measures softmax: pass"):
        audited(model, {"tokens": tokens()}, space=space)
    learned = layer(closeness=Tsallis(1.5), learn_order=True).eval()
    with pytest.raises(ModelError, match=r"uses a separate order for each head"):
        audited(learned, dict.fromkeys(("query", "key", "value"), tokens()), closeness="entmax15")


def test_switched_layers_are_audited_as_they_infer_then() -> None:
    torch.manual_seed(3)
    model = Encoder(layer(estimator="exact", alpha=2.0)).eval()
    with pytest.raises(ModelError, match=r"layers\.0 uses the estimator 'exact'.*first order"):
        audited(model, {"tokens": tokens()})
    with use_estimator(model, "first_order", alpha=0.5):
        report = audited(model, {"tokens": tokens()}, space="key")
    agree(report, model.layers[0], [0.5] * HEADS)
    model = Encoder(layer()).eval()
    with use_estimator(model, "first_order", alpha=0.5, heads=[2]):
        report = audited(model, {"tokens": tokens()}, space="key")
    agree(report, model.layers[0], [1.0, 0.5, 1.0])
    made, alphas = layer(learn_alpha=True), [0.2, 1.0, 1.7]
    made.log_alpha.data.copy_(torch.tensor(alphas).log())
    report = audited(Encoder(made).eval(), {"tokens": tokens()}, space="key")
    agree(report, made, alphas)


def test_space_input_is_refused_where_templates_are_not_the_inputs() -> None:
    for options, reason in (
        ({"evidence": Content(HEADS).double()}, "not a linear map.*--space key"),
        ({"normalize_templates": True}, "not a linear map.*--space key"),
        ({"add_zero_attn": True}, "not a linear map.*--space key"),
        ({"learn_alpha": True}, "have different α.*--space key"),
    ):
        model = Encoder(layer(**options)).eval()
        if model.layers[0].log_alpha is not None:
            model.layers[0].log_alpha.data[0] = 1.0
        with pytest.raises(ModelError, match=reason):
            audited(model, {"tokens": tokens()}, space="input")
        audited(model, {"tokens": tokens()}, space="key")


def test_transport_attention_is_left_out_by_name_or_refused() -> None:
    model, images = ViT(WIDTH, 3, HEADS, cost="squared_euclidean"), {"images": torch.randn(2, 1, 8, 8)}
    with pytest.raises(ModelError, match=r"layers\.2\.self_attn is a TransportAttention.*layers 1,2"):
        audited(model, images)
    assert len(audited(model, images, layers=[1, 2], tol=1e-5).heads) == 2 * HEADS
    assert model.training


def test_what_cannot_be_audited_is_refused_in_one_line() -> None:
    usual, bert = Encoder(layer()), tiny_model("bert")
    bert.extra = layer()
    torchs, transposed = nn.MultiheadAttention(WIDTH, HEADS), MultiheadAttention(WIDTH, HEADS).double()
    read = {"tokens": tokens()}
    scaled = {"space": "input", "template_scale": "sqrt_d"}
    cases: list[tuple[Any, dict[str, Any], dict[str, Any], Any, str]] = [
        (
            nn.Linear(2, 2),
            {"input": torch.zeros(1, 2)},
            {},
            ModelError,
            "model is a Linear; .* layers of fenchel.nn",
        ),
        (Encoder(torchs, layer()), read, {}, ModelError, "layers.0 of Encoder is a torch.nn.*from_torch"),
        (usual, {"words": tokens()}, {}, InputError, "takes no 'words'; it takes tokens, padding"),
        (usual, read, {"layers": [2]}, InputError, "encoder self-attention 1 to 1"),
        (usual, read, {"alpha": 0.5}, InputError, "alpha is 0.5.*their own"),
        (usual, read, {"revision": "main"}, InputError, "already loaded"),
        (usual, read, scaled, InputError, "their own scale"),
        (Encoder(transposed), read, {}, CaptureError, "attends over 5 sequences.*2 rows.*batch_first"),
        (bert, {"input_ids": torch.tensor([[1, 2]])}, {}, ModelError, "of transformers and layers of"),
    ]
    for model, inputs, options, error, message in cases:
        with pytest.raises(error, match=message):
            audited(model.eval(), inputs, **options)


def test_a_layer_that_is_shared_is_a_layer_for_every_call_and_calls_stay_the_same() -> None:
    one, other = layer(), layer()
    model = Encoder(one, one, other).eval()
    with Capture(model, space="key", consume=lambda call: None) as capture:
        capture.run({"tokens": tokens()})
        found = [(site.name, site.layer) for site in capture.sites]
        assert found == [("layers.0", 1), ("layers.0", 2), ("layers.2", 3)]
        model.layers = nn.ModuleList([one, other]).eval()
        with pytest.raises(CaptureError, match="did not attend in this forward, or fewer times than before"):
            capture.run({"tokens": tokens()})


def test_the_twin_has_the_numbers_of_fresh_weights() -> None:
    model = ViT(width=WIDTH, depth=2, heads=HEADS).double()
    images = {"images": torch.randn(2, 1, 8, 8)}
    report = audited(model, images, baseline="twin", seed=3)
    # In the last layer the class token alone asks.
    assert [(record["layer"], record["queries"]) for record in report.heads[::HEADS]] == [(1, 10), (2, 2)]
    torch.manual_seed(3)
    fresh = copy.deepcopy(model)
    for module in reversed(list(fresh.modules())):
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()  # pyright: ignore[reportCallIssue]
    assert report.twin_heads == audited(fresh, images, seed=3).heads != report.heads


def test_a_twin_that_cannot_draw_its_weights_anew_is_refused() -> None:
    model = Encoder(layer())
    model.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
    with pytest.raises(ModelError, match=r"a parameter 'scale' and no method reset_parameters.*--baseline"):
        audited(model, {"tokens": tokens()}, baseline="twin")
    assert "reset_parameters" in audited(model, {"tokens": tokens()}, baseline="auto").manifest["twin"]


CODES = {"layers": (LAYERS, "exact"), "transformers": (TRANSFORMERS, "fenchel_exact")}


@pytest.mark.parametrize("name", CODES)
def test_a_run_is_audited_through_its_loader(tmp_path: Path, name: str) -> None:
    loader, run = written(tmp_path, *CODES[name])
    report = fenchel.audit(str(run), loader=loader, directory=tmp_path / "audit", baseline="none")
    found = load_run(loader, run)
    if name == "transformers":
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
    assert "The model uses the exact estimator; attention here is the first-order" in render_html(report)
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

    def forward(self, source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        x, y = self.embed(source), self.embed(target)
        x = x + self.encode(x, x, x, key_padding_mask=~mask)[0]
        y = y + self.decode(y, y, y, attn_mask=torch.full((y.shape[1],) * 2, -torch.inf).triu(1))[0]
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
