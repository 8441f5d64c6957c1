"""Attention of 8 heads of 64 against torch's own: preferences, certificates, estimators, speed and memory."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.recording import compare, record
from fenchel import functional as F

HEADS, DIM = 8, 64
TARGETS = {
    "learned preference, no gradient to it": 1.1,
    "learned preference, gradient to it (faster or smaller)": 1.0,
    "certificate": 1.6,
    "second order, preference shared by queries": 2.0,
    "exact to 1e-4 at 256 tokens": 12.0,
}


class Call:
    """One call's tensors, and what is timed on them."""

    def __init__(self, tokens: int) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        self.query, self.key, self.value = (normal(1, HEADS, tokens, DIM).requires_grad_() for _ in range(3))
        self.gradient = normal(1, HEADS, tokens, DIM)
        self.bias = normal(1, HEADS, tokens, tokens)
        self.shared = normal(1, HEADS, 1, tokens)

    def forward(self, attend: Callable[..., Any], **options: Any) -> Callable[[], Any]:
        def run() -> None:
            with torch.no_grad():
                attend(self.query, self.key, self.value, **options)

        return run

    def both(self, attend: Callable[..., Any], **options: Any) -> Callable[[], Any]:
        """Forward and backward."""

        def run() -> None:
            output = attend(self.query, self.key, self.value, **options)
            (output[0] if isinstance(output, tuple) else output).backward(self.gradient)

        return run


def ratios(candidates: dict[str, Callable[[], Any]], baseline: str, rounds: int) -> dict[str, Any]:
    taken = compare(candidates, rounds)
    for times in taken.values():
        times["ratio"] = times["median_s"] / taken[baseline]["median_s"]
        times["ratio_of_fastest"] = times["min_s"] / taken[baseline]["min_s"]
    return {"baseline": baseline, "times": taken}


def speed(rounds: int) -> dict[str, Any]:
    long, short = Call(1024), Call(256)
    wanting = long.bias.clone().requires_grad_()
    exact: dict[str, Any] = {"estimator": "exact", "tol": 1e-4}
    result = {
        "preference a query, 1024 tokens, no gradient to it": ratios(
            {
                "torch": long.both(scaled_dot_product_attention, attn_mask=long.bias),
                "fenchel": long.both(F.attention, log_preference=long.bias),
            },
            "torch",
            rounds,
        ),
        "preference a query, 1024 tokens, gradient to it": ratios(
            {
                "torch": long.both(scaled_dot_product_attention, attn_mask=wanting),
                "fenchel": long.both(F.attention, log_preference=wanting),
            },
            "torch",
            rounds,
        ),
        "certificate, 1024 tokens, forward": ratios(
            {
                "without": long.forward(F.attention),
                "with": long.forward(F.attention_with_certificate),
                "with, preference shared by queries": long.forward(
                    F.attention_with_certificate, log_preference=long.shared
                ),
            },
            "without",
            rounds,
        ),
        "certificate, 1024 tokens, forward and backward": ratios(
            {"without": long.both(F.attention), "with": long.both(F.attention_with_certificate)},
            "without",
            rounds,
        ),
    }
    for call, tokens in ((long, 1024), (short, 256)):
        result[f"estimators, {tokens} tokens, forward and backward"] = ratios(
            {
                "first_order": call.both(F.attention, log_preference=call.shared),
                "second_order": call.both(F.attention, log_preference=call.shared, estimator="second_order"),
                "second_order, preference a query": call.both(
                    F.attention, log_preference=call.bias, estimator="second_order"
                ),
                "exact to 1e-4": call.both(F.attention, log_preference=call.shared, **exact),
                "exact to 1e-4, preference a query": call.both(
                    F.attention, log_preference=call.bias, **exact
                ),
            },
            "first_order",
            max(3, rounds // 2) if tokens == 1024 else rounds,
        )
    return result


MEMORY: dict[str, Callable[[Call], Callable[[], Any]]] = {
    "torch, gradient to the preference": lambda call: call.both(
        scaled_dot_product_attention, attn_mask=call.bias.requires_grad_()
    ),
    "fenchel, gradient to the preference": lambda call: call.both(
        F.attention, log_preference=call.bias.requires_grad_()
    ),
    "fenchel, gradient to a shared preference": lambda call: call.both(
        F.attention, log_preference=call.shared.requires_grad_()
    ),
    "exact to 1e-2": lambda call: call.both(
        F.attention, log_preference=call.shared, estimator="exact", tol=1e-2
    ),
    "exact to 1e-5": lambda call: call.both(
        F.attention, log_preference=call.shared, estimator="exact", tol=1e-5
    ),
}


def resident(field: str) -> float:
    """A field of /proc/self/status, in MB: VmRSS is what is resident now, VmHWM its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status: memory is measured on Linux only")


def peak(name: str, tokens: int) -> None:
    """Print by how much this process grows beyond its inputs and their gradients, in MB."""
    call = Call(tokens)
    run = MEMORY[name](call)
    for tensor in (call.query, call.key, call.value, call.bias, call.shared):
        tensor.grad = torch.zeros_like(tensor) if tensor.requires_grad else None
    MEMORY[name](Call(64))()
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    run()
    print(json.dumps(resident("VmHWM") - before))


def memory() -> dict[str, dict[int, float]]:
    """Peak growth of a fresh process over a forward and a backward pass, in MB."""
    result: dict[str, dict[int, float]] = {}
    for name in MEMORY:
        result[name] = {}
        for tokens in (1024, 2048):
            command = [sys.executable, "-m", "benchmarks.attention", "--peak", name, "--tokens", str(tokens)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            result[name][tokens] = round(json.loads(done.stdout), 1)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peak", choices=sorted(MEMORY))
    parser.add_argument("--tokens", type=int, default=1024)
    arguments = parser.parse_args()
    if arguments.peak:
        peak(arguments.peak, arguments.tokens)
        return
    shape = {"batch": 1, "heads": HEADS, "dim": DIM, "dtype": "float32"}
    record(
        "attention",
        {"shape": shape, "targets": TARGETS, "speed": speed(arguments.rounds), "peak_growth_mb": memory()},
    )


if __name__ == "__main__":
    main()
