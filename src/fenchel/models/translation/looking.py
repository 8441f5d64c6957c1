"""One attention over a source sentence, asked for all words of the target at once or for one after the other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import mul

from torch import Tensor, nn

from fenchel.models.inference import Inference
from fenchel.models.translation.encoder import Reading
from fenchel.nn.preference import (
    AbstractPreference,
    Additive,
    AttentionInputs,
    Context,
    GaussianWindow,
    KeyPadding,
    Product,
    RelativePosition,
    Uniform,
)
from fenchel.nn.preference.dense import combined

__all__ = ["Looking"]

_BLIND = (Context, GaussianWindow, KeyPadding, RelativePosition, Uniform)
"""Families that look at no query, but for windows whose ``query_dim`` says that they do."""


class Looking:
    """Infers h for queries from what was read; what no query changes is computed once.

    Args:
        reading: Of the source.
        evidence: From queries to z.
        preference: u.
        inference: g.
        queries: How many words the target has, where they are asked for one by one; None where there is one call.
        query_padding: For audits, True where the target has no word, bool (B, words of the target).
    """

    def __init__(
        self,
        reading: Reading,
        *,
        evidence: nn.Module,
        preference: AbstractPreference,
        inference: Inference,
        queries: int | None,
        query_padding: Tensor | None = None,
    ) -> None:
        self._reading, self._evidence = reading, evidence
        self._preference, self._inference = preference, inference
        self._query_padding = query_padding
        self._templates = reading.templates.unsqueeze(1)
        self._ahead: list[Tensor | None] = []
        self._scores: list[Callable[[Tensor], Tensor]] = []
        if queries is not None:
            self._look_ahead(queries)

    def __call__(self, queries: Tensor, place: int) -> Tensor:
        """h, (B, m, width).

        Args:
            queries: (B, m, width).
            place: Of the first of them in the target.
        """
        count, padding = queries.shape[1], self._query_padding
        evidence = self._evidence(queries).unsqueeze(1)
        found = self._inference(
            self._templates,
            self._templates,
            evidence.to(self._templates.dtype),
            self._log_preference(queries, place, count),
            key_padding=self._reading.padding,
            query_padding=None if padding is None else padding[:, place : place + count],
        )
        return found.output.squeeze(1)

    def _look_ahead(self, queries: int) -> None:
        """Computes the factors that are known to look at no query, and what an additive score makes of the keys."""
        left: list[AbstractPreference] = []
        for factor in _factors_of(self._preference):
            if isinstance(factor, Additive):
                keys = factor.keys(self._reading.templates)
                self._scores.append(partial(factor.scores, keys=keys))
            elif isinstance(factor, _BLIND) and getattr(factor, "query_dim", None) is None:
                self._ahead.append(factor(self._inputs(None, queries, 0)))
            else:
                left.append(factor)
        self._preference = reduce(mul, left, Uniform())
        if not left and not self._scores:  # one tensor that all steps read
            self._ahead = [combined(self._ahead)]

    def _log_preference(self, queries: Tensor, place: int, count: int) -> Tensor | None:
        own = self._preference(self._inputs(queries, count, place))
        ahead = [
            one if one is None or one.shape[2] == 1 else one[:, :, place : place + count]
            for one in self._ahead
        ]
        terms = [*ahead, own, *(scores(queries) for scores in self._scores)]
        found = [term for term in terms if term is not None]
        return found[0] if len(found) == 1 else combined(found)

    def _inputs(self, queries: Tensor | None, count: int, place: int) -> AttentionInputs:
        templates, padding, _ = self._reading
        return AttentionInputs(
            batch=len(templates),
            heads=1,
            queries=count,
            keys=templates.shape[1],
            device=templates.device,
            dtype=templates.dtype,
            query_inputs=queries,
            key_inputs=templates,
            key_padding=padding,
            query_offset=place,
        )


def _factors_of(preference: AbstractPreference) -> list[AbstractPreference]:
    """What a preference is the product of."""
    factors = preference.factors if isinstance(preference, Product) else [preference]
    return [factor for factor in factors if isinstance(factor, AbstractPreference)]
