"""Entries of the catalogue at 512 tokens, each beside its direct reference on torch's fused attention."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.recording import compare, record
from fenchel.catalogue import entry
from fenchel.catalogue.entry import Inferrer
from fenchel.nn.preference import RelativePosition

TARGET = 1.2
HEADS, TOKENS, DIM = 8, 512, 64


class Case(NamedTuple):
    """An entry's further inputs, and what somebody would write who has torch alone."""

    inputs: dict[str, Any]
    direct: Callable[[Tensor, Tensor, Tensor], Tensor]


def places() -> Tensor:
    """How far each key is after each query."""
    return torch.arange(TOKENS) - torch.arange(TOKENS).unsqueeze(-1)


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value)


def biased(
    bias: Callable[[], Tensor], scale: float | None = None
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Fused attention with a bias or a mask that is made in the call, as the entry makes its preference."""

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value, attn_mask=bias(), scale=scale)

    return run


def nadaraya_watson(w: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        precision = w.square().unsqueeze(-1)
        bias = -precision / 2 * key.square().sum(-1).unsqueeze(-2)
        return scaled_dot_product_attention(precision * query, key, value, attn_mask=bias, scale=1.0)

    return run


def rotated(x: Tensor) -> Tensor:
    """Neighbouring pairs of coordinates, as in the paper."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2]).unsqueeze(-1) * 10000.0 ** (-torch.arange(half) / half)
    turned = torch.view_as_complex(x.unflatten(-1, (half, 2))) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2)


def t5_buckets(distance: Tensor, buckets: int, limit: int) -> Tensor:
    half = buckets // 2
    side = (distance > 0).long() * half
    far = distance.abs()
    exact = half // 2
    large = exact + (far.clamp(min=1) / exact).log() / math.log(limit / exact) * (half - exact)
    return side + torch.where(far < exact, far, large.long().clamp(max=half - 1))


def cases() -> dict[str, Case]:
    seen = torch.rand(TOKENS, TOKENS) < 0.5
    seen |= torch.eye(TOKENS, dtype=torch.bool)
    importance, gain = torch.randn(1, HEADS, TOKENS), torch.rand(TOKENS) + 0.5
    w, precision = torch.rand(HEADS, 1) / 8, torch.rand(1, HEADS, TOKENS) + 0.5
    pairs, projection = torch.randn(1, TOKENS, TOKENS, 16), torch.randn(16, HEADS)
    slopes = 2.0 ** -torch.arange(1, HEADS + 1).view(1, HEADS, 1, 1)
    buckets = RelativePosition(HEADS)
    table = buckets.relative_attention_bias.weight
    causal = places() <= 0

    return {
        "scaled-dot": Case({}, plain),
        "dot": Case({}, lambda q, k, v: scaled_dot_product_attention(q, k, v, scale=1.0)),
        "masked": Case({"visible": seen}, biased(lambda: seen)),
        "nadaraya-watson": Case({"w": w}, nadaraya_watson(w)),
        "gain-field": Case({"gain": gain}, biased(lambda: gain.log().expand(TOKENS, TOKENS), 1.0)),
        "precision": Case(
            {"precision": precision},
            lambda q, k, v: scaled_dot_product_attention(precision.unsqueeze(-1) * q, k, v, scale=1.0),
        ),
        "top-down": Case(
            {"salience": importance}, biased(lambda: importance.unsqueeze(2).expand(-1, -1, TOKENS, -1), 1.0)
        ),
        "pair-bias": Case(
            {"pairs": pairs, "projection": projection},
            biased(lambda: (pairs @ projection).permute(0, 3, 1, 2)),
        ),
        "t5": Case(
            {"network": buckets},
            biased(lambda: table[t5_buckets(places(), 32, 128)].permute(2, 0, 1).unsqueeze(0), 1.0),
        ),
        "alibi": Case({}, biased(lambda: (slopes * places()).masked_fill(places() > 0, -torch.inf))),
        "causal": Case({}, lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True)),
        "causal, its mask given": Case({}, biased(lambda: causal)),
        "sliding-window": Case({"width": 128}, biased(lambda: places().abs() <= 64)),
        "rotary": Case({}, lambda q, k, v: scaled_dot_product_attention(rotated(q), rotated(k), v)),
    }


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    result: dict[str, dict[str, float]] = {}
    for name, case in cases().items():
        query, key, value = torch.randn(3, 1, HEADS, TOKENS, DIM).unbind()
        known = entry(name.split(",")[0])
        given = {**known.inputs(0, torch.float32), **case.inputs}
        asked = "goal" if "goal" in given else "query"
        given |= {asked: query, "key": key, "value": value}

        def ours(written: Callable[..., Tensor] = known.written, given: dict[str, Any] = given) -> Tensor:
            return written(Inferrer(), **given)

        def direct(case: Case = case, q: Tensor = query, k: Tensor = key, v: Tensor = value) -> Tensor:
            return case.direct(q, k, v)

        torch.testing.assert_close(
            ours(), direct(), rtol=1e-4, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}"
        )
        times = compare({"entry": ours, "direct": direct}, rounds)
        entry_s, direct_s = times["entry"]["median_s"], times["direct"]["median_s"]
        result[name] = {"entry_s": entry_s, "direct_s": direct_s, "ratio": entry_s / direct_s}
    record(
        "catalogue",
        {
            "shape": {"batch": 1, "heads": HEADS, "tokens": TOKENS, "dim": DIM, "dtype": "float32"},
            "target": TARGET,
            "entries": result,
            "missed": sorted(name for name, one in result.items() if one["ratio"] > TARGET),
        },
    )


if __name__ == "__main__":
    main()
