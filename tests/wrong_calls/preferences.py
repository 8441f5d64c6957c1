"""Wrong calls of the preferences and the evidence of layers."""

import operator
from collections.abc import Iterator, Mapping
from dataclasses import replace
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
SCALE: dict[str, Makers] = {"scale": without(POSITIVE, "None_")}
GRIDS = made(text="x", number=3, three=(1, 2, 3), zero=(0, 3), half=(2, 1.5), none=None)
NETWORKS = made(text="x", kind=nn.Linear, function=len)


def sizes() -> Iterator[Target]:
    """What preferences and evidence are made with."""
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
        yield Target(kind.__name__, kind, given(**sized), dict.fromkeys(sized, WHOLE))
    rest: list[tuple[Any, dict[str, Any], Mapping[str, Makers]]] = [
        (
            RelativePosition,
            HEADS,
            {
                "buckets": {**made(odd=7), "one": together(buckets=1, bidirectional=False)},
                "max_distance": made(short=8),
            },
        ),
        (
            GaussianWindow,
            HEADS,
            {
                "width": POSITIVE,
                "predict_width": made(text=""),
                "pace": {**made(zero=0.0), "predicted": together(predict_location=True, query_dim=4, pace=2.0)},
                "query_dim": {"missing": together(predict_width=True), "for nothing": lambda: 4},
            },
        ),
        (
            QuadraticGridPosition,
            {"grid": (2, 3), **HEADS},
            {
                "grid": made(number=6, short=(2,), text="2x3", zero=(0, 3), part=(2.5, 3)),
                "heads": {**WHOLE, "no square": lambda: 5},
                "kernel": made(number=2, short=(4,), zero=(0, 4), part=(1.5, 2), other=(2, 3)),
                "width": POSITIVE,
                "padding": made(negative=-1, part=0.5, text="same", flag=True, long=(1, 1, 1)),
            },
        ),
        (QuadraticPosition, HEADS, {"width": POSITIVE}),
        (
            Window,
            {"before": 1, "after": 1},
            {
                "before": without(WHOLE, "zero", "None_"),
                "after": made(flag=True),
                "dilation": WHOLE,
                "Uniform": {"restricts nothing": together(before=None, after=None)},
            },
        ),
        (
            Tempered,
            {"preference": Causal(), "weight": 1.0},
            {"weight": POSITIVE, "preference": {"tensor": filled(0.0, 3)}},
        ),
        (
            RelativeKeys,
            {**HEADS, "dim": 8, "max_distance": 3},
            {**dict.fromkeys(("heads", "dim"), WHOLE), "max_distance": FROM_ZERO, **SCALE},
        ),
        (
            TransformerXL,
            {**HEADS, "dim": 8, "width": 8},
            {**dict.fromkeys(("heads", "dim"), WHOLE), "width": {**WHOLE, **made(odd=7)}, "base": POSITIVE, **SCALE},
        ),
        (
            RelativeGridKeys,
            {**HEADS, "dim": 8, "grid": (2, 3), "reach": 1},
            {"heads": WHOLE, "dim": {**WHOLE, **made(odd=5)}, "grid": GRIDS, "reach": FROM_ZERO, "scale": POSITIVE},
        ),
        (Rotary, {"dim": 8}, {"dim": {**WHOLE, **made(odd=5)}, "base": POSITIVE, "layout": NAMES, **SCALE}),
        (GridPosition, {**HEADS, "grid": (2, 3)}, {"heads": WHOLE, "grid": GRIDS}),
        (GridWindow, {"grid": (2, 3), "reach": 1}, {"grid": GRIDS, "reach": FROM_ZERO}),
        (Content, HEADS, {"sharpness": POSITIVE, "learned": FLAGS}),
        (ScaledDot, {}, SCALE),
        (NoEvidence, {}, SCALE),
        (NetworkEvidence, {"network": nn.Linear(2, 2)}, {"network": NETWORKS}),
        (
            Context,
            {**HEADS, "key_dim": 4},
            {
                "network": {**NETWORKS, "and its size": lambda: nn.Identity()},
                "key_dim": {"missing": together(key_dim=None)},
            },
        ),
    ]  # fmt: skip
    for kind, sized, wrong in rest:
        yield Target(kind.__name__, kind, given(**sized), wrong)
    weights = {"shape": filled(0.0, 32)}
    yield Target("from_t5", RelativePosition.from_t5, given(weight=torch.zeros(32, 4)), {"weight": weights})
    places = {"places": torch.arange(3), "width": 8}
    yield Target("sinusoids", sinusoids, given(**places), {"width": made(odd=3), "places": made(number=20)})


def algebra() -> Iterator[Target]:
    """Powers and products."""
    powers = {**without(POSITIVE, "array", "class", "too_large", "too_small", "endless"), **made(text="2")}
    for factor in (Causal(), Uniform()):
        yield Target(
            f"{factor!r} ** weight", factor.__pow__, given(weight=2.0), {"weight": powers}
        )  # fmt: skip
    others = made(number=2.0, kind=ALiBi, tensor=torch.ones(3), memories=Discrete(torch.eye(3)))
    for sign, multiply in (("a * b", operator.mul), ("b * a", lambda a, b: b * a)):
        wrong = {"factor": {kind: together(b=make()) for kind, make in others.items()}}
        yield Target(sign, lambda a, b, by=multiply: by(a, b), given(a=Causal(), b=ALiBi(4)), wrong)
    sums = {"joined by +": {"sum": together(by=operator.add)}}
    yield Target("sum", lambda by: by(Causal(), ALiBi(4)), given(by=operator.mul), sums)
    parameter = nn.Parameter(torch.tensor(1.0))
    yield Target(
        "power", Causal().__pow__, given(weight=2.0), {"learned=True": {"tensor": together(weight=parameter)}}
    )
    yield Target(
        "Product",
        lambda factors: Product(*factors),
        given(factors=(Causal(),)),
        {"factor": {"linear": together(factors=(Causal(), nn.Linear(1, 1))), "none": together(factors=())}},
    )


def inputs() -> Iterator[Target]:
    """What preferences are called with."""
    ours = attention_inputs()
    others = AttentionInputs(2, 4, 3, 5, torch.device("cpu"), torch.float32, query_offset=0)
    yield Target("Causal()", Causal(), given(inputs=others), {"inputs": NAMES})
    offsets = without(WHOLE, "zero")
    yield Target(
        "AttentionInputs",
        AttentionInputs,
        given(batch=2, heads=4, queries=3, keys=5, device=torch.device("cpu"), dtype=torch.float32),
        {
            "keys": offsets,
            "query_offset": without(offsets, "None_"),
            "device": made(text="cpu", number=7),
            "dtype": made(text="float", whole=torch.int64),
            "query_inputs": {
                **{
                    **tensors(2, 3, 16, optional=True),
                    "longer": filled(1.0, 2, 4, 16),
                    "row": filled(1.0, 3, 16),
                }
            },
            "key_inputs": {"fewer": filled(1.0, 2, 4, 16)},
            "key_padding": {**tensors(2, 5, optional=True), "row": filled(0, 5, dtype=torch.bool)},
        },
    )

    def asked(of: Any, changes: dict[str, Any], how: str = "__call__") -> Any:
        return getattr(of, how)(replace(ours, **changes))

    blind = {"query_inputs": None, "key_inputs": None}
    heads = {"heads": 4, "key_padding": ours.key_padding}
    cases: list[tuple[str, Any, dict[str, Any]]] = [
        ("key_inputs", Context(OURS, WIDTH), blind),
        ("query_inputs", Additive(OURS, WIDTH), blind),
        ("query_inputs", Location(OURS, WIDTH, 9), blind),
        ("query_inputs", GaussianWindow(OURS, predict_location=True, query_dim=WIDTH), blind),
        ("key_dim=5", Context(OURS, 5), {}),
        ("network has shape", Context(OURS, network=nn.Identity()), {}),
        ("max_keys=6", LearnedBias(OURS, 20, 6), {}),
        ("max_queries=6", LearnedBias(OURS, 6, 20), {"query_offset": 3}),
        ("max_keys=6", Location(OURS, WIDTH, 6), {}),
        *(
            ("heads=4", EVERY[name](), heads)
            for name in ("relative position", "alibi", "quadratic", "gaussian", "learned bias", "context", "location")
        ),
        *(
            ("cpu", EVERY[name]().to("meta"), {})
            for name in ("relative position", "alibi", "additive", "three", "tempered, learned")
        ),
    ]  # fmt: skip
    for number, (name, of, changes) in enumerate(cases):
        wrong = {name: {"asked": together(of=of, changes=changes)}}
        yield Target(f"{type(of).__name__}() {number}", asked, given(of=Causal(), changes={}), wrong)
        if of.lowers and "cpu" not in name and not changes.get("query_offset"):
            lowered = {name: {"asked": together(of=of, changes=changes, how="score_mod")}}
            if name not in ("network has shape", "key_dim=5"):
                yield Target(
                    f"{type(of).__name__} {number}, lowered", asked, given(of=Causal(), changes={}), lowered
                )


def evidence() -> Iterator[Target]:
    """What evidence is called with."""
    query, key = torch.ones(2, 4, 5, 8), torch.ones(2, 4, 7, 8)

    def asked(of: Any, query: Tensor = query, key: Tensor = key) -> Any:
        return of(query, key)

    pixels = RelativeGridKeys(3, 4, grid=(2, 3), reach=1)
    of_heads = torch.ones(1, 3, 5, 4), torch.ones(1, 2, 5, 4)
    cases: list[tuple[str, dict[str, Any]]] = [
        *(("heads=4", {"of": of}) for of in (General(3, 8), Content(3))),
        ("query_dim=6", {"of": General(4, 6)}),
        ("key_dim=6", {"of": General(4, 8, 6)}),
        (r"(2, 4, 5, 8)", {"of": NetworkEvidence(nn.Linear(8, 3))}),
        ("dim=4", {"of": Rotary(4), "query": torch.ones(1, 2, 3, 6), "key": torch.ones(1, 2, 3, 6)}),
        ("6 pixels", {"of": pixels, "query": of_heads[0], "key": of_heads[0]}),
        ("3 heads", {"of": RelativeKeys(3, 4, 2), "query": of_heads[1], "key": of_heads[1]}),
        ("query_offset", {"of": RelativeKeys(4, 8, 2), "query": query[:, :, :2]}),
    ]
    for number, (name, changes) in enumerate(cases):
        yield Target(
            f"{type(changes['of']).__name__}() of evidence {number}",
            asked,
            given(of=ScaledDot()),
            {name: {"asked": together(**changes)}},
        )
    for of in (GridPosition(3, (2, 3)), GridWindow((2, 3), reach=1)):
        few = AttentionInputs(1, 3, 5, 5, torch.device("cpu"), torch.float64)
        yield Target(
            f"{type(of).__name__}()",
            of,
            given(inputs=replace(few, queries=6, keys=6)),
            {"6 pixels": {"few": together(inputs=few)}},
        )
    grid = QuadraticGridPosition((4, 5), 4, padding=1)
    pixels_there = AttentionInputs(2, 4, 20, 42, torch.device("cpu"), torch.float64, query_offset=0)
    yield Target(
        "QuadraticGridPosition()",
        lambda **changes: grid(replace(pixels_there, **changes)),
        dict,
        {
            "keys": made(image=20),
            "queries": {"beyond": together(query_offset=1)},
            "query_offset": {"not given": together(queries=3, query_offset=None)},
        },
    )
    x = torch.zeros(1, 1, 2, 16)
    yield Target(
        "flex_attention",
        lambda **options: flex_attention(x, x, x, **options),
        given(eager=True),
        {"eager=True": {"on the CPU": together(eager=False)}},
    )


TARGETS = [*sizes(), *algebra(), *inputs(), *evidence()]
