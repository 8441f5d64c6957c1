"""Entropic optimal transport: weight moves from preferred templates to others at a cost M."""

from __future__ import annotations

import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.arguments import shown
from fenchel.blocks import Box, part_of
from fenchel.closeness.abstract import AbstractCloseness
from fenchel.closeness.coupling import Coupling, Part, transport_value
from fenchel.errors import CostWarning, ProblemError
from fenchel.preference import Discrete
from fenchel.preference.abstract import Replaceable, check_together
from fenchel.tensors import (
    BOOL,
    LINEAR,
    UNIT,
    check_device,
    check_entries,
    check_flags,
    check_tensor,
    positive_tensor,
    summed,
)

FORM = "that broadcasts to (..., 1), or a number"


class OptimalTransport(AbstractCloseness):
    r"""Entropic optimal transport between the preference and the weights, under a cost between templates.

    .. math:: W_\gamma(p, u; M) = \min_{X\mathbf{1} = p,\ X^\top\mathbf{1} = u}\langle M, X\rangle - \gamma H(X),
        \qquad W_\gamma^*(f) = \gamma\Bigl(H(u) + \sum_i u_i \log\sum_t e^{(f(t) - M(t, t_i))/\gamma}\Bigr)

    .. math:: \nabla W_\gamma^*(f)(t) = \sum_i u_i\, \frac{e^{(f(t) - M(t, t_i))/\gamma}}{Z_i}

    Weights are over all of A, the templates of the preference and the atoms; templates without preference can receive
    weight from the others. The distribution that minimises D is not u but ũ (37), the weights at f = 0.

    Args:
        cost: M: ``"dot"`` (C - aᵀb), ``"squared_euclidean"``, ``"cosine"``, or a matrix (..., N, N) over the
            preference's templates, then the atoms: symmetric, non-negative, ``inf`` where weight cannot move.
        gamma: γ > 0, the strength of the entropy, in units of the cost: a number, or a tensor that broadcasts to (...,
            1), one number per set of templates.
        atoms: Further templates in the support A of p, (..., N - n, d), with the dtype and device of the preference's.
        allowed: Bool, (..., m or 1, N), True where a query may use a template; all if None.
        warn: Whether to warn if moving weight is cheaper than keeping it.

    Raises:
        ProblemError: If γ ≤ 0, the cost is unknown, or the matrix is negative, not symmetric or not finite on its
            diagonal; when bound to a preference, if atoms or matrix do not match its templates.

    Warns:
        CostWarning: Once, when bound to templates one of which has a lower cost to another template than to itself.

    Reference:
        Section 9, eqs. (20)-(22); Appendix D, eqs. (33)-(38).

    Example:
        Two groups within which weight moves at no cost. The second template has no preference:

        >>> from fenchel import Discrete, InferenceProblem
        >>> M = torch.tensor([[0.0, 0.0, torch.inf], [0.0, 0.0, torch.inf], [torch.inf, torch.inf, 0.0]])
        >>> u = Discrete(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0.6, 0.0, 0.4]).log())
        >>> problem = InferenceProblem(u, torch.zeros(1, 2), closeness=OptimalTransport(M, gamma=0.5))
        >>> problem.solve("first_order").weights
        tensor([[0.3000, 0.3000, 0.4000]])
    """

    def __init__(
        self,
        cost: str | Tensor | AbstractCost,
        gamma: float | Tensor,
        atoms: Tensor | None = None,
        *,
        allowed: Tensor | None = None,
        warn: bool = True,
    ) -> None:
        self.cost = cost_named(cost)
        device = gamma.device if isinstance(gamma, Tensor) else torch.device("cpu")
        self.gamma = positive_tensor("gamma", gamma, device, torch.float64, FORM)
        if atoms is not None:
            check_tensor("atoms", atoms, "(..., N - n, d)")
        if allowed is not None:
            check_tensor(
                "allowed", allowed, "(..., m or 1, N), True where a template may be used", dtypes=BOOL
            )
        check_flags(warn=warn)
        self.atoms = atoms
        self.allowed = allowed
        self._name = cost if isinstance(cost, str) else "a given matrix"
        self._matrix: Tensor | None = self.cost.given if isinstance(self.cost, GivenCost) else None
        self._cost_error = 0.0
        self._warned = not warn

    @override
    def bind(self, preference: Discrete) -> Self:
        templates = preference.templates
        support = self.support(preference)
        if self.gamma.is_meta:
            check_device("gamma", self.gamma, templates.device, "templates")
        # Values of float64 may be 0 or infinite in float32.
        gamma = self.gamma.to(templates.device)
        gamma = positive_tensor("gamma", gamma, templates.device, templates.dtype, FORM).to(templates.dtype)
        if gamma.dim():
            check_tensor("gamma", gamma, "a number, or one for each set of templates", sizes=(..., 1))
        self._check_allowed(support)
        matrix = self.cost.matrix(support, templates)
        check_together(cost=matrix.shape, templates=(*support.shape[:-1], templates.shape[-2]))
        if not self._warned:
            self._warned = warn_if_moving_is_cheaper(matrix.detach(), self._name)
        return self._changed(gamma=gamma, _matrix=matrix, _cost_error=self.cost.rounding(support))

    @override
    def support(self, preference: Discrete) -> Tensor:
        templates, atoms = preference.templates, self.atoms
        if atoms is None:
            return templates
        form, sizes = "(..., N - n, d), as templates are", (..., None, templates.shape[-1])
        check_tensor("atoms", atoms, form, sizes=sizes, device=templates.device, other="templates")
        check_entries("atoms", atoms, torch.isfinite, "finite numbers")
        atoms = atoms.to(templates.dtype)
        lead = check_together(atoms=atoms.shape[:-2], templates=templates.shape[:-2])
        parts = [part.expand(*lead, *part.shape[-2:]) for part in (templates, atoms)]
        return torch.cat(parts, -2)

    def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        """Transport cost by an inner Sinkhorn iteration, shape (..., m); see :func:`transport_value`."""
        matrix = self._joined_matrix()[..., : log_preference.shape[-1]]
        return transport_value(weights, log_preference, matrix, self._gamma_matrix())

    @override
    def conjugate(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        u = log_preference.exp()
        masses = self._coupling(potential, log_preference).log_partition()
        reached = (u * masses.masked_fill(u == 0, 0)).sum(-1)
        return self.gamma * (reached - torch.xlogy(u, u).sum(-1))

    @override
    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        return self._coupling(potential, log_preference).weights()

    def curvature(self, potential: Tensor, log_preference: Tensor) -> Callable[[Tensor], Tensor]:
        r""":math:`v \mapsto \tfrac1\gamma\sum_i u_i (\operatorname{diag} p_i - p_i p_i^\top) v`."""
        coupling = self._coupling(potential, log_preference)
        u, p, gamma = log_preference.exp(), coupling.weights(), self._gamma_matrix()
        return lambda vector: (p * vector - coupling.spread(u * coupling.expectation(vector))) / gamma

    def rest(self, log_preference: Tensor) -> Tensor:
        """The true preference ũ (37), shape (..., m or 1, N)."""
        return self.weights(log_preference.new_zeros(1, self._joined_matrix().shape[-2]), log_preference)

    def near_displacement(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        """As for :class:`~fenchel.KL`, for each source with its weights at f = 0."""
        at_rest = self._coupling(torch.zeros_like(potential), log_preference)
        e = torch.expm1(potential / self._gamma_matrix())
        mass = at_rest.expectation(e)
        share = log_preference.exp() / (1 + mass)
        return e * at_rest.spread(share) - at_rest.spread(share * mass)

    @override
    def rounding(self, mean_error: Tensor, largest_error: Tensor, count: int) -> tuple[Tensor, float]:
        matrix, gamma = self._joined_matrix(), self.gamma
        of_cost = self._cost_error + 3 * UNIT * matrix.masked_fill(matrix == torch.inf, 0).amax(
            (-2, -1)
        ).unsqueeze(-1)
        error = (largest_error + of_cost) / gamma
        relative = 2.2 * error + (2 * summed(matrix.shape[-1]) + 20) * UNIT
        return relative.masked_fill(~(error <= LINEAR), torch.inf), 4 * UNIT

    @property
    def modulus(self) -> Tensor:
        """γ, since the curvature along v is a mean of variances of v, each at most max v², divided by γ."""
        return self.gamma

    @override
    def queries(self, part: slice) -> Self:
        if self.allowed is None or self.allowed.shape[-2] == 1:
            return self
        return self._changed(allowed=self.allowed[..., part, :])

    @override
    def query_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {} if self.allowed is None else {"allowed": tuple(self.allowed.shape[:-1])}

    @override
    def to(self, dtype: torch.dtype) -> Self:
        tensors = {name: getattr(self, name) for name in ("gamma", "atoms", "_matrix")}
        converted = {name: x if x is None else x.to(dtype) for name, x in tensors.items()}
        return self._changed(**converted, _warned=True)

    def _check_allowed(self, support: Tensor) -> None:
        if self.allowed is None:
            return
        check_device("allowed", self.allowed, support.device, "templates")
        form = "(..., m or 1, N), one for each template of the preference, then each atom"
        check_tensor("allowed", self.allowed, form, dtypes=BOOL, sizes=(..., support.shape[-2]))
        check_entries(
            "allowed.any(-1)", self.allowed.any(-1), lambda x: x, "True: some template in every row"
        )

    def _joined_matrix(self) -> Tensor:
        if self._matrix is None:
            raise ProblemError(
                f"{self!r} is not bound to templates; use it in an InferenceProblem, or call "
                "closeness.bind(preference) first"
            )
        return self._matrix

    def _gamma_matrix(self) -> Tensor:
        return self.gamma.reshape((*self.gamma.shape, 1) if self.gamma.dim() else (1, 1))

    def _coupling(self, potential: Tensor, log_preference: Tensor) -> Coupling:
        matrix, gamma = self._joined_matrix(), self._gamma_matrix()
        matrix = matrix[..., : log_preference.shape[-1]]

        def logarithms() -> tuple[Tensor, Tensor]:
            log_tilt = potential / gamma
            if self.allowed is not None:
                log_tilt = log_tilt.masked_fill(~self.allowed, -torch.inf)
            return log_tilt, kernel_of(matrix, gamma)

        return Coupling([Part(slice(0, matrix.shape[-2]), logarithms)], log_preference)

    def __repr__(self) -> str:
        gamma = f"{float(self.gamma):g}" if self.gamma.numel() == 1 else f"<{tuple(self.gamma.shape)}>"
        atoms = "" if self.atoms is None else f", atoms={self.atoms.shape[-2]}"
        return f"OptimalTransport({self._name!r}, gamma={gamma}{atoms})"


def warn_if_moving_is_cheaper(matrix: Tensor, name: str) -> bool:
    """Warn if the cost from a source, one of the first n templates, to another template is lower than to itself.

    Args:
        matrix: M, (..., N, n).
        name: Name of the cost.

    Returns:
        Whether there was such a source.
    """
    if matrix.numel() == 0:
        return False
    staying = matrix.diagonal(dim1=-2, dim2=-1)
    rounding = 64 * torch.finfo(matrix.dtype).eps * matrix.masked_fill(matrix == torch.inf, 0).amax()
    nearer = matrix.amin(-2) < staying - rounding
    if not bool(nearer.any()):
        return False
    share = f"{int(nearer.sum())} of {nearer.numel()}"
    advice = "make their norms equal, or use" if name == "dot" else "use"
    warnings.warn(
        f"under the cost {name!r}, {share} templates are nearer to another template than to themselves, which violates "
        f"M(t, t) < M(t', t): their weight moves even without evidence. If this is not intended, {advice} the cost "
        "'squared_euclidean'.",
        CostWarning,
        stacklevel=_stack_level(),
    )
    return True


def _stack_level() -> int:
    """The stack level of the first frame outside this package and torch, from the calling function."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(
        ("fenchel.", "torch.")
    ):
        frame, level = frame.f_back, level + 1
    return level


GammaColumn = Tensor | float


class AbstractCost(ABC):
    """A symmetric, non-negative cost M(t, t') between templates."""

    @abstractmethod
    def matrix(self, templates: Tensor, sources: Tensor) -> Tensor:
        """M from every template (..., N, d) to every source (..., n, d), shape (..., N, n).

        Sources are the first n templates, those with a preference.
        """

    @abstractmethod
    def log_kernel(self, templates: Tensor, sources: Tensor, gamma: GammaColumn, span: slice) -> Tensor:
        """-M/γ from the templates in a span, up to a constant for each source, which cancels in the normalisation.

        Args:
            templates: All templates, (..., N, d).
            sources: (..., n, d).
            gamma: γ, a number or (..., 1, 1).
            span: The templates.
        """

    def rounding(self, templates: Tensor) -> float:
        """A bound on the error of the entries of :meth:`matrix` in float64."""
        return 0.0

    def part(self, box: Box) -> Self:
        """The cost for the sets of templates in a box of their leading dimensions."""
        return self


class DotCost(AbstractCost):
    r""":math:`M(a, b) = C - a^\top b`, where C is the largest squared norm of a template.

    C makes M non-negative and has no other effect. The cost to a longer template in the same direction is lower than to
    the template itself: the papers' condition M(t, t) < M(t', t) holds where ⟨t, t'⟩ < ‖t‖² for every other t', for
    example where norms are equal.

    Reference:
        Section 9, tables 1 and 2.
    """

    @override
    def matrix(self, templates: Tensor, sources: Tensor) -> Tensor:
        bound = templates.square().sum(-1).amax(-1)[..., None, None]
        return _not_negative(bound - templates @ sources.mT)

    @override
    def log_kernel(self, templates: Tensor, sources: Tensor, gamma: GammaColumn, span: slice) -> Tensor:
        return templates[..., span, :] @ (sources / gamma).mT

    @override
    def rounding(self, templates: Tensor) -> float:
        return _longest_square(templates) * (2 * summed(templates.shape[-1]) + 6) * UNIT


class SquaredEuclideanCost(AbstractCost):
    r""":math:`M(a, b) = \lVert a - b\rVert^2`."""

    @override
    def matrix(self, templates: Tensor, sources: Tensor) -> Tensor:
        # A common shift changes distances only by rounding.
        centre = sources.mean(-2, keepdim=True)
        t, s = templates - centre, sources - centre
        squares = t.square().sum(-1, keepdim=True) + s.square().sum(-1).unsqueeze(-2)
        return _not_negative(squares - 2 * t @ s.mT)

    @override
    def log_kernel(self, templates: Tensor, sources: Tensor, gamma: GammaColumn, span: slice) -> Tensor:
        centre = sources.mean(-2, keepdim=True)
        part = templates[..., span, :] - centre
        return part @ ((2 / gamma) * (sources - centre)).mT - part.square().sum(-1, keepdim=True) / gamma

    @override
    def rounding(self, templates: Tensor) -> float:
        centred = templates - templates.mean(-2, keepdim=True)
        # Distances between templates, and to the centre of the sources, are at most twice the longest of these.
        return 16 * _longest_square(centred) * (summed(templates.shape[-1]) + 4) * UNIT


class CosineCost(AbstractCost):
    r""":math:`M(a, b) = 1 - \cos(a, b)`, and 1 where a norm is 0."""

    @override
    def matrix(self, templates: Tensor, sources: Tensor) -> Tensor:
        return _not_negative(1 - _directions(templates) @ _directions(sources).mT)

    @override
    def log_kernel(self, templates: Tensor, sources: Tensor, gamma: GammaColumn, span: slice) -> Tensor:
        return _directions(templates[..., span, :]) @ (_directions(sources) / gamma).mT

    @override
    def rounding(self, templates: Tensor) -> float:
        return (2 * summed(templates.shape[-1]) + 10) * UNIT


class GivenCost(Replaceable, AbstractCost):
    """A cost given as a matrix, infinite where weight cannot move.

    Args:
        matrix: (..., N, N), symmetric, non-negative, finite on the diagonal; ``inf`` elsewhere is allowed.

    Raises:
        ProblemError: If the matrix is not a cost.
    """

    def __init__(self, matrix: Tensor) -> None:
        check_tensor("cost", matrix, "(..., N, N), or the name of a cost")
        form = "a square matrix over the templates, the preference's own first, then the atoms"
        n = matrix.shape[-1] if matrix.dim() else 0
        check_tensor("cost", matrix, form, sizes=(..., n, n))
        self.given = matrix
        check_entries("cost", matrix, lambda x: x >= 0, "numbers >= 0, or inf where weight cannot move")
        expected = "finite numbers, so that templates can keep their weight"
        diagonal = matrix.diagonal(dim1=-2, dim2=-1)
        check_entries("the diagonal of cost", diagonal, torch.isfinite, expected)
        expected = "a symmetric matrix, such as (cost + cost.mT) / 2"
        check_entries("cost", matrix, lambda x: torch.isclose(x, x.mT, rtol=1e-5, atol=1e-8), expected)

    @override
    def part(self, box: Box) -> Self:
        return self._changed(given=part_of(self.given, box))

    def _check(self, templates: Tensor, sources: Tensor) -> None:
        count, n = templates.shape[-2], sources.shape[-2]
        form = f"(..., N, N), for {n} templates of the preference and {count - n} atoms"
        place = {"device": templates.device, "other": "templates"}
        check_tensor("cost", self.given, form, sizes=(..., count, count), **place)

    @override
    def matrix(self, templates: Tensor, sources: Tensor) -> Tensor:
        self._check(templates, sources)
        return self.given[..., : sources.shape[-2]].to(templates.dtype)

    @override
    def log_kernel(self, templates: Tensor, sources: Tensor, gamma: GammaColumn, span: slice) -> Tensor:
        self._check(templates, sources)
        return kernel_of(self.given[..., span, : sources.shape[-2]].to(templates.dtype), gamma)


def kernel_of(matrix: Tensor, gamma: GammaColumn) -> Tensor:
    """-M/γ, without NaN in the gradient of γ for infinite costs."""
    infinite = matrix.detach() == torch.inf
    return (-matrix.masked_fill(infinite, 0) / gamma).masked_fill(infinite, -torch.inf)


def _not_negative(matrix: Tensor) -> Tensor:
    """A matrix without the entries that rounding made negative; clamping would remove their gradients too."""
    return matrix - matrix.detach().clamp(max=0)


def _longest_square(templates: Tensor) -> float:
    return float(templates.detach().square().sum(-1).amax())


def _directions(templates: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(templates, dim=-1, keepdim=True)
    # Zero to rounding: the gradient is then 0 rather than as large as the reciprocal of the norm.
    is_zero = norms <= (1e-30 if templates.dtype == torch.float64 else 1e-15)
    return templates / norms.masked_fill(is_zero, torch.inf)


# Costs by name.
COSTS: dict[str, AbstractCost] = {
    "dot": DotCost(),
    "squared_euclidean": SquaredEuclideanCost(),
    "cosine": CosineCost(),
}


def cost_named(cost: str | Tensor | AbstractCost) -> AbstractCost:
    """The cost with a name, or given by a matrix.

    Raises:
        ProblemError: If the name is unknown, or the matrix is not a cost.
    """
    if isinstance(cost, AbstractCost):
        return cost
    if isinstance(cost, Tensor):
        return GivenCost(cost)
    if not isinstance(cost, str) or cost not in COSTS:
        raise ProblemError(
            f"cost is {shown(cost)}; expected one of {', '.join(map(repr, COSTS))}, or a matrix (..., N, N)"
        )
    return COSTS[cost]
