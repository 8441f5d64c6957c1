from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel.errors import CaptureError, FenchelError, InputError, ModelError, ProblemError
from fenchel.integrations.transformers import attention_implementation, attention_names, use_backend
from tests.tiny_models import tiny_inputs, tiny_model

BERT = [f"encoder.layer.{layer}.attention.self" for layer in range(2)]


def run(model: nn.Module, inputs: dict[str, Any], **options: Any) -> Tensor:
    """The model's output; with options, inside of ``use_backend``."""
    with torch.no_grad():
        if not options:
            return model(**inputs).last_hidden_state
        with use_backend(model, **options):
            return model(**inputs).last_hidden_state


def state(model: nn.Module) -> list[tuple[str | None, list[str]]]:
    """What a context may leave behind: the implementation and the private attributes of every module."""
    return [
        (
            getattr(getattr(module, "config", None), "_attn_implementation", None),
            [name for name in vars(module) if "fenchel" in name],
        )
        for module in model.modules()
    ]


@pytest.fixture
def bert() -> Any:
    return tiny_model("bert")


@pytest.fixture
def inputs() -> dict[str, Any]:
    return tiny_inputs("bert", padding="none")


def same(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=1e-9)


def test_every_option_changes_something(bert, inputs):
    own = run(bert, inputs)
    outputs = [
        own,
        run(bert, inputs, estimator="exact"),
        run(bert, inputs, estimator="second_order"),
        run(bert, inputs, estimator="first_order", alpha=0.8),
        run(bert, inputs, estimator="exact", alpha=0.8),
        run(bert, inputs, estimator="exact", layers=[2]),
        run(bert, inputs, estimator="exact", heads=[2]),
    ]
    for i, one in enumerate(outputs):
        assert not any(same(one, other) for other in outputs[:i])
    assert same(run(bert, inputs, estimator="first_order"), own)
    loose = run(bert, inputs, estimator="exact", tol=1e-1)
    assert 1e-8 < (loose - outputs[1]).abs().max() < 1.0
    with pytest.raises(FenchelError, match="1"):
        run(bert, inputs, estimator="exact", max_steps=1)


def test_layers_by_number_and_by_name_are_the_same(bert, inputs):
    assert attention_names(bert) == tuple(BERT)
    by_number = run(bert, inputs, estimator="exact", layers=[2])
    assert same(by_number, run(bert, inputs, estimator="exact", layers=[BERT[1]]))
    assert not same(by_number, run(bert, inputs, estimator="exact", layers=[1]))
    everything = run(bert, inputs, estimator="exact")
    assert same(everything, run(bert, inputs, estimator="exact", layers=[1, BERT[1], 2]))


def test_layers_are_numbered_encoder_first_and_self_before_cross():
    assert attention_names(tiny_model("t5")) == (
        "encoder.block.0.layer.0.SelfAttention",
        "encoder.block.1.layer.0.SelfAttention",
        "decoder.block.0.layer.0.SelfAttention",
        "decoder.block.0.layer.1.EncDecAttention",
        "decoder.block.1.layer.0.SelfAttention",
        "decoder.block.1.layer.1.EncDecAttention",
    )


def test_a_layer_changes_nothing_before_it(bert, inputs):
    def states(**options: Any) -> tuple[Tensor, ...]:
        with torch.no_grad(), use_backend(bert, **options):
            return bert(**inputs, output_hidden_states=True).hidden_states

    own, changed = states(estimator="first_order"), states(estimator="exact", layers=[2])
    assert same(own[1], changed[1])
    assert not same(own[2], changed[2])


def test_all_heads_are_the_same_as_none_chosen(bert, inputs):
    everything = run(bert, inputs, estimator="exact")
    assert same(run(bert, inputs, estimator="exact", heads=[4, 2, 1, 3]), everything)


def test_heads_of_first_order_change_nothing(bert, inputs):
    assert same(run(bert, inputs, estimator="first_order", heads=[3]), run(bert, inputs))


@pytest.mark.parametrize("family", ["llama", "t5", "swin"])
def test_heads_are_mixed_in_families_with_shared_keys_and_biases(family):
    model, given = tiny_model(family), tiny_inputs(family)
    own, exact = run(model, given), run(model, given, estimator="exact")
    mixed = run(model, given, estimator="exact", heads=[2])
    assert not same(mixed, own)
    assert not same(mixed, exact)


def test_alpha_may_be_learned_one_a_head(bert, inputs):
    alpha = torch.full((4, 1), 0.9, dtype=torch.float64, requires_grad=True)
    with use_backend(bert, "exact", alpha=alpha):
        found = bert(**inputs).last_hidden_state
    assert same(found, run(bert, inputs, estimator="exact", alpha=0.9))
    (gradient,) = torch.autograd.grad(found.square().sum() + found[0, 0, 0], alpha)
    assert gradient.shape == (4, 1)
    assert gradient.abs().min() > 0


def test_certificates_are_told_by_name_for_every_call(bert, inputs):
    told: list[tuple[str, Tensor]] = []
    changed = run(
        bert,
        inputs,
        estimator="exact",
        layers=[2],
        heads=[1],
        certificate=lambda site, bounds: told.append((site, bounds.gap)),
    )
    assert [site for site, _ in told] == BERT
    assert all(gap.shape == (3, 4, 9) for _, gap in told)
    (_, first), (_, second) = told
    assert first.min() > 1e-6
    assert second[:, 0].max() < 1e-9 < second[:, 1:].min()
    assert same(changed, run(bert, inputs, estimator="exact", layers=[2], heads=[1]))


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_everything_is_put_back(family):
    model, given = tiny_model(family), tiny_inputs(family)
    if family == "t5":
        model.decoder.set_attn_implementation("eager")
    before, expected = state(model), run(model, given)
    run(model, given, estimator="exact")
    assert state(model) == before

    def fail() -> None:
        assert state(model) != before
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), use_backend(model, "exact"):
        fail()
    assert state(model) == before
    with pytest.raises(FenchelError, match=r"heads \[9\] do not exist"):
        run(model, given, estimator="exact", heads=[9])
    assert state(model) == before
    assert torch.equal(run(model, given), expected)


def test_the_inner_context_counts_until_it_ends(bert, inputs):
    outer, inner = run(bert, inputs, estimator="exact"), run(bert, inputs, estimator="exact", layers=[1])
    with torch.no_grad(), use_backend(bert, "exact"):
        assert same(bert(**inputs).last_hidden_state, outer)
        with use_backend(bert, "exact", layers=[1]):
            assert same(bert(**inputs).last_hidden_state, inner)
        assert same(bert(**inputs).last_hidden_state, outer)


def test_two_models_at_once_keep_to_their_own_settings(bert, inputs):
    other = tiny_model("bert", seed=5)
    expected = run(bert, inputs, estimator="exact"), run(other, inputs, estimator="second_order", alpha=0.7)
    with (
        torch.no_grad(),
        use_backend(bert, "exact"),
        use_backend(other, "second_order", alpha=0.7),
    ):
        assert same(other(**inputs).last_hidden_state, expected[1])
        assert same(bert(**inputs).last_hidden_state, expected[0])


def test_threads_with_a_model_each_do_not_meet(inputs):
    options = [{"estimator": "exact"}, {"estimator": "second_order"}, {"estimator": "exact", "alpha": 0.7}]
    models = [tiny_model("bert", seed=seed) for seed in range(3)]
    expected = [run(model, inputs, **given) for model, given in zip(models, options, strict=True)]
    found: dict[int, list[Tensor]] = {0: [], 1: [], 2: []}
    barrier = threading.Barrier(3)

    def work(which: int) -> None:
        for _ in range(5):
            barrier.wait()
            found[which].append(run(models[which], inputs, **options[which]))

    threads = [threading.Thread(target=work, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for which in range(3):
        assert len(found[which]) == 5
        assert all(same(output, expected[which]) for output in found[which])


def test_a_context_without_a_call_is_an_error(bert):
    with pytest.raises(ModelError, match="BertModel"), use_backend(bert, "exact"):
        pass


def test_a_chosen_layer_without_a_call_is_an_error():
    model, given = tiny_model("t5"), tiny_inputs("t5")
    encoder_only = {name: given[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        with use_backend(model, "exact"):
            model.encoder(**encoder_only)
        with (
            pytest.raises(
                ModelError, match=r"decoder.block.0.layer.1.EncDecAttention of T5Model.*did not attend"
            ),
            use_backend(model, "exact", layers=[1, 4]),
        ):
            model.encoder(**encoder_only)


def test_a_model_that_bypasses_the_registry_is_refused():
    with (
        pytest.raises(ModelError, match=r"DisentangledSelfAttention.*without the attention registry"),
        use_backend(tiny_model("deberta_v2"), "exact"),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"estimator": "third_order"}, InputError, "estimator is 'third_order'; expected one of first_order"),
        ({"layers": [3]}, InputError, f"layer 3 does not exist in BertModel.*1 to 2: {BERT[0]}, {BERT[1]}"),
        ({"layers": [0]}, InputError, "layer 0 does not exist"),
        ({"layers": [True]}, InputError, "layer True does not exist"),
        ({"layers": ["encoder.layer.0"]}, InputError, "layer 'encoder.layer.0' does not exist"),
        ({"layers": BERT[0]}, InputError, f"layers is '{BERT[0]}'; expected numbers from 1 or names"),
        ({"layers": []}, InputError, r"layers is \[\]; expected"),
        ({"layers": 1}, InputError, "layers is 1; expected"),
        ({"heads": [0]}, InputError, r"heads holds 0; expected whole numbers from 1"),
        ({"heads": []}, InputError, r"heads is empty; expected"),
        ({"heads": 2}, InputError, "heads is 2; expected"),
        ({"heads": [5]}, InputError, rf"heads \[5\] do not exist in {BERT[0]}, which has heads 1 to 4"),
        ({"alpha": 0.0}, ProblemError, "alpha is 0.0; expected a finite number above 0"),
        ({"alpha": float("nan")}, ProblemError, "alpha is nan; expected"),
        ({"alpha": "1"}, ProblemError, "alpha is '1'; expected"),
        ({"alpha": torch.ones(3, 1)}, ProblemError, r"alpha has shape \(3, 1\)"),
    ],
)
def test_what_does_not_exist_is_named(bert, inputs, options, error, message):
    before = state(bert)
    with pytest.raises(error, match=message):
        run(bert, inputs, **{"estimator": "exact", **options})
    assert state(bert) == before


def test_the_private_name_is_of_no_use_outside_of_the_context(bert, inputs):
    run(bert, inputs, estimator="exact")
    with (
        pytest.raises(CaptureError, match=r"BertSelfAttention uses .* outside use_backend"),
        attention_implementation(bert, "fenchel_use_backend"),
    ):
        bert(**inputs)


def test_one_compilation_serves_every_context(inputs):
    model = tiny_model("bert")
    compilations: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        compilations.append(graph)
        return graph.forward

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    expected = run(model, inputs, estimator="first_order", alpha=0.9)
    for _ in range(3):
        with torch.no_grad(), use_backend(model, "first_order", alpha=0.9):
            found = compiled(**inputs).last_hidden_state
        assert same(found, expected)
    assert len(compilations) == 1
