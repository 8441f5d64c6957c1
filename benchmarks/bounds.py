"""Whether every bound of an estimate is one: hard problems, and the distance from solutions in higher precision."""

from __future__ import annotations

import argparse
import collections
import time
from typing import Any

import mpmath
import numpy as np
import torch

from benchmarks.hard_problems import (
    DIGITS,
    L,
    Reference,
    Solution,
    extended,
    hard_problem,
    polished,
    reference_of,
    solution_of,
)
from benchmarks.recording import record
from fenchel import Estimate, FenchelError, InferenceProblem, OptimalTransport

ESTIMATORS: dict[str, dict[str, Any]] = {
    "first_order": {},
    "second_order": {},
    "exact": {"throw": False},
    "gradient_ascent": {"throw": False, "max_steps": 30},
}

CONSTRAINED_EVERY = 10
"""One problem in so many is solved in its constrained form too, for half the length of its evidence."""

POLISHED_EVERY = 100
"""One solution in so many is compared with one of 60 digits."""


def wide(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return tensor.double().numpy().astype(L)


def distances(
    estimate: Estimate, query: int, truth: Solution, alpha: float
) -> dict[str, tuple[float, float, float]]:
    """For every bound: the distance that it bounds, the bound, and how far the solution itself may be off."""
    weights = wide(estimate.weights[query])
    off = truth.gradient_norm
    result = {
        "dual_error": (np.linalg.norm((wide(estimate.dual[query]) - truth.dual).astype(float)), alpha * off),
        "mean_error": (np.linalg.norm((wide(estimate.mean[query]) - truth.mean).astype(float)), off),
        "total_variation_error": (
            float(np.abs(weights - truth.weights).sum() / 2),
            float(np.sqrt(alpha / float(torch.as_tensor(estimate.modulus))) * off / 2),
        ),
    }
    if isinstance(estimate.modulus, float):
        result["gap"] = suboptimality(weights, truth, alpha), alpha / 2 * off**2
    return {
        name: (float(d), float(getattr(estimate, name)[query]), float(o)) for name, (d, o) in result.items()
    }


def suboptimality(weights: np.ndarray[Any, Any], truth: Solution, alpha: float) -> float:
    """α/2 ‖h - h*‖² + K(p, p*) of returned weights, normalised (fact 2); templates follow from the two means."""
    p, q = weights / weights.sum(), truth.weights
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        r = (p - q) / q
        # p log(p/q) - p + q, near p = q by its series and where q underflows by its logarithm.
        near = q * r**2 / 2 * (1 - r / 3 + r**2 / 6)
        far = np.where(p > 0, p * (np.log(p) - truth.log_weights) - p + q, q)
        terms = np.where(np.abs(r) < 1e-5, near, far)
    shift = (p - q) @ truth.templates
    return float(L(alpha) / 2 * (shift @ shift) + terms.sum())


def precise_distances(
    reference: Reference, estimate: Estimate, query: int, truth: Solution
) -> dict[str, Any]:
    """The same distances with ``DIGITS`` digits."""
    with mpmath.workdps(DIGITS):
        number = np.vectorize(lambda x: mpmath.mpf(float(x)), otypes=[object])
        dual, weights = polished(reference, truth.dual)
        templates = np.vectorize(extended, otypes=[object])(reference.templates)
        centre = np.vectorize(extended, otypes=[object])(reference.centre)
        given = number(estimate.weights[query].double().numpy())
        mean = number(estimate.mean[query].double().numpy()) - centre
        w, alpha = given / given.sum(), extended(reference.alpha)
        divergence = mpmath.fsum(
            p * mpmath.log(p / q) - p + q for p, q in zip(w, weights, strict=True) if p > 0
        )
        divergence += mpmath.fsum(q for p, q in zip(w, weights, strict=True) if p == 0)
        shift = (w - weights) @ templates
        return {
            "dual_error": mpmath.norm(list(number(estimate.dual[query].double().numpy()) - dual)),
            "mean_error": mpmath.norm(list(mean - weights @ templates)),
            "total_variation_error": mpmath.fsum(abs(x) for x in given - weights) / 2,
            "gap": alpha / 2 * mpmath.fsum(x * x for x in shift) + divergence,
        }


def check(
    problem: InferenceProblem, estimate: Estimate, truths: list[Solution], counts: collections.Counter[str]
) -> list[str]:
    """Names of the bounds that are below a distance.

    What extended precision leaves open, because its own error is as large, is decided with more digits; under
    transport, where there are none, a bound is broken if the distance exceeds it by more than that error.
    """
    broken: list[str] = []
    for query, truth in enumerate(truths):
        alpha = float(problem.alpha.expand(problem.shape)[query])
        result = distances(estimate, query, truth, alpha)
        counts.update(dict.fromkeys(result, 1))
        unclear = [name for name, (distance, bound, off) in result.items() if not distance + off <= bound]
        if not unclear:
            continue
        counts["unresolved"] += len(unclear)
        if isinstance(problem.closeness, OptimalTransport):
            exceeding = [name for name in unclear if not result[name][0] <= result[name][1] + result[name][2]]
            broken += [f"{name}: {result[name][0]:.3e} > {result[name][1]:.3e}" for name in exceeding]
            continue
        precise = precise_distances(reference_of(problem, query), estimate, query, truth)
        for name in unclear:
            bound = float(getattr(estimate, name)[query])
            if not precise[name] <= bound:
                broken.append(f"{name}: {float(precise[name]):.3e} > {bound:.3e}")
    return broken


def check_constrained(problem: InferenceProblem, counts: collections.Counter[str]) -> list[str]:
    """The same for the constrained form, whose bounds refer to the penalty problem at the α found."""
    lengths = problem.evidence.norm(dim=-1)
    if not bool((lengths > 0).all()):
        return []
    estimate = problem.solve("constrained", radius=lengths / 2, throw=False)
    at = InferenceProblem(problem.preference, problem.evidence, estimate.alpha)
    truths = [solution_of(at, query) for query in range(at.shape[0])]
    return check(at, estimate, truths, counts)


def run(problems: int, start: int, transport: bool, dtype: torch.dtype) -> dict[str, Any]:
    counts: collections.Counter[str] = collections.Counter()
    converged: collections.Counter[str] = collections.Counter()
    broken: list[str] = []
    refused: collections.Counter[str] = collections.Counter()
    farthest, began = 0.0, time.perf_counter()
    for seed in range(start, start + problems):
        problem = hard_problem(seed, dtype, transport=transport)
        references = [reference_of(problem, query) for query in range(problem.shape[0])]
        truths = [reference.solve() for reference in references]
        if not transport and seed % POLISHED_EVERY == 0:
            exact = polished(references[0], truths[0].dual)[0]
            with mpmath.workdps(DIGITS):
                apart = [extended(a) - b for a, b in zip(truths[0].dual, exact, strict=True)]
                # Strong concavity: what the extended precision claims of itself.
                claimed = float(problem.alpha) * truths[0].gradient_norm
                farthest = max(farthest, float(mpmath.norm(apart)) / claimed if claimed else 0.0)
        if not transport and seed % CONSTRAINED_EVERY == 0:
            try:
                broken += [f"seed {seed} constrained {text}" for text in check_constrained(problem, counts)]
            except FenchelError as error:
                refused[f"constrained: {type(error).__name__}"] += 1
        for name, options in ESTIMATORS.items():
            if transport and name == "gradient_ascent":
                continue
            try:
                estimate = problem.solve(name, **options)
            except FenchelError as error:
                refused[f"{name}: {type(error).__name__}"] += 1
                continue
            converged[name] += int(estimate.converged.sum())
            broken += [f"seed {seed} {name} {text}" for text in check(problem, estimate, truths, counts)]
    return {
        "dtype": str(dtype),
        "closeness": "optimal transport" if transport else "KL",
        "problems": problems,
        "first_seed": start,
        "bounds_checked": {name: number for name, number in counts.items() if name != "unresolved"},
        "violated": len(broken),
        "examples": broken[:20],
        "decided_with_more_digits": counts["unresolved"],
        "converged": dict(converged),
        "refused": dict(refused),
        "polished_over_claimed": farthest,
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--problems", type=int, default=10_000, help="for each dtype; a fifth as many of transport"
    )
    parser.add_argument("--start", type=int, default=0, help="first seed")
    options = parser.parse_args()
    parts: list[dict[str, Any]] = []
    for transport in (False, True):
        for dtype in (torch.float32, torch.float64):
            parts.append(run(options.problems // (5 if transport else 1), options.start, transport, dtype))
            record("bounds", {"violated": sum(part["violated"] for part in parts), "parts": parts})


if __name__ == "__main__":
    main()
