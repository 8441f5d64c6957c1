r"""Equations of dual points, the closed form of the second-order one, and gradients by the implicit function theorem.

Solvers are not unrolled (fact 8). A residual r(λ, data) that is zero at λ, with the positive definite operator
H = -∂r/∂λ, gives dλ = H⁻¹ ∂r/∂data: a gradient g of λ requires one solve, :math:`\nu = H^{-1}g`, and the gradient of
⟨ν, r⟩ at a fixed λ. Problems compute the latter by autograd, for all tensors that they depend on. For softmax over
templates, which ops solve inside custom operators without autograd, it is explicit: with
:math:`D_p = \operatorname{diag} p - pp^\top`,

.. math:: \partial z = \nu, \qquad \partial\alpha = \langle\nu, \lambda\rangle/\alpha^2
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.cumulants import CumulantFamily
from fenchel.errors import ProblemError
from fenchel.estimators.exact_solver import factorised, solved
from fenchel.family import Block, Point, TemplateFamily, TemplatePoint
from fenchel.problem import Problem, QueryLayout
from fenchel.tensors import norm, total


class AbstractEquation(ABC):
    r"""A residual that is zero at the solution, with :math:`H = I/\alpha + \nabla^2\varphi` at some point."""

    @abstractmethod
    def residual(self, problem: Problem, lam: Tensor) -> Tensor:
        """The residual at a fixed λ (..., m, d), differentiable in the problem's data, (..., m, d)."""

    @abstractmethod
    def curved_at(self, lam: Tensor) -> Tensor:
        """The dual point at which H has its curvature, (..., m, d)."""

    @abstractmethod
    def of_templates(self, point: TemplatePoint, dual: Tensor, nu: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of ⟨ν, r⟩ to templates (g, n, d) and log weights (g, r, n), for a softmax.

        Args:
            point: φ at the dual point at which H has its curvature.
            dual: λ, (g, r, d).
            nu: ν, (g, r, d).
        """

    def joined(self, problem: Problem, dual: Tensor) -> Tensor:
        r"""A dual point with gradients to all tensors of the problem.

        Args:
            problem: The problem, whose data may require gradients.
            dual: λ, (..., m, d), assumed to be the exact solution of this equation.

        Returns:
            The same numbers, with gradients.
        """
        fixed = dual.detach()
        return _Implicit.apply(self.residual(problem, fixed).expand_as(fixed), fixed, problem, self)


class StationaryPoint(AbstractEquation):
    r""":math:`\nabla\mathcal{D}(\lambda) = 0`: the maximiser of the dual.

    With :math:`f = D_pT\nu` and :math:`w = D_uT\nu`, :math:`\partial\log u = w - f` and
    :math:`\partial T = (u - p)^\top\nu - f^\top\lambda`.
    """

    @override
    def residual(self, problem: Problem, lam: Tensor) -> Tensor:
        return problem.dual_gradient(lam)

    @override
    def curved_at(self, lam: Tensor) -> Tensor:
        return lam

    @override
    def of_templates(self, point: TemplatePoint, dual: Tensor, nu: Tensor) -> tuple[Tensor, Tensor]:
        u, p, lifted = point.family.log_preference.exp(), point.weights, nu @ point.templates.mT
        moved, prior = (w * (lifted - total(w * lifted)) for w in (p, u))
        return (u - p).mT @ nu - moved.mT @ dual, prior - moved


class Expansion(AbstractEquation):
    r""":math:`z - \lambda/\alpha - \nabla^2\varphi(0)\lambda = 0`: the maximiser of its second-order expansion.

    With :math:`a = T\nu - \langle u, T\nu\rangle` and :math:`b = T\lambda - \langle u, T\lambda\rangle`,
    :math:`\partial\log u = -u\circ(a\circ b - \langle u, a\circ b\rangle)` and
    :math:`\partial T = -(u\circ b)^\top\nu - (u\circ a)^\top\lambda`.
    """

    @override
    def residual(self, problem: Problem, lam: Tensor) -> Tensor:
        curved = problem.conjugate.at(torch.zeros_like(lam)).product(lam)
        return problem.evidence - lam / problem.alpha_column - curved

    @override
    def curved_at(self, lam: Tensor) -> Tensor:
        return torch.zeros_like(lam)

    @override
    def of_templates(self, point: TemplatePoint, dual: Tensor, nu: Tensor) -> tuple[Tensor, Tensor]:
        u = point.weights
        a, b = (lift - total(u * lift) for lift in (v @ point.templates.mT for v in (nu, dual)))
        product = a * b
        return -((u * b).mT @ nu + (u * a).mT @ dual), -u * (product - total(u * product))


def second_order_point(block: Block, unsure: list[Tensor] | None = None) -> Tensor:
    r"""The maximiser of the dual's expansion at 0, (g, r, d), in the dtype of the block.

    .. math:: \lambda = \alpha(I + \alpha\nabla^2\varphi(0))^{-1} z

    If all rows of a group share preference and α, one Hessian per group is factorised; otherwise each row is solved by
    conjugate gradients, or by a factorisation if these do not converge. If a list ``unsure`` is given, no value is
    read, and whether some row did not converge is appended to the list.
    """
    family, alpha = block.family, block.alpha
    shared = unsure is None and family.selectable and alpha.shape[1] == 1
    if shared and isinstance(family, TemplateFamily) and family.log_preference.shape[1] == 1:
        curved = family.closeness.curvature_weights(family.rest_weights, family.log_preference)
        if curved.shape[1] == 1:
            return with_one_hessian(family.templates, curved, alpha, block.evidence)
    point = family.at(torch.zeros_like(block.evidence))
    if unsure is None and isinstance(family, CumulantFamily):
        # Of unit length, since products with large evidence may overflow.
        unit = block.evidence / norm(block.evidence).clamp(min=torch.finfo(block.evidence.dtype).tiny)
        if not bool(torch.isfinite(point.product(unit)).all()):
            raise ProblemError(
                f"tilted_covariance of {type(family.preference).__name__} is not finite at 0; expected the second "
                "derivative of log_mgf: write the method where autograd's is NaN"
            )
    return solved(point, block.evidence, alpha, unsure=unsure)


def with_one_hessian(
    templates: Tensor,
    curved: Tensor,
    alpha: float | Tensor,
    evidence: Tensor,
    solve: Callable[[Tensor, Tensor], Tensor] = factorised,
    within: Tensor | None = None,
) -> Tensor:
    r"""The second-order dual point if all rows share the curvature diag q - qqᵀ/Σq, (..., r, d).

    Args:
        templates: (..., n, d).
        curved: q, (..., 1, n).
        alpha: α, of all rows.
        evidence: z, (..., r, d).
        solve: Function of a symmetric positive A and rows that returns the rows times (I + A)⁻¹.
        within: A diagonal added to the curvature, (..., d).
    """
    centred = templates - curved @ templates / curved.sum(-1, keepdim=True)
    n, d = templates.shape[-2:]
    # Exported graphs, made for any number of templates, cannot choose the cheaper one.
    if torch.compiler.is_exporting() or d <= n or within is not None:
        curvature = centred.mT @ (curved.mT * centred)
        if within is not None:
            curvature = curvature + torch.diag_embed(within)
        return alpha * solve(alpha * curvature, evidence)
    # Woodbury: (I + αRᵀR)⁻¹ = I - αRᵀ(I + αRRᵀ)⁻¹R, n × n instead of d × d.
    possible = curved.mT > 0
    root = centred * torch.where(possible, curved.mT, 1).sqrt() * possible
    within = solve(alpha * (root @ root.mT), evidence @ root.mT)
    return alpha * (evidence - alpha * (within @ root))


class _Implicit(torch.autograd.Function):
    """The dual point as a function of its residual."""

    @staticmethod
    def forward(residual: Tensor, dual: Tensor, problem: Problem, equation: AbstractEquation) -> Tensor:
        return dual.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        residual, dual, ctx.problem, ctx.equation = inputs
        ctx.save_for_backward(residual, dual)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        residual, dual = ctx.saved_tensors
        return _solved_once(gradients[0], dual, ctx.problem, ctx.equation, residual), None, None, None


def _of_gradient(
    gradient: Tensor, dual: Tensor, problem: Problem, equation: AbstractEquation, residual: Tensor
) -> Tensor:
    """H⁻¹ times a gradient. The residual is an argument since second derivatives depend on the data through it."""
    del residual

    def of_block(block: Block, lam: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"nu": _adjoint(equation, block, lam, right)[1]}

    return QueryLayout(problem).solved(of_block, dual, gradient)["nu"]


def _adjoint(
    equation: AbstractEquation, block: Block, dual: Tensor, gradient: Tensor, **how: Any
) -> tuple[Point, Tensor]:
    """φ where H has its curvature, and ν = H⁻¹g, (g, r, d); ``how`` are options of :func:`solved`."""
    point = block.family.at(equation.curved_at(dual))
    return point, solved(point, gradient, block.alpha, **how)


def row_gradients(
    equation: AbstractEquation,
    block: Block,
    dual: Tensor,
    gradient: Tensor,
    *,
    rtol: float,
    unsure: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients to the data of rows that are a softmax over templates, given the gradient of their dual points.

    Args:
        equation: The equation that the dual points solve.
        block: The rows.
        dual: λ, (g, r, d).
        gradient: g, (g, r, d).
        rtol: Tolerance of the linear system relative to g, or rounding if that is larger.
        unsure: See :func:`~fenchel.estimators.exact_solver.newton_direction`.

    Returns:
        Gradients to the evidence, (g, r, d); the templates, (g, n, d); and, for each row, log weights, (g, r, n), and
        α, (g, r, 1).
    """
    point, nu = _adjoint(equation, block, dual, gradient, rtol=rtol, unsure=unsure)
    assert isinstance(point, TemplatePoint)  # noqa: S101 -- ops have templates
    templates, log_weights = equation.of_templates(point, dual, nu)
    return nu, templates, log_weights, total(nu * dual) / block.alpha.square()


def second_derivative_of(what: str) -> Callable[..., Any]:
    """A backward pass that raises, since the second derivative of ``what`` is not implemented."""

    def refuse(ctx: Any, *gradients: Any) -> Any:
        raise ProblemError(
            f"the second derivative of {what} is not implemented; fenchel.functional.reference is differentiable any "
            "number of times"
        )

    return refuse


def differentiated_once(gradient: Callable[..., Any], of: str) -> Callable[..., Any]:
    """A function that computes gradients; differentiating its results raises.

    Unlike ``torch.autograd.function.once_differentiable`` it works with ``torch.func``, which records every backward
    pass for a possible second one.

    Args:
        gradient: Returns tensors that depend on the tensors among its arguments.
        of: Name of the differentiated function in the error message.

    Example:
        >>> square = differentiated_once(lambda x: x * x, "a square")
        >>> square(torch.ones(2, requires_grad=True)).sum().backward()
        Traceback (most recent call last):
        fenchel.errors.ProblemError: the second derivative of a square is not implemented; ...
    """

    class Refusing(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
            return tuple(tensor.clone() for tensor in tensors[:count])

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            """Save nothing, since the backward pass raises."""

    Refusing.backward = staticmethod(second_derivative_of(of))

    def call(*inputs: Any) -> Any:
        with torch.no_grad():
            result = gradient(*inputs)
        if not torch.is_grad_enabled():
            return result
        several = (result,) if isinstance(result, Tensor) else tuple(result)
        named = Refusing.apply(len(several), *several, *(x for x in inputs if isinstance(x, Tensor)))
        return named[0] if isinstance(result, Tensor) else named

    return call


_solved_once = differentiated_once(_of_gradient, "an estimate")


class _Once(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor, of: str) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.of = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return differentiated_once(lambda gradient: gradient, ctx.of)(*gradients), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return tangents[0].view_as(tangents[0])


def once_differentiable(tensor: Tensor, of: str) -> Tensor:
    """The same tensor, with a gradient that cannot be differentiated; ``of`` as in :func:`differentiated_once`."""
    result = _Once.apply(tensor, of)
    assert isinstance(result, Tensor)  # noqa: S101 -- as apply is not annotated
    return result
