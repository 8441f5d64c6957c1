"""The exact solve of all heads of a layer against gradient ascent, L-BFGS and an interior-point solver."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import cvxpy as cp
import torch
from torch import Tensor

from benchmarks.demo_encoder import demo, layer_calls, problem_of, token_ids
from benchmarks.recording import record, seconds
from fenchel import InferenceProblem

TOLERANCE = 1e-5
TARGETS = {"gradient_ascent": 200, "lbfgs": 10, "clarabel": 5000}


def largest_error(problem: InferenceProblem, lam: Tensor) -> float:
    """Largest certified relative error of a dual point, in float64."""
    wide, lam = problem.to(torch.float64), lam.double()
    error = wide.alpha * wide.dual_gradient(lam).norm(dim=-1)
    return float((error / lam.norm(dim=-1)).max())


def by_lbfgs(problem: InferenceProblem, max_rounds: int = 200) -> Tensor:
    """torch's L-BFGS on the sum of all duals, which is separable, until every query meets the tolerance."""
    lam = (problem.alpha_column * problem.evidence).clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [lam],
        max_iter=10,
        history_size=20,
        line_search_fn="strong_wolfe",
        tolerance_grad=0,
        tolerance_change=0,
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -problem.dual(lam).sum()
        loss.backward()
        return loss

    for _ in range(max_rounds):
        optimiser.step(closure)
        if largest_error(problem, lam.detach()) <= TOLERANCE:
            break
    return lam.detach()


def by_clarabel(problem: InferenceProblem, head: int, query: int) -> None:
    """One query through CVXPY."""
    wide = problem.to(torch.float64)
    t = wide.preference.templates[0, 0].numpy()
    target = (wide.preference.mean()[0, 0, 0] + wide.evidence[0, head, query]).numpy()
    p = cp.Variable(len(t), nonneg=True)
    objective = 0.5 * cp.sum_squares(target - t.T @ p) + cp.sum(cp.rel_entr(p, 1 / len(t)))
    cp.Problem(cp.Minimize(objective), [cp.Zero(cp.sum(p) - 1)]).solve(solver=cp.CLARABEL)


def run_layer(problem: InferenceProblem, rounds: int, slow_rounds: int) -> dict[str, object]:
    count = problem.shape.numel()
    answers: dict[str, Tensor] = {}

    def timed(name: str, solve: Callable[[], Tensor], times: int) -> float:
        def run() -> None:
            answers[name] = solve()

        return statistics.median(seconds(run) for _ in range(times))

    problem.solve("exact", tol=TOLERANCE)
    wide = problem.to(torch.float64)
    taken = {
        "exact": timed("exact", lambda: problem.solve("exact", tol=TOLERANCE).dual, rounds),
        "gradient_ascent": timed(
            "gradient_ascent",
            lambda: problem.solve("gradient_ascent", tol=TOLERANCE, max_steps=20_000, throw=False).dual,
            slow_rounds,
        ),
        "lbfgs": timed("lbfgs", lambda: by_lbfgs(problem), slow_rounds),
        "lbfgs_float64": timed("lbfgs_float64", lambda: by_lbfgs(wide), slow_rounds),
        "exact_again": timed("exact", lambda: problem.solve("exact", tol=TOLERANCE).dual, rounds),
    }
    one = statistics.median(seconds(lambda k=k: by_clarabel(problem, k % 12, 10 * k)) for k in range(6))
    exact = statistics.median([taken["exact"], taken["exact_again"]])
    reached = {name: largest_error(problem, answer) for name, answer in answers.items()}
    # L-BFGS is taken in whichever precision reaches the tolerance sooner.
    arrived = [taken[name] for name in ("lbfgs", "lbfgs_float64") if reached[name] <= TOLERANCE]
    return {
        "queries": count,
        "seconds": {**taken, "clarabel_per_query": one},
        "largest_error": reached,
        "times_faster_than": {
            "gradient_ascent": taken["gradient_ascent"] / exact,
            "lbfgs": (min(arrived) if arrived else taken["lbfgs_float64"]) / exact,
            "clarabel": one / (exact / count),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--slow-rounds", type=int, default=1)
    parser.add_argument("--layers", type=int, nargs="*", default=[1, 3, 6])
    options = parser.parse_args()
    model, tokenizer = demo()
    calls = layer_calls(model, token_ids(tokenizer, 128, 1))
    runs = {
        f"layer {number}": run_layer(problem_of(calls[number - 1]), options.rounds, options.slow_rounds)
        for number in options.layers
    }
    record("exact_solve", {"tolerance": TOLERANCE, "tokens": 128, "targets": TARGETS, "layers": runs})


if __name__ == "__main__":
    main()
