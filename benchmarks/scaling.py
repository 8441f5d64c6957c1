"""How time and memory of a layer's exact solve grow with tokens and heads, at width 768 and 12 heads."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure

from benchmarks.recording import record
from fenchel import Discrete, InferenceProblem

FIGURE = Path(__file__).parents[1] / "docs" / "images" / "scaling.png"
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
    }


def in_fresh_process(tokens: int, heads: int) -> dict[str, float]:
    """A fresh process, because a peak is never forgotten."""
    command = [sys.executable, "-m", "benchmarks.scaling", "--one", str(tokens), str(heads)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def draw(by_tokens: list[dict[str, float]], by_heads: list[dict[str, float]]) -> None:
    """The curves, as ``docs/images/scaling.png``."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    tokens, taken = ([run[name] for run in by_tokens] for name in ("tokens", "seconds"))
    factor = taken[-1] / tokens[-1] ** 2
    left.loglog(tokens, taken, "o-", color="#0072B2", label="measured")
    left.loglog(tokens, [factor * count**2 for count in tokens], "--", color="0.4", label="∝ tokens²")
    left.set(xlabel="tokens (12 heads, width 768)", ylabel="seconds, exact to 1e-5")
    left.set_xticks(tokens, [f"{count:.0f}" for count in tokens])
    left.minorticks_off()
    heads, taken = ([run[name] for run in by_heads] for name in ("heads", "seconds"))
    right.plot(heads, taken, "o-", color="#0072B2", label="measured")
    right.plot(heads, [taken[-1] / heads[-1] * count for count in heads], "--", color="0.4", label="∝ heads")
    right.set(xlabel="heads (512 tokens)", ylim=(0, None), xticks=heads)
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURE, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", type=int, nargs=2, metavar=("TOKENS", "HEADS"))
    options = parser.parse_args()
    if options.one:
        print(json.dumps(solve_once(*options.one)))
        return
    by_tokens = [in_fresh_process(tokens, 12) for tokens in TOKENS]
    by_heads = [in_fresh_process(512, heads) for heads in (1, 2, 4, 8, 12, 16)]
    target = {"target_mb_at_512_tokens_12_heads": 1024}
    record(
        "scaling",
        {"width": WIDTH, "tolerance": TOLERANCE, **target, "by_tokens": by_tokens, "by_heads": by_heads},
    )
    draw(by_tokens, by_heads)


if __name__ == "__main__":
    main()
