"""Sparse weights against the ``entmax`` package, and exact answers under Tsallis closenesses against those under KL."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import entmax
import torch
from torch import Tensor

from benchmarks.attention import ratios
from benchmarks.recording import record
from fenchel import KL, Discrete, InferenceProblem, Tsallis
from fenchel.closeness import sparse_weights

ROWS, SCORES = 4096, 1024
HEADS, TOKENS, DIM = 8, 256, 64
HARD = {"templates": 9, "dim": 16, "scale": 10.0, "problems": 800}
TARGETS = {
    "sparsemax and entmax-1.5 against the package's exact functions": 1.0,
    "the same against its bisection": 1 / 3,
    "exact attention of order 1.5 at 256 tokens against KL": 2.0,
    "hard problems solved": HARD["problems"],
}


def maps(rounds: int) -> dict[str, Any]:
    """Forward and backward passes of maps from scores to weights, float32."""
    generator = torch.Generator().manual_seed(0)
    scores, gradient = (torch.randn(ROWS, SCORES, generator=generator) for _ in range(2))

    def both(weigh: Callable[[Tensor], Tensor]) -> Callable[[], None]:
        def run() -> None:
            weigh(scores.clone().requires_grad_()).backward(gradient)

        return run

    def of_order(a: float) -> Callable[[], None]:
        return both(lambda given: sparse_weights(given, None, a))

    bisection: Any = entmax.entmax_bisect
    return {
        "order 2": ratios(
            {
                "entmax, exact": both(lambda given: entmax.sparsemax(given, dim=-1)),
                "entmax, bisection": both(lambda given: entmax.sparsemax_bisect(given, dim=-1)),
                "fenchel": of_order(1.0),
            },
            "entmax, exact",
            rounds,
        ),
        "order 1.5": ratios(
            {
                "entmax, exact": both(lambda given: entmax.entmax15(given, dim=-1)),
                "entmax, bisection": both(lambda given: bisection(given, alpha=1.5, dim=-1)),
                "fenchel": of_order(0.5),
            },
            "entmax, exact",
            rounds,
        ),
        "order 1.3": ratios(
            {
                "entmax, bisection": both(lambda given: bisection(given, alpha=1.3, dim=-1)),
                "fenchel": of_order(0.3),
                "softmax": both(lambda given: given.softmax(-1)),
            },
            "entmax, bisection",
            rounds,
        ),
    }


def solves(rounds: int) -> dict[str, Any]:
    """Exact answers to 1e-4 of attention with random keys and queries, float32."""
    generator = torch.Generator().manual_seed(0)
    key = torch.randn(1, HEADS, TOKENS, DIM, generator=generator) / DIM**0.5
    query = torch.randn(1, HEADS, TOKENS, DIM, generator=generator)
    closenesses = {
        "KL": KL(),
        "Tsallis(1.5)": Tsallis(1.5),
        "Tsallis(1.5), an order a head": Tsallis(torch.full((HEADS, 1), 1.5)),
        "Tsallis(2)": Tsallis(2),
        "Tsallis(1.3)": Tsallis(1.3),
        "Tsallis(1.5, 'csiszar')": Tsallis(1.5, "csiszar"),
        "Tsallis(2, 'csiszar')": Tsallis(2, "csiszar"),
    }
    problems = {
        name: InferenceProblem(Discrete(key), query, closeness=closeness)
        for name, closeness in closenesses.items()
    }
    zeros = {
        name: float((problem.solve("exact", tol=1e-4).weights == 0).double().mean())
        for name, problem in problems.items()
    }
    runs = {name: lambda p=problem: p.solve("exact", tol=1e-4) for name, problem in problems.items()}
    return {**ratios(runs, "KL", rounds), "weights_that_are_zero": zeros}


def hard() -> dict[str, dict[str, float]]:
    """Random problems with large templates, float64, to 1e-6: how many converge, and in how many steps."""
    count, n, d = HARD["problems"], HARD["templates"], HARD["dim"]
    result: dict[str, dict[str, float]] = {}
    for relative in ("bregman", "csiszar"):
        for order in (1.2, 1.5, 2.0):
            generator = torch.Generator().manual_seed(0)
            templates, z = (
                torch.randn(count, rows, d, generator=generator, dtype=torch.float64) for rows in (n, 1)
            )
            problem = InferenceProblem(
                Discrete(HARD["scale"] * templates), z, closeness=Tsallis(order, relative)
            )
            estimate = problem.solve("exact", throw=False)
            result[f"order {order:g}, {relative}"] = {
                "converged": int(estimate.converged.sum()),
                "of": int(estimate.converged.numel()),
                "steps_mean": float(estimate.steps.double().mean()),
                "steps_max": int(estimate.steps.max()),
            }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    shapes = {
        "maps": {"rows": ROWS, "scores": SCORES},
        "solves": {"heads": HEADS, "tokens": TOKENS, "dim": DIM, "tol": 1e-4},
        "hard": HARD,
    }
    record(
        "sparse_weights",
        {
            "shapes": shapes,
            "targets": TARGETS,
            "maps": maps(rounds),
            "solves": solves(rounds),
            "hard_problems": hard(),
        },
    )


if __name__ == "__main__":
    main()
