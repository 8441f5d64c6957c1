"""Swaps of models with attention layers of ``fenchel.nn``: by hand, beside an audit, and what cannot be meant."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fenchel
from fenchel.auditing.report import render_html as render_report
from fenchel.auditing.run import audit
from fenchel.errors import FenchelError, InputError, ModelError
from fenchel.nn import (
    ContinuousAttention,
    MixtureAttention,
    MultiheadAttention,
    TransportAttention,
    use_estimator,
)
from fenchel.nn.evidence import TransformerXL
from fenchel.swap import SwapReport, swap
from fenchel.swap.report import render_html
from tests.auditing.small_audits import Interrupting, assert_close, some_texts
from tests.io.test_windows import word_tokenizer
from tests.tiny_models import AttentionPooling, Encoder

LOSS = partial(cross_entropy, reduction="none")


def hits(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(-1) == target).double()


class Classifier(nn.Module):
    """Two layers of attention, the second with another α, and classes."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = MultiheadAttention(8, 4, batch_first=True, **options)
        self.second = MultiheadAttention(8, 2, batch_first=True, alpha=2.0)
        self.classes = nn.Linear(8, 3)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        for layer in (self.first, self.second):
            x = x + layer(x, x, x, need_weights=False)[0]
        return self.classes(x.mean(1) if scale is None else x.mean(1) * scale[:, None])


def classifier(seed: int = 0, **options: Any) -> Classifier:
    return Classifier(seed, **options).double().eval()


def batches(count: int = 3, rows: int = 4) -> list[tuple[dict[str, Tensor], Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            {"x": 3 * torch.randn(rows, 5, 8, generator=generator, dtype=torch.float64)},
            torch.randint(3, (rows,), generator=generator),
        )
        for _ in range(count)
    ]


def tokens() -> list[dict[str, Tensor]]:
    return [{"tokens": inputs["x"]} for inputs, _ in batches()]


def change_by_hand(model: nn.Module, inputs: list[dict[str, Tensor]], **chosen: Any) -> float:
    """How far the outputs are from the model's own when layers infer exactly."""
    with torch.no_grad():
        own = torch.cat([model(**one) for one in inputs])
        with use_estimator(model, "exact", **chosen):
            switched = torch.cat([model(**one) for one in inputs])
    return float(((switched - own).norm(dim=-1) / own.norm(dim=-1)).mean())


def small(model: Any = None, given: Any = None, **options: Any) -> SwapReport:
    options = {"alphas": (0.5, 1.0, 1.5), "bootstrap": 100, "tokenizer": None, **options}
    return swap(
        classifier() if model is None else model, texts=batches() if given is None else given, **options
    )


def test_every_condition_is_what_the_layers_give_by_hand() -> None:
    model = classifier()
    report = small(model, loss=LOSS, score=hits, per_layer=True, per_head=True)
    inputs = torch.cat([one["x"] for one, _ in batches()])
    target = torch.cat([one for _, one in batches()])
    with torch.no_grad():
        own = model(inputs)

    def compared(record: dict[str, Any], output: Tensor) -> None:
        change = (output - own).norm(dim=-1) / own.norm(dim=-1)
        assert record["hidden_change"] == pytest.approx(float(change.mean()), rel=1e-5, abs=1e-8)
        assert record["loss"] == pytest.approx(float(LOSS(output, target).mean()), rel=1e-8)
        assert record["score"] == pytest.approx(float(hits(output, target).mean()))
        difference = float((LOSS(output, target) - LOSS(own, target)).mean())
        assert record["loss_difference"] == pytest.approx(difference, rel=1e-6, abs=1e-10)

    compared(report.condition("model"), own)
    for where in ({}, {"layer": 2}, {"layer": 1, "head": 3}):
        chosen: dict[str, Any] = {"layers": [where["layer"]]} if "layer" in where else {}
        chosen |= {"heads": [where["head"]]} if "head" in where else {}
        for estimator in ("second_order", "exact"):
            with torch.no_grad(), use_estimator(model, estimator, **chosen):
                compared(report.condition(estimator, **where), model(inputs))
    # The control multiplies the α that each layer has of its own: 1 and 2.
    with torch.no_grad(), use_estimator(model, "first_order", alpha=3.0, layers=[2], heads=[1]):
        compared(report.condition("first_order", 1.5, layer=2, head=1), model(inputs))
    with torch.no_grad(), use_estimator(model, "first_order", alpha=0.5, layers=[1]):
        compared(report.condition("first_order", 0.5, layer=1), model(inputs))
    assert report.condition("first_order", 1.0)["hidden_change"] == pytest.approx(0, abs=1e-12)
    assert report.results["units"] == {"examples": 12}
    layers = [record for record in report.layers if record["estimator"] == "exact"]
    assert [(record["stack"], record["layer"]) for record in layers] == [
        ("attention", 1),
        ("attention", 2),
        ("output", 1),
    ]
    assert layers[-1]["hidden_change"] == report.condition("exact")["hidden_change"]


def test_batches_are_cut_and_given_in_any_form() -> None:
    whole = small(loss=LOSS)
    merged = [({"x": torch.cat([one["x"] for one, _ in batches()])}, torch.cat([y for _, y in batches()]))]
    for given in (merged, [(inputs["x"], y) for inputs, y in batches()], iter(batches())):
        assert_close(small(given=given, loss=LOSS).conditions, whole.conditions)
    bare = small(given=[inputs for inputs, _ in batches()], loss=lambda output, given: given["x"].sum((1, 2)))
    assert bare.condition("exact")["loss"] == bare.condition("model")["loss"]
    alone = small(given=[inputs for inputs, _ in batches()])
    assert alone.results["quality"] is None
    assert alone.finding.startswith("Exact inference changes the outputs by ")
    record = alone.condition("exact")
    assert record["hidden_change_low"] < record["hidden_change"] < record["hidden_change_high"]
    assert "Output change" in render_html(alone)
    assert "rounding" not in alone.finding
    record["hidden_change"] = 2e-16
    assert "of their norm on average, no more than rounding." in alone.finding


def test_other_inputs_and_other_weights_are_another_swap(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        small(directory=tmp_path, observer=Interrupting(8, KeyboardInterrupt()))
    for other, said in (
        ({"given": batches(2)}, "text sha256: "),
        ({"model": classifier(1)}, "revision: 'sha256:"),
    ):
        with pytest.raises(InputError, match=rf"{said}.* there, .* asked for"):
            small(directory=tmp_path, resume=True, **other)


def test_a_swap_stands_beside_an_audit_of_the_same_model_and_inputs() -> None:
    model, inputs = classifier(), [one for one, _ in batches()]
    audited = audit(model, None, inputs, space="key")
    swapped = small(model, per_head=True, loss=LOSS)
    effects: Any = audited.beside_swap(swapped).effects
    assert effects.note == ""
    assert (effects.quality, effects.changed) == ("loss", "outputs")
    assert "the change of the model’s outputs" in render_report(replace(audited, effects=effects))
    assert [head.key[1:] for head in effects.heads] == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2)]
    with pytest.raises(InputError, match="the swap and the audit differ in revision: 'sha256:"):
        audited.beside_swap(small(classifier(1), per_head=True))


def test_layers_are_counted_alike_where_an_audit_leaves_some_out() -> None:
    torch.manual_seed(3)
    transport = TransportAttention(8, 2, gamma=2.0, cost="squared_euclidean", batch_first=True)
    model = Encoder(transport, MultiheadAttention(8, 2, batch_first=True)).double().eval()
    inputs = tokens()
    audited = audit(model, None, inputs, space="key", layers=[1])
    assert [module.number for module in audited.modules.values()] == [2]
    swapped = small(model, inputs, per_head=True, layers=[2])
    assert (
        swapped.condition("exact")["hidden_change"]
        > swapped.condition("exact", layer=2, head=1)["hidden_change"]
        > 0
    )
    assert len(audited.beside_swap(swapped).effects.heads) == 2  # pyright: ignore[reportOptionalMemberAccess]
    for options in ({"per_head": True}, {"per_layer": True, "ablations": ["zero"]}):
        with pytest.raises(
            InputError, match=r"layer 1, layers\.0, has heads that share one inference.*--layers 2\.$"
        ):
            small(model, inputs, **options)
    assert swapped.condition("exact")["hidden_change"] == pytest.approx(
        change_by_hand(model, inputs), rel=1e-5
    )


def test_layers_of_other_layouts_and_models_that_are_a_layer() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = MultiheadAttention(8, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            laid = x.transpose(0, 1)
            return {"states": self.layer(laid, laid, laid)[0].transpose(0, 1)}

    around = small(Around().double().eval(), [torch.randn(3, 5, 8, dtype=torch.float64)])
    first, last = (record for record in around.layers if record["estimator"] == "exact")
    assert first["hidden_change"] == pytest.approx(last["hidden_change"], rel=1e-6)
    pooling = AttentionPooling(vocabulary=20, classes=3, width=8, heads=2).eval()
    numbers = torch.randint(1, 20, (6, 7), generator=torch.Generator().manual_seed(0))
    report = small(pooling, [numbers])
    assert report.condition("exact")["hidden_change"] > 0


@pytest.mark.parametrize(
    ("layer", "heads"),
    [
        (MultiheadAttention(8, 2, batch_first=True, closeness=fenchel.Tsallis(1.5)), True),
        (MultiheadAttention(8, 2, batch_first=True, learn_alpha=True, alpha=3.0), True),
        (MultiheadAttention(8, 2, batch_first=True, evidence=TransformerXL(2, 4, width=6)), True),
        (MixtureAttention(8, 2, batch_first=True, answer="memories"), True),
        (ContinuousAttention(8, 2), False),
    ],
)
def test_every_layer_that_attends_is_swapped(layer: nn.Module, heads: bool) -> None:
    model, inputs = Encoder(layer).double().eval(), tokens()
    report = small(model, inputs, per_head=heads)
    found = report.condition("exact")["hidden_change"]
    assert found == pytest.approx(change_by_hand(model, inputs), rel=1e-5)
    if heads:
        found = report.condition("exact", layer=1, head=2)["hidden_change"]
        assert found == pytest.approx(change_by_hand(model, inputs, heads=[2]), rel=1e-5)
    assert report.condition("first_order", 1.0)["hidden_change"] == pytest.approx(0, abs=1e-12)
    assert report.condition("first_order", 0.5)["hidden_change"] > 1e-3


def test_padding_of_texts_does_not_count() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed = nn.Embedding(64, 8)
            self.attention = MultiheadAttention(8, 2, batch_first=True)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            x = self.embed(input_ids)
            return self.attention(x, x, x, key_padding_mask=attention_mask == 0)[0]

    together, alone = (
        small(Reads().eval(), some_texts(), tokenizer=word_tokenizer(), max_length=12, batch_size=size)
        for size in (3, 1)
    )
    assert list(together.results["units"]) == ["windows", "documents"]
    changes = [report.condition("exact")["hidden_change"] for report in (together, alone)]
    assert changes[0] == pytest.approx(changes[1], rel=1e-4)


def one_mean(output: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(output, target)


def test_what_cannot_be_meant_is_one_line() -> None:
    for given, options, message in (
        (None, {"pairs": [("a", "b", 1.0)]}, "scored pairs are for models of transformers"),
        (None, {"max_length": 8}, "max length applies to texts only, but ready-made inputs were given"),
        (None, {"loss": 3}, "loss is 3; expected a function"),
        (None, {"loss": one_mean}, r"loss gave \(\) for 4 examples; expected .*one number per example"),
        (None, {"score": lambda output, target: "good"}, "score gave 'good' for 4 examples"),
        (None, {"loss": lambda output, target: output[:, 0] * float("nan")}, "loss gave NaN"),
        (torch.zeros(2, 5, 8), {}, r"texts is .*; expected a list of batches.*Write \[inputs\]"),
        ([torch.zeros(0, 5, 8)], {}, "there are no examples: the batches have no rows"),
        ([(1, 2, 3)], {}, "batch 1 is a tuple of 3; expected"),
        ([{"y": torch.zeros(2, 5, 8)}], {}, "the forward of Classifier takes no 'y'; it takes x, scale"),
        ([(torch.zeros(2, 5, 8), torch.zeros(2)), torch.zeros(2, 5, 8)], {}, "batch 2 has no target"),
        (["a text"], {}, r"was given texts without a tokenizer.*\{'x': tensor\}"),
        ([{"x": torch.full((2, 5, 8), float("nan"))}], {}, "NaN or infinity in its output"),
    ):
        usual = [(inputs["x"].float(), target) for inputs, target in batches()]
        with pytest.raises(FenchelError, match=message):
            small(Classifier().eval(), usual if given is None else given, **options)


def test_models_that_cannot_be_swapped_are_refused() -> None:
    flat, idle = classifier(), classifier()
    flat.classes.register_forward_hook(lambda _module, _given, output: output.sum())
    idle.forward = lambda x, scale=None: idle.first(x, x, x)[0]
    for model, said in (
        (
            classifier(estimator="exact"),
            "first uses the estimator 'exact', and a swap starts from first-order",
        ),
        (flat, r"the output of Classifier has shape \(\) for 4 rows"),
        (idle, "second did not attend in this forward"),
    ):
        with pytest.raises(ModelError, match=said):
            small(model)
    model = classifier()
    with use_estimator(model, "first_order"):
        model(**batches()[0][0])
        with pytest.raises(ModelError, match=r"inside .*use_estimator"):
            small(model)
    with pytest.raises(InputError, match="loss cannot be given with a model of transformers"):
        swap("demo", texts=["a", "b", "c"], loss=LOSS)
