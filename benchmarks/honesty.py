"""How often a solve that did not arrive says so: hostile problems, and the answer judged by a planted solution."""

from __future__ import annotations

import itertools

import torch

from benchmarks.recording import record
from fenchel import Discrete, InferenceProblem

TOLERANCE = 1e-6
QUERIES = 20


def planted(
    alpha: float, norm: float, n: int, d: int, seed: int, dtype: torch.dtype
) -> tuple[InferenceProblem, torch.Tensor]:
    """A problem whose λ* is known: the evidence is what makes the dual's gradient vanish there."""
    generator = torch.Generator().manual_seed(seed)
    templates = norm * torch.randn(n, d, dtype=torch.float64, generator=generator) / d**0.5
    log_weights = (10 * torch.randn(n, dtype=torch.float64, generator=generator)).clamp(min=-80)
    u = Discrete(templates, log_weights)
    answer = 3 * torch.randn(QUERIES, d, dtype=torch.float64, generator=generator) / norm
    weights = torch.softmax(u.log_weights + answer @ templates.T, -1)
    evidence = answer / alpha + (weights - u.weights()) @ templates
    return InferenceProblem(u.to(dtype), evidence.to(dtype), alpha), answer


def main() -> None:
    rows = []
    for alpha, norm, (n, d), dtype in itertools.product(
        (1e-3, 1.0, 1e3), (1e-4, 1.0, 1e4), ((5, 40), (60, 60), (300, 6)), (torch.float32, torch.float64)
    ):
        problem, answer = planted(alpha, norm, n, d, seed=1, dtype=dtype)
        estimate = problem.solve("exact", tol=TOLERANCE, throw=False)
        if dtype == torch.float64:
            wrong = (estimate.dual - answer).norm(dim=-1) > TOLERANCE * answer.norm(dim=-1) * (1 + 1e-6)
            claimed_wrongly = int((wrong & estimate.converged).sum())
        else:
            claimed_wrongly = None  # rounding the data to float32 moves the planted solution
        rows.append(
            {
                "alpha": alpha,
                "norm": norm,
                "n": n,
                "d": d,
                "dtype": str(dtype),
                "converged": int(estimate.converged.sum()),
                "of": QUERIES,
                "claimed_wrongly": claimed_wrongly,
                "steps_max": int(estimate.steps.max()),
            }
        )
    total = sum(row["of"] for row in rows)
    record(
        "honesty",
        {
            "tolerance": TOLERANCE,
            "queries": total,
            "converged": sum(row["converged"] for row in rows),
            "claimed_wrongly": sum(row["claimed_wrongly"] or 0 for row in rows),
            "problems": rows,
        },
    )


if __name__ == "__main__":
    main()
