"""What holds for every layer: layouts, padding, half types, compilation, states, side effects, estimators."""

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fenchel import ConvergenceError, Exact, FirstOrder, ProblemError, SecondOrder, Tsallis
from fenchel.nn import (
    ContinuousAttention,
    MixtureAttention,
    MultiheadAttention,
    TransportAttention,
    use_estimator,
)
from fenchel.nn.preference import Causal
from tests.compiling import compiled_afresh
from tests.side_effects import default_dtype
from tests.tiny_models import ViT

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore::FutureWarning")

WIDTH, HEADS, TOKENS = 12, 4, 6
KINDS: dict[str, Callable[..., Any]] = {
    "softmax": partial(MultiheadAttention, WIDTH, HEADS, preference=Causal(), add_bias_kv=True),
    "sparse": partial(MultiheadAttention, WIDTH, HEADS, closeness=Tsallis(1.4), learn_order=True),
    "mixture": partial(MixtureAttention, WIDTH, HEADS),
    "mixture of memories": partial(
        MixtureAttention, WIDTH, HEADS, variances="learned", memories=6, answer="memories"
    ),
    "transport": partial(TransportAttention, WIDTH, HEADS, cost="squared_euclidean", learn_gamma=True),
    "continuous": partial(ContinuousAttention, WIDTH, HEADS, basis=6, learn_preference=True),
}
ESTIMATORS = ("first_order", "second_order", "exact")
every_kind = pytest.mark.parametrize("kind", KINDS)


def build(kind: str, **options: Any) -> Any:
    """A layer with random weights, those of log numbers near to where they start."""
    torch.manual_seed(0)
    layer = KINDS[kind](**{"batch_first": True, "dtype": torch.float64, **options})
    for name, parameter in layer.named_parameters():
        if not name.startswith("log_"):
            nn.init.normal_(parameter, std=0.3)
    return layer


def tokens(count: int = TOKENS) -> Tensor:
    return torch.randn(2, count, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def called(layer: Any, x: Tensor, **options: Any) -> Tensor:
    kind = getattr(layer, "_orig_mod", layer)
    given = (x, x) if isinstance(kind, ContinuousAttention) else (x, x, x)
    found = layer(*given, **options)
    return found if isinstance(found, Tensor) else found[0]


def same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@every_kind
def test_layouts_are_those_of_torch(kind: str) -> None:
    layer, x = build(kind), tokens()
    output = called(layer, x)
    same(called(layer, x[0]), output[0])
    layer.batch_first = False
    same(called(layer, x.transpose(0, 1)).transpose(0, 1), output)


@every_kind
def test_torchs_default_dtype_changes_nothing(kind: str) -> None:
    layer, x = build(kind), tokens()
    padding = torch.arange(TOKENS).expand(2, -1) > 3
    expected = called(layer, x, key_padding_mask=padding)
    for dtype in (torch.bfloat16, torch.float64):
        with default_dtype(dtype):
            torch.testing.assert_close(
                called(layer, x, key_padding_mask=padding), expected, rtol=0, atol=1e-13
            )


@every_kind
def test_padding_is_as_good_as_absent_and_padding_alone_gives_what_is_added_or_nothing(kind: str) -> None:
    layer, x = build(kind), tokens()
    padding = torch.zeros(2, TOKENS, dtype=torch.bool)
    padding[0, 4:] = True
    output = called(layer, x, key_padding_mask=padding)
    other = x.masked_fill(padding.unsqueeze(-1), 50.0)
    same(called(layer, other, key_padding_mask=padding)[0, :4], output[0, :4])
    padding[1] = True
    nothing = called(layer, x, key_padding_mask=padding)[1]
    read = layer.bias_v[0, 0] if kind == "softmax" else torch.zeros(WIDTH, dtype=x.dtype)
    same(nothing, layer.out_proj(read).expand(TOKENS, -1))
    if kind not in ("mixture of memories", "softmax"):
        same(called(layer, x[:1, :4]), output[:1, :4])


def test_a_compiled_training_step_of_exact_densities_is_that_of_eager() -> None:
    """In parts; ``tests/works_with.py`` has first order, and ops have other exact inference."""
    layer, x, found = build("continuous", estimator="exact", learn_alpha=True), tokens(), []
    with compiled_afresh():
        for run in (copy.deepcopy(layer), layer):
            step = torch.compile(run, backend="aot_eager") if run is not layer else run
            called(step, x).sin().sum().backward()
            found.append([p.grad for p in run.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-8)


@every_kind
def test_states_copies_and_files_say_the_same(kind: str) -> None:
    layer, other, x = build(kind, learn_alpha=True), build(kind, learn_alpha=True), tokens()
    for parameter in other.parameters():
        nn.init.constant_(parameter, 0.1)
    other.load_state_dict(layer.state_dict())
    expected = called(layer, x)
    for made in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):  # noqa: S301 -- our own
        same(called(made, x), expected)
        assert repr(made) == repr(layer)
    assert "alpha=learned" in repr(layer)
    assert "estimator='first_order'" in repr(layer)
    assert "alpha=0.5" in repr(build(kind, alpha=0.5))


@every_kind
def test_gradients_reach_all_parameters(kind: str) -> None:
    layer, x = build(kind, learn_alpha=True), tokens().requires_grad_()
    called(layer, x).sin().sum().backward()
    for name, parameter in [("x", x), *layer.named_parameters()]:
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        # A bias of all keys shifts all scores.
        assert name == "evidence.key_proj.bias" or float(parameter.grad.abs().max()) > 1e-9, name


@pytest.mark.parametrize("estimator", ["first_order", "exact"])
@every_kind
def test_a_learned_alpha_starts_at_alpha_and_each_head_has_its_own(kind: str, estimator: str) -> None:
    fixed, learned = (
        build(kind, alpha=0.7, estimator=estimator, learn_alpha=learn) for learn in (False, True)
    )
    learned.load_state_dict(fixed.state_dict(), strict=False)
    x = tokens()
    torch.testing.assert_close(learned.alpha, torch.full((HEADS,), 0.7, dtype=torch.float64))
    torch.testing.assert_close(called(learned, x), called(fixed, x), rtol=1e-6, atol=1e-8)
    assert set(learned.state_dict()) - set(fixed.state_dict()) == {"log_alpha"}
    with torch.no_grad():
        learned.log_alpha[1] = -30.0
    assert 0 < float(learned.alpha[1].detach()) < 1e-12
    assert float((called(learned, x) - called(fixed, x)).detach().abs().max()) > 1e-6
    other = build(kind, alpha=2.0, estimator=estimator)
    other.load_state_dict(fixed.state_dict())
    for layer in (fixed, learned):
        layer.alpha = 2.0
        torch.testing.assert_close(called(layer, x), called(other, x), rtol=1e-6, atol=1e-8)


@every_kind
def test_tolerance_and_steps_reach_the_solver(kind: str) -> None:
    layer, x = build(kind, estimator="exact", alpha=4.0), 2 * tokens()
    precise = called(layer, x)
    layer.tol = 0.5
    assert float((called(layer, x) - precise).detach().abs().max()) > 1e-9
    layer.tol, layer.max_steps = 1e-12, 1
    with pytest.raises(ConvergenceError):
        called(layer, x)


SAME: list[tuple[Any, dict[str, Any]]] = [
    (FirstOrder(), {"estimator": "first_order"}),
    (SecondOrder(), {"estimator": "second_order"}),
    (Exact(), {"estimator": "exact"}),
    (Exact(tol=1e-3), {"estimator": "exact", "tol": 1e-3}),
    (Exact(tol=1e-7, max_steps=90), {"estimator": "exact", "tol": 1e-7, "max_steps": 90}),
]


@pytest.mark.parametrize(("given", "named"), SAME)
@every_kind
def test_an_estimator_is_built_in_assigned_and_switched_by_name_and_as_an_object(
    kind: str, given: Any, named: dict[str, Any]
) -> None:
    if (kind, given.name) == ("continuous", "second_order"):
        pytest.skip("whose dual point leaves the domain")
    x, expected = tokens(), build(kind, **named)
    output = called(expected, x)
    built, assigned = build(kind, estimator=given), build(kind, tol=0.5)
    assigned.estimator = given
    for one in (built, assigned):
        wanted = (named["estimator"], named.get("tol"), named.get("max_steps", 50))
        assert (one.estimator, one.tol, one.max_steps) == wanted
        same(called(one, x), output)
    assigned.estimator = "first_order"  # a name leaves the numbers as they are
    assert (assigned.tol, assigned.max_steps) == wanted[1:]
    switched = build(kind, estimator="exact", tol=1e-2)
    before, found = called(switched, x), []
    for way in ({"estimator": given}, named):
        with use_estimator(switched, **way):
            found.append(called(switched, x))
    same(called(switched, x), before)
    same(found[0], found[1])
    if named != {"estimator": "exact"}:  # which leaves the tolerance to the layer
        same(found[0], output)


@every_kind
def test_the_inner_context_alone_counts_and_nothing_is_left_of_it_in_copies_or_after_an_error(
    kind: str,
) -> None:
    layer, x, file = build(kind), tokens(), io.BytesIO()
    first, state, inside = called(layer, x), dict(layer.__dict__), [layer]
    with pytest.raises(KeyError), use_estimator(layer, "exact"):  # noqa: PT012
        exact = called(layer, x)
        assert float((exact - first).detach().abs().max()) > 1e-6
        inside.append(copy.deepcopy(layer))
        torch.save(layer, file)
        with use_estimator(layer, "first_order", alpha=0.5):
            same(called(layer, x), called(build(kind, alpha=0.5), x))
        same(called(layer, x), exact)
        raise KeyError
    assert dict(layer.__dict__) == state
    file.seek(0)
    for made in (*inside, torch.load(file, weights_only=False)):
        same(called(made, x), first)


def test_layers_are_switched_by_number_or_name() -> None:
    torch.manual_seed(1)
    model = ViT(width=WIDTH, depth=3, heads=HEADS).double().eval()
    images = torch.randn(2, 1, 8, 8, dtype=torch.float64)

    def built(*exact: int) -> Tensor:
        made: Any = copy.deepcopy(model)
        for number in exact:
            made.layers[number].self_attn.estimator = "exact"
        return made(images)

    for layers, exact in ((None, (0, 1, 2)), ([2], (1,)), (["layers.0.self_attn", 3, 1], (0, 2))):
        with use_estimator(model, "exact", layers=layers):
            same(model(images), built(*exact))


@pytest.mark.parametrize("kind", ["softmax", "sparse", "mixture"])
def test_heads_are_switched_alone_and_certified_so(kind: str) -> None:
    layer, x = build(kind, keep_certificate=True, learn_alpha=True).eval(), tokens()
    layer.log_alpha.data.copy_(torch.tensor([-0.5, 0.2, 0.4, 0.0]))

    def inferred() -> tuple[Tensor, Tensor, Tensor]:
        return *layer(x, x, x, average_attn_weights=False), layer.last_certificate.gap

    _, first, gap = inferred()
    with use_estimator(layer, "exact"):
        _, exact, _ = inferred()
    with use_estimator(layer, "exact", heads=[4, 2]):
        output, part, of_part = inferred()
    same(part[:, [0, 2]], first[:, [0, 2]])
    torch.testing.assert_close(part[:, [1, 3]], exact[:, [1, 3]])
    assert float((part - first)[:, [1, 3]].detach().abs().amax((0, 2, 3)).min()) > 1e-3
    same(of_part[:, [0, 2]], gap[:, [0, 2]])
    assert float(of_part[:, [1, 3]].max()) < 1e-9 < float(gap[:, [1, 3]].max())
    same(output, layer.out_proj((part @ values_of(layer, kind, x)).transpose(1, 2).flatten(2)))


def values_of(layer: Any, kind: str, x: Tensor) -> Tensor:
    """The values of every head, with that of the added template."""
    value = x @ layer.in_proj_weight[2 * WIDTH :].T + layer.in_proj_bias[2 * WIDTH :]
    value = value.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    added = [layer.bias_v.view(1, HEADS, 1, -1).expand(2, -1, -1, -1)] if kind == "softmax" else []
    return torch.cat([value, *added], 2)


@every_kind
def test_it_takes_the_place_of_torchs_self_attention(kind: str) -> None:
    """Also in inference, where torch's fused path would pass it by; with masks as torch hands them on."""
    layer, x, padding = build(kind), tokens(), torch.zeros(2, TOKENS, dtype=torch.bool)
    padding[1, 3:] = True
    block = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, 0.0, batch_first=True, dtype=torch.float64)
    block.self_attn = layer
    encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
    output = encoder(x, src_key_padding_mask=padding)
    expected = x
    for each in encoder.layers:
        own: Any = each
        expected = own.norm1(expected + called(own.self_attn, expected, key_padding_mask=padding))
        expected = own.norm2(expected + own.linear2(own.linear1(expected).relu()))
    same(output[~padding], expected[~padding])
    with torch.inference_mode():
        same(encoder.eval()(x, src_key_padding_mask=padding)[~padding], output.detach()[~padding])
    mask = nn.Transformer.generate_square_subsequent_mask(TOKENS, dtype=torch.float64)
    if kind == "continuous":
        with pytest.raises(ProblemError, match=r"attn_mask is given"):
            encoder(x, mask=mask, is_causal=True)
        return
    later = torch.cat([x[:, :-1], x[:, -1:] + 1], 1)
    before, after = (encoder(each, mask=mask, is_causal=True) for each in (x, later))
    same(before[:, :-1], after[:, :-1])


@pytest.mark.parametrize("kind", ["softmax", "sparse", "mixture", "transport"])
def test_low_rank_changes_of_the_projections_are_learned(kind: str) -> None:
    """As peft makes them for ``LoraConfig(target_parameters=["in_proj_weight"])``."""
    layer, x = build(kind), tokens()
    down, up = (torch.randn(s, dtype=x.dtype, requires_grad=True) for s in ((2, WIDTH), (3 * WIDTH, 2)))

    class Changed(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight + up @ down

    merged = copy.deepcopy(layer)
    merged.in_proj_weight.data += (up @ down).detach()
    parametrize.register_parametrization(layer, "in_proj_weight", Changed())
    output = called(layer, x)
    same(output, called(merged, x))
    gradients = torch.autograd.grad(output.sin().sum(), [up, down])
    assert all(float(gradient.abs().max()) > 1e-6 for gradient in gradients)


@every_kind
def test_weights_are_given_where_they_are_asked_for(kind: str) -> None:
    layer, x = build(kind), tokens()
    output, found = layer(x, x, x, need_weights=True, average_attn_weights=False)
    same(output, called(layer, x))
    assert layer(x, x, x, need_weights=False)[1] is None
    if kind == "continuous":
        assert found.mean().shape == (2, HEADS, TOKENS, 1)
        return
    assert found.shape[:3] == (2, HEADS, TOKENS)
    same(found.sum(-1), torch.ones_like(found[..., 0]))
    same(layer(x, x, x, need_weights=True)[1], found.mean(1))
    same(layer(x[0], x[0], x[0], need_weights=True)[1], found[0].mean(0))


@pytest.mark.parametrize("shape", [(0, 3, WIDTH), (2, 0, WIDTH)], ids=str)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@every_kind
def test_a_layer_with_nothing_to_infer(kind: str, estimator: str, shape: tuple[int, ...]) -> None:
    layer = build(kind, estimator=estimator)
    keys = torch.ones(shape[0], TOKENS, WIDTH, dtype=torch.float64)
    others = (keys,) if kind == "continuous" else (keys, keys)
    options = {"query_offset": 0} if kind == "softmax" else {}
    found = layer(torch.ones(shape, dtype=torch.float64), *others, **options)
    found = found if isinstance(found, Tensor) else found[0]
    assert found.shape == shape
