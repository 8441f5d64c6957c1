"""The inference problem that users write down, and that solves itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.closeness import AbstractCloseness
from fenchel.conjugate import conjugate_of
from fenchel.errors import DomainError, ProblemError
from fenchel.estimate import Estimate
from fenchel.preference import AbstractPreference
from fenchel.problem import Problem
from fenchel.solver import Estimator, estimator_with
from fenchel.solver.implicit import implicit_dual_point
from fenchel.tensors import check_not_mapped

__all__ = ["InferenceProblem"]

P = TypeVar("P", bound=AbstractPreference)


class InferenceProblem(Problem, Generic[P]):
    r"""Find the distribution p near the preference u whose mean is near :math:`\mu + z`.

    .. math::
        \text{primal (3):}\quad & \min_p P(p) = \tfrac{\alpha}{2}\lVert \mu + z - \mathbb{E}_p[t] \rVert^2 + D(p, u) \\
        \text{dual (7):}\quad & \max_\lambda \mathcal{D}(\lambda) =
            \langle \lambda, \mu + z\rangle - \tfrac{1}{2\alpha}\lVert\lambda\rVert^2 - D^*(T\lambda)

    Args:
        preference: u: a :class:`~fenchel.Discrete` with templates (..., n, d) and log weights (..., m or 1, n), or any
            other distribution, such as a :class:`~fenchel.Gaussian` (``docs/continuous.md``).
        evidence: z, the noisy shift of the mean, shape (..., m, d) with the dtype and device of the templates. Leading
            dimensions broadcast against those of the preference. Half types are converted to float32.
        alpha: α > 0, the reliability of the evidence: a number, or a tensor that broadcasts to (..., m).
        closeness: D: :class:`~fenchel.KL` where None; :class:`~fenchel.Tsallis`, whose weights may be 0;
            :class:`~fenchel.Hard`; a :class:`~fenchel.Divergence` of one's own; or :class:`~fenchel.OptimalTransport`,
            whose atoms p may use beside the N = n templates of the preference.

    Raises:
        ProblemError: On shapes, dtypes or devices that do not fit, α ≤ 0, or NaN or infinity anywhere.

    Reference:
        Sections 4 and 6, eqs. (3), (7)–(10).

    Example:
        >>> import torch
        >>> from fenchel import Discrete
        >>> u = Discrete(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], dtype=torch.float64))
        >>> problem = InferenceProblem(u, torch.tensor([[0.6, 0.2]], dtype=torch.float64), alpha=2.0)
        >>> estimate = problem.solve("exact", tol=1e-9)
        >>> gap = problem.primal(estimate.weights) - problem.dual(estimate.dual)
        >>> bool(gap.abs().max() < 1e-12)
        True
    """

    def __init__(
        self,
        preference: P,
        evidence: Tensor,
        alpha: float | Tensor = 1.0,
        closeness: AbstractCloseness | str | None = None,
    ) -> None:
        super().__init__(conjugate_of(preference, closeness), evidence, alpha)

    @property
    @override
    def preference(self) -> P:
        return cast("P", self.conjugate.preference)

    def solve(self, estimator: str | Estimator = "exact", **options: Any) -> Estimate:
        """Solve by ``"first_order"``, ``"second_order"``, ``"exact"``, ``"gradient_ascent"`` or ``"constrained"``.

        Args:
            estimator: One of these names, or an object with its options, such as ``fenchel.Exact(tol=1e-6)``.
            options: Of the estimator of that name: ``tol``, ``max_steps``, ``throw``, ``memory_budget``, ``radius``.

        Returns:
            The estimate, with bounds on its distance from the solution. Where the problem's data require gradients, its
            ``dual``, ``weights`` and ``mean`` carry them: those of an iterative solver by the implicit function
            theorem.

        Raises:
            ProblemError: If there is no such estimator or option, or data require gradients that it does not carry.
            ConvergenceError: If an iterative solver stops early and ``throw`` is true.
        """
        return solve_with_gradients(self, estimator, **options)


def solve_with_gradients(problem: Problem, estimator: str | Estimator, /, **options: Any) -> Estimate:
    """Solve a problem; where its data require gradients, the answer's dual, weights and mean carry them.

    Bounds, steps and ``converged`` never do. What an iterative solver found is taken for the solution, so where it
    did not converge the gradients are off as much as it is.

    Args:
        problem: The problem.
        estimator: The estimator, or its name.
        **options: Of the estimator of that name.

    Raises:
        ProblemError: If there is no such estimator, or none of its gradients.
    """
    solver = estimator_with(estimator, options)
    check_not_mapped("an inference problem", *problem.tensors().values())
    wanted = problem.wants_gradients()
    if wanted and solver.equation is None:
        raise ProblemError(
            f"{' and '.join(wanted)} require gradients, which {solver.name!r} does not carry; solve under "
            "torch.no_grad(), or give detached tensors"
        )
    with torch.no_grad():
        estimate = solver(problem)
    if not wanted or solver.equation is None:
        return estimate
    _refuse_border(problem, estimate)
    dual = implicit_dual_point(problem, solver.equation, estimate.dual)
    weights, shift = problem.conjugate.infer(dual)
    return replace(estimate, dual=dual, inferred=weights, mean=problem.conjugate.mean_by(dual, shift))


def _refuse_border(problem: Problem, estimate: Estimate) -> None:
    """Refuse gradients at dual points that rounding put out of the domain of log M, where there are none.

    Raises:
        DomainError: Saying how many queries these are.
    """
    inside = problem.preference.inside(estimate.dual)
    if inside is None or bool(inside.all()):
        return
    where = tuple(int(i) for i in (~inside).nonzero()[0])
    raise DomainError(
        f"rounding to {problem.dtype} puts the dual point of {int((~inside).sum())} of {inside.numel()} queries "
        "(first at "
        f"index {where}) on the border of the domain of log M, where there is no gradient: give the problem in "
        "float64, or "
        "make alpha or the evidence smaller",
        query=where,
    )
