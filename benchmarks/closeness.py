"""Attention under Tsallis closenesses and to mixtures against torch's own and the ``entmax`` package's maps."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import entmax
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attention import Call, ratios
from benchmarks.recording import record
from fenchel import Tsallis
from fenchel import functional as F

TARGETS = {
    "mixture attention, diagonal variances, of torch's fused attention of the same shape": 2.5,
    "sparse attention, of dense attention with the entmax package's exact maps": 1.0,
    "exact Tsallis attention at 256 tokens, of exact KL attention": 2.0,
}


def dense(weights: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Attention by a map from scores to weights, as its users write it."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return weights(query @ key.mT * query.shape[-1] ** -0.5) @ value

    return attend


def mixtures(rounds: int) -> dict[str, Any]:
    call = Call(1024)
    variances = torch.rand_like(call.key).requires_grad_()
    spherical = torch.rand_like(call.key[..., :1]).requires_grad_()

    def mixture(spread: Tensor, *, with_value: bool) -> Callable[[], None]:
        value = call.value if with_value else None
        return lambda: F.mixture_attention(call.query, call.key, spread, value).backward(call.gradient)

    return ratios(
        {
            "torch": call.both(scaled_dot_product_attention),
            "diagonal, memories": mixture(variances, with_value=False),
            "diagonal, values": mixture(variances, with_value=True),
            "spherical, memories": mixture(spherical, with_value=False),
        },
        "torch",
        rounds,
    )


def sparse(rounds: int) -> dict[str, Any]:
    long = Call(1024)
    order = (1 + torch.rand(8, 1)).requires_grad_()
    result = {}
    for name, near, theirs in (
        ("sparsemax", Tsallis(2), lambda x: entmax.sparsemax(x, -1)),
        ("entmax15", Tsallis(1.5), lambda x: entmax.entmax15(x, -1)),
    ):
        result[f"{name}, 1024 tokens, forward and backward"] = ratios(
            {
                "entmax package, dense": long.both(dense(theirs)),
                "fenchel": long.both(F.attention, closeness=near),
                "torch, softmax": long.both(scaled_dot_product_attention),
            },
            "entmax package, dense",
            rounds,
        )
    result["an order a head, 1024 tokens, forward and backward"] = ratios(
        {
            "entmax package's bisection, dense": long.both(
                dense(lambda x: entmax.entmax_bisect(x, order.view(1, 8, 1, 1), -1))  # pyright: ignore[reportArgumentType]
            ),
            "fenchel": long.both(F.attention, closeness=Tsallis(order)),
        },
        "entmax package's bisection, dense",
        max(3, rounds // 3),
    )
    return result


def exact(rounds: int) -> dict[str, Any]:
    call, result = Call(256), {}
    for tol in (1e-4, 1e-5):
        options: dict[str, Any] = {"estimator": "exact", "tol": tol}
        for way, run in (("forward", call.forward), ("forward and backward", call.both)):
            result[f"tol {tol:g}, {way}"] = ratios(
                {
                    "KL": run(F.attention, **options),
                    "Tsallis(1.5)": run(F.attention, closeness=Tsallis(1.5), **options),
                    "Tsallis(2)": run(F.attention, closeness=Tsallis(2), **options),
                },
                "KL",
                rounds,
            )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    record(
        "closeness",
        {
            "shape": {"batch": 1, "heads": 8, "dim": 64, "dtype": "float32"},
            "entmax": version("entmax"),
            "targets": TARGETS,
            "mixture attention, 1024 tokens, forward and backward": mixtures(rounds),
            "sparse attention": sparse(rounds),
            "exact attention, 256 tokens": exact(rounds),
        },
    )


if __name__ == "__main__":
    main()
