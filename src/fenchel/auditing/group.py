"""Heads that share templates: their matrices and the rows of a block, in float64 and in the working dtype."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from fenchel.auditing.layer import LayerBlock, LayerProblem
from fenchel.blocks import QueryBlock, centre
from fenchel.closeness.response import SoftmaxResponse, covariance
from fenchel.preference.discrete import log_weights, may_attend
from fenchel.selection import gather_rows
from fenchel.solver.coordinates import TemplateCoordinates, coordinates_over, dot
from fenchel.solver.direct import hessian
from fenchel.solver.passes import PassCoordinates, PassResponse
from fenchel.solver.rows import Rows
from fenchel.solver.staged import GRAM_FROM, low_precision_for

__all__ = ["LayerGroup"]


def solved_by_passes(templates: Tensor, tol: float) -> bool:
    """Whether rows over templates (..., n, d) are solved by passes over them, and not with their Gram matrix."""
    n, d = templates.shape[-2:]
    return n > 2 * d or tol < GRAM_FROM


class LayerGroup:
    """What queries with the same templates share. Everything is computed in float64 and rounded once.

    Args:
        problem: The layer.
        where: The groups.
        alpha: α.
        tol: The tolerance for which coordinates are chosen.

    Attributes:
        where: The groups.
        dtype: The working dtype.
        tol: The tolerance.
        alpha: α, float64, (1, 1, 1).
        gram: Whether rows are solved in Gram coordinates; otherwise by passes over the templates.
        centre: The mean of the templates that may be chosen, float64, (g, 1, d).
        templates: The templates less their centre, float64, (g, n, d).
        wide: Coordinates in float64.
        working: The same in the working dtype.
        low_precision: The same for directions in bfloat16, where that is faster.
    """

    def __init__(self, problem: LayerProblem, where: slice, alpha: float, tol: float) -> None:
        self.where = where
        self.dtype, self.tol = problem.queries.dtype, tol
        self.alpha = torch.full((1, 1, 1), alpha, dtype=torch.float64, device=problem.queries.device)
        preference = (
            problem.log_preference if len(problem.log_preference) == 1 else problem.log_preference[where]
        )
        self._preference = preference.flatten(1, 2)
        templates = problem.vectors[where].double() * problem.scaling
        self.centre = centre(templates, may_attend(self._preference))
        self.templates = templates - self.centre
        self._lift = None if problem.lift is None else problem.lift.double()
        self.gram = not solved_by_passes(templates, tol)
        self.wide = coordinates_over(self.templates, "gram") if self.gram else PassCoordinates(self.templates)
        self.working = self.wide
        if self.dtype != torch.float64:
            self.working = type(self.wide)(self.wide.operator.to(self.dtype))
        self.low_precision = low_precision_for(self.working) if self.gram else None

    @property
    def shares_preference(self) -> bool:
        """Whether all queries have the same preference."""
        return self._preference.shape[1] == 1

    @cached_property
    def preference(self) -> Tensor:
        """The preference u of queries that share it, (g or 1, 1, n), float64."""
        return log_weights(self._preference, torch.float64).softmax(-1)

    @cached_property
    def lifted_preference(self) -> Tensor:
        """The lift of the mean of a preference that is shared, (g or 1, 1, n), in the working dtype."""
        rest = self.preference.to(self.dtype)
        return self.working.lift(self.working.pull(rest).expand(len(self.templates), 1, -1))

    @cached_property
    def centre_products(self) -> Tensor:
        """Products of the centred templates with their centre, (g, 1, n), in the working dtype."""
        return (self.centre @ self.templates.mT).to(self.dtype)

    @cached_property
    def keys(self) -> Tensor:
        """What scores are products of queries with, (g, heads or 1, n, d_h), float64."""
        return (
            self.templates.unsqueeze(1) if self._lift is None else self.templates.unsqueeze(1) @ self._lift.mT
        )

    @cached_property
    def _working_keys(self) -> Tensor:
        return self.keys.to(self.dtype)

    @cached_property
    def _evidence_form(self) -> Tensor | None:
        """(heads, d_h, d_h), by which ‖z‖² is a quadratic form of the query."""
        return None if self._lift is None else self._lift @ self._lift.mT

    def evidence_square(self, block: LayerBlock) -> Tensor:
        """Squared norm of z, float64, (g, r, 1), without forming z."""
        queries, form = block.queries.double(), self._evidence_form
        if form is None:
            return dot(queries, queries).reshape(*self._rows_of(block), 1)
        square = dot(queries @ form[block.where[1]], queries).clamp(min=0)
        return square.reshape(*self._rows_of(block), 1)

    def usable_keys(self, block: LayerBlock) -> slice:
        """The keys from the first to the last that some query of a block may use; all in Gram coordinates."""
        n = self.templates.shape[1]
        if self.gram:
            return slice(0, n)
        usable = (~torch.isneginf(block.log_preference)).flatten(0, 2).any(0).nonzero()
        return slice(int(usable[0]), int(usable[-1]) + 1)

    def rows(
        self, block: LayerBlock, keys: slice, evidence_square: Tensor
    ) -> tuple[Rows, Callable[[], Rows]]:
        """A block's rows in the working dtype, and what gives them in float64.

        Args:
            block: The block.
            keys: Its usable keys.
            evidence_square: ‖z‖², float64, (g, r, 1).
        """
        if not self.gram:
            return self._by_passes(block, keys, evidence_square)
        response = SoftmaxResponse.to_preference(self._of_rows(block).log_softmax(-1))
        scores, square = self._scores(block, self._working_keys), evidence_square.to(self.dtype)
        rows = Rows(response, response.rest, self.alpha.to(self.dtype), scores, square)
        return rows, lambda: self._wide(block, self._scores(block, self.keys), evidence_square)

    def _by_passes(self, block: LayerBlock, keys: slice, square: Tensor) -> tuple[Rows, Callable[[], Rows]]:
        templates, dtype = self.templates[:, keys], self.dtype
        # The mean at rest of queries that share a preference is computed once.
        preference = block.log_preference[..., keys].double()
        h, q = preference.shape[1:3]
        rest = PassResponse.to_preference(templates, preference.flatten(1, 2)).rest
        if h * q > 1:
            lead = (len(rest), *block.queries.shape[1:3])
            rest = rest.unflatten(1, (h, q)).expand(*lead, -1).flatten(1, 2)
            preference = preference.expand(-1, *lead[1:], -1)
        response = PassResponse.around(templates, preference.flatten(1, 2), rest)
        evidence = self._evidence(block)
        wide = Rows(response, rest, self.alpha, evidence, square)
        narrow = response.to(dtype)
        rows = Rows(narrow, narrow.rest, self.alpha.to(dtype), evidence.to(dtype), square.to(dtype))
        return rows, lambda: wide

    def template_rows(self, block: LayerBlock, index: Tensor | None = None) -> Rows:
        """A block's rows, or those at ``index`` (g, r'), in float64 and template coordinates."""
        evidence = self._evidence(block, index)
        return self._wide(block, evidence, dot(evidence, evidence).unsqueeze(-1), index)

    def query_block(self, rows: Rows) -> QueryBlock:
        """Rows in template coordinates as a solver of whole problems takes them."""
        response = cast("SoftmaxResponse", rows.response)
        return QueryBlock(self.templates, response.log_preference, rows.evidence, rows.alpha)

    def dual(self, block: LayerBlock, x: Tensor, index: Tensor | None = None) -> Tensor:
        """The dual points with coordinates x (g, r, size), or those of the rows at ``index``, float64, (g, r, d)."""
        if index is not None:
            x = gather_rows(x, index)
        if self.gram:
            x = self._evidence(block, index) + x @ self.templates
        return self.alpha * x

    @cached_property
    def template_coordinates(self) -> TemplateCoordinates:
        """Template coordinates in float64."""
        return TemplateCoordinates(self.templates)

    def _wide(self, block: LayerBlock, evidence: Tensor, square: Tensor, index: Tensor | None = None) -> Rows:
        log_preference = self._of_rows(block)
        if index is not None:
            log_preference = gather_rows(log_preference, index)
        log_preference = log_preference.double().log_softmax(-1)
        response = SoftmaxResponse.to_preference(log_preference)
        return Rows(response, response.rest, self.alpha, evidence, square)

    def _rows_of(self, block: LayerBlock) -> tuple[int, int]:
        g, h, q = block.queries.shape[:3]
        return g, h * q

    def _of_rows(self, block: LayerBlock) -> Tensor:
        """The block's log preference, (g or 1, r or 1, n)."""
        preference = block.log_preference
        if max(preference.shape[1:3]) > 1:
            preference = preference.expand(-1, *block.queries.shape[1:3], -1)
        return preference.flatten(1, 2)

    def _scores(self, block: LayerBlock, keys: Tensor) -> Tensor:
        """Scores s = Tz up to a constant a row, (g, r, n)."""
        keys = keys[:, block.where[1]] if keys.shape[1] > 1 else keys
        return (block.queries.to(keys.dtype) @ keys.mT).flatten(1, 2)

    def _evidence(self, block: LayerBlock, index: Tensor | None = None) -> Tensor:
        """The evidence z, float64, (g, r, d), or of the rows at ``index`` (g, r')."""
        queries, lift = block.queries.double(), self._lift
        if index is None:
            return (queries if lift is None else queries @ lift[block.where[1]]).flatten(1, 2)
        chosen = gather_rows(queries.flatten(1, 2), index)
        if lift is None:
            return chosen
        heads = index // block.queries.shape[2]
        found = chosen.new_empty(*index.shape, lift.shape[-1])
        for head, matrix in enumerate(lift[block.where[1]]):
            here = heads == head
            found[here] = chosen[here] @ matrix
        return found

    @cached_property
    def second_order_maps(self) -> tuple[Tensor, Tensor]:
        r"""Maps from queries to x₂ = -(I + αD_u G)⁻¹αD_u s and to its lift, each (g, heads or 1, d_h, n).

        For Gram coordinates and a shared preference. Scores are linear in a query of d_h numbers, s = Kq, so the system
        is solved for the columns of K, once for all queries.
        """
        gram, u = self.wide.operator, self.preference.mT
        g, heads, n, width = self.keys.shape
        keys = self.keys.transpose(1, 2).flatten(2)
        matrix = self.alpha * u * (gram - u.mT @ gram)
        matrix.diagonal(dim1=-2, dim2=-1).add_(1)
        # Inverted in float64, whatever α; what it is multiplied with is no more precise than the model.
        inverse, gram = torch.linalg.inv(matrix).to(self.dtype), self.working.operator
        maps = -inverse @ (self.alpha * u * (keys - u.mT @ keys)).to(self.dtype)
        shaped = ((part.reshape(g, n, heads, width).permute(0, 2, 3, 1)) for part in (maps, gram @ maps))
        found, lifted = (part.contiguous() for part in shaped)
        return found, lifted

    @cached_property
    def second_order_matrix(self) -> Tensor:
        """(I + αΣ)⁻¹, (g, d, d), float64, by which the row of evidence is multiplied, for a shared preference."""
        return torch.linalg.inv(hessian(covariance(self.templates, self.preference), self.alpha).squeeze(1))

    @cached_property
    def second_order_forms(self) -> tuple[Tensor, Tensor]:
        r"""Quadratic forms of the query, each (g, heads or 1, d_h, d_h), float64, for a shared preference.

        Returns:
            Those of :math:`\lVert\lambda_2 - \alpha z\rVert^2/\alpha^2` and :math:`\lVert\lambda_2\rVert^2/\alpha^2`.
        """
        if self.gram:
            maps, lifted = (part.double() for part in self.second_order_maps)
            moved, along = maps @ lifted.mT, maps @ self.keys
            start = torch.eye(moved.shape[-1], dtype=moved.dtype, device=moved.device)
            start = start if self._evidence_form is None else self._evidence_form
            return moved, start + along + along.mT + moved
        kept = self.second_order_matrix.unsqueeze(1)
        taken = torch.eye(kept.shape[-1], dtype=kept.dtype, device=kept.device) - kept
        vectors = (taken, kept) if self._lift is None else (self._lift @ taken, self._lift @ kept)
        moved, reached = (part @ part.mT for part in vectors)
        return moved, reached
