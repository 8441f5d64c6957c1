"""The inference problem that users write down, and that solves itself."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from torch import Tensor
from typing_extensions import override

from fenchel.adjoint import solve_with_gradients
from fenchel.closeness import AbstractCloseness
from fenchel.conjugate import conjugate_of
from fenchel.estimate import Estimate
from fenchel.preference import AbstractPreference
from fenchel.problem import Problem

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
        closeness: AbstractCloseness | None = None,
    ) -> None:
        super().__init__(conjugate_of(preference, closeness), evidence, alpha)

    @property
    @override
    def preference(self) -> P:
        return cast("P", self.conjugate.preference)

    def solve(self, estimator: str = "exact", **options: Any) -> Estimate:
        """Solve by name: ``first_order``, ``second_order``, ``exact``, ``gradient_ascent``, ``constrained``.

        Args:
            estimator: Name of the solver in :mod:`fenchel.solver`.
            options: Its keyword arguments, such as ``tol``, ``max_steps`` and ``throw``.

        Returns:
            The estimate, with bounds on its distance from the solution. Where the problem's data require gradients, its
            ``dual``, ``weights`` and ``mean`` carry them: those of an iterative solver by the implicit function
            theorem.

        Raises:
            ProblemError: If no solver has that name, or data require gradients that it does not carry.
            ConvergenceError: If an iterative solver stops early and ``throw`` is true.
        """
        return solve_with_gradients(self, estimator, **options)
