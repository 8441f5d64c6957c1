"""Wrong calls of attention on tensors."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_upper_left

import fenchel
from fenchel import functional as F
from tests.wrong_calls.values import *

B, H, M, N, D, V = 2, 4, 3, 5, 8, 6
ESTIMATORS = ("first_order", "second_order", "exact")


def queries() -> dict[str, Any]:
    return {"query": torch.ones(B, H, M, D), "key": torch.ones(B, H, N, D), "value": torch.ones(B, H, N, V)}


def one_holds(value: float, *shape: int) -> Callable[[], Tensor]:
    def make() -> Tensor:
        tensor = torch.zeros(shape)
        tensor.view(-1)[1] = value
        return tensor

    return make


def pairs_of(key_heads: int) -> Makers:
    """Keys and values of other heads than those of the query."""
    return {
        f"{key_heads} heads": together(
            key=torch.ones(B, key_heads, N, D), value=torch.ones(B, key_heads, N, V)
        )
    }


ALPHAS = {
    **{**POSITIVE, "tensor": filled(1.0, 2, 7), "heads": filled(1.0, H), "zeros": filled(0.0, H, 1)},
    **{"nans": filled(NAN, H, 1), "negative one": lambda: 1 + one_holds(-2.0, H, 1)()},
    "meta": lambda: torch.ones(H, 1, device="meta"),
}
SCALES = {**without(POSITIVE, "negative", "zero", "None_"), "tensor": filled(1.0, 2)}
PREFERENCES = {
    **without(tensors(M, N, optional=True), "no dimension"),
    **{"nan": filled(NAN, N), "one nan": one_holds(NAN, M, N), "infinite": filled(INF, N)},
    "deeper": filled(0.0, 1, 2, 4, M, N),
    "bias": lambda: causal_upper_left(1, N),
}
ATTENTION: dict[str, Makers] = {
    "query": {
        **tensors(B, H, M, D),
        **{"deeper": filled(1.0, 1, B, H, M, D), "leading": filled(1.0, 3, M, D)},
    },
    "key": {**tensors(B, H, N, D), "batch": filled(1.0, 3, H, N, D)},
    "value": {
        **without(tensors(B, H, N, V), "longer"),
        **{"tokens": filled(1.0, B, H, N + 1, V), "float64": filled(1.0, B, H, N, V, dtype=torch.float64)},
    },
    "log_preference": PREFERENCES,
    "alpha": ALPHAS,
    "scale": SCALES,
    "estimator": NAMES,
    "tol": TOLERANCES,
    "max_steps": WHOLE,
}
TENSORS = ("query", "key", "value")
OPTIONS: dict[str, Makers] = {
    "dropout_p": SHARES,
    "enable_gqa": FLAGS,
    "heads": {**pairs_of(3), **pairs_of(2)},
    "closeness": {
        **made(text="sparsemin", kind=fenchel.Tsallis),
        "transport": lambda: fenchel.OptimalTransport("dot", 1.0, warn=False),
    },
    "order": {"heads": together(closeness=fenchel.Tsallis(torch.full((3, 1), 1.5)))},
}
GAPS: dict[str, Makers] = {
    **{name: makers for name, makers in ATTENTION.items() if name not in ("value", "tol", "max_steps")},
    "estimator": {**NAMES, **made(solved="exact")},
}


def but(*names: str) -> dict[str, Makers]:
    return {name: makers for name, makers in ATTENTION.items() if name not in names}


def plain() -> Iterator[Target]:
    for estimator in ESTIMATORS:
        solved = {
            "query": {**ATTENTION["query"], "nan": one_holds(NAN, B, H, M, D)},
            "key": {**ATTENTION["key"], "infinite": one_holds(INF, B, H, N, D)},
        }
        wrong = {**ATTENTION, **OPTIONS, **(solved if estimator == "exact" else {})}
        yield Target(F.attention, {**queries(), "estimator": estimator}, f"attention {estimator}", **wrong)
    nan = filled(NAN, B, H, N, D)()
    for estimator in ("second_order", "exact"):
        for name in ("query", "key"):
            sparse = {**queries(), name: nan, "closeness": fenchel.Tsallis(1.5), "estimator": estimator}
            yield once(name, partial(F.attention, **sparse))
        hard = {**queries(), "closeness": fenchel.Hard(), "estimator": estimator}
        yield once("estimator", partial(F.attention, **hard))
    yield Target(F.attention_with_certificate, queries(), **ATTENTION, **OPTIONS)
    scores = {name: part for name, part in queries().items() if name != "value"}
    yield Target(F.attention_weights, scores, **but("value"))
    yield Target(F.gap, scores, **GAPS)
    simple = {name: ATTENTION[name] for name in (*TENSORS, "log_preference", "alpha", "scale", "estimator")}
    yield Target(F.reference.attention, queries(), **simple, steps=WHOLE)


def other_templates() -> Iterator[Target]:
    pairs = {
        **without(tensors(1, H, M + N - 1, D), "huge"),
        **{"rows": filled(1.0, 1, H, M + N, D), "heads": filled(1.0, 1, 2, M + N - 1, D)},
        "row": filled(1.0, M + N - 1, D),
    }
    rows = {
        **{"longer": filled(0, M, N + 1, dtype=torch.int64), "beyond": filled(99, M, N, dtype=torch.int64)},
        **{"negative": filled(-1, M, N, dtype=torch.int64), "floating": filled(0.0, M, N)},
    }
    relative: dict[str, Any] = {**queries(), "relative": torch.ones(1, H, M + N - 1, D)}
    wrong: dict[str, Makers] = {"relative": pairs, "index": {**made(text="x", number=3, list=[1]), **rows}}
    values = {
        **without(tensors(1, H, M + N - 1, V), "None", "huge"),
        **{"rows": filled(1.0, 1, 1, M + N - 2, V), "width": filled(1.0, 1, 1, M + N - 1, V + 1)},
    }
    attention = {**ATTENTION, **without_closeness(OPTIONS), **wrong, "relative_value": values}
    yield Target(F.relative_attention, relative, **attention)
    scored = {name: part for name, part in relative.items() if name != "value"}
    yield Target(F.relative_gap, scored, **GAPS, **wrong)
    variances = {
        **without(tensors(B, H, N, D), "no dimension"),
        **{"negative": one_holds(-0.25, N, D), "nan": filled(NAN), "infinite": filled(INF, D)},
        **made(real=0.5),
        **{"deeper": filled(1.0, B, H, N, D, D), "float64": filled(1.0, 1, dtype=torch.float64)},
    }
    mixture = {"means": torch.ones(B, H, N, D), "variances": torch.ones(B, H, N, D)}
    spherical: dict[str, Any] = {"variances": torch.ones(1)}
    yield Target(
        F.mixture_attention,
        {"query": torch.ones(B, H, M, D), **mixture},
        **but("key", "value"),
        **without_closeness(OPTIONS, "heads", "enable_gqa"),
        means={
            **{**tensors(B, H, N, D), "row": together(means=torch.ones(N, D), **spherical)},
            "dim": together(means=torch.ones(B, H, N, D + 2), **spherical),
            "none": together(means=torch.ones(B, H, 0, D), **spherical),
            "heads": together(means=torch.ones(B, 3, N, D), **spherical),
            "value": together(value=torch.ones(B, H, N + 1, V)),
        },
        enable_gqa={**FLAGS, "unsaid": together(means=torch.ones(B, 1, N, D), **spherical)},
        variances=variances,
        **{"mixture attention": {"overflow": together(query=torch.full((B, H, M, D), 1e25))}},
    )


def without_closeness(options: dict[str, Makers], *names: str) -> dict[str, Makers]:
    return {name: makers for name, makers in options.items() if name not in ("closeness", "order", *names)}


def moved() -> Iterator[Target]:
    atoms = {
        **without(tensors(B, H, 2, D), "None"),
        **{"batch": filled(1.0, 3, H, 2, D), "float64": filled(1.0, B, H, 2, D, dtype=torch.float64)},
        **{"alone": together(atom_values=None), "values alone": together(atoms=None)},
        "mask alone": together(atoms=None, atom_values=None, atom_mask=torch.ones(2, dtype=torch.bool)),
        "counts": together(atom_values=torch.ones(B, H, 3, V)),
    }
    masks = {**tensors(B, H, M, 2, optional=True), "floating": filled(1.0, M, 2)}
    costs = without(tensors(N + 2, N + 2), "text", "mapping", "None")
    given_atoms = {"atoms": torch.ones(B, H, 2, D), "atom_values": torch.ones(B, H, 2, V)}
    moving = {**queries(), "gamma": 1.0, "cost": "squared_euclidean"}
    yield Target(
        F.transport_attention,
        {**moving, **given_atoms},
        **{**ATTENTION, "value": without(tensors(B, H, N, V), "longer")},
        atoms=atoms,
        atom_values=without(tensors(B, H, 2, V), "None"),
        atom_mask=masks,
        gamma={**ALPHAS, "one": filled(-1.0), "queries": filled(1.0, H, M)},
        cost={**NAMES, **costs, "keys": filled(0.0, N, N), "negative": filled(-1.0, N + 2, N + 2)},
    )
    none = {**moving, "key": torch.ones(B, H, 0, D), "value": torch.ones(B, H, 0, V)}
    yield once("key", partial(F.transport_attention, **none))


def hashed() -> Iterator[Target]:
    whole = torch.int64
    keys = dict.fromkeys(TENSORS, torch.ones(B, H, N, D))
    yield Target(
        F.hashing_attention,
        {**keys, "buckets": torch.zeros(B, H, 2, N, dtype=whole)},
        **but("query", "value", "log_preference", "key"),
        query={**tensors(B, H, N, D), "tokens": filled(1.0, B, H, N + 1, D)},
        value=without(tensors(B, H, N, D), "longer"),
        buckets=without(tensors(B, H, 2, N), "int64"),
        chunk=WHOLE,
        before=without(WHOLE, "zero"),
        after=without(WHOLE, "zero"),
        key_padding=tensors(B, N, optional=True),
        **dict.fromkeys(("causal", "same_bucket", "count_meetings", "self_last"), FLAGS),
    )
    nothing, nowhere = torch.ones(B, H, 0, D), torch.zeros(B, H, 1, 0, dtype=whole)
    yield once("key", lambda: F.hashing_attention(nothing, nothing, nothing, nowhere))
    yield once("dtype", lambda: F.hashing_log_preference(torch.zeros(1, 1, 1, 4, dtype=whole), dtype=whole))
    yield Target(
        F.hash_buckets,
        {"vectors": torch.ones(B, H, N, D), "rotations": torch.ones(H, D, 2, 3)},
        vectors=without(tensors(B, H, N, D), "huge"),
        rotations=without(tensors(H, D, 2, 3), "longer", "huge"),
    )


def inferred() -> Iterator[Target]:
    mixture = F.Mixture(torch.ones(1))
    buckets = F.Hashing(torch.zeros(B, H, 1, N, dtype=torch.int64))
    keys: dict[str, Any] = dict.fromkeys(TENSORS, torch.ones(B, H, N, D))
    tight, negative = fenchel.Exact(tol=1e-3), fenchel.Exact(tol=-1.0)

    def read(**options: Any) -> Any:
        found = F.infer(**options)
        return found.output, found.certificate

    yield Target(
        read,
        keys,
        "infer",
        variant=made(text="relative", kind=F.Relative),
        closeness={"mixture": together(variant=mixture, closeness=fenchel.KL())},
        dropout_p={"transport": together(variant=F.Transport(1.0), dropout_p=0.1)},
        enable_gqa={"hashing": together(variant=buckets, enable_gqa=True)},
        log_preference={"hashing": together(variant=buckets, log_preference=torch.ones(N, N).bool())},
        buckets={"tokens": together(variant=F.Hashing(torch.zeros(B, H, 1, N + 1).long()))},
        tol={"twice": together(estimator=tight, tol=1e-3), "negative": together(estimator=negative)},
        estimator=OBJECTS,
    )


TARGETS = [*plain(), *other_templates(), *moved(), *hashed(), *inferred()]
