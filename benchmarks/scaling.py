"""How time and memory of a layer's exact solve grow with tokens and heads, at width 768 and 12 heads."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

from benchmarks.recording import record
from fenchel import Discrete, InferenceProblem

TOKENS = (64, 128, 256, 512, 1024, 2048)
WIDTH, HEAD_WIDTH, TOLERANCE = 768, 64, 1e-5


def layer(tokens: int, heads: int) -> InferenceProblem:
    """A layer like those of trained encoders: normalised inputs, evidence of norm about 14."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.nn.functional.layer_norm(torch.randn(tokens, WIDTH, generator=generator), (WIDTH,))
    templates = 0.6 * inputs / HEAD_WIDTH**0.5
    evidence = torch.randn(heads, tokens, WIDTH, generator=generator) * (14 / WIDTH**0.5)
    return InferenceProblem(Discrete(templates), evidence, 1.0)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def solve_once(tokens: int, heads: int) -> dict[str, float]:
    """One solve in this process: seconds, and by how much the peak of resident memory grew."""
    layer(64, 1).solve("exact", tol=TOLERANCE)
    problem = layer(tokens, heads)
    before = peak_bytes()
    start = time.perf_counter()
    estimate = problem.solve("exact", tol=TOLERANCE)
    return {
        "tokens": tokens,
        "heads": heads,
        "seconds": time.perf_counter() - start,
        "peak_growth_mb": (peak_bytes() - before) / 2**20,
        "process_peak_mb": peak_bytes() / 2**20,
        "steps_mean": float(estimate.steps.double().mean()),
        "products_per_query": estimate.operator_products / estimate.steps.numel(),
    }


def in_fresh_process(tokens: int, heads: int) -> dict[str, float]:
    """A fresh process, because a peak is never forgotten."""
    command = [sys.executable, "-m", "benchmarks.scaling", "--one", str(tokens), str(heads)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", type=int, nargs=2, metavar=("TOKENS", "HEADS"))
    options = parser.parse_args()
    if options.one:
        print(json.dumps(solve_once(*options.one)))
        return
    record(
        "scaling",
        {
            "width": WIDTH,
            "tolerance": TOLERANCE,
            "target_mb_at_512_tokens_12_heads": 1024,
            "by_tokens": [in_fresh_process(tokens, 12) for tokens in TOKENS],
            "by_heads": [in_fresh_process(512, heads) for heads in (1, 2, 4, 8, 12, 16)],
        },
    )


if __name__ == "__main__":
    main()
