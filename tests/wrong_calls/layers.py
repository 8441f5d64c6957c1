"""Wrong calls of layers and of what they keep."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_upper_left

import fenchel
from fenchel.errors import FenchelError, InputError, ModelError
from fenchel.nn import (
    ContinuousAttention,
    KeyValueCache,
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
        "bias": lambda: causal_upper_left(BATCH, KEYS),
        "int32": filled(0, BATCH, KEYS, dtype=torch.int32),
    },
    "attn_mask": {
        **tensors(QUERIES, KEYS, optional=True),
        **{"turned": filled(0.0, KEYS, QUERIES), "no heads": filled(0.0, BATCH, QUERIES, KEYS)},
        "bias": lambda: causal_upper_left(KEYS, KEYS),
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
    lengths = {"query": QUERIES, "key": KEYS, "value": KEYS}
    return {name: torch.ones(BATCH, length, width) for name, length in lengths.items()}


def built(kind: type, *operands: Tensor) -> Callable[..., Any]:
    x = operands or (torch.ones(BATCH, QUERIES, WIDTH),) * (2 if kind is ContinuousAttention else 3)
    return lambda **options: kind(**options)(*x)


def assigned(layer: nn.Module) -> Callable[..., None]:
    def assign(**values: Any) -> None:
        for name, value in values.items():
            setattr(layer, name, value)

    return assign


SIZES = {"embed_dim": WIDTH, "num_heads": HEADS}


def construction() -> Iterator[Target]:
    sparse = fenchel.Tsallis(1.5)
    flags = ("add_bias_kv", "add_zero_attn", "normalize_templates", "keep_certificate")
    yield Target(
        built(MultiheadAttention),
        SIZES,
        "MultiheadAttention",
        **LAYER,
        **DROPOUT,
        **dict.fromkeys(flags, FLAGS),
        kdim=made(zero=0),
        learn_radius={**FLAGS, "not normalised": lambda: True},
        preference=made(text="causal", kind=preference.Causal, list=[preference.Causal()]),
        evidence=made(text="dot", kind=evidence.General, preference=preference.Causal(), number=3),
        radius={
            **POSITIVE,
            **{"not normalised": lambda: 2.0, "zero": together(normalize_templates=True, radius=0.0)},
        },
        closeness={
            **made(text="entmax17", transport=fenchel.OptimalTransport("dot", 1.0, warn=False)),
            "parameter": lambda: fenchel.Tsallis(nn.Parameter(torch.tensor([[1.5]]))),
        },
        learn_order={**made(without=True), "number": together(learn_order=1, closeness=sparse)},
        order={"end": together(learn_order=True, closeness=fenchel.Tsallis(2))},
    )
    by_place = {
        "add_bias_kv": {"evidence": evidence.Rotary(4)},
        "normalize_templates": {"evidence": evidence.RelativeGridKeys(4, 4, grid=(1, 3), reach=1)},
        "keep_norm_penalty": {"evidence": evidence.TransformerXL(4, 4, width=6)},
    }
    for name, options in by_place.items():
        yield once(name, partial(MultiheadAttention, WIDTH, HEADS, **options, **{name: True}))
    others: list[Any] = [nn.Linear(2, 2), MultiheadAttention(WIDTH, HEADS), TransportAttention(WIDTH, HEADS)]
    for module in others:
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        yield once(kind, partial(MultiheadAttention.from_torch, module))
    yield Target(
        built(TransportAttention),
        SIZES,
        "TransportAttention",
        **LAYER,
        **DROPOUT,
        gamma=without(POSITIVE, "None_"),
        cost={
            **{**NAMES, "oblong": filled(1.0, 2, 3)},
            "skew": lambda: torch.tensor([[0.0, 1.0], [2.0, 0.0]]),
            "negative": lambda: torch.tensor([[0.0, -1.0], [-1.0, 0.0]]),
        },
        scale=without(POSITIVE, "negative", "zero"),
        extra_preference=NAMES,
        memory=made(
            text="x", kind=LearnedTemplateBank, narrow=LearnedTemplateBank(8), linear=nn.Linear(2, 2)
        ),
    )
    yield Target(
        built(MixtureAttention),
        SIZES,
        "MixtureAttention",
        **LAYER,
        **DROPOUT,
        variances={**made(unknown="full", learned="learned"), "given and missing": lambda: "given"},
        answer=made(number=1),
        spherical=made(text="yes"),
        initial_variance=made(zero=0),
        memories={**made(without=4), "none": together(memories=0, variances="learned")},
    )
    yield Target(
        built(ContinuousAttention),
        SIZES,
        "ContinuousAttention",
        **LAYER,
        dimensions=made(three=3),
        basis=made(zero=0),
        ridge=made(zero=0.0),
        evidence=made(unknown="both"),
        width=made(negative=-1),
        preference_width=made(infinite=math.inf),
        closeness=made(sparse=fenchel.Tsallis(2)),
    )
    for kind in (MultiheadAttention, TransportAttention, MixtureAttention, ContinuousAttention):
        wrong: dict[str, Makers] = {"estimator": ESTIMATORS["estimator"]}
        if kind is MultiheadAttention:
            wrong["alpha"] = made(negative=-1.0)
        yield Target(assigned(kind(WIDTH, HEADS)), {}, f"{kind.__name__}, assigned", **wrong)


def calls() -> Iterator[Target]:
    offsets = {**without(WHOLE, "zero", "None_"), "far": lambda: 2**31}
    causal = MultiheadAttention(WIDTH, HEADS, batch_first=True, preference=preference.Causal())
    flags = {"need_weights": FLAGS, "average_attn_weights": FLAGS}
    causally = {**FLAGS, "without a mask": lambda: True}
    yield Target(
        causal,
        {**sequences(), "query_offset": 0},
        "MultiheadAttention()",
        **{**CALL, **flags, "is_causal": causally, "query_offset": offsets},
    )
    widths = MultiheadAttention(WIDTH, HEADS, batch_first=True, kdim=5, vdim=7)
    narrow, x = sequences(5), sequences()
    yield once("key", lambda: widths(x["query"], x["key"], torch.ones(BATCH, KEYS, 7)))
    yield once("value", lambda: widths(x["query"], narrow["key"], narrow["value"]))
    by_tokens, alone = MultiheadAttention(WIDTH, HEADS), torch.zeros(KEYS, WIDTH)
    padding = torch.zeros(1, KEYS, dtype=torch.bool)
    yield once("key_padding_mask", lambda: by_tokens(alone, alone, alone, key_padding_mask=padding))
    turned = torch.zeros(QUERIES, 3, WIDTH), *(torch.zeros(KEYS, 2, WIDTH),) * 2
    yield once("batch_first=False", lambda: by_tokens(*turned))
    for kind in (MultiheadAttention, MixtureAttention):
        placed = kind(WIDTH, HEADS, batch_first=True, preference=preference.Causal())
        for need_weights in (True, False):
            yield once("query_offset", partial(placed, **x, need_weights=need_weights))

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
        yield once(name, partial(layer, **x))
    yield Target(
        TransportAttention(WIDTH, HEADS, cost="squared_euclidean", memory=LearnedTemplateBank(WIDTH, 3)),
        {**sequences(), "atoms": torch.ones(BATCH, 4, WIDTH)},
        "TransportAttention()",
        **{
            name: without(makers, "None")
            for name, makers in CALL.items()
            if name not in ("query", "is_causal")
        },
        **{**flags, "need_weights": without(FLAGS, "None_")},
        query=CALL["query"],
        is_causal=causally,
        atoms={
            **tensors(BATCH, 4, WIDTH, optional=True),
            **{"batch": filled(1.0, 3, 4, WIDTH), "row": filled(1.0, 4, WIDTH)},
            "float64": filled(1.0, BATCH, 4, WIDTH, dtype=torch.float64),
        },
        atom_mask={
            **tensors(BATCH, 4, optional=True),
            "without atoms": together(atoms=None, atom_mask=torch.ones(BATCH, 4, dtype=torch.bool)),
        },
        partners={
            **{**LABELS, "own": lambda: torch.tensor([0, 1])},
            **{"beyond": lambda: torch.tensor([1, 2]), "count": lambda: torch.tensor([1])},
        },
        labels=LABELS,
    )
    without_memory = TransportAttention(WIDTH, HEADS)
    yield once("labels", lambda: without_memory(**x, labels=torch.zeros(BATCH, dtype=torch.int64)))
    yield from of_mixtures_and_densities()
    yield from with_caches()


def with_caches() -> Iterator[Target]:
    x, cache = torch.ones(BATCH, 3, WIDTH), KeyValueCache()
    yield once("cache", lambda: KeyValueCache().reorder(torch.tensor([0])))
    layer, context = (
        MultiheadAttention(WIDTH, HEADS, batch_first=True, preference=preferred)
        for preferred in (preference.Causal(), preference.Causal() * preference.Context(HEADS, WIDTH))
    )
    layer(x, x, x, cache=cache)
    yield once("cache", lambda: context(x, x, x, cache=cache))
    yield once("as in the cache", lambda: layer(x[:1], x[:1], x[:1], cache=cache))
    yield once("key_inputs", lambda: context(x, x, x, cache=KeyValueCache(4)))
    whole = {**dict.fromkeys(("query", "key", "value"), x), "cache": KeyValueCache()}
    yield Target(
        layer,
        whole,
        "MultiheadAttention() with a cache",
        query_offset=made(number=3),
        cache=made(list=[]),
        query={"fewer": together(query=x[:, :2], cache=cache)},
        key_padding_mask={"of new keys": together(cache=cache, key_padding_mask=x[..., 0] > 2)},
    )
    index = {"beyond": lambda: torch.tensor([2]), "floating": lambda: torch.tensor([0.0])}
    yield Target(cache.reorder, {"index": torch.tensor([0, 1])}, "KeyValueCache.reorder", index=index)
    yield Target(KeyValueCache, {}, window=made(zero=0))


def of_mixtures_and_densities() -> Iterator[Target]:
    flags = {"need_weights": FLAGS, "average_attn_weights": FLAGS}
    x = torch.ones(BATCH, KEYS, WIDTH)
    some = torch.ones(BATCH, KEYS, 1)
    yield Target(
        MixtureAttention(WIDTH, HEADS, batch_first=True, variances="given"),
        {"query": x, "key": x, "value": x, "variances": some},
        "MixtureAttention() with variances",
        variances={
            **made(number=1.0, none=None, negative=-some),
            **{"row": filled(1.0, KEYS, 1), "width": filled(1.0, BATCH, KEYS, 7)},
            "float64": filled(1.0, BATCH, KEYS, 1, dtype=torch.float64),
        },
    )
    plain = MixtureAttention(WIDTH, HEADS, batch_first=True)
    yield once("variances", lambda: plain(x, x, x, variances=some))
    learned = MixtureAttention(WIDTH, HEADS, batch_first=True, variances="learned", memories=KEYS)
    yield once("key", lambda: learned(x, x[:, :3], x[:, :3]))
    gaps = MixtureAttention(WIDTH, HEADS, batch_first=True)
    yield once("keep_gap", lambda: assigned(gaps)(keep_gap=True) or gaps(x, x, x))
    signal = torch.ones(BATCH, 35, WIDTH)
    yield Target(
        ContinuousAttention(WIDTH, HEADS),
        {"query": x, "key": signal},
        "ContinuousAttention()",
        grid=made(two_dimensional=(5, 7)),
        key={"none": filled(1.0, BATCH, 0, WIDTH)},
        key_padding_mask={"row": filled(0, 35, dtype=torch.bool), "weights": filled(0.5, BATCH, 35)},
        attn_mask={"causal": lambda: torch.ones(KEYS, 35, dtype=torch.bool).tril()},
        **flags,
    )
    grids = made(none=None, small=(5, 5), real=(5.0, 7), empty=(0, 35))
    yield Target(
        ContinuousAttention(WIDTH, HEADS, dimensions=2),
        {"query": x, "key": signal, "grid": (5, 7)},
        "ContinuousAttention() on a grid",
        grid=grids,
    )


def kept() -> Iterator[Target]:
    keeping = MultiheadAttention(WIDTH, HEADS, batch_first=True, keep_norm_penalty=True)
    yield Target(
        lambda model: keeping(**sequences()) and norm_penalty(model),
        {"model": keeping},
        "norm_penalty",
        model=NAMES,
    )
    yield once("Linear", lambda: norm_penalty(nn.Linear(2, 2)))
    uncalled = MultiheadAttention(WIDTH, HEADS, keep_norm_penalty=True)
    yield once("norm penalty", lambda: norm_penalty(uncalled))
    sizes = {"embed_dim": WHOLE, "classes": WHOLE, "per_class": WHOLE, "own_class": FLAGS}
    for kind in (RunningTemplateBank, LearnedTemplateBank):
        momentum = {"momentum": {**SHARES, **made(one=1.0)}} if kind is RunningTemplateBank else {}
        yield Target(kind, {"embed_dim": 8, "classes": 2}, **sizes, **momentum)
    yield Target(
        RunningTemplateBank(8, 2).update,
        {"inputs": torch.ones(2, 3, 8), "labels": torch.tensor([0, 1])},
        inputs=tensors(2, 3, 8),
        labels={**LABELS, "None": lambda: None},
        padding=tensors(2, 3, optional=True),
    )

    def switched(model: Any = None, **options: Any) -> None:
        layer = MultiheadAttention(12, 3, batch_first=True)
        x = torch.ones(1, 2, 12)
        with use_estimator(layer if model is None else model, **{"estimator": "exact", **options}):
            layer(x, x, x)

    for layers in ([2], [True]):
        yield once(f"layer {layers[0]}", partial(switched, layers=layers), InputError)
    chosen = {"layers": made(none=[], text="1"), "heads": made(beyond=[4], zero=[0])}
    yield Target(switched, {}, "use_estimator", InputError, **chosen)
    numbers: dict[str, Makers] = {
        **ESTIMATORS,
        "max_steps": without(ESTIMATORS["max_steps"], "None_"),
        "alpha": made(zero=0.0),
    }
    yield Target(switched, {}, "use_estimator by numbers", FenchelError, **numbers)
    other = MultiheadAttention(12, 3)
    yield once("Linear", lambda: switched(nn.Linear(9, 2)), ModelError)
    yield once("torch.nn.Module", lambda: switched("demo"), ModelError)
    yield once("was not called", lambda: switched(other), ModelError)
    yield once("not called inside use_estimator", lambda: switched(other, layers=[1]), ModelError)
    for kind in (TransportAttention, ContinuousAttention):
        yield once("solved together", partial(switched, kind(8, 2), heads=[1]), InputError)


TARGETS = [*construction(), *calls(), *kept()]
