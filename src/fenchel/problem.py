"""The data of an inference problem, its primal and dual objectives, and its queries as rows of blocks for solvers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, Generic, Self

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from fenchel.blocks import CACHE_BYTES, Box, boxes, keep_freed_memory, part_of, rows_of, spans
from fenchel.closeness import KL, AbstractCloseness
from fenchel.closeness.custom import check_at_first_use
from fenchel.closeness.tsallis import closeness_of
from fenchel.cumulants import CumulantFamily
from fenchel.errors import ProblemError
from fenchel.family import Block, CoupledFamily, Family, TemplateFamily
from fenchel.preference import AbstractPreference, Discrete
from fenchel.preference.abstract import check_together
from fenchel.tensors import (
    check_dtype,
    check_entries,
    check_tensor,
    check_type,
    has,
    positive_tensor,
    values_are_known,
    widened,
)

P_co = TypeVar("P_co", bound=AbstractPreference, default=Any, covariant=True)


def tensors_of(thing: Any, name: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Every tensor reachable through attributes, with the name of its attribute.

    Args:
        thing: A preference, a closeness or any object; lists, mappings, modules and objects of Python classes are
            searched.
        name: The name of ``thing``, if it is a tensor.
        seen: Identities of objects that have been searched already.

    Example:
        >>> import torch
        >>> from fenchel import Discrete
        >>> sorted(name for name, _ in tensors_of(Discrete(torch.eye(2))))
        ['log_weights', 'templates']
    """
    seen = set() if seen is None else seen
    if isinstance(thing, Tensor):
        yield name.lstrip("_"), thing
    if thing is None or isinstance(thing, Tensor | str | bytes | int | float | type) or id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, nn.Module):
        parts = [*thing.named_parameters(), *thing.named_buffers()]
    elif isinstance(thing, Mapping):
        parts = [(str(key), part) for key, part in thing.items()]
    elif isinstance(thing, list | tuple | set | frozenset):
        parts = [(name, part) for part in thing]
    else:
        slots = [slot for kind in type(thing).__mro__ for slot in getattr(kind, "__slots__", ())]
        parts = [
            *((slot, getattr(thing, slot, None)) for slot in slots),
            *getattr(thing, "__dict__", {}).items(),
        ]
    for part_name, part in parts:
        yield from tensors_of(part, part_name, seen)


def _check_mean_at_first_use(preference: AbstractPreference) -> None:
    """Check that a mean that is not the package's is the gradient of log M, near 0 in float64, once per class.

    Raises:
        ProblemError: If not.
    """
    if not preference.unchecked[0] or torch.compiler.is_compiling():
        return
    u = preference.to(torch.float64)
    lam = torch.full((*u.lead, u.dim), 0.1, dtype=u.dtype, device=u.device)
    reach = u.reach(torch.zeros_like(lam), lam)
    lam = lam if reach is None else lam * (reach / 2).clamp(max=1).unsqueeze(-1)
    try:
        found, expected = u.tilted_mean(lam), AbstractPreference.tilted_mean(u, lam)
    except RuntimeError:  # log_mgf is not differentiable, which is not required
        preference.unchecked[0] = False
        return
    # Coordinates whose mean is 0 differ by rounding.
    size = torch.maximum(found.abs(), expected.abs()).amax(-1, keepdim=True)
    wrong = (found - expected).abs() > 1e-4 * size + 1e-8
    if values_are_known(wrong) and bool(wrong.any()):
        raise ProblemError(
            f"tilted_mean of {type(u).__name__} is {found[wrong][0]:.6g} at lam = {lam[wrong][0]:.4g} in all "
            f"coordinates; expected {expected[wrong][0]:.6g}, the gradient of its log_mgf"
        )
    preference.unchecked[0] = False


def _checked_closeness(
    preference: AbstractPreference, closeness: AbstractCloseness | str | None
) -> AbstractCloseness:
    """The closeness, bound to the templates if the preference is discrete."""
    expected = "fenchel.Discrete(templates), fenchel.Gaussian(mean, covariance) or another distribution"
    check_type("preference", preference, AbstractPreference, expected)
    closeness = closeness_of(closeness) or KL()
    if isinstance(preference, Discrete):
        check_at_first_use(closeness, lambda: preference)
        return closeness.bind(preference)
    if not isinstance(closeness, KL):
        raise ProblemError(
            f"closeness is {closeness!r} and the preference a {type(preference).__name__}, which has no list of "
            "templates; expected fenchel.KL(), or a fenchel.Discrete preference"
        )
    _check_mean_at_first_use(preference)
    return closeness


class Problem(Generic[P_co]):
    r"""Find the distribution p near the preference u whose mean is near :math:`\mu + z`.

    .. math::
        \text{primal (3):}\quad & \min_p P(p) = \tfrac{\alpha}{2}\lVert \mu + z - \mathbb{E}_p[t] \rVert^2 + D(p, u) \\
        \text{dual (7):}\quad & \max_\lambda \mathcal{D}(\lambda) =
            \langle \lambda, \mu + z\rangle - \tfrac{1}{2\alpha}\lVert\lambda\rVert^2 - \varphi(\lambda)

    The part used by solvers; arguments and errors are those of :class:`fenchel.InferenceProblem`.
    """

    def __init__(
        self,
        preference: P_co,
        evidence: Tensor,
        alpha: float | Tensor = 1.0,
        closeness: AbstractCloseness | str | None = None,
    ) -> None:
        self.closeness = _checked_closeness(preference, closeness)
        self.preference = preference
        self.evidence = self._checked_evidence(evidence)
        self.given_dtype = evidence.dtype
        of_alpha = preference.device, self.dtype, "that broadcasts to (..., m)"
        self.alpha = positive_tensor("alpha", alpha, *of_alpha).to(self.dtype)
        # Bounds are of the number, to which float32 rounds.
        self._exact_alpha = None if isinstance(alpha, Tensor) else float(alpha)
        self._join()

    def _join(self) -> None:
        """Join the templates of preference and closeness, and the shapes of all parts."""
        u = self.preference
        # Computed here since at first use gradients may not be recorded.
        self._support = self.closeness.support(u) if isinstance(u, Discrete) else None
        self.shape = self._query_shape()

    def _checked_evidence(self, evidence: Tensor) -> Tensor:
        u, vectors = self.preference, self.preference.vectors
        space = "the templates' space" if vectors == "templates" else "their space"
        form = f"(..., m, d), one row per query, in {space}"
        check_tensor("evidence", evidence, form, sizes=(..., None, u.dim), device=u.device, other=vectors)
        if evidence.shape[-2] == 0:
            raise ProblemError(
                f"evidence has shape {tuple(evidence.shape)}, so m = 0; expected at least one query"
            )
        evidence = widened(evidence)
        check_dtype("evidence", evidence, u.dtype, vectors)
        check_entries("evidence", evidence, torch.isfinite, "finite numbers")
        return evidence

    def _query_shape(self) -> torch.Size:
        """The shape (..., m) of a tensor with one number for each query."""
        parts = {**self.conjugate.leads, "evidence": self.evidence.shape[:-1], "alpha": self.alpha.shape}
        note = " (templates without n and d, log_weights without n, evidence without d)"
        shape = check_together(note, **parts)
        others = [name for name in parts if name not in ("templates", "evidence")]
        if shape[-1] != self.evidence.shape[-2]:
            raise ProblemError(
                f"evidence has m = {self.evidence.shape[-2]} queries, but {' or '.join(others)} have {shape[-1]}; "
                "expected the same number, or 1"
            )
        if 0 in shape:
            raise ProblemError(
                f"leading dimensions broadcast to (..., m) = {tuple(shape)}, which has no queries; expected no "
                "dimension of size 0 in preference, evidence and alpha"
            )
        return shape

    @property
    def conjugate(self) -> Family:
        """φ, created at every use: quantities computed from the templates then have their gradients."""
        if self._support is None:
            return CumulantFamily(self.preference)
        return self.finite

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of computations and results: float32 or float64."""
        return self.evidence.dtype

    @property
    def alpha_column(self) -> Tensor:
        """α with a last dimension of 1."""
        return self.alpha.unsqueeze(-1)

    @property
    def finite(self) -> TemplateFamily:
        """φ over templates.

        Raises:
            ProblemError: If the preference is not discrete.
        """
        if not isinstance(self.preference, Discrete):
            raise ProblemError(
                f"{type(self.preference).__name__} has no list of templates, so p is not a list of weights; expected a "
                "fenchel.Discrete preference. The mean, the dual point and their bounds, estimate.distribution, and "
                "problem.primal_at(lam) instead of problem.primal(weights) are available"
            )
        kind = TemplateFamily if self.closeness.rowwise else CoupledFamily
        return kind(self.templates, self.preference.log_weights, self.closeness)

    @property
    def templates(self) -> Tensor:
        """The templates that p may use, (..., N, d): the preference's, then the atoms of the closeness."""
        return self.finite.given if self._support is None else self._support

    def _check_queries(self, name: str, rows: Tensor) -> None:
        """Raise unless a tensor (..., m, any) broadcasts to one row for each query."""
        check_tensor(name, rows, f"(..., m, *) with (..., m) = {tuple(self.shape)}")
        try:
            fits = torch.broadcast_shapes(rows.shape[:-1], self.shape)[-1] == self.shape[-1]
        except RuntimeError:
            fits = False
        if not fits:
            raise ProblemError(
                f"{name} {has(name)} shape {tuple(rows.shape)}, which does not broadcast to a row for each query: "
                f"expected {(*self.shape, rows.shape[-1])}"
            )

    def _check_point(self, lam: Tensor) -> None:
        self._check_queries("lam", lam)
        self.preference.check_point("lam", lam)

    def potential(self, lam: Tensor) -> Tensor:
        r"""The inner products :math:`T\lambda`, shape (..., m, N) for ``lam`` (..., m, d)."""
        templates = self.templates
        self._check_point(lam)
        return lam @ templates.mT

    def rest_weights(self) -> Tensor:
        r"""The weights nearest the preference, shape (..., m or 1, N): u under KL, ũ (37) under transport.

        Their mean is the μ, or μ̃ (38), that evidence shifts.
        """
        return self.finite.rest_weights

    def weights(self, lam: Tensor) -> Tensor:
        r"""Recovery (9): :math:`p(\lambda) = \nabla D^*(T\lambda)`, shape (..., m, N) for ``lam`` (..., m, d)."""
        family = self.finite
        self._check_point(lam)
        return family.at(lam).weights

    def mean(self, weights: Tensor) -> Tensor:
        r"""The mean :math:`h = \sum_i p_i t_i` of weights (..., m, N), shape (..., m, d)."""
        n = self.templates.shape[-2]
        self.preference.check_vectors("weights", weights, "(..., m, N), one for each template", n)
        return weights @ self.templates

    def target(self) -> Tensor:
        r""":math:`\mu + z`, shape (..., m, d)."""
        return self.conjugate.rest_mean() + self.evidence

    def primal(self, weights: Tensor) -> Tensor:
        """The primal objective (3) or (21), shape (..., m); ``inf`` for KL with weights outside the support of u."""
        self._check_queries("weights", weights)
        shortfall = self.target() - self.mean(weights)
        value = self.closeness.value(weights, self.finite.log_preference)
        return self.alpha / 2 * shortfall.square().sum(-1) + value

    def primal_at(self, lam: Tensor) -> Tensor:
        r"""The primal objective at p(λ), shape (..., m), also if p is not a list of weights.

        .. math:: P(p(\lambda)) = \tfrac\alpha2\lVert\mu + z - h(\lambda)\rVert^2
                  + \langle\lambda, h(\lambda)\rangle - \varphi(\lambda)
        """
        self._check_point(lam)
        family = self.conjugate
        point = family.at(lam)
        shortfall, pairing = self.evidence - point.shift, (lam * point.mean).sum(-1)
        return self.alpha / 2 * shortfall.square().sum(-1) + pairing - family.value(lam)

    def dual(self, lam: Tensor) -> Tensor:
        """The dual objective (7) at ``lam`` (..., m, d), shape (..., m)."""
        self._check_point(lam)
        return (
            (lam * self.target()).sum(-1)
            - lam.square().sum(-1) / (2 * self.alpha)
            - self.conjugate.value(lam)
        )

    def dual_gradient(self, lam: Tensor) -> Tensor:
        r""":math:`\nabla\mathcal{D}(\lambda) = \mu + z - \lambda/\alpha - h(\lambda)`, shape (..., m, d)."""
        self._check_point(lam)
        return self.evidence - self.conjugate.at(lam).shift - lam / self.alpha_column

    def gap(self, weights: Tensor, lam: Tensor) -> Tensor:
        r"""Duality gap of any pair, without the cancellation of :math:`P(p) - \mathcal{D}(\lambda)`, shape (..., m).

        .. math::
            P(p) - \mathcal{D}(\lambda) = \tfrac{\alpha}{2}\lVert \mu + z - \lambda/\alpha - \mathbb{E}_p[t]\rVert^2
            + \bigl(D(p,u) + D^*(T\lambda) - \langle p, T\lambda\rangle\bigr)
        """
        self._check_queries("weights", weights)
        self._check_point(lam)
        shift = self.mean(self.rest_weights() - weights)
        residual = shift + self.evidence - lam / self.alpha_column
        pairing = self.closeness.fenchel_young_gap(weights, self.potential(lam), self.finite.log_preference)
        return self.alpha / 2 * residual.square().sum(-1) + pairing

    def gap_at(self, lam: Tensor) -> Tensor:
        r"""Gap of the pair (p(λ), λ), :math:`\tfrac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2` (fact 1)."""
        return self.alpha / 2 * self.dual_gradient(lam).square().sum(-1)

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Every tensor of the problem, with its name."""
        return [
            *tensors_of((self.preference, self.closeness)),
            ("evidence", self.evidence),
            ("alpha", self.alpha),
        ]

    def wants_gradients(self) -> list[str]:
        """Names of the tensors that require gradients; empty if none does or gradients are not recorded.

        The dual's gradient at one query is also evaluated, to find tensors in closures, which have no name.
        """
        if not torch.is_grad_enabled():
            return []
        named = list(dict.fromkeys(name for name, tensor in self.tensors() if tensor.requires_grad))
        if named:
            return named
        probe = self.queries(slice(0, 1))
        gradient = probe.dual_gradient(probe.evidence.expand(*probe.shape, -1))
        return ["a tensor of the closeness or the preference"] if gradient.requires_grad else []

    def with_evidence(self, evidence: Tensor) -> Self:
        """The same problem with other evidence.

        Raises:
            ProblemError: As for the evidence of a new problem.
        """
        return self._with(evidence=self._checked_evidence(evidence))

    def _with_alpha(self, alpha: Tensor) -> Self:
        """The same problem at another α (..., m), clamped to the range of float32."""
        numbers = torch.finfo(torch.float32)
        return self._with(alpha=alpha.clamp(numbers.tiny, numbers.max).to(self.dtype), _exact_alpha=None)

    def queries(self, part: slice) -> Self:
        """The problem of some of the m queries."""
        alpha = self.alpha if not self.alpha.dim() or self.alpha.shape[-1] == 1 else self.alpha[..., part]
        return self._with(
            preference=self.preference.queries(part),
            closeness=self.closeness.queries(part),
            evidence=self.evidence[..., part, :],
            alpha=alpha,
        )

    def to(self, dtype: torch.dtype) -> Self:
        """The same problem in another floating-point dtype."""
        if dtype == self.dtype:
            return self
        preference, closeness = self.preference.to(dtype), self.closeness.to(dtype)
        if isinstance(preference, Discrete):
            # The closeness recomputes its quantities from the templates in the new dtype.
            closeness = closeness.bind(preference)
        evidence, alpha = self.evidence.to(dtype), self.alpha.to(dtype)
        if self._exact_alpha is not None:
            alpha = torch.full_like(alpha, self._exact_alpha)
        return self._with(preference=preference, closeness=closeness, evidence=evidence, alpha=alpha)

    def _with(self, **changes: object) -> Self:
        changed = copy.copy(self)
        vars(changed).update(changes)
        changed._join()
        return changed

    def __repr__(self) -> str:
        finite = self._support is not None
        data = f"templates={self.templates.shape[-2]}" if finite else f"preference={self.preference!r}"
        computed = f", computed in {self.dtype} (given {self.given_dtype})"
        return (
            f"{type(self).__name__}(queries={tuple(self.shape)}, {data}, dim={self.preference.dim}, "
            f"closeness={self.closeness!r}{computed if self.given_dtype != self.dtype else ''})"
        )


# Bytes of working memory of a solve, besides its input and result.
DEFAULT_MEMORY_BUDGET = 512 * 2**20


# Arrays of shape (rows, max(n, d)), in the problem's dtype, that exist at once in a Newton step.
WORKING_ARRAYS = 24


def rows_in_block(templates: Tensor, array_bytes: int, itemsize: int, *, aimed_at: int = CACHE_BYTES) -> int:
    """Number of rows of a block, at least 1.

    Args:
        templates: (..., n, d).
        array_bytes: Maximum size of one array of shape (rows, max(n, d)).
        itemsize: Bytes of one number.
        aimed_at: Preferred size of one array, at which blocks are fastest.
    """
    n, d = templates.shape[-2:]
    fitting = max(1, array_bytes // (max(n, d) * itemsize))
    busy = n if n <= 2 * d else max(n, d)
    return max(1, min(fitting, max(64, aimed_at // (busy * itemsize))))


class QueryLayout:
    """Maps a problem's leading dimensions to groups and rows of blocks, and results back to the problem's shape.

    Over templates, groups are the leading dimensions along which templates differ: heads of a layer that attend to the
    same templates become rows of one group, which need only one product with the templates; broadcast tensors are
    expanded block by block. Otherwise a block has all leading dimensions and a range of queries.

    Args:
        problem: The problem.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.lead = problem, tuple(problem.shape)
        self._by_rows = isinstance(problem.preference, Discrete) and problem.closeness.rowwise
        depth = len(self.lead)
        groups = list(range(depth - 1))
        if self._by_rows:
            own = problem.templates.shape[:-2]
            padded = (1,) * (depth - 1 - len(own)) + tuple(own)
            groups = [i for i in groups if padded[i] > 1]
        self._order, self._groups = [*groups, *(i for i in range(depth) if i not in groups)], len(groups)

    def blocks(self, memory_budget: int) -> Iterator[tuple[Box, Block]]:
        """Blocks of queries, each with its box of the leading dimensions, with those of groups first.

        Args:
            memory_budget: Bytes of all working arrays of a block.
        """
        keep_freed_memory()
        itemsize = self.problem.dtype.itemsize
        if self._by_rows:
            most = rows_in_block(self.problem.templates, memory_budget // WORKING_ARRAYS, itemsize)
            for box in boxes([self.lead[i] for i in self._order], most):
                yield box, self._block(box)
            return
        *others, queries = self.lead
        row = WORKING_ARRAYS * itemsize * math.prod(others) * self.problem.conjugate.width
        for part in spans(queries, max(1, memory_budget // row)):
            box = (*(slice(None) for _ in others), part)
            yield box, self._block(box)

    def solved(
        self,
        function: Callable[..., Mapping[str, Tensor | None]],
        *points: Tensor,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
    ) -> dict[str, Tensor]:
        """Apply a function to every block; results have the problem's shape (..., m, ...).

        Args:
            function: Takes a block and the points of its rows; returns a dict of tensors, with a number or vector per
                row, or None.
            *points: Tensors (..., m, d), such as dual points.
            memory_budget: As in :meth:`blocks`.
        """
        whole = [self._view(point.expand(*self.lead, -1)) for point in points]
        result: dict[str, Tensor] = {}
        for box, block in self.blocks(memory_budget):
            lead = block.evidence.shape[:-1]
            of_block = (part_of(point, box).reshape(*lead, -1) for point in whole)
            for name, part in function(block, *of_block).items():
                if part is not None:
                    if name not in result:
                        result[name] = part.new_empty(*self.lead, *part.shape[len(lead) :])
                    into = part_of(self._view(result[name], result[name].dim() - len(self.lead)), box)
                    into.copy_(part.reshape(into.shape))
        return result

    def _view(self, tensor: Tensor, features: int = 1) -> Tensor:
        """View of a tensor that broadcasts to (..., m, features), with the dimensions of groups first."""
        depth = len(self.lead)
        padded = tensor[(None,) * (depth + features - tensor.dim())]
        return padded.permute(*self._order, *range(depth, depth + features))

    @cached_property
    def _wide(self) -> QueryLayout:
        return QueryLayout(self.problem.to(torch.float64))

    def _block(self, box: Box) -> Block:
        # From the wide problem, whose preference is normalised again.
        wide = None if self.problem.dtype == torch.float64 else cache(lambda: self._wide._block(box))
        if self._by_rows:
            return self._rows(box, wide)
        problem = self.problem.queries(box[-1])
        evidence, alpha = (x.expand(*problem.shape, -1) for x in (problem.evidence, problem.alpha_column))
        return Block(problem.conjugate, evidence, alpha, wide=wide)

    def _rows(self, box: Box, wide: Callable[[], Block] | None) -> Block:
        problem, n_and_d = self.problem, self.problem.templates.shape[-2:]
        evidence = part_of(self._view(problem.evidence.expand(*self.lead, -1)), box)
        lead = evidence.shape[:-1]

        def take(own: Tensor) -> Tensor:
            return rows_of(part_of(self._view(own), box), lead, self._groups)

        groups = [self.lead[i] for i in self._order[: self._groups]]
        templates = problem.templates.reshape(*groups, *n_and_d)[box[: self._groups]].reshape(-1, *n_and_d)
        closeness = problem.closeness.rows(lambda own: take(own.unsqueeze(-1)).squeeze(-1))
        family = TemplateFamily(templates, take(problem.finite.log_preference), closeness)
        return Block(family, rows_of(evidence, lead, self._groups), take(problem.alpha_column), wide=wide)
