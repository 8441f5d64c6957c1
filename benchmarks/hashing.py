"""Hashing attention against torch's own over all pairs: from how many tokens on it is faster, and by how much."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention

from benchmarks.recording import compare, record
from fenchel.functional import hash_buckets, hashing_attention

HEADS, DIM, CHUNK = 8, 64, 64
ROUNDS = (1, 2, 4, 8)
TARGET_TOKENS = 8192


class Call:
    """One call's tensors, and what is timed on them; hashing and sorting are timed as well."""

    def __init__(self, tokens: int) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        self.query, self.value = (normal(1, HEADS, tokens, DIM).requires_grad_() for _ in range(2))
        self.gradient = normal(1, HEADS, tokens, DIM)
        # As many buckets as make half a chunk's tokens share one.
        self.rotations = {rounds: normal(HEADS, DIM, rounds, max(1, tokens // CHUNK)) for rounds in ROUNDS}

    def full(self) -> Tensor:
        return scaled_dot_product_attention(self.query, normalize(self.query, dim=-1), self.value, scale=1.0)

    def hashed(self, rounds: int) -> Tensor:
        buckets = hash_buckets(self.query, self.rotations[rounds])
        return hashing_attention(
            self.query, normalize(self.query, dim=-1), self.value, buckets, chunk=CHUNK, scale=1.0
        )

    def forward(self, attend: Callable[[], Tensor]) -> Callable[[], Any]:
        def run() -> None:
            with torch.no_grad():
                attend()

        return run

    def both(self, attend: Callable[[], Tensor]) -> Callable[[], Any]:
        """Forward and backward."""
        return lambda: attend().backward(self.gradient)


def ratios(tokens: int, rounds: int) -> dict[str, Any]:
    """Seconds of each over those of attention to all, of a forward pass and with the backward pass."""
    call = Call(tokens)
    candidates: dict[str, Callable[[], Tensor]] = {
        "full": call.full,
        **{f"{count} rounds": (lambda count=count: call.hashed(count)) for count in ROUNDS},
    }
    result: dict[str, Any] = {}
    for name, timed in (("forward", call.forward), ("forward and backward", call.both)):
        taken = compare({key: timed(attend) for key, attend in candidates.items()}, rounds)
        for times in taken.values():
            times["ratio"] = times["median_s"] / taken["full"]["median_s"]
        result[name] = taken
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    arguments = parser.parse_args()
    record(
        "hashing",
        {
            "shape": {"batch": 1, "heads": HEADS, "dim": DIM, "chunk": CHUNK, "dtype": "float32"},
            "target": {"faster from tokens": TARGET_TOKENS},
            "speed": {str(tokens): ratios(tokens, arguments.rounds) for tokens in arguments.tokens},
        },
    )


if __name__ == "__main__":
    main()
