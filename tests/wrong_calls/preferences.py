"""Wrong calls of the preferences and the evidence of layers."""

import operator
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fenchel import Discrete
from fenchel.functional.flex import flex_attention
from fenchel.nn import sinusoids
from fenchel.nn.evidence import (
    Content,
    General,
    NetworkEvidence,
    NoEvidence,
    RelativeGridKeys,
    RelativeKeys,
    Rotary,
    ScaledDot,
    TransformerXL,
)
from fenchel.nn.preference import (
    Additive,
    ALiBi,
    AttentionInputs,
    Causal,
    Context,
    ContextNetwork,
    GaussianWindow,
    GridPosition,
    GridWindow,
    LearnedBias,
    Location,
    Product,
    QuadraticGridPosition,
    QuadraticPosition,
    RelativePosition,
    Tempered,
    Uniform,
    Window,
)
from tests.nn.preferences import EVERY, WIDTH, attention_inputs
from tests.nn.preferences import HEADS as OURS
from tests.wrong_calls.values import *

HEADS = {"heads": 4}
FROM_ZERO = without(WHOLE, "zero")
SCALE = without(POSITIVE, "None_")
GRIDS = made(text="x", number=3, three=(1, 2, 3), zero=(0, 3), half=(2, 1.5), none=None)
NETWORKS = made(text="x", kind=nn.Linear, function=len)


def sizes() -> Iterator[Target]:
    whole: dict[Any, dict[str, Any]] = {
        ALiBi: HEADS,
        Additive: {**HEADS, "query_dim": 16, "hidden": 8},
        LearnedBias: {**HEADS, "max_queries": 8, "max_keys": 8},
        Location: {**HEADS, "query_dim": 16, "max_keys": 8},
        ContextNetwork: {**HEADS, "key_dim": 16, "hidden": 8},
        RelativePosition: {**HEADS, "buckets": 32, "max_distance": 128},
        General: {**HEADS, "query_dim": 8},
    }
    for kind, sized in whole.items():
        yield Target(kind, sized, **dict.fromkeys(sized, WHOLE))
    odd, network = {**WHOLE, **made(odd=7)}, nn.Linear(2, 2)
    one = together(buckets=1, bidirectional=False)
    yield Target(RelativePosition, HEADS, buckets={**made(odd=7), "one": one}, max_distance=made(short=8))
    yield Target(
        GaussianWindow,
        HEADS,
        width=POSITIVE,
        predict_width=made(text=""),
        pace={**made(zero=0.0), "predicted": together(predict_location=True, query_dim=4, pace=2.0)},
        query_dim={"missing": together(predict_width=True), "for nothing": lambda: 4},
    )
    yield Target(
        QuadraticGridPosition,
        {"grid": (2, 3), **HEADS},
        grid=made(number=6, short=(2,), text="2x3", zero=(0, 3), part=(2.5, 3)),
        heads={**WHOLE, **made(no_square=5)},
        kernel=made(number=2, short=(4,), zero=(0, 4), part=(1.5, 2), other=(2, 3)),
        width=POSITIVE,
        padding=made(negative=-1, part=0.5, text="same", flag=True, long=(1, 1, 1)),
    )
    yield Target(QuadraticPosition, HEADS, width=POSITIVE)
    before = without(WHOLE, "zero", "None_")
    yield Target(Window, {"before": 1, "after": 1}, before=before, after=made(flag=True), dilation=WHOLE)
    yield once("Uniform", lambda: Window(before=None, after=None))
    preferring = {"preference": Causal(), "weight": 1.0}
    yield Target(Tempered, preferring, weight=POSITIVE, preference={"tensor": filled(0.0, 3)})
    keys = {**HEADS, "dim": 8, "max_distance": 3}
    yield Target(RelativeKeys, keys, heads=WHOLE, dim=WHOLE, max_distance=FROM_ZERO, scale=SCALE)
    positions = {**HEADS, "dim": 8, "width": 8}
    yield Target(TransformerXL, positions, heads=WHOLE, dim=WHOLE, width=odd, base=POSITIVE, scale=SCALE)
    grid = {**HEADS, "dim": 8, "grid": (2, 3), "reach": 1}
    yield Target(RelativeGridKeys, grid, heads=WHOLE, dim=odd, grid=GRIDS, reach=FROM_ZERO, scale=POSITIVE)
    yield Target(Rotary, {"dim": 8}, dim=odd, base=POSITIVE, layout=NAMES, scale=SCALE)
    yield Target(GridPosition, {**HEADS, "grid": (2, 3)}, heads=WHOLE, grid=GRIDS)
    yield Target(GridWindow, {"grid": (2, 3), "reach": 1}, grid=GRIDS, reach=FROM_ZERO)
    yield Target(Content, HEADS, sharpness=POSITIVE, learned=FLAGS)
    for kind in (ScaledDot, NoEvidence):
        yield Target(kind, {}, scale=SCALE)
    yield Target(NetworkEvidence, {"network": network}, network=NETWORKS)
    networks = {**NETWORKS, "and its size": lambda: network}
    yield Target(Context, {**HEADS, "key_dim": 4}, network=networks, key_dim=made(missing=None))
    weights = {"shape": filled(0.0, 32)}
    yield Target(RelativePosition.from_t5, {"weight": torch.zeros(32, 4)}, weight=weights)
    places = {"places": torch.arange(3), "width": 8}
    yield Target(sinusoids, places, width=made(odd=3), places=made(number=20))


def algebra() -> Iterator[Target]:
    powers = {**without(POSITIVE, "array", "class", "too_large", "too_small", "endless"), **made(text="2")}
    for factor in (Causal(), Uniform()):
        yield Target(factor.__pow__, {"weight": 2.0}, f"{factor!r} ** weight", weight=powers)
    parameter: Any = nn.Parameter(torch.tensor(1.0))
    linear: Any = nn.Linear(1, 1)
    yield once("learned=True", lambda: Causal() ** parameter)
    yield once("factor", lambda: Product(Causal(), linear))
    yield once("factor", Product)
    others: list[Any] = [2.0, ALiBi, torch.ones(3), Discrete(torch.eye(3))]
    for other in others:
        yield once("factor", partial(operator.mul, Causal(), other))
        yield once("factor", partial(operator.mul, other, Causal()))
    yield once("joined by +", partial(operator.add, Causal(), ALiBi(4)))


def inputs() -> Iterator[Target]:
    ours = attention_inputs()
    others = AttentionInputs(2, 4, 3, 5, torch.device("cpu"), torch.float32, query_offset=0)
    yield Target(Causal(), {"inputs": others}, inputs=NAMES)
    offsets = without(WHOLE, "zero")
    yield Target(
        AttentionInputs,
        {
            "batch": 2,
            "heads": 4,
            "queries": 3,
            "keys": 5,
            "device": torch.device("cpu"),
            "dtype": torch.float32,
        },
        keys=offsets,
        query_offset=without(offsets, "None_"),
        device=made(text="cpu", number=7),
        dtype=made(text="float", whole=torch.int64),
        query_inputs={
            **tensors(2, 3, 16, optional=True),
            **{"longer": filled(1.0, 2, 4, 16), "row": filled(1.0, 3, 16)},
        },
        key_inputs={"fewer": filled(1.0, 2, 4, 16)},
        key_padding={**tensors(2, 5, optional=True), "row": filled(0, 5, dtype=torch.bool)},
    )

    def asked(of: Any, **changes: Any) -> Any:
        return of(replace(ours, **changes))

    blind: dict[str, Any] = {"query_inputs": None, "key_inputs": None}
    yield once(
        "query_inputs", partial(asked, GaussianWindow(OURS, predict_location=True, query_dim=WIDTH), **blind)
    )
    yield once("max_queries=6", partial(asked, LearnedBias(OURS, 6, 20), query_offset=3))
    yield once("key_dim=5", partial(asked, Context(OURS, 5)))
    yield once("network has shape", partial(asked, Context(OURS, network=nn.Identity())))
    heads = {"heads": 4, "key_padding": ours.key_padding}
    of_heads = ("relative position", "alibi", "quadratic", "gaussian", "learned bias", "context", "location")
    cases: list[tuple[str, Any, dict[str, Any]]] = [
        ("key_inputs", Context(OURS, WIDTH), blind),
        ("query_inputs", Additive(OURS, WIDTH), blind),
        ("query_inputs", Location(OURS, WIDTH, 9), blind),
        ("max_keys=6", LearnedBias(OURS, 20, 6), {}),
        ("max_keys=6", Location(OURS, WIDTH, 6), {}),
        *(("heads=4", EVERY[name](), heads) for name in of_heads),
    ]
    for name, of, changes in cases:
        yield once(name, partial(asked, of, **changes))
        if of.lowers:
            yield once(name, partial(asked, of.score_mod, **changes))
    for name in ("relative position", "alibi", "additive", "three", "tempered, learned"):
        yield once("cpu", partial(asked, EVERY[name]().to("meta")))


def evidence() -> Iterator[Target]:
    query, key = torch.ones(2, 4, 5, 8), torch.ones(2, 4, 7, 8)
    small, narrow, few = torch.ones(1, 2, 3, 6), torch.ones(1, 3, 5, 4), torch.ones(1, 2, 5, 4)
    cases: list[tuple[str, Any, Tensor, Tensor]] = [
        *(("heads=3", of, query, key) for of in (General(3, 8), Content(3))),
        ("query_dim=6", General(4, 6), query, key),
        ("key_dim=6", General(4, 8, 6), query, key),
        ("(2, 4, 5, 8)", NetworkEvidence(nn.Linear(8, 3)), query, key),
        ("dim=4", Rotary(4), small, small),
        ("6 pixels", RelativeGridKeys(3, 4, grid=(2, 3), reach=1), narrow, narrow),
        ("heads=3", RelativeKeys(3, 4, 2), few, few),
        ("query_offset", RelativeKeys(4, 8, 2), query[:, :, :2], key),
    ]
    for name, of, *operands in cases:
        yield once(name, partial(of, *operands))
    pixels = AttentionInputs(1, 3, 5, 5, torch.device("cpu"), torch.float64)
    for of in (GridPosition(3, (2, 3)), GridWindow((2, 3), reach=1)):
        yield once("6 pixels", partial(of, pixels))
    grid = QuadraticGridPosition((4, 5), 4, padding=1)
    pixels_there = AttentionInputs(2, 4, 20, 42, torch.device("cpu"), torch.float64, query_offset=0)
    yield Target(
        lambda **changes: grid(replace(pixels_there, **changes)),
        {},
        "QuadraticGridPosition()",
        keys=made(image=20),
        queries={"beyond": together(query_offset=1)},
        query_offset={"not given": together(queries=3, query_offset=None)},
    )
    yield once("eager=True", lambda: flex_attention(query, query, query, eager=False))


TARGETS = [*sizes(), *algebra(), *inputs(), *evidence()]
