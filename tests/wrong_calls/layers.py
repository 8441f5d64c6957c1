"""Wrong calls of layers and of what they keep."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

import fenchel
from fenchel.errors import FenchelError, InputError, ModelError
from fenchel.nn import (
    ContinuousAttention,
    LearnedTemplateBank,
    MixtureAttention,
    MultiheadAttention,
    RunningTemplateBank,
    TransportAttention,
    evidence,
    norm_penalty,
    preference,
    use_estimator,
)
from tests.wrong_calls.values import *

WIDTH, HEADS, QUERIES, KEYS, BATCH = 16, 4, 3, 5, 2

ESTIMATORS: dict[str, Makers] = {
    "estimator": {**NAMES, **OBJECTS, **made(kind=fenchel.Exact)},
    "tol": {
        **TOLERANCES,
        "of an object": together(estimator=fenchel.Exact(tol=-1.0)),
        "twice": together(estimator=fenchel.Exact(tol=1e-3), tol=1e-3),
    },
    "max_steps": {
        **WHOLE,
        "of an object": together(estimator=fenchel.Exact(max_steps=0)),
        "twice": together(estimator=fenchel.FirstOrder(), max_steps=9),
    },
}
LAYER: dict[str, Makers] = {
    "embed_dim": WHOLE,
    "num_heads": {**WHOLE, **made(does_not_divide=5)},
    "bias": FLAGS,
    "batch_first": FLAGS,
    "dtype": made(text="x", whole=torch.int64, complex=torch.complex64, float8=torch.float8_e4m3fn),
    "device": made(text="x", number=99, list=[], absent="cuda:77"),
    "alpha": POSITIVE,
    "learn_alpha": FLAGS,
    **ESTIMATORS,
}
DROPOUT: dict[str, Makers] = {"dropout": SHARES}
CALL: dict[str, Makers] = {
    "query": {
        **without(tensors(BATCH, QUERIES, WIDTH), "huge"),
        **{"row": filled(1.0, WIDTH), "batch": filled(1.0, BATCH + 1, QUERIES, WIDTH)},
        "float64": filled(1.0, BATCH, QUERIES, WIDTH, dtype=torch.float64),
    },
    "key": {**tensors(BATCH, KEYS, WIDTH), "unbatched": filled(1.0, KEYS, WIDTH)},
    "value": {**tensors(BATCH, KEYS, WIDTH), "tokens": filled(1.0, BATCH, KEYS + 1, WIDTH)},
    "key_padding_mask": {
        **tensors(BATCH, KEYS, optional=True),
        **{"queries": filled(0.0, BATCH, QUERIES), "row": filled(0.0, KEYS)},
        "int32": filled(0, BATCH, KEYS, dtype=torch.int32),
    },
    "attn_mask": {
        **tensors(QUERIES, KEYS, optional=True),
        **{"turned": filled(0.0, KEYS, QUERIES), "no heads": filled(0.0, BATCH, QUERIES, KEYS)},
        "int32": filled(0, QUERIES, KEYS, dtype=torch.int32),
    },
    "is_causal": FLAGS,
}
LABELS = {
    **without(tensors(BATCH, optional=True), "int64"),
    **{"other": lambda: torch.tensor([9, 0]), "negative": lambda: torch.tensor([-2, 0])},
    "count": lambda: torch.tensor([0, 1, 0]),
}


def sequences(width: int = WIDTH) -> dict[str, Any]:
    return {
        name: torch.ones(BATCH, length, width)
        for name, length in (("query", QUERIES), ("key", KEYS), ("value", KEYS))
    }


def built(kind: type, *operands: Tensor) -> Callable[..., Any]:
    """A layer that is made and called at once."""
    x = operands or (torch.ones(BATCH, QUERIES, WIDTH),) * (2 if kind is ContinuousAttention else 3)
    return lambda **options: kind(**options)(*x)


def assigned(layer: nn.Module) -> Callable[..., None]:
    """Attributes that are set on a layer."""

    def assign(**values: Any) -> None:
        for name, value in values.items():
            setattr(layer, name, value)

    return assign


def entered(context: AbstractContextManager[Any]) -> None:
    with context:
        pass


SIZES = given(embed_dim=WIDTH, num_heads=HEADS)


def construction() -> Iterator[Target]:
    """How layers are made."""
    sparse = fenchel.Tsallis(1.5)
    flags = ("add_bias_kv", "add_zero_attn", "normalize_templates", "keep_certificate")
    by_place = {"embed_dim": 12, "num_heads": 3, "evidence": evidence.Rotary(4)}
    grid = evidence.RelativeGridKeys(4, 4, grid=(1, 3), reach=1)
    yield Target(
        "MultiheadAttention",
        built(MultiheadAttention),
        SIZES,
        {
            **LAYER,
            **DROPOUT,
            **dict.fromkeys(flags, FLAGS),
            "kdim": made(zero=0),
            "learn_radius": {**FLAGS, "not normalised": lambda: True},
            "preference": made(text="causal", kind=preference.Causal, list=[preference.Causal()]),
            "evidence": made(text="dot", kind=evidence.General, preference=preference.Causal(), number=3),
            "radius": {
                **POSITIVE,
                **{"not normalised": lambda: 2.0, "zero": together(normalize_templates=True, radius=0.0)},
            },
            "closeness": {
                **made(text="entmax17", transport=fenchel.OptimalTransport("dot", 1.0, warn=False)),
                "parameter": lambda: fenchel.Tsallis(nn.Parameter(torch.tensor([[1.5]]))),
            },
            "learn_order": {**made(without=True), "number": together(learn_order=1, closeness=sparse)},
            "order": {"end": together(learn_order=True, closeness=fenchel.Tsallis(2))},
        },
    )
    yield Target(
        "MultiheadAttention, by places",
        lambda **options: MultiheadAttention(**options),
        given(**by_place),
        {
            "add_bias_kv": made(given=True),
            "normalize_templates": {
                "grid": together(normalize_templates=True, evidence=grid, num_heads=4, embed_dim=16)
            },
            "keep_norm_penalty": {
                "relative": together(keep_norm_penalty=True, evidence=evidence.TransformerXL(3, 4, width=6))
            },
        },
    )
    yield Target(
        "from_torch",
        MultiheadAttention.from_torch,
        lambda: {"module": nn.MultiheadAttention(WIDTH, HEADS)},
        {
            "torch.nn.modules.linear.Linear": {"linear": together(module=nn.Linear(2, 2))},
            "fenchel.nn.attention.MultiheadAttention": {
                "ours": together(module=MultiheadAttention(WIDTH, HEADS))
            },
            "fenchel.nn.transport.TransportAttention": {
                "transport": together(module=TransportAttention(WIDTH, HEADS))
            },
        },
    )
    yield Target(
        "TransportAttention",
        built(TransportAttention),
        SIZES,
        {
            **LAYER,
            **DROPOUT,
            "gamma": without(POSITIVE, "None_"),
            "cost": {
                **{**NAMES, "oblong": filled(1.0, 2, 3)},
                "skew": lambda: torch.tensor([[0.0, 1.0], [2.0, 0.0]]),
                "negative": lambda: torch.tensor([[0.0, -1.0], [-1.0, 0.0]]),
            },
            "scale": without(POSITIVE, "negative", "zero"),
            "extra_preference": NAMES,
            "memory": made(
                text="x", kind=LearnedTemplateBank, narrow=LearnedTemplateBank(8), linear=nn.Linear(2, 2)
            ),
        },
    )
    yield Target(
        "MixtureAttention",
        built(MixtureAttention),
        SIZES,
        {
            **LAYER,
            **DROPOUT,
            "variances": {**made(unknown="full", learned="learned"), "given and missing": lambda: "given"},
            "answer": made(number=1),
            "spherical": made(text="yes"),
            "initial_variance": made(zero=0),
            "memories": {**made(without=4), "none": together(memories=0, variances="learned")},
        },
    )
    yield Target(
        "ContinuousAttention",
        built(ContinuousAttention),
        SIZES,
        {
            **LAYER,
            "dimensions": made(three=3),
            "basis": made(zero=0),
            "ridge": made(zero=0.0),
            "evidence": made(unknown="both"),
            "width": made(negative=-1),
            "preference_width": made(infinite=math.inf),
            "closeness": made(sparse=fenchel.Tsallis(2)),
        },
    )
    for kind in (MultiheadAttention, TransportAttention, MixtureAttention, ContinuousAttention):
        wrong: dict[str, Makers] = {"estimator": ESTIMATORS["estimator"]}
        if kind is MultiheadAttention:
            wrong["alpha"] = made(negative=-1.0)
        yield Target(f"{kind.__name__}, assigned", assigned(kind(WIDTH, HEADS)), dict, wrong)


def calls() -> Iterator[Target]:
    """How layers are called."""
    offsets = {**without(WHOLE, "zero", "None_"), "far": lambda: 2**31}
    causal = MultiheadAttention(WIDTH, HEADS, batch_first=True, preference=preference.Causal())
    flags = {"need_weights": FLAGS, "average_attn_weights": FLAGS}
    yield Target(
        "MultiheadAttention()",
        causal,
        lambda: {**sequences(), "query_offset": 0},
        {
            **{**CALL, **flags, "query_offset": offsets},
            "is_causal": {**FLAGS, "without a mask": lambda: True},
        },
    )
    widths = MultiheadAttention(WIDTH, HEADS, batch_first=True, kdim=5, vdim=7)
    yield Target(
        "MultiheadAttention() of widths",
        widths,
        lambda: {**sequences(), "key": torch.ones(BATCH, KEYS, 5), "value": torch.ones(BATCH, KEYS, 7)},
        {"key": {"wide": filled(1.0, BATCH, KEYS, WIDTH)}, "value": {"narrow": filled(1.0, BATCH, KEYS, 5)}},
    )
    x = torch.zeros(KEYS, WIDTH)
    yield Target(
        "MultiheadAttention() of one sequence",
        MultiheadAttention(WIDTH, HEADS),
        given(query=x, key=x, value=x),
        {
            "key_padding_mask": {"batched": filled(0, 1, KEYS, dtype=torch.bool)},
            "batch_first=False": {
                "batch": together(
                    query=torch.zeros(QUERIES, 3, WIDTH), **dict.fromkeys(("key", "value"), torch.zeros(KEYS, 2, WIDTH))
                )
            },
        },
    )  # fmt: skip
    later = torch.ones(BATCH, 2, WIDTH)
    for kind in (MultiheadAttention, MixtureAttention):
        places: dict[str, Any] = {"preference": preference.Causal()}
        for need_weights in (True, False):
            keys = dict.fromkeys(("key", "value"), torch.ones(BATCH, KEYS, WIDTH))
            yield Target(
                f"{kind.__name__}() of later queries, need_weights={need_weights}",
                kind(WIDTH, HEADS, batch_first=True, **places),
                given(query=keys["key"], **keys, need_weights=need_weights),
                {"query_offset": {"not given": together(query=later)}},
            )

    class OnMeta(preference.Causal):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1, device="meta"))

    for name, changed in (
        ("OnMeta is on meta", {"preference": OnMeta()}),
        ("closeness", {"closeness": "sparsemin"}),
    ):
        layer = MultiheadAttention(WIDTH, HEADS, batch_first=True)
        assigned(layer)(**changed)
        yield Target(
            f"MultiheadAttention() with {next(iter(changed))}",
            lambda layer=layer, other=False: other or layer(**sequences()),
            given(other=True),
            {name: {"assigned": together(other=False)}},
        )
    yield Target(
        "TransportAttention()",
        TransportAttention(WIDTH, HEADS, cost="squared_euclidean", memory=LearnedTemplateBank(WIDTH, 3)),
        lambda: {**sequences(), "atoms": torch.ones(BATCH, 4, WIDTH)},
        {
            **{name: without(makers, "None") for name, makers in CALL.items()},
            **{**flags, "need_weights": without(FLAGS, "None_")},
            "query": CALL["query"],
            "is_causal": {**FLAGS, "without a mask": lambda: True},
            "atoms": {
                **tensors(BATCH, 4, WIDTH, optional=True),
                **{"batch": filled(1.0, 3, 4, WIDTH), "row": filled(1.0, 4, WIDTH)},
                "float64": filled(1.0, BATCH, 4, WIDTH, dtype=torch.float64),
            },
            "atom_mask": {
                **tensors(BATCH, 4, optional=True),
                "without atoms": together(atoms=None, atom_mask=torch.ones(BATCH, 4, dtype=torch.bool)),
            },
            "partners": {
                **{**LABELS, "own": lambda: torch.tensor([0, 1])},
                **{"beyond": lambda: torch.tensor([1, 2]), "count": lambda: torch.tensor([1])},
            },
            "labels": LABELS,
        },
    )
    without_memory = TransportAttention(WIDTH, HEADS)
    yield Target(
        "TransportAttention() without memory",
        without_memory,
        sequences,
        {"labels": {"given": lambda: torch.zeros(BATCH, dtype=torch.int64)}},
    )
    yield from of_mixtures_and_densities()


def of_mixtures_and_densities() -> Iterator[Target]:
    """How layers of mixtures and of densities are called."""
    flags = {"need_weights": FLAGS, "average_attn_weights": FLAGS}
    x = torch.ones(BATCH, KEYS, WIDTH)
    same = {"query": x, "key": x, "value": x}
    some = torch.ones(BATCH, KEYS, 1)
    yield Target(
        "MixtureAttention() with variances",
        MixtureAttention(WIDTH, HEADS, batch_first=True, variances="given"),
        given(**same, variances=some),
        {
            "variances": {
                **{**made(number=1.0, none=None), "row": filled(1.0, KEYS, 1), "width": filled(1.0, BATCH, KEYS, 7)},
                **{"float64": filled(1.0, BATCH, KEYS, 1, dtype=torch.float64), "negative": lambda: -some},
            }
        },
    )  # fmt: skip
    yield Target(
        "MixtureAttention()",
        MixtureAttention(WIDTH, HEADS, batch_first=True),
        given(**same),
        {"variances": {"given": lambda: some}},
    )
    yield Target(
        "MixtureAttention() of memories",
        MixtureAttention(WIDTH, HEADS, batch_first=True, variances="learned", memories=KEYS),
        given(**same),
        {"key": {"fewer": together(key=x[:, :3], value=x[:, :3])}},
    )
    gaps = MixtureAttention(WIDTH, HEADS, batch_first=True)
    yield Target(
        "MixtureAttention() with a gap",
        lambda keep: assigned(gaps)(keep_gap=keep) or gaps(x, x, x),
        given(keep=False),
        {"keep_gap": {"kept": together(keep=True)}},
    )
    signal = torch.ones(BATCH, 35, WIDTH)
    yield Target(
        "ContinuousAttention()",
        ContinuousAttention(WIDTH, HEADS),
        given(query=x, key=signal),
        {
            "grid": made(two_dimensional=(5, 7)),
            "key": {"none": filled(1.0, BATCH, 0, WIDTH)},
            "key_padding_mask": {"row": filled(0, 35, dtype=torch.bool), "weights": filled(0.5, BATCH, 35)},
            "attn_mask": {"causal": lambda: torch.ones(KEYS, 35, dtype=torch.bool).tril()},
            **flags,
        },
    )
    grids = made(none=None, small=(5, 5), real=(5.0, 7), empty=(0, 35))
    yield Target(
        "ContinuousAttention() on a grid",
        ContinuousAttention(WIDTH, HEADS, dimensions=2),
        given(query=x, key=signal, grid=(5, 7)),
        {"grid": grids},
    )


def kept() -> Iterator[Target]:
    """Banks, penalties and switches."""
    yield Target("norm_penalty", norm_penalty, lambda: {"model": fresh_penalty(called=True)}, {
        "model": NAMES,
        "Linear": {"other": together(model=nn.Linear(2, 2))},
        "norm penalty": {"not called": together(model=fresh_penalty(called=False))},
    })  # fmt: skip
    sizes = {"embed_dim": WHOLE, "classes": WHOLE, "per_class": WHOLE, "own_class": FLAGS}
    for kind in (RunningTemplateBank, LearnedTemplateBank):
        momentum = {"momentum": {**SHARES, **made(one=1.0)}} if kind is RunningTemplateBank else {}
        yield Target(kind.__name__, kind, given(embed_dim=8, classes=2), {**sizes, **momentum})
    yield Target(
        "RunningTemplateBank.update",
        RunningTemplateBank(8, 2).update,
        lambda: {"inputs": torch.ones(2, 3, 8), "labels": torch.tensor([0, 1])},
        {
            "inputs": tensors(2, 3, 8),
            "labels": {**LABELS, "None": lambda: None},
            "padding": tensors(2, 3, optional=True),
        },
    )

    def switched(model: Any = None, **options: Any) -> None:
        layer = MultiheadAttention(12, 3, batch_first=True)
        x = torch.ones(1, 2, 12)
        with use_estimator(layer if model is None else model, **{"estimator": "exact", **options}):
            layer(x, x, x)

    layers: dict[str, Makers] = {
        "layer 2": {"beyond": together(layers=[2])},
        "layer True": {"flag": together(layers=[True])},
        "layers": made(none=[], text="1"),
        "heads": {**made(beyond=[4], zero=[0])},
    }
    yield Target("use_estimator", switched, dict, layers, InputError)
    numbers: dict[str, Makers] = {
        **ESTIMATORS,
        "max_steps": without(ESTIMATORS["max_steps"], "None_"),
        "alpha": made(zero=0.0),
    }
    yield Target("use_estimator by numbers", switched, dict, numbers, FenchelError)
    models: dict[str, Makers] = {
        "Linear": {"other": together(model=nn.Linear(9, 2))},
        "torch.nn.Module": {"text": together(model="demo")},
        "was not called": {"not called": together(model=MultiheadAttention(12, 3))},
        "not called inside use_estimator": {"a layer": together(model=MultiheadAttention(12, 3), layers=[1])},
    }
    yield Target("use_estimator of a model", switched, dict, models, ModelError)
    for kind in (TransportAttention, ContinuousAttention):
        layer = kind(8, 2)
        yield Target(
            f"use_estimator of heads of {kind.__name__}",
            lambda heads, layer=layer: heads and entered(use_estimator(layer, "exact", heads=heads)),
            given(heads=None),
            {"solved together": {"one": together(heads=[1])}},
            InputError,
        )


def fresh_penalty(*, called: bool) -> nn.Module:
    layer = MultiheadAttention(WIDTH, HEADS, batch_first=True, keep_norm_penalty=True)
    if called:
        layer(**sequences())
    return layer


TARGETS = [*construction(), *calls(), *kept()]
