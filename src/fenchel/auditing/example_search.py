"""Finds the queries and the sentence that are kept for each head while batches go by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fenchel.auditing.answers import Solving, answers
from fenchel.auditing.attention_matrix import MOST_TOKENS, AttentionMatrix, keep_the_longest, matrix_rank
from fenchel.auditing.examples import (
    LEAST_SHARE,
    FarQueries,
    HeadExample,
    Passage,
    TemplateWeight,
    is_full,
    keep_the_farthest,
)
from fenchel.auditing.farthest import FarthestQueries
from fenchel.auditing.heads import HeadKey
from fenchel.auditing.packed import Packing, packed
from fenchel.auditing.window_text import WindowText, WindowTexts
from fenchel.data.batch import Batch

if TYPE_CHECKING:
    from fenchel.auditing.capture import AttentionCall
    from fenchel.auditing.measure import Measures

__all__ = ["ExampleSearch"]

NUM_TEMPLATES = 12
_PASSAGE = 112  # tokens of a passage
_MATRIX_TOL = 1e-3


@dataclass(frozen=True)
class _Candidate:
    """A query that may be kept: its example without words, where it is in the batch, and its weights."""

    example: HeadExample
    row: int
    first_order: Tensor
    exact: Tensor


class ExampleSearch:
    """Keeps, for each head, the counted queries with the largest total variation, of different patterns and windows.

    Of every window the farthest queries are looked at. What is kept does not depend on the order of the batches: of
    equals it is the earliest in the text.

    Args:
        examples: What was kept before; changed at the end of a batch alone.
        matrices: The attention of a sentence by every head, likewise.
        solving: How the queries of the audit are solved.
    """

    def __init__(
        self, examples: FarQueries, matrices: dict[HeadKey, AttentionMatrix], solving: Solving
    ) -> None:
        self.examples, self.matrices = examples, matrices
        self._solving = solving
        # What is kept of a matrix has 8 bits a weight.
        self._rough = replace(solving, tol=max(solving.tol, _MATRIX_TOL))
        self._found: list[HeadExample] = []
        self._matrices: list[AttentionMatrix] = []
        self._texts: WindowTexts | None = None

    def begin_batch(self) -> None:
        """Forget what was found in a batch that did not come to its end."""
        self._found, self._matrices, self._texts = [], [], None

    def look(self, call: AttentionCall, heads: Sequence[int], measures: Measures, batch: Batch) -> None:
        """Find the queries of one attention call that are farther than those kept.

        Args:
            call: The attention call.
            heads: Numbers of the heads that were measured, from 1.
            measures: What was measured of them, with the farthest queries.
            batch: The batch that the model was called with.
        """
        if measures.farthest is None:
            return
        if self._texts is None or self._texts.batch is not batch:
            self._texts = WindowTexts(batch)
        by_head: dict[HeadKey, list[_Candidate]] = defaultdict(list)
        sides = _Sides(self._texts, call)
        for candidate in self._candidates(sides, heads, measures, measures.farthest):
            by_head[candidate.example.key].append(candidate)
        for key, some in by_head.items():
            for candidate in self._chosen(key, some):
                self._found.append(_with_words(candidate, *sides.of(candidate.row)))
        self._matrices += self._seen(sides, heads)

    def end_batch(self) -> None:
        """Keep what was found in the batch."""
        keep_the_farthest(self.examples, self._found)
        keep_the_longest(self.matrices, self._matrices)
        self.begin_batch()

    def _candidates(
        self, sides: _Sides, heads: Sequence[int], measures: Measures, farthest: FarthestQueries
    ) -> Iterator[_Candidate]:
        """Queries that may have to be kept, with their patterns."""
        batch, call = sides.batch, sides.call
        keys = [HeadKey(call.site.kind, call.site.layer, head) for head in heads]
        index = farthest.positions.clamp(min=0)
        variation, deviation = (
            measures.values[name].gather(-1, index).float().cpu()
            for name in ("total_variation", "relative_deviation")
        )
        # Each kept query costs a sentence in words: those that cannot stay are not looked at.
        kept = [self.examples.get(key, ()) for key in keys]
        least = torch.tensor(
            [
                max(
                    LEAST_SHARE * some[0].total_variation if some else 0.0,
                    some[-1].total_variation if is_full(some) else 0.0,
                )
                for some in kept
            ]
        )
        within = (farthest.positions.cpu() >= 0) & (variation >= least[:, None])
        for row in range(len(batch.documents)):
            columns, places = within[row].nonzero(as_tuple=True)
            if not len(columns):
                continue
            chosen = columns.to(index.device), places.to(index.device)
            positions = index[row][chosen].cpu()
            of_row = zip(
                columns.tolist(),
                positions.tolist(),
                variation[row][columns, places].tolist(),
                deviation[row][columns, places].tolist(),
                strict=True,
            )
            first_order, exact = (
                part[row][chosen].float().cpu() for part in (farthest.first_order, farthest.exact)
            )
            queries, templates = sides.of(row)
            own = None if call.site.kind == "cross" else positions
            moved = templates.moved(first_order, exact, own)
            for number, (column, position, far, off) in enumerate(of_row):
                example = HeadExample(
                    key=keys[column],
                    total_variation=far,
                    relative_deviation=off,
                    document=batch.documents[row],
                    window=batch.windows[row],
                    position=position + 1,
                    token="",
                    templates=(),
                    context="",
                    pattern=(queries.place(position), *moved[number]),
                )
                yield _Candidate(example, row, first_order[number], exact[number])

    def _chosen(self, key: HeadKey, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """Those that are among the head's farthest, with what is kept."""
        kept = {key: self.examples.get(key, ())}
        keep_the_farthest(kept, [candidate.example for candidate in candidates])
        ranks = {example.rank for example in kept[key]}
        return [candidate for candidate in candidates if candidate.example.rank in ranks]

    def _seen(self, sides: _Sides, heads: Sequence[int]) -> list[AttentionMatrix]:
        """The matrices of the window that shows most of a sentence, unless those that are kept show as much."""
        batch, call = sides.batch, sides.call
        windows = range(len(batch.documents))
        lengths = [sides.of(row)[0].length for row in windows]
        ranks = [matrix_rank(batch.documents[row], batch.windows[row], lengths[row]) for row in windows]
        row = max(windows, key=ranks.__getitem__)
        keys = [HeadKey(call.site.kind, call.site.layer, head) for head in heads]
        kept = [self.matrices[key].rank for key in keys if key in self.matrices]
        if not lengths[row] or (len(kept) == len(keys) and min(kept) >= ranks[row]):
            return []
        queries, templates = sides.of(row)
        shown, on = queries.beginning(MOST_TOKENS), templates.beginning(MOST_TOKENS)
        found = answers(call, row, heads, [shown] * len(heads), self._rough)
        place = batch.documents[row], batch.windows[row], lengths[row]
        pieces = queries.pieces, templates.pieces
        return [
            AttentionMatrix.of(key, place, found.first_order[i], found.exact[i], (shown, on), pieces)
            for i, key in enumerate(keys)
        ]


class _Sides:
    """The texts of queries and of templates of an attention call."""

    def __init__(self, texts: WindowTexts, call: AttentionCall) -> None:
        self.batch, self.call = texts.batch, call
        self._texts = texts

    def of(self, row: int) -> tuple[WindowText, WindowText]:
        """Those of one row."""
        call = self.call
        return self._texts.sides(row, call.site.kind, (call.query.shape[2], call.key.shape[2]))


def _with_words(candidate: _Candidate, queries: WindowText, templates: WindowText) -> HeadExample:
    """The example with its tokens, its sentence and the heaviest templates under either answer."""
    example, first_order, exact = candidate.example, candidate.first_order, candidate.exact
    heaviest = torch.maximum(first_order, exact)
    heavy = torch.argsort(heaviest, descending=True, stable=True)[:NUM_TEMPLATES]
    weights = zip(heavy.tolist(), first_order[heavy].tolist(), exact[heavy].tolist(), strict=True)
    position = example.position - 1
    # Queries of another text say nothing about where the templates' weights are.
    centre = int((first_order - exact).abs().argmax()) if example.key.kind == "cross" else position
    span = templates.passage(centre, _PASSAGE)
    context, token = queries.context(position, _PASSAGE)
    return replace(
        example,
        token=queries.token(position),
        templates=tuple(
            TemplateWeight(place + 1, templates.token(place), attended, inferred)
            for place, attended, inferred in weights
            if max(attended, inferred) > 0
        ),
        context=context,
        context_token=token,
        passage=Passage(
            first_position=span.start + 1,
            window_tokens=templates.length,
            pieces=templates.pieces[span.start : span.stop],
            first_order=packed(first_order[span.start : span.stop], Packing.FINE),
            exact=packed(exact[span.start : span.stop], Packing.FINE),
        )
        if templates.pieces
        else None,
    )
