"""Whatever is called wrongly says so in one line that names the argument, in the words of this package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fenchel
from fenchel import functional as F
from fenchel.errors import FenchelError
from fenchel.nn import (
    LearnedTemplateBank,
    MultiheadAttention,
    RunningTemplateBank,
    TransportAttention,
    evidence,
    norm_penalty,
    preference,
)
from fenchel.nn.preference import AttentionInputs
from fenchel.reliability import alpha_from_noise, noise_from_alpha, radius_of
from tests.wrong_values import FLAGS, NAMES, POSITIVE, SHARES, WHOLE, Makers, made, tensors, without

B, H, M, N, D, V = 2, 4, 3, 5, 8, 6
ESTIMATORS = ("first_order", "second_order", "exact")
NAN, INF = float("nan"), float("inf")
TOLERANCES = without(POSITIVE, "too_small", "None_")


@dataclass(frozen=True)
class Target:
    """Something that can be called, how it is called rightly, and with what each argument makes that wrong."""

    name: str
    call: Callable[..., Any]
    rightly: Callable[[], dict[str, Any]]
    wrongly: Mapping[str, Makers]


def problem(**changes: Any) -> fenchel.InferenceProblem:
    return fenchel.InferenceProblem(
        **{"preference": fenchel.Discrete(torch.ones(N, D)), "evidence": torch.ones(M, D), **changes}
    )


def transport_problem() -> fenchel.InferenceProblem:
    return problem(closeness=fenchel.OptimalTransport("squared_euclidean", 1.0))


def filled(value: float, *shape: int) -> Callable[[], Tensor]:
    return lambda: torch.full(shape, value)


def queries() -> dict[str, Any]:
    return {"query": torch.ones(B, H, M, D), "key": torch.ones(B, H, N, D), "value": torch.ones(B, H, N, V)}


def sequences() -> dict[str, Any]:
    return {name: torch.ones(2, length, 16) for name, length in (("query", 3), ("key", 5), ("value", 5))}


def on_device(**values: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {**values}


ALPHAS = {**POSITIVE, "tensor": filled(1.0, 2, 7), "zeros": filled(0.0, 4, 1), "nans": filled(NAN, 4, 1)}
MASKS = without(tensors(M, N, optional=True), "no dimension")
ATTENTION: dict[str, Makers] = {
    "query": tensors(B, H, M, D),
    "key": tensors(B, H, N, D),
    "value": without(tensors(B, H, N, V), "longer"),
    "log_preference": {**MASKS, "nan": filled(NAN, N), "infinite": filled(INF, N)},
    "alpha": ALPHAS,
    "scale": {**without(POSITIVE, "negative", "zero", "None_"), "tensor": filled(1.0, 2)},
    "estimator": NAMES,
    "tol": TOLERANCES,
    "max_steps": WHOLE,
}
OPTIONS = {"dropout_p": SHARES, "enable_gqa": FLAGS}
LAYER: dict[str, Makers] = {
    "embed_dim": WHOLE,
    "num_heads": WHOLE,
    "dropout": SHARES,
    "bias": FLAGS,
    "batch_first": FLAGS,
    "dtype": made(text="x", whole=torch.int64, complex=torch.complex64, float8=torch.float8_e4m3fn),
    "device": made(text="x", number=99, list=[], absent="cuda:77"),
    "alpha": POSITIVE,
    "learn_alpha": FLAGS,
    "estimator": NAMES,
    "tol": TOLERANCES,
    "max_steps": WHOLE,
}
CALL: dict[str, Makers] = {
    "query": without(tensors(2, 3, 16), "huge"),
    "key": tensors(2, 5, 16),
    "value": tensors(2, 5, 16),
    "key_padding_mask": tensors(2, 5, optional=True),
    "attn_mask": tensors(3, 5, optional=True),
    "is_causal": FLAGS,
}


def cores() -> Iterator[Target]:
    """Problems and what solves them."""
    yield Target(
        "Discrete",
        fenchel.Discrete,
        lambda: {"templates": torch.ones(N, D)},
        {
            "templates": {
                **without(tensors(N, D), "longer", "huge"),
                "nan": filled(NAN, N, D),
                "infinite": filled(INF, N, D),
            },
            "log_weights": {**tensors(N, optional=True), "nan": filled(NAN, N), "none": filled(-INF, N)},
        },
    )
    yield Target(
        "InferenceProblem",
        fenchel.InferenceProblem,
        lambda: {"preference": fenchel.Discrete(torch.ones(N, D)), "evidence": torch.ones(M, D)},
        {
            "preference": without(tensors(N, D), "huge"),
            "evidence": {**tensors(M, D), "no query": filled(1.0, 0, D), "nan": filled(NAN, M, D)},
            "alpha": {**POSITIVE, "tensor": filled(1.0, M + 1), "zeros": filled(0.0, M)},
            "closeness": made(text="kl", kind=fenchel.KL, number=1),
        },
    )
    yield Target(
        "OptimalTransport",
        lambda **given: problem(closeness=fenchel.OptimalTransport(**given)),
        lambda: {"cost": "dot", "gamma": 1.0},
        {
            "cost": {**NAMES, **without(tensors(N, N), "huge", "text", "mapping", "None")},
            "gamma": {**POSITIVE, "too small in float32": lambda: torch.tensor(1e-46, dtype=torch.float64)},
            "atoms": without(tensors(2, D, optional=True), "huge"),
            "allowed": {**tensors(1, N, optional=True), "none": lambda: torch.zeros(1, N, dtype=torch.bool)},
            "warn": FLAGS,
        },
    )
    for method in ("dual", "dual_gradient", "weights", "potential"):
        yield Target(
            f"problem.{method}",
            getattr(problem(), method),
            lambda: {"lam": torch.ones(M, D)},
            {"lam": tensors(M, D)},
        )
    for method in ("primal", "mean"):
        yield Target(
            f"problem.{method}",
            getattr(problem(), method),
            lambda: {"weights": torch.full((M, N), 1 / N)},
            {"weights": tensors(M, N)},
        )
    options = {"tol": TOLERANCES, "max_steps": without(WHOLE, "zero"), "throw": FLAGS}
    own: dict[str, Mapping[str, Makers]] = {
        "first_order": {"tol": made(good=1e-6), "unknown": made(good=1)},
        "second_order": {"throw": made(good=True), "Tol": made(good=1e-6)},
        "exact": {**options, "coordinates": NAMES, "radius": made(good=0.1)},
        "gradient_ascent": {**options, "coordinates": made(good="auto")},
        "constrained": {**options, "radius": {**POSITIVE, "tensor": filled(1.0, 7)}},
    }
    for estimator, wrong in own.items():
        rightly = {"estimator": estimator, **({"radius": 1e3} if estimator == "constrained" else {})}
        yield Target(
            f"solve {estimator}",
            lambda **given: problem().solve(**given),
            on_device(**rightly),
            {**wrong, "memory_budget": WHOLE},
        )
    yield Target(
        "solve of transport",
        lambda **given: transport_problem().solve(**given),
        on_device(estimator="exact"),
        {"estimator": NAMES, **options},
    )


def ops() -> Iterator[Target]:
    """Attention on tensors."""
    for estimator in ESTIMATORS:
        yield Target(
            f"attention {estimator}",
            F.attention,
            lambda estimator=estimator: {**queries(), "estimator": estimator},
            {**ATTENTION, **OPTIONS},
        )
    yield Target(
        "attention_with_certificate", F.attention_with_certificate, queries, {**ATTENTION, **OPTIONS}
    )
    pairs = {**without(tensors(1, H, M + N - 1, D), "huge"), "rows": filled(1.0, 1, H, M + N, D)}
    rows = {
        "longer": lambda: torch.zeros(M, N + 1, dtype=torch.int64),
        "beyond": lambda: torch.full((M, N), 99),
    }
    yield Target(
        "relative_attention",
        F.relative_attention,
        lambda: {**queries(), "relative": torch.ones(1, H, M + N - 1, D)},
        {
            **ATTENTION,
            **OPTIONS,
            "relative": pairs,
            "index": {**made(text="x", number=3, list=[1]), **rows},
            "relative_value": without(tensors(1, H, M + N - 1, V), "None", "huge"),
        },
    )
    scores = {name: makers for name, makers in ATTENTION.items() if name != "value"}
    yield Target(
        "mixture_attention",
        F.mixture_attention,
        lambda: {
            "query": torch.ones(B, H, M, D),
            "means": torch.ones(B, H, N, D),
            "variances": torch.ones(B, H, N, D),
        },
        {
            **{name: makers for name, makers in ATTENTION.items() if name not in ("key", "value")},
            **OPTIONS,
            "means": tensors(B, H, N, D),
            "variances": without(tensors(B, H, N, D), "no dimension"),
        },
    )
    yield Target(
        "attention_weights",
        F.attention_weights,
        lambda: {"query": torch.ones(B, H, M, D), "key": torch.ones(B, H, N, D)},
        scores,
    )
    transport = {
        **{name: makers for name, makers in ATTENTION.items() if name != "value"},
        "value": without(tensors(B, H, N, V), "longer"),
        "atoms": without(tensors(B, H, 2, D), "None"),
        "atom_values": without(tensors(B, H, 2, V), "None"),
        "atom_mask": tensors(B, H, M, 2, optional=True),
        "gamma": ALPHAS,
        "cost": {**NAMES, **without(tensors(N + 2, N + 2), "text", "mapping", "None")},
    }
    yield Target(
        "transport_attention",
        F.transport_attention,
        lambda: {
            **queries(),
            "gamma": 1.0,
            "cost": "squared_euclidean",
            "atoms": torch.ones(B, H, 2, D),
            "atom_values": torch.ones(B, H, 2, V),
        },
        transport,
    )
    tokens = {name: makers for name, makers in ATTENTION.items() if name not in ("log_preference", "key")}
    yield Target(
        "hashing_attention",
        F.hashing_attention,
        lambda: {
            **dict.fromkeys(("query", "key", "value"), torch.ones(B, H, N, D)),
            "buckets": torch.zeros(B, H, 2, N, dtype=torch.int64),
        },
        {
            **tokens,
            "query": tensors(B, H, N, D),
            "value": without(tensors(B, H, N, D), "longer"),
            "buckets": without(tensors(B, H, 2, N), "int64"),
            "chunk": WHOLE,
            "before": without(WHOLE, "zero"),
            "after": without(WHOLE, "zero"),
            "key_padding": tensors(B, N, optional=True),
            **dict.fromkeys(("causal", "same_bucket", "count_meetings", "self_last"), FLAGS),
        },
    )
    yield Target(
        "hash_buckets",
        F.hash_buckets,
        lambda: {"vectors": torch.ones(B, H, N, D), "rotations": torch.ones(H, D, 2, 3)},
        {
            "vectors": without(tensors(B, H, N, D), "huge"),
            "rotations": without(tensors(H, D, 2, 3), "longer", "huge"),
        },
    )
    simple = {
        name: ATTENTION[name]
        for name in ("query", "key", "value", "log_preference", "alpha", "scale", "estimator")
    }
    yield Target("reference.attention", F.reference.attention, queries, {**simple, "steps": WHOLE})


def layers() -> Iterator[Target]:
    """Layers, and what they are made of."""

    def built(layer: type, **given: Any) -> Any:
        x = torch.ones(2, 3, 16)
        return layer(**given)(x, x, x)

    sizes = on_device(embed_dim=16, num_heads=4)
    flags = ("add_bias_kv", "add_zero_attn", "normalize_templates", "learn_radius", "keep_certificate")
    yield Target(
        "MultiheadAttention",
        lambda **given: built(MultiheadAttention, **given),
        sizes,
        {
            **LAYER,
            **dict.fromkeys(flags, FLAGS),
            "preference": made(text="causal", kind=preference.Causal, list=[preference.Causal()]),
            "evidence": made(text="dot", kind=evidence.General, preference=preference.Causal()),
            "radius": POSITIVE,
        },
    )
    yield Target(
        "TransportAttention",
        lambda **given: built(TransportAttention, **given),
        sizes,
        {
            **LAYER,
            "gamma": without(POSITIVE, "None_"),
            "cost": NAMES,
            "scale": without(POSITIVE, "negative", "zero"),
            "extra_preference": NAMES,
            "memory": made(text="x", kind=LearnedTemplateBank, narrow=LearnedTemplateBank(8)),
        },
    )
    offsets = {**without(WHOLE, "zero", "None_"), "far": lambda: 2**31}
    yield Target(
        "MultiheadAttention()",
        MultiheadAttention(16, 4, batch_first=True, preference=preference.Causal()),
        lambda: {**sequences(), "query_offset": 0},
        {**CALL, "need_weights": FLAGS, "average_attn_weights": FLAGS, "query_offset": offsets},
    )
    labels = {**without(tensors(2, optional=True), "int64"), "other": lambda: torch.tensor([9, 0])}
    yield Target(
        "TransportAttention()",
        TransportAttention(16, 4, cost="squared_euclidean", memory=LearnedTemplateBank(16, 3)),
        lambda: {**sequences(), "atoms": torch.ones(2, 4, 16)},
        {
            **{name: without(makers, "None") for name, makers in CALL.items()},
            "query": CALL["query"],
            "atoms": tensors(2, 4, 16, optional=True),
            "atom_mask": tensors(2, 4, optional=True),
            "partners": {**labels, "own": lambda: torch.tensor([0, 1])},
            "labels": labels,
        },
    )
    yield Target("norm_penalty", norm_penalty, dict, {"model": NAMES})
    yield Target(
        "RunningTemplateBank",
        RunningTemplateBank,
        on_device(embed_dim=8, classes=2),
        {"embed_dim": WHOLE, "classes": WHOLE, "per_class": WHOLE, "momentum": SHARES, "own_class": FLAGS},
    )
    yield Target(
        "RunningTemplateBank.update",
        RunningTemplateBank(8, 2).update,
        lambda: {"inputs": torch.ones(2, 3, 8), "labels": torch.tensor([0, 1])},
        {
            "inputs": tensors(2, 3, 8),
            "labels": {**labels, "None": lambda: None},
            "padding": tensors(2, 3, optional=True),
        },
    )


def preferences() -> Iterator[Target]:
    """Preferences and evidence."""
    inputs = AttentionInputs(2, 4, 3, 5, torch.device("cpu"), torch.float32, query_offset=0)
    sizes: dict[Any, dict[str, Any]] = {
        preference.ALiBi: {"heads": 4},
        preference.Additive: {"heads": 4, "query_dim": 16, "hidden": 8},
        preference.LearnedBias: {"heads": 4, "max_queries": 8, "max_keys": 8},
        preference.Location: {"heads": 4, "query_dim": 16, "max_keys": 8},
        preference.ContextNetwork: {"heads": 4, "key_dim": 16, "hidden": 8},
        preference.RelativePosition: {"heads": 4, "buckets": 32, "max_distance": 128},
        evidence.General: {"heads": 4, "query_dim": 8},
    }
    for kind, given in sizes.items():
        yield Target(kind.__name__, kind, on_device(**given), dict.fromkeys(given, WHOLE))
    yield Target(
        "GaussianWindow",
        preference.GaussianWindow,
        on_device(heads=4),
        {"width": POSITIVE, "predict_width": made(text="")},
    )
    yield Target(
        "QuadraticGridPosition",
        preference.QuadraticGridPosition,
        on_device(grid=(2, 3), heads=4),
        {
            "grid": made(number=6, short=(2,), text="2x3", zero=(0, 3), part=(2.5, 3)),
            "heads": {**WHOLE, "no square": lambda: 5},
            "kernel": made(number=2, short=(4,), zero=(0, 4), part=(1.5, 2), other=(2, 3)),
            "width": POSITIVE,
            "padding": made(negative=-1, part=0.5, text="same", flag=True, long=(1, 1, 1)),
        },
    )
    yield Target("QuadraticPosition", preference.QuadraticPosition, on_device(heads=4), {"width": POSITIVE})
    yield Target(
        "Window",
        preference.Window,
        on_device(before=1, after=1),
        {"before": without(WHOLE, "zero", "None_"), "dilation": WHOLE},
    )
    yield Target(
        "Tempered", preference.Tempered, on_device(preference=preference.Causal()), {"weight": POSITIVE}
    )
    reach, scale = without(WHOLE, "zero", "None_"), without(POSITIVE, "None_")
    grids = made(text="x", number=3, three=(1, 2, 3), zero=(0, 3), half=(2, 1.5), none=None)
    yield Target(
        "RelativeKeys",
        evidence.RelativeKeys,
        on_device(heads=4, dim=8, max_distance=3),
        {"heads": WHOLE, "dim": WHOLE, "max_distance": reach, "scale": scale},
    )
    yield Target(
        "TransformerXL",
        evidence.TransformerXL,
        on_device(heads=4, dim=8, width=8),
        {"heads": WHOLE, "dim": WHOLE, "width": WHOLE, "base": POSITIVE, "scale": scale},
    )
    yield Target(
        "RelativeGridKeys",
        evidence.RelativeGridKeys,
        on_device(heads=4, dim=8, grid=(2, 3), reach=1),
        {"heads": WHOLE, "dim": WHOLE, "grid": grids, "reach": reach, "scale": POSITIVE},
    )
    yield Target(
        "Rotary",
        evidence.Rotary,
        on_device(dim=8),
        {"dim": WHOLE, "base": POSITIVE, "layout": NAMES, "scale": scale},
    )
    yield Target(
        "GridPosition",
        preference.GridPosition,
        on_device(heads=4, grid=(2, 3)),
        {"heads": WHOLE, "grid": grids},
    )
    yield Target(
        "GridWindow", preference.GridWindow, on_device(grid=(2, 3), reach=1), {"grid": grids, "reach": reach}
    )
    yield Target("Content", evidence.Content, on_device(heads=4), {"sharpness": POSITIVE, "learned": FLAGS})
    yield Target("ScaledDot", evidence.ScaledDot, dict, {"scale": without(POSITIVE, "None_")})
    yield Target("NoEvidence", evidence.NoEvidence, dict, {"scale": without(POSITIVE, "None_")})
    yield Target(
        "NetworkEvidence",
        evidence.NetworkEvidence,
        dict,
        {"network": made(text="x", kind=nn.Linear, function=len)},
    )
    yield Target(
        "Context",
        preference.Context,
        on_device(heads=4),
        {"network": made(text="x", kind=nn.Linear, function=len)},
    )
    yield Target("Causal()", preference.Causal(), on_device(inputs=inputs), {"inputs": NAMES})
    offsets = without(WHOLE, "zero")
    yield Target(
        "AttentionInputs",
        AttentionInputs,
        on_device(batch=2, heads=4, queries=3, keys=5, device=torch.device("cpu"), dtype=torch.float32),
        {
            "keys": offsets,
            "query_offset": without(offsets, "None_"),
            "device": made(text="cpu", number=7),
            "dtype": made(text="float", whole=torch.int64),
            "query_inputs": {**tensors(2, 3, 16, optional=True), "longer": filled(1.0, 2, 4, 16)},
            "key_padding": tensors(2, 5, optional=True),
        },
    )


def others() -> Iterator[Target]:
    """Readings of α."""
    yield Target(
        "alpha_from_noise", alpha_from_noise, on_device(sigma=1.0), {"sigma": POSITIVE, "eta": POSITIVE}
    )
    yield Target("noise_from_alpha", noise_from_alpha, dict, {"alpha": POSITIVE})
    yield Target("radius_of", radius_of, dict, {"estimate": NAMES})


pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]

TARGETS = [*cores(), *ops(), *layers(), *preferences(), *others()]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_refused_in_one_line_that_names_the_argument(target: Target) -> None:
    failures = []
    for argument, makers in target.wrongly.items():
        for kind, make in makers.items():
            given = {**target.rightly(), argument: make()}
            try:
                target.call(**given)
            except FenchelError as error:
                said = str(error)
                if "\n" in said or argument not in said or len(said) > 700:
                    failures.append(f"{argument} {kind}: {said}")
            except Exception as error:
                failures.append(f"{argument} {kind}: {type(error).__name__} {error}"[:200])
            else:
                failures.append(f"{argument} {kind}: accepted")
    assert failures == []


def test_hundreds_of_wrong_calls_are_made() -> None:
    assert sum(len(makers) for target in TARGETS for makers in target.wrongly.values()) > 1500


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("sizes", [(0, H, M, D), (B, 0, M, D), (B, H, 0, D), (B, H, M, 0)], ids=str)
@pytest.mark.parametrize("allowed", [None, "mask", "weights"])
def test_nothing_to_infer_is_what_torch_answers(
    sizes: tuple[int, ...], estimator: str, allowed: str | None
) -> None:
    batch, heads, m, d = sizes
    given = [torch.ones(batch, heads, n, w, requires_grad=True) for n, w in ((m, d), (N, d), (N, V))]
    preferred = None
    if allowed == "weights":
        preferred = torch.ones(m, N, requires_grad=True)
        given.append(preferred)
    elif allowed == "mask":
        preferred = torch.ones(m, N, dtype=torch.bool)
    expected = nn.functional.scaled_dot_product_attention(*given[:3], attn_mask=preferred)
    output = F.attention(*given[:3], log_preference=preferred, estimator=estimator)
    torch.testing.assert_close(output, expected)
    ours, theirs = (torch.autograd.grad(x.sum(), given, materialize_grads=True) for x in (output, expected))
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other)
    output, certificate = F.attention_with_certificate(
        *given[:3], log_preference=preferred, estimator=estimator
    )
    torch.testing.assert_close(output, expected)
    assert all(bound.shape == sizes[:3] and not bool(bound.any()) for bound in certificate)
    weights = F.attention_weights(*given[:2], log_preference=preferred, estimator=estimator)
    torch.testing.assert_close(weights @ given[2], expected)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("shape", [(0, 3, 16), (2, 0, 16)], ids=str)
@pytest.mark.parametrize("need_weights", [True, False])
def test_a_layer_with_nothing_to_infer(shape: tuple[int, ...], estimator: str, need_weights: bool) -> None:
    layer = MultiheadAttention(16, 4, batch_first=True, estimator=estimator, keep_certificate=True)
    keys = torch.ones(shape[0], 5, 16)
    output, weights = layer(torch.ones(shape), keys, keys, need_weights=need_weights)
    assert output.shape == shape
    assert weights is None or weights.shape == (*shape[:2], 5)
    assert layer.last_certificate.gap.shape == (shape[0], 4, shape[1])
    assert TransportAttention(16, 4, estimator=estimator)(torch.ones(shape), keys).shape == shape


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_shapes_without_values(estimator: str) -> None:
    given = {name: tensor.to("meta") for name, tensor in queries().items()}
    assert F.attention(**given, estimator=estimator).shape == (B, H, M, V)
    with pytest.raises(fenchel.ProblemError, match="query is on meta"):
        F.transport_attention(**given, gamma=1.0, estimator=estimator)
