"""Whole audits of long contexts, in time and memory: a causal layer of 16 query heads on 4 key-value heads of 64."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from transformers import LlamaConfig, LlamaModel

from benchmarks.recording import record
from fenchel.auditing import audit

FIGURE = Path(__file__).parents[1] / "docs" / "images" / "long-context.png"
WHOLE = (512, 1024, 2048, 4096, 8192)
SAMPLED = ((8192, 16), (32768, 32))
SCORE = 2.0
"""Standard deviation of the scores; as initialised, attention would be uniform and every problem solved at once."""


def model(tokens: int) -> LlamaModel:
    """One layer with random weights, its scores as far apart as those of trained models."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=1024,
        intermediate_size=512,
        num_hidden_layers=1,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=tokens,
    )
    built = LlamaModel(config).eval()
    for name in ("q_proj", "k_proj"):
        weight = built.get_parameter(f"layers.0.self_attn.{name}.weight")
        # Inputs are normalised: an output's square is the sum of as many squares of weights.
        torch.nn.init.normal_(weight, std=(SCORE / config.hidden_size) ** 0.5)
    return built


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def audit_once(tokens: int, queries: int) -> dict[str, float]:
    """One audit in this process, of all queries where ``queries`` is 0."""
    built = model(tokens)
    generator = torch.Generator().manual_seed(1)

    def batch(length: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 1000, (1, length), generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def audited(inputs: dict[str, torch.Tensor], sample: int | None) -> list[dict[str, Any]]:
        return audit(built, None, [inputs], space="key", baseline="none", queries=sample).heads

    audited(batch(64), None)  # what is loaded and compiled once
    given, before = batch(tokens), peak_mb()
    start = time.perf_counter()
    with torch.no_grad():
        built(**given)
    forward, forward_peak = time.perf_counter() - start, peak_mb()
    start = time.perf_counter()
    heads = audited(given, queries or None)
    taken = time.perf_counter() - start
    return {
        "tokens": tokens,
        "queries": queries or tokens,
        "forward_s": forward,
        "audit_s": taken,
        "forward_peak_mb": forward_peak - before,
        "audit_peak_mb": peak_mb() - before,
        "steps_mean": statistics.mean(head["newton_steps_mean"] for head in heads),
        "relative_deviation_mean": statistics.mean(head["relative_deviation_mean"] for head in heads),
        "not_converged": sum(head["not_converged"] for head in heads),
    }


def in_fresh_process(tokens: int, queries: int) -> dict[str, float]:
    """A fresh process, because a peak is never forgotten."""
    command = [sys.executable, "-m", "benchmarks.long_context", "--one", str(tokens), str(queries)]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(result, file=sys.stderr, flush=True)
    return result


def draw(runs: list[dict[str, float]]) -> None:
    """Time and memory against tokens, as ``docs/images/long-context.png``."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    tokens = [run["tokens"] for run in runs]
    taken = [run["audit_s"] for run in runs]
    factor = taken[-1] / tokens[-1] ** 2  # a pass goes over every pair of a query and a key
    left.loglog(tokens, taken, "o-", color="#0072B2", label="audit of every query")
    left.loglog(tokens, [run["forward_s"] for run in runs], "s-", color="#D55E00", label="forward pass")
    left.loglog(
        tokens, [factor * count**2 for count in tokens], "--", color="0.4", label="∝ tokens²: one pass"
    )
    left.set(xlabel="tokens (16 heads on 4, causal)", ylabel="seconds")
    right.loglog(tokens, [run["audit_peak_mb"] for run in runs], "o-", color="#0072B2", label="audit")
    right.loglog(
        tokens, [run["forward_peak_mb"] for run in runs], "s-", color="#D55E00", label="forward pass"
    )
    right.axhline(2048, ls="--", color="0.4", label="2 GB")
    right.set(xlabel="tokens", ylabel="MB beyond the model")
    for axes in (left, right):
        axes.set_xticks(tokens, [f"{count}" for count in tokens])
        axes.minorticks_off()
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURE, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", type=int, nargs=2, metavar=("TOKENS", "QUERIES"))
    options = parser.parse_args()
    if options.one:
        print(json.dumps(audit_once(*options.one)))
        return
    whole = [in_fresh_process(tokens, 0) for tokens in WHOLE]
    sampled = [in_fresh_process(*each) for each in SAMPLED]
    record("long_context", {"whole": whole, "sampled": sampled, "target_mb_at_8192": 2048})
    draw(whole)


if __name__ == "__main__":
    main()
