r"""Hard inference problems, and their solutions in more digits than float64 has.

Optimal transport spreads each source's weight over the templates; Kullback and Leibler's divergence is the case of one
source, spread by the preference:

.. math:: p(\lambda) = \sum_i u_i\, p_i, \qquad p_i(t) \propto k_i(t)\, e^{\langle t, \lambda\rangle/\gamma}

Newton's method with a search on the slope, which shares no code with the solvers, runs in numpy's ``longdouble`` (64
bits of mantissa on x86);
:func:`polished` goes on from there with any number of digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import mpmath
import numpy as np
import torch

from fenchel import Discrete, InferenceProblem, OptimalTransport

Array = np.ndarray[Any, Any]

EXTENDED = bool(np.finfo(np.longdouble).eps < 1e-18)
"""Whether this machine's ``longdouble`` has more digits than float64."""

L = np.longdouble

DIGITS = 60
"""Decimal digits in which what extended precision leaves open is decided."""


def hard_problem(
    seed: int, dtype: torch.dtype, *, queries: int = 1, transport: bool = False
) -> InferenceProblem:
    """One of many problems that are hard in different ways.

    Template norms are 1e-3 to 1e4 and α is 1e-3 to 1e3; templates may be duplicated, on a line, or far from the origin;
    evidence is 1e-20 to 1e3 times as long as templates, or none; preferences may be peaked or masked.
    """
    g = np.random.default_rng(seed)
    n, d = int(g.choice([1, 2, 3, 5, 8, 16, 40])), int(g.choice([1, 2, 3, 5, 8, 20]))
    if transport:
        n, d = min(n, 8), min(d, 8)
    norm, alpha = 10 ** g.uniform(-3, 4), 10 ** g.uniform(-3, 3)
    templates = g.standard_normal((n, d))
    shape = g.choice(["general", "general", "duplicated", "collinear", "offset"])
    if shape == "duplicated" and n > 1:
        templates[n // 2 :] = templates[: n - n // 2]
    if shape == "collinear":
        templates = np.outer(g.standard_normal(n), g.standard_normal(d))
    if shape == "offset":
        templates = templates + 10 ** g.uniform(0, 2) * g.standard_normal(d)
    log_weights = g.choice([0.0, 1.0, 10.0, 40.0]) * g.standard_normal((queries, n))
    if g.random() < 0.3:
        order = np.argsort(g.random((queries, n)), -1)
        log_weights[order < g.integers(0, n)] = -np.inf
    length = g.choice([0.0, 1e-20, 1e-8, 1e-3, 0.1, 1.0, 1.0, 5.0, 1e2, 1e3])
    evidence = length * g.standard_normal((queries, d))
    scale = norm / d**0.5
    closeness = None
    if transport:
        gamma = float(10 ** g.uniform(-1, 2) * max(scale**2, 1e-30))
        closeness = OptimalTransport(str(g.choice(["squared_euclidean", "dot"])), gamma, warn=False)
    return InferenceProblem(
        Discrete(torch.from_numpy(templates * scale).to(dtype), torch.from_numpy(log_weights).to(dtype)),
        torch.from_numpy(evidence * scale).to(dtype),
        torch.tensor(alpha, dtype=dtype),
        closeness,
    )


@dataclass(frozen=True)
class Solution:
    """A dual point in extended precision, its weights, their mean, and what the dual's gradient is at most there.

    Templates are less their centre, (N, d); logarithms of weights are those of the first source.
    """

    dual: Array
    weights: Array
    log_weights: Array
    mean: Array
    templates: Array
    gradient_norm: float


SOLVED = 1e-6
"""Gradient, relative to the evidence, above which a solution is sought along the path in α."""

STAGES = 40
"""Halvings of α on the path."""


class Reference:
    """One query of a problem.

    Args:
        templates: (N, d).
        log_kernel: log k, one row a source, (s, N).
        sources: u, (s,).
        evidence: z, (d,).
        alpha: α.
        gamma: γ.
    """

    def __init__(
        self, templates: Array, log_kernel: Array, sources: Array, evidence: Array, alpha: Any, gamma: Any
    ) -> None:
        self.centre = templates.mean(0)
        self.templates = templates - self.centre
        self.evidence, self.alpha, self.gamma = evidence, alpha, gamma
        self.sources = sources[sources > 0]
        self.log_rest = log_kernel[sources > 0]
        self.log_rest = self.log_rest - self.log_rest.max(-1, keepdims=True)
        self.log_rest = self.log_rest - np.log(np.exp(self.log_rest).sum(-1, keepdims=True))
        self.rest = np.exp(self.log_rest)

    def moved(self, dual: Array) -> Array:
        """How far every source's weights are from those at 0, (s, N)."""
        potential = self.templates @ dual / self.gamma
        if np.abs(potential).max() < 0.5:
            rise = np.expm1(potential)
            mass = (self.rest * rise).sum(-1, keepdims=True)
            return self.rest * (rise - mass) / (1 + mass)
        logits = self.log_rest + potential
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) - self.rest

    def gradient(self, dual: Array) -> Array:
        return self.evidence - dual / self.alpha - self.sources @ self.moved(dual) @ self.templates

    def at(self, dual: Array) -> Solution:
        weights = self.sources @ (self.moved(dual) + self.rest)
        gradient = self.gradient(dual)
        longest, length = np.sqrt((self.templates**2).sum(-1).max()), np.sqrt(dual @ dual)
        reach = min(1, longest * length / self.gamma) * (1 + longest * length / self.gamma)
        sizes = longest * reach + length / self.alpha + np.sqrt(self.evidence @ self.evidence)
        rounding = 4 * (len(self.templates) + len(dual)) * np.finfo(L).eps * sizes
        logits = self.log_rest[0] + self.templates @ dual / self.gamma
        logits = logits - logits.max()
        return Solution(
            dual=dual,
            weights=weights,
            log_weights=logits - np.log(np.exp(logits).sum()),
            mean=weights @ self.templates + self.centre,
            templates=self.templates,
            gradient_norm=float(np.sqrt(gradient @ gradient) + rounding),
        )

    def newton_step(self, dual: Array, gradient: Array) -> Array:
        weights = self.moved(dual) + self.rest
        offsets = self.templates - (weights @ self.templates)[:, None]
        share = np.sqrt(self.alpha / self.gamma * self.sources[:, None] * np.maximum(weights, 0))
        rows = (share[..., None] * offsets).reshape(-1, len(dual))
        stacked = np.vstack([np.eye(len(dual)), rows.astype(float)])
        triangle = cast(Array, np.linalg.qr(stacked, mode="r"))

        def solved(right: Array) -> Array:
            size = np.abs(right).max()
            if size == 0:
                return right
            half = np.linalg.solve(np.transpose(triangle), (right / size).astype(float))
            return np.linalg.solve(triangle, half).astype(L) * size

        step = solved(self.alpha * gradient)
        for _ in range(3):
            step = step + solved(self.alpha * gradient - step - rows.T @ (rows @ step))
        return step

    def solve(self) -> Solution:
        """The solution by Newton's method from 0; where that ends early, along the path of solutions in α."""
        result = self._newton(np.zeros(len(self.evidence), L))
        if result.gradient_norm <= SOLVED * np.sqrt(self.evidence @ self.evidence):
            return result
        alpha, dual = self.alpha, np.zeros(len(self.evidence), L)
        for stage in range(STAGES, -1, -1):
            self.alpha = alpha / L(2) ** stage
            dual = self._newton(dual).dual
        following = self.at(dual)
        return min(result, following, key=lambda each: each.gradient_norm)

    def _newton(self, dual: Array, steps: int = 400, patience: int = 40) -> Solution:
        gradient = self.gradient(dual)
        best, since = (np.sqrt(gradient @ gradient), dual), 0
        for _ in range(steps):
            step = self.newton_step(dual, gradient)
            slope = gradient @ step
            if not slope > 0:
                break
            following = self._along(dual, step, slope)
            if np.array_equal(following, dual):
                break
            dual, gradient = following, self.gradient(following)
            size, since = np.sqrt(gradient @ gradient), since + 1
            if size < best[0]:
                best, since = (size, dual), 0
            if since > patience:
                break
        return self.at(best[1])

    def _along(self, dual: Array, step: Array, initial: Any) -> Array:
        """Where along a step the slope of the dual is small: the dual is concave, so it falls."""
        low, high = L(0), L(1)
        slope_low, slope_high = initial, self.gradient(dual + step) @ step
        if slope_high >= 0 or -slope_high < initial / 10:
            return dual + step
        for trial in range(120):
            length = low + (high - low) * slope_low / (slope_low - slope_high)
            if trial % 2:
                length = (
                    high / 1000 if low == 0 else np.sqrt(low * high) if high > 10 * low else (low + high) / 2
                )
            slope = self.gradient(dual + length * step) @ step
            if abs(slope) <= initial / 5:
                return dual + length * step
            low, slope_low = (length, slope) if slope > 0 else (low, slope_low)
            high, slope_high = (high, slope_high) if slope > 0 else (length, slope)
        return dual + low * step


def reference_of(problem: InferenceProblem, query: int, alpha: float | None = None) -> Reference:
    """A query of a problem (m,), from the data that the problem holds."""

    def wide(tensor: torch.Tensor) -> Array:
        return tensor.detach().double().numpy().astype(L)

    templates, evidence = wide(problem.preference.templates), wide(problem.evidence[query])
    # From what was given, not from what float32 left of it.
    given = problem.to(torch.float64)
    preference = given.preference
    assert isinstance(preference, Discrete)
    log_weights = wide(preference.log_weights.expand(problem.shape[0], -1)[query])
    alpha = float(given.alpha.expand(problem.shape)[query]) if alpha is None else alpha
    keep = np.isfinite(log_weights)
    closeness = problem.closeness
    if not isinstance(closeness, OptimalTransport):
        with np.errstate(divide="ignore"):
            return Reference(
                templates, np.where(keep, log_weights, -np.inf)[None], np.ones(1, L), evidence, L(alpha), L(1)
            )
    weights = np.exp(log_weights - log_weights.max())
    gamma, products = L(float(closeness.gamma)), templates @ templates.T
    squares = np.diagonal(products)
    cost = -products if "dot" in repr(closeness) else squares[:, None] + squares - 2 * products
    return Reference(templates, -cost / gamma, weights / weights.sum(), evidence, L(alpha), gamma)


def solution_of(problem: InferenceProblem, query: int, alpha: float | None = None) -> Solution:
    """The solution of one query in extended precision."""
    return reference_of(problem, query, alpha).solve()


def polished(reference: Reference, start: Array, digits: int = DIGITS) -> tuple[list[Any], list[Any]]:
    """Dual point and weights of one source's problem, by Newton's method in decimal digits from a start near it."""
    with mpmath.workdps(digits):
        number = np.vectorize(extended, otypes=[object])
        keep = np.isfinite(reference.log_rest[0].astype(float))
        templates, rest = number(reference.templates[keep]), number(reference.log_rest[0][keep])
        evidence, alpha, dual = number(reference.evidence), number(reference.alpha)[()], number(start)
        exp = np.vectorize(mpmath.exp, otypes=[object])

        def weights(at: Array) -> Array:
            logits = rest + templates @ at
            result = exp(logits - max(logits))
            return result / result.sum()

        mean = weights(0 * dual) @ templates
        for _ in range(60):
            p = weights(dual)
            gradient = mean + evidence - dual / alpha - p @ templates
            offsets = templates - p @ templates
            hessian = offsets.T @ (p[:, None] * offsets)
            for i in range(len(dual)):
                hessian[i, i] += 1 / alpha
            step = mpmath.lu_solve(mpmath.matrix(hessian.tolist()), mpmath.matrix(gradient.tolist()))
            dual = dual + np.array(list(step))
            if max(abs(x) for x in step) <= mpmath.mpf(10) ** (10 - digits) * max(abs(x) for x in dual):
                break
        everywhere = np.full(len(keep), mpmath.mpf(0), object)
        everywhere[keep] = weights(dual)
        return list(dual), list(everywhere)


def extended(number: Any) -> Any:
    """A number of extended precision in mpmath's current precision."""
    high = float(number)
    return mpmath.mpf(high) + mpmath.mpf(float(number - L(high)))
