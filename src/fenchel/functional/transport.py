"""Optimal-transport attention: weight that reaches templates which are not in the input."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fenchel.arguments.tensor import check_not_mapped
from fenchel.closeness import OptimalTransport
from fenchel.closeness.coupling import Coupling, Part
from fenchel.conjugate import conjugate_of
from fenchel.errors import ProblemError
from fenchel.functional.arguments import checked
from fenchel.functional.precision import compute_dtype, without_autocast
from fenchel.functional.solved import solved_dual_point
from fenchel.functional.transport_arguments import TransportArguments, checked_transport
from fenchel.functional.transport_average import factored_average
from fenchel.functional.untraced import untraced
from fenchel.layout import keep_freed_memory
from fenchel.preference import Discrete
from fenchel.problem import Problem

__all__ = ["transport_attention"]

FACTOR_BYTES = 16 * 2**20
"""Size of the factors above which heads are taken one after the other: the system takes back, and hands out page by
page, what is larger than that."""

PART_BYTES = 128 * 2**20
"""Size aimed at for the factors of one part of the templates; more templates than fit go part by part."""


def transport_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atoms: Tensor | None = None,
    atom_values: Tensor | None = None,
    atom_mask: Tensor | None = None,
    log_preference: Tensor | None = None,
    alpha: float | Tensor = 1.0,
    gamma: float | Tensor,
    cost: str | Tensor = "dot",
    scale: float | Tensor = 1.0,
    estimator: str = "first_order",
    tol: float | None = None,
    max_steps: int = 50,
) -> Tensor:
    r"""Infer one distribution a query over keys and atoms, near the preference in transport, and average the values.

    Templates t are scale·key, then scale·atoms; the preference u is on the keys, and the evidence z is the query.

    .. math:: o = \sum_t p(t)\, v_t, \qquad
              p(t) = \sum_i u_i \frac{e^{(\langle t, \lambda\rangle - M(t, t_i))/\gamma}}{Z_i}, \qquad
              Z_i = \sum_{t'} e^{(\langle t', \lambda\rangle - M(t', t_i))/\gamma}

    with λ = αz at first order (22), :math:`\alpha(I + \tfrac\alpha\gamma\sum_i u_i\Sigma_i)^{-1}z` at second, and the
    maximiser of (36) for the exact estimator. An atom has no preference of its own: it gets a share of the weight of
    the keys that are like it. As γ falls weight stays on the keys with preference u, whatever the query.

    Two matrix products a query set (fact 6): memory is O(m·(n + |A|)) for the arrays of one part of the templates, and
    does not grow with their number beyond that, in the backward pass too. Half types are computed in float32.

    Args:
        query: (B, H, m, d).
        key: (B, H, n, d), the templates that have a preference.
        value: (B, H, n, d_v).
        atoms: Further templates that p may use, (B or 1, H or 1, a, d).
        atom_values: Their values, (B or 1, H or 1, a, d_v).
        atom_mask: Bool, True where an atom may be used, of a shape that broadcasts to (B, H, m, a).
        log_preference: log u as in :func:`~fenchel.functional.attention`, broadcasting to (B, H, m, n). A key that is
            masked, by ``-inf`` or False, can receive no weight either: to say that it is known but not preferred,
            give it as an atom.
        alpha: α > 0: a number, or a tensor that broadcasts to (B, H, m).
        gamma: γ > 0, in units of the cost: a number, or a tensor that broadcasts to (B, H, 1): (H, 1) is one a head.
        cost: M: ``"dot"`` (C - aᵀb, the papers'), ``"squared_euclidean"``, ``"cosine"``, or a matrix (..., n + a, n +
            a) over keys, then atoms, whose leading dimensions broadcast to (B, H): symmetric, non-negative, ``inf``
            where weight cannot move.
        scale: Makes templates of keys and atoms: a number, or a tensor with one element.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``.
        tol: Of the exact estimator, relative; by default 1e-5, and 1e-10 in float64.
        max_steps: Steps that a query may take.

    Returns:
        (B, H, m, d_v) in the dtype of the query. A query with nothing to attend to gets zeros and passes no gradient
        on. Gradients reach every tensor given, γ and α too.

    Raises:
        ProblemError: If the arguments do not fit together.
        ConvergenceError: If the exact estimator does not reach ``tol`` for some query.

    Warns:
        CostWarning: At the first call in which a template is nearer to another than to itself.

    Reference:
        Section 9, eqs. (20)-(22); Appendix D, eqs. (35), (36) and (44).

    Example:
        >>> q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
        >>> atoms, values = torch.randn(2, 1, 2, 7, 4, dtype=torch.float64)
        >>> options = {"gamma": 0.5, "cost": "squared_euclidean"}
        >>> transport_attention(q, k, v, atoms=atoms, atom_values=values, **options).shape
        torch.Size([1, 2, 5, 4])
        >>> near = transport_attention(q, k, v, gamma=1e-3, cost="squared_euclidean", alpha=1e-3)
        >>> near.allclose(v.mean(-2, keepdim=True).expand_as(near))       # nothing moves: u is uniform
        True
    """
    given = checked(
        query,
        key,
        value,
        log_preference=log_preference,
        alpha=alpha,
        scale=1.0,
        estimator=estimator,
        dropout_p=0.0,
        enable_gqa=False,
        tol=tol,
        max_steps=max_steps,
    )
    if query.is_meta:
        raise ProblemError(
            "query is on meta, which has no values, and transport attention looks at them; use a device"
        )
    dtype = compute_dtype(query.dtype)
    transport = checked_transport(given, atoms, atom_values, atom_mask, gamma, cost, scale, dtype)
    check_not_mapped("transport attention", *(x for x in vars(transport).values() if isinstance(x, Tensor)))
    with without_autocast(query):
        dual = _dual_point(transport, estimator, tol, max_steps)
        output = _average(transport, dual)
        _check_range(transport, output)
        return given.without_empty_rows(output.to(given.query.dtype))


def _dual_point(given: TransportArguments, estimator: str, tol: float | None, max_steps: int) -> Tensor:
    if estimator == "first_order" or given.evidence.numel() == 0:
        return given.alpha * given.evidence
    n = given.sources.shape[-2]
    closeness = OptimalTransport(
        given.cost, given.gamma.squeeze(-1), given.templates[..., n:, :], allowed=given.allowed, warn=False
    )
    conjugate = conjugate_of(Discrete(given.sources, given.log_weights), closeness)
    problem = Problem(conjugate, given.evidence, given.alpha.squeeze(-1))
    remedy = "gamma larger, or alpha or the norms of the templates smaller"
    return solved_dual_point(problem, estimator, tol, max_steps, remedy)


@untraced
def _check_range(given: TransportArguments, output: Tensor) -> None:
    """Refuse finite arguments whose scores or costs over γ the dtype does not hold; a NaN that was given passes."""
    if bool(torch.isfinite(output).all()):
        return
    numbers = [
        x for x in (given.templates, given.evidence, given.values, given.alpha) if isinstance(x, Tensor)
    ]
    if all(bool(torch.isfinite(x).all()) for x in numbers):
        name = str(output.dtype).removeprefix("torch.")
        raise ProblemError(
            f"transport attention has costs or scores, divided by gamma, that {name} does not hold: give the tensors "
            "in float64, or make gamma larger, or alpha, the query or the norms of the keys and atoms smaller"
        )


def _average(given: TransportArguments, dual: Tensor) -> Tensor:
    """The values' mean: as many heads at a time as keep the factors to arrays of a size that memory is kept for."""
    keep_freed_memory()
    pieces = math.ceil(_bytes_of_factors(given, dual) / FACTOR_BYTES)
    dim = 0 if dual.shape[0] > 1 else 1
    if pieces > 1 and dual.shape[dim] > 1:
        each = math.ceil(dual.shape[dim] / pieces)
        spans = [(start, min(each, dual.shape[dim] - start)) for start in range(0, dual.shape[dim], each)]
        return torch.cat(
            [_average(given.narrowed(dim, *span), dual.narrow(dim, *span)) for span in spans], dim
        )
    parts = _parts(given, dual)
    if len(parts) == 1:
        output = factored_average(*parts[0].logarithms(), given.log_weights, given.values)
        if output is not None:
            return output
    return Coupling(parts, given.log_weights).average(given.values)


def _bytes_of_factors(given: TransportArguments, dual: Tensor) -> int:
    """What the factors of all templates take together."""
    columns = dual.shape[2] + given.sources.shape[2]
    return dual.shape[:2].numel() * given.templates.shape[2] * columns * dual.element_size()


def _parts(given: TransportArguments, dual: Tensor) -> list[Part]:
    tilt = dual / given.gamma
    count = given.templates.shape[-2]
    each = min(count, max(256, count * PART_BYTES // max(1, _bytes_of_factors(given, dual))))

    def part(span: slice) -> Part:
        def logarithms() -> tuple[Tensor, Tensor]:
            log_tilt = tilt @ given.templates[..., span, :].mT
            if given.allowed is not None:
                log_tilt = log_tilt.masked_fill(~given.allowed[..., span], -torch.inf)
            return log_tilt, given.cost.log_kernel(given.templates, given.sources, given.gamma, span)

        return Part(span, logarithms)

    return [part(slice(start, min(start + each, count))) for start in range(0, count, each)]
