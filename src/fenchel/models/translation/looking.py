"""One attention over a source sentence, asked for all words of the target at once or for one after the other."""

from __future__ import annotations

from torch import Tensor, nn

from fenchel.models.inference import Inference
from fenchel.models.translation.encoder import Reading
from fenchel.nn.preference import AbstractPreference, AttentionInputs

__all__ = ["Looking"]


class Looking:
    """Infers h for queries from what was read; what no query changes is computed once.

    Args:
        reading: Of the source.
        evidence: From queries to z.
        preference: u.
        inference: g.
        looks_at_queries: Whether the preference does, and so cannot be computed before them.
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
        looks_at_queries: bool,
        queries: int | None,
        query_padding: Tensor | None = None,
    ) -> None:
        self._reading, self._evidence = reading, evidence
        self._preference, self._inference = preference, inference
        self._query_padding = query_padding
        self._templates = reading.templates.unsqueeze(1)
        self._ahead: Tensor | None = None
        self._is_ahead = queries is not None and not looks_at_queries
        if queries is not None and self._is_ahead:
            self._ahead = preference(self._inputs(None, queries, 0))

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

    def _log_preference(self, queries: Tensor, place: int, count: int) -> Tensor | None:
        if not self._is_ahead:
            return self._preference(self._inputs(queries, count, place))
        ahead = self._ahead
        return ahead if ahead is None or ahead.shape[2] == 1 else ahead[:, :, place : place + count]

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
