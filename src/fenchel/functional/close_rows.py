"""Queries of a call under any closeness, and how they are cut into parts whose arrays of weights fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.closeness import AbstractCloseness, Divergence
from fenchel.conjugate import conjugate_of
from fenchel.functional.arguments import AttentionArguments
from fenchel.functional.close_arguments import closeness_of_heads
from fenchel.functional.precision import compute_dtype
from fenchel.functional.recomputed import recomputed
from fenchel.preference import Discrete
from fenchel.preference.discrete import log_weights
from fenchel.problem import Problem

__all__ = ["CloseRows", "in_parts"]

PART_BYTES = 2**25
"""Size aimed at for one (B, H, queries, n) array of a part."""

LEAST_QUERIES = 32
"""Queries that a part has at least, since it goes through all keys."""

LARGEST_BYTES = 2**28
"""Size of that array from which sequences are taken by themselves, where they share the closeness."""


@dataclass(frozen=True)
class CloseRows:
    """Some queries of some heads and sequences.

    Attributes:
        evidence: z, (B, H, m, d).
        templates: (B, H, n, d).
        log_preference: Bool or floating, (B or 1, H or 1, m or 1, n), something to attend to in every row; or
            None.
        alpha: α, (B or 1, H or 1, m or 1, 1).
        closeness: D, with numbers of its own that broadcast to (B, H, m).
    """

    evidence: Tensor
    templates: Tensor
    log_preference: Tensor | None
    alpha: Tensor
    closeness: AbstractCloseness

    @classmethod
    def of(cls, given: AttentionArguments, closeness: AbstractCloseness) -> CloseRows:
        """Those of a call, never in a half type."""
        evidence, templates, preference, alpha = given.problem_in(compute_dtype(given.query.dtype))
        found = cls(evidence, for_heads(templates, given), preference, alpha, closeness)
        if isinstance(closeness, Divergence):
            # Which is tried when it first meets a preference.
            closeness.bind(Discrete(found.templates, next(found.parts())[1].log_weights()))
        return found

    def log_weights(self) -> Tensor:
        """Log u, normalised, (B or 1, H or 1, m or 1, n)."""
        given, like = self.log_preference, self.templates
        if given is None:
            return like.new_zeros(1, 1, 1, like.shape[-2]).log_softmax(-1)
        return log_weights(given, like.dtype).log_softmax(-1)

    def weights(self, dual: Tensor) -> Tensor:
        """P at dual points (B, H, m, d), (B, H, m, n)."""
        return self.closeness.weights(dual @ self.templates.mT, self.log_weights())

    def problem(self) -> Problem:
        """The same as a problem of the core."""
        believed = Discrete(self.templates, self.log_weights())
        return Problem(conjugate_of(believed, self.closeness), self.evidence, self.alpha.squeeze(-1))

    def head(self, index: int) -> CloseRows:
        """One head."""
        closeness = closeness_of_heads(self.closeness, torch.tensor([index], device=self.evidence.device))
        return self._narrowed(1, slice(index, index + 1), closeness)

    def has_numbers_of_heads_alone(self) -> bool:
        """Whether the closeness has numbers, that heads have of their own and their queries share."""
        shapes = self.closeness.query_shapes().values()
        of_heads = [shape for shape in shapes if len(shape) > 1 and shape[-2] > 1]
        return bool(of_heads) and all(
            shape[-1] == 1 and (len(shape) < 3 or shape[-3] == 1) for shape in of_heads
        )

    def row_bytes(self) -> int:
        """Of one query of all heads and sequences in an array (B, H, m, n)."""
        return self.evidence.shape[:2].numel() * self.templates.shape[2] * self.evidence.element_size()

    def sequences(self) -> Iterator[tuple[slice, CloseRows]]:
        """All sequences together, or each by itself where together they are too many."""
        count = self.evidence.shape[0]
        shapes = self.closeness.query_shapes().values()
        shared = all(len(shape) < 3 or shape[-3] == 1 for shape in shapes)
        together = count == 1 or not shared or LEAST_QUERIES * self.row_bytes() <= LARGEST_BYTES
        each = count if together else 1
        for start in range(0, count, each):
            span = slice(start, start + each)
            yield span, self if together else self._narrowed(0, span, self.closeness)

    def parts(self) -> Iterator[tuple[slice, CloseRows]]:
        """Ranges of queries."""
        queries, each = self.evidence.shape[2], max(LEAST_QUERIES, PART_BYTES // max(1, self.row_bytes()))
        if queries <= each:
            yield slice(0, queries), self
            return
        for start in range(0, queries, each):
            span = slice(start, min(start + each, queries))
            yield span, self._narrowed(2, span, self.closeness.queries(span))

    def _narrowed(self, dim: int, span: slice, closeness: AbstractCloseness) -> CloseRows:
        def narrowed(tensor: Tensor) -> Tensor:
            return (
                tensor if tensor.shape[dim] == 1 else tensor.narrow(dim, span.start, span.stop - span.start)
            )

        preference = self.log_preference
        return CloseRows(
            narrowed(self.evidence),
            self.templates if dim == 2 else narrowed(self.templates),
            None if preference is None else narrowed(preference),
            narrowed(self.alpha),
            closeness,
        )


def for_heads(tensor: Tensor, given: AttentionArguments) -> Tensor:
    """Heads of the keys, (B, H_kv, n, ...), repeated for every head of the query."""
    sharing = given.query.shape[1] // tensor.shape[1]
    return tensor if sharing == 1 else tensor.repeat_interleave(sharing, 1)


def in_parts(
    rows: CloseRows, function: Callable[..., Tensor], points: Tensor, *of_keys: Tensor, again: bool = True
) -> Tensor:
    """A function of queries part by part, put together, (B, H, m, any).

    Args:
        rows: The queries.
        function: Of a part, its points, and whatever goes with the keys of its sequences.
        points: (B, H, m, d).
        *of_keys: (B, H, n, any) each.
        again: Whether the backward pass computes a part again instead of keeping its arrays.
    """
    found = []
    for sequences, some in rows.sequences():
        of_these = [tensor[sequences] for tensor in of_keys]
        pieces = []
        for span, part in some.parts():
            given = (part, points[sequences, :, span], *of_these)
            pieces.append(recomputed(function, *given) if again else function(*given))
        found.append(pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2))
    return found[0] if len(found) == 1 else torch.cat(found, 0)
