"""Optimal-transport attention, which can give weight to templates that are not in the input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.blocks import Box, boxes, joined, keep_freed_memory, part_of, spans
from fenchel.closeness import OptimalTransport
from fenchel.closeness.coupling import Coupling, Part
from fenchel.closeness.optimal_transport import AbstractCost, GivenCost, cost_named, warn_if_moving_is_cheaper
from fenchel.errors import ProblemError
from fenchel.estimate import estimate_of, rounded_up
from fenchel.estimators import FirstOrder
from fenchel.estimators.implicit import once_differentiable
from fenchel.functional.arguments import (
    AttentionArguments,
    check_finite,
    checked_scale,
    compute_dtype,
    normalised_log_weights,
    positive_column,
    refuse_overflow,
    under_autocast,
    without_autocast,
)
from fenchel.functional.certificate import AttentionCertificate, solved_dual_point
from fenchel.functional.exact import refuse_export, untraced
from fenchel.functional.inference import Inference, Options, Variant, infer
from fenchel.preference import Discrete
from fenchel.problem import Problem
from fenchel.tensors import (
    BOOL,
    check_not_mapped,
    check_tensor,
    checked_argument,
    is_on_host,
    may_attend,
    values_are_known,
)

# Log weights at or below this, or the least number of the dtype, are masks.
MASKED = -1e9

# Size of the factors above which heads are processed one by one: larger arrays are returned to the operating system and
# mapped again, page by page, at every call.
FACTOR_BYTES = 16 * 2**20

# Target size of the factors of one part of the templates.
PART_BYTES = 128 * 2**20


class TransportInference(Inference):
    """A call of transport attention; arguments as of :func:`fenchel.functional.infer`."""

    needs_keys = True
    remedy = "gamma larger, or alpha or the norms of the templates smaller"

    def __init__(
        self,
        variant: Transport,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        *,
        scale: float | Tensor | None = None,
        **options: Any,
    ) -> None:
        super().__init__(query, key, value, scale=1.0, **options)
        given = self._call
        if query.is_meta:
            raise ProblemError("query is on meta, but transport attention depends on values; use a device")
        if not self._has_output and variant.atom_values is None:
            variant = replace(variant, atom_values=variant.atoms)
        scale, dtype = 1.0 if scale is None else scale, compute_dtype(query.dtype)
        self._variant, self._scale = variant, scale
        self._transport = transport = checked_transport(given, variant, scale, dtype)
        _warn_once(transport, variant.cost if isinstance(variant.cost, str) else "a given matrix")
        self._evidence, _, _, self._alpha = given.problem_in(dtype)
        tensors = (
            x for x in (*vars(transport).values(), self._evidence, self._alpha) if isinstance(x, Tensor)
        )
        check_not_mapped("transport attention", *tensors)
        refuse_export("transport attention")

    @property
    @override
    def _problems(self) -> Problem:
        return self._problem(self._transport, self._evidence, self._alpha)

    @staticmethod
    def _problem(given: TransportArguments, evidence: Tensor, alpha: Tensor) -> Problem:
        n = given.sources.shape[-2]
        atoms, gamma = given.templates[..., n:, :], given.gamma.squeeze(-1)
        closeness = OptimalTransport(given.cost, gamma, atoms, allowed=given.allowed, warn=False)
        return Problem(Discrete(given.sources, given.log_weights), evidence, alpha.squeeze(-1), closeness)

    @override
    def _make_point(self) -> Tensor:
        if isinstance(self._solver, FirstOrder) or self._evidence.numel() == 0:
            return self._alpha * self._evidence
        return solved_dual_point(self._problems, self._solver, self.remedy)

    @override
    def _make_output(self) -> Tensor:
        transport = self._transport
        output = _average(transport, self._point)
        tensors = transport.templates, self._evidence, transport.values, self._alpha
        what = "transport attention has costs or scores, divided by gamma,"
        remedy = "gamma larger, or alpha, the query or the norms of the keys and atoms smaller"
        _refuse_overflow(output, tensors, what, remedy)
        return output.to(self._call.query.dtype)

    @override
    def _make_certificate(self) -> AttentionCertificate:
        dual, wide = self._point, torch.float64
        with torch.no_grad():
            if dual.dtype == wide:
                problem = self._problems
            else:
                # Bounds are of numbers as given, to which float32 rounds.
                given = checked_transport(self._call, self._variant, self._scale, wide)
                evidence, _, _, alpha = self._call.problem_in(wide)
                problem = self._problem(given, evidence, alpha)
            result = estimate_of(problem, 1.0, lambda _, lam: (lam, None), dual.to(wide))
        bounds = (result.gap, result.mean_error, result.dual_error)
        return AttentionCertificate(*(rounded_up(bound, dual.dtype) for bound in bounds))

    @override
    def _make_weights(self) -> Tensor:
        if not self._call.has_no_evidence:
            return super()._make_weights()
        query, count = self._call.query, self._transport.templates.shape[-2]
        return query.new_zeros(*query.shape[:3], count)


@dataclass(frozen=True, eq=False)
class Transport(Variant):
    """Weight that may move to further templates at a cost, as in :func:`transport_attention`, with a scale of 1.

    Attributes:
        gamma: γ > 0, a number, or a tensor that broadcasts to (B, H, 1).
        cost: ``"dot"``, ``"squared_euclidean"``, ``"cosine"``, or a matrix over keys, then atoms.
        atoms: Further templates, (B or 1, H or 1, a, d).
        atom_values: Their values, (B or 1, H or 1, a, d_v).
        atom_mask: Bool, True where an atom may be used, broadcastable to (B, H, m, a).

    Example:
        >>> from fenchel.functional import infer
        >>> q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
        >>> result = infer(q, k, v, variant=Transport(0.5, "squared_euclidean"))
        >>> torch.allclose(result.weights @ v, result.output)
        True
    """

    gamma: float | Tensor
    cost: str | Tensor = "dot"
    atoms: Tensor | None = None
    atom_values: Tensor | None = None
    atom_mask: Tensor | None = None

    without = ("closeness", "dropout_p", "enable_gqa")

    made_by = TransportInference


def transport_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atoms: Tensor | None = None,
    atom_values: Tensor | None = None,
    atom_mask: Tensor | None = None,
    gamma: float | Tensor,
    cost: str | Tensor = "dot",
    **options: Unpack[Options],
) -> Tensor:
    r"""Infer one distribution per query over keys and atoms, near the preference in transport cost; average values.

    Templates t are scale·key, then scale·atoms; the preference u is on the keys, and the evidence z is the query.

    .. math:: o = \sum_t p(t)\, v_t, \qquad
              p(t) = \sum_i u_i \frac{e^{(\langle t, \lambda\rangle - M(t, t_i))/\gamma}}{Z_i}, \qquad
              Z_i = \sum_{t'} e^{(\langle t', \lambda\rangle - M(t', t_i))/\gamma}

    with λ = αz at first order (22), :math:`\alpha(I + \tfrac\alpha\gamma\sum_i u_i\Sigma_i)^{-1}z` at second, and the
    maximiser of (36) for the exact estimator. An atom has no preference: it gets part of the weight of the keys near
    it. As γ decreases, weight stays on the keys with preference u for any query.

    Computed by two matrix products (fact 6), over one part of the templates at a time: memory is O(m·(n + |A|)) for a
    part and does not grow with the number of parts, also in the backward pass. Half types are computed in float32. At
    first order an accelerator is synchronised once per call, to check for factors that underflow, which need other
    code.

    Args:
        query: (B, H, m, d).
        key: (B, H, n, d), the templates that have a preference.
        value: (B, H, n, d_v).
        atoms: Further templates that p may use, (B or 1, H or 1, a, d).
        atom_values: Their values, (B or 1, H or 1, a, d_v).
        atom_mask: Bool, True where an atom may be used, of a shape that broadcasts to (B, H, m, a).
        log_preference: log u as in :func:`~fenchel.functional.attention`, broadcasting to (B, H, m, n). A masked key
            (False, ``-inf``, or -1e9 and less) cannot receive weight either; pass known templates without preference as
            atoms.
        alpha: α > 0: a number, or a tensor that broadcasts to (B, H, m).
        gamma: γ > 0, in units of the cost: a number, or a tensor that broadcasts to (B, H, 1); (H, 1) gives one per
            head.
        cost: M: ``"dot"`` (C - aᵀb, the papers'), ``"squared_euclidean"``, ``"cosine"``, or a matrix (..., n + a, n +
            a) over keys, then atoms, whose leading dimensions broadcast to (B, H): symmetric, non-negative, ``inf``
            where weight cannot move.
        scale: Multiplies keys and atoms: a number, or a tensor with one element.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``.
        tol: Relative tolerance of the exact estimator; by default 1e-5, and 1e-10 in float64.
        max_steps: Maximum number of steps of a query.

    Returns:
        (B, H, m, d_v) in the dtype of the query. A query with nothing to attend to gets zeros and passes no gradient.
        Differentiable in all tensors, including γ and α.

    Raises:
        ProblemError: If the arguments are inconsistent, or there are no keys.
        ConvergenceError: If the exact estimator does not reach ``tol`` for some query.

    Warns:
        CostWarning: At the first call in which a template has a lower cost to another template than to itself.

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
    variant = Transport(gamma, cost, atoms, atom_values, atom_mask)
    return infer(query, key, value, variant=variant, **options).output


# Number of templates that the first call checks for a lower cost to another template than to itself.
LOOKED_AT = 1024

_looked_at: set[str] = set()


@dataclass(frozen=True, eq=False)
class TransportArguments:
    """Checked arguments of a call besides evidence and α, in the dtype of the computation.

    Attributes:
        templates: All templates that p may use, (B, H, n + a, d), those with a preference first.
        sources: Those with a preference, (B, H, n, d).
        values: (B, H, n + a, d_v).
        log_weights: Normalised log u, (B or 1, H or 1, m or 1, n).
        allowed: Bool, (B or 1, H or 1, m or 1, n + a), or None if all templates are.
        gamma: γ, (B or 1, H or 1, 1, 1).
        cost: M.
    """

    templates: Tensor
    sources: Tensor
    values: Tensor
    log_weights: Tensor
    allowed: Tensor | None
    gamma: Tensor
    cost: AbstractCost

    def part(self, box: Box) -> TransportArguments:
        """The arguments in a box of batch and heads."""
        parts = {name: part_of(x, box) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **parts, cost=self.cost.part(box))


def checked_transport(
    given: AttentionArguments, variant: Transport, scale: float | Tensor, dtype: torch.dtype
) -> TransportArguments:
    """Check the arguments of transport attention.

    Args:
        given: Checked arguments of attention, with scale 1.
        variant: The arguments of transport.
        scale: A number or one tensor element.
        dtype: Of the computation.
    """
    lead, (templates, values) = given.query.shape[:2], (x.to(dtype) for x in (given.key, given.value))
    n, atoms, atom_values = templates.shape[-2], variant.atoms, variant.atom_values
    if atoms is not None or atom_values is not None:
        atoms, atom_values = _checked_atoms(given, atoms, atom_values)
        check_finite(atoms=atoms, atom_values=atom_values)
        templates, values = (
            torch.cat([own, under_autocast(further).to(dtype).expand(*lead, -1, -1)], -2)
            for own, further in ((templates, atoms), (values, atom_values))
        )
    elif variant.atom_mask is not None:
        raise ProblemError("atom_mask is given without atoms; pass atoms and atom_values as well, or omit it")
    scale = checked_scale(scale, templates)
    if isinstance(scale, Tensor) or scale != 1.0:
        templates = templates * (scale.to(dtype) if isinstance(scale, Tensor) else scale)
    sources = templates[..., :n, :]
    return TransportArguments(
        templates=templates,
        sources=sources,
        values=values,
        log_weights=normalised_log_weights(given.log_preference, sources),
        allowed=_allowed(given, variant.atom_mask, templates.shape[-2] - n),
        gamma=_checked_gamma(variant.gamma, given).to(dtype),
        cost=_checked_cost(variant.cost, (*lead, templates.shape[-2]), given.query.device),
    )


def _checked_atoms(
    given: AttentionArguments, atoms: Tensor | None, atom_values: Tensor | None
) -> tuple[Tensor, Tensor]:
    if atoms is None or atom_values is None:
        missing, present = ("atoms", "atom_values") if atoms is None else ("atom_values", "atoms")
        raise ProblemError(f"{present} are given without {missing}; every atom needs a template and a value")
    (batch, heads), count = given.query.shape[:2], None
    for name, tensor, like in (("atoms", atoms, given.key), ("atom_values", atom_values, given.value)):
        sizes = (1, batch), (1, heads), count, like.shape[-1]
        check_tensor(name, tensor, "(batch or 1, heads or 1, atoms, dim)", sizes=sizes, like=like)
        count = tensor.shape[-2]
    return atoms, atom_values


def _checked_gamma(gamma: float | Tensor, given: AttentionArguments) -> Tensor:
    lead = (*given.query.shape[:2], 1)
    if not isinstance(gamma, Tensor):
        number = checked_argument("gamma", gamma)
        return torch.full((1, 1, 1, 1), number, dtype=torch.float64, device=given.query.device)
    return positive_column("gamma", gamma, "(batch, heads, 1)", lead, given.query)


def _checked_cost(cost: str | Tensor, shape: tuple[int, ...], device: torch.device) -> AbstractCost:
    if not isinstance(cost, Tensor):
        return cost_named(cost)
    # Before checking its values, which takes memory for all of them.
    form, size = "(..., keys and atoms, keys and atoms), or the name of a cost", shape[-1]
    check_tensor("cost", cost, form, sizes=(..., size, size), broadcast=(*shape, size), device=device)
    return GivenCost(cost[(None,) * (4 - cost.dim())])


def _allowed(given: AttentionArguments, atom_mask: Tensor | None, extra: int) -> Tensor | None:
    """Which keys and atoms may be used, (B or 1, H or 1, m or 1, n + a), or None if all may."""
    keys, shape = given.log_preference, (*given.query.shape[:3], extra)
    if keys is not None:
        keys = _may_receive(keys.detach())
        keys = None if values_are_known(keys) and bool(keys.all()) else keys
    if atom_mask is not None:
        form = "that broadcasts to (batch, heads, queries, atoms)"
        check_tensor("atom_mask", atom_mask, form, dtypes=BOOL, broadcast=shape, device=given.query.device)
        atom_mask = atom_mask[(None,) * (4 - atom_mask.dim())].expand(-1, -1, -1, extra)
    if keys is None and atom_mask is None:
        return None
    parts = [
        given.query.new_ones(1, 1, 1, count, dtype=torch.bool) if part is None else part
        for part, count in ((keys, given.key.shape[-2]), (atom_mask, extra))
    ]
    rows = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*rows, -1) for part in parts], -1)


def _may_receive(preference: Tensor) -> Tensor:
    """The mask, bool, of the keys that may have weight: those that are not masked, by -inf or a large finite number."""
    allowed = may_attend(preference)
    if preference.dtype == torch.bool or preference.shape[-1] == 0:
        return allowed
    # Weight can move to keys with a negligible preference, such as those far from a window.
    least, top = max(MASKED, torch.finfo(preference.dtype).min), preference.amax(-1, keepdim=True)
    return allowed & ((preference > least + top.abs()) | (top <= least))


def _warn_once(given: TransportArguments, name: str) -> None:
    """Warn at the first call in which keeping weight costs more than moving it."""
    if name in _looked_at or name in ("squared_euclidean", "cosine") or not values_are_known(given.sources):
        return
    _looked_at.add(name)
    with torch.no_grad(), without_autocast(given.sources):
        sources = given.sources[:1, :, :LOOKED_AT]
        if isinstance(given.cost, GivenCost):
            matrix = given.cost.given[..., : given.sources.shape[-2]].to(sources.dtype)
        else:
            matrix = given.cost.matrix(given.templates[:1, :, :LOOKED_AT], sources)
        warn_if_moving_is_cheaper(matrix, name)


_refuse_overflow = untraced(refuse_overflow)
_once_differentiable = untraced(once_differentiable)


def _average(given: TransportArguments, dual: Tensor) -> Tensor:
    """The mean of the values under the coupling at λ, (B, H, m, d_v)."""
    keep_freed_memory()
    if not torch.compiler.is_compiling():
        names, of = ("templates", "sources", "values", "log_weights", "gamma"), "transport attention"
        dual = _once_differentiable(dual, of)
        given = replace(given, **{name: _once_differentiable(getattr(given, name), of) for name in names})
    cut = [(slice(None), slice(None))]
    # On accelerators splitting saves nothing, and each part would synchronise.
    if is_on_host(dual):
        batch, heads = (max(1, size) for size in dual.shape[:2])
        each = max(1, batch * heads * FACTOR_BYTES // max(1, _bytes_of_factors(given, dual)))
        cut = list(boxes((batch, heads), each))

    def of_part(box: Box) -> Tensor:
        part = given.part(box)
        return Coupling(_parts(part, part_of(dual, box)), part.log_weights).average(part.values)

    return joined(((box, of_part(box)) for box in cut), (0, 1))


def _bytes_of_factors(given: TransportArguments, dual: Tensor) -> int:
    """Size of the factors of all templates."""
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

    return [part(span) for span in spans(count, each)]
