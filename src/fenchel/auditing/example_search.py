"""Search for the example queries and the attention matrix of each head, batch by batch, and their texts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from fenchel.auditing.examples import (
    MOST_TOKENS,
    AttentionMatrix,
    FarQueries,
    FarQuery,
    HeadExample,
    Packing,
    Passage,
    Picture,
    TemplateWeight,
    keep_the_farthest,
    keep_the_longest,
    least_variation,
    matrix_rank,
    packed,
)
from fenchel.auditing.heads import HeadKey
from fenchel.auditing.measure import MeasuredCall, SampledQueries
from fenchel.auditing.solution import layer_problem, solutions_of
from fenchel.auditing.weight_moves import KEY_CLASSES, decoder_sides, token_text
from fenchel.integrations.capture import AttentionCall
from fenchel.io.batches import Batch
from fenchel.run_options import AuditOptions


def both_weights(
    call: AttentionCall, row: int, heads: Sequence[int], queries: Sequence[int], solving: AuditOptions
) -> tuple[Tensor, Tensor]:
    """Compute the weights of a few queries.

    Args:
        call: The attention call.
        row: Row of the batch, from 0.
        heads: The heads, from 1.
        queries: Their positions, from 0; none may be padding.
        solving: Options with those of the solver.

    Returns:
        Attention's weights and the exact ones over all templates, (heads, queries, n), on the CPU.
    """
    with torch.no_grad():
        problem = layer_problem(_of_queries(call, row, queries), solving.space, heads)
        shape = (*problem.queries.shape[:3], problem.vectors.shape[1])
        result = [problem.queries.new_zeros(shape) for _ in range(2)]
        counted = torch.ones(shape[:3], dtype=torch.bool, device=problem.queries.device)
        for solution in solutions_of(problem, counted, solving):
            g, h, q = solution.block.where
            for into, weights in zip(result, solution.weights(), strict=True):
                into[g, h, q] = weights.reshape(into[g, h, q].shape)
        first_order, exact = (part.flatten(0, 1).float().cpu() for part in result)
        return first_order, exact


def _of_queries(call: AttentionCall, row: int, queries: Sequence[int]) -> AttentionCall:
    """The call restricted to some queries of one row of its batch."""
    tensors = {name: getattr(call, name) for name in ("query", "key", "preference", "counted", "inputs")}
    # A preference with one row is that of all.
    own: dict[str, Any] = {
        name: x if x is None or len(x) == 1 else x[row : row + 1] for name, x in tensors.items()
    }
    index = torch.as_tensor([queries], device=call.query.device)
    there = own["counted"].gather(1, index)
    return SampledQueries(index, there, there.sum(1)).of_call(replace(call, **own))


NUM_TEMPLATES = 12

_PASSAGE = 112  # tokens of a passage

_MATRIX_TOL = 1e-3


@dataclass(frozen=True, eq=False)
class _Candidate(FarQuery):
    """A query that may be kept, with its row in the batch and its weights."""

    row: int
    first_order: Tensor
    exact: Tensor


_INCOMPLETE = "\ufffd"


def text_pieces(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """The text that each token adds to that of the tokens before it.

    A token that begins a word begins with a space, one that continues a word does not. A character of several tokens
    is added by the last of them.

    Args:
        tokenizer: Decodes ids; None if there is none.
        ids: The tokens, without padding.

    Returns:
        A text for each token, the first without a leading space; special tokens are spelled out. Without a tokenizer
        the ids.
    """
    if tokenizer is None:
        return tuple(f" {number}" for number in ids)
    ids, pieces = tuple(ids), list[str]()

    @cache
    def decoded_text(some: tuple[int, ...]) -> str:
        return str(tokenizer.decode(list(some))) if some else ""

    # Tokens up to ``known`` have their texts; the last of them, from ``start`` on, are decoded again as context.
    start = known = 0
    for end in range(1, len(ids) + 1):
        before, decoded = decoded_text(ids[start:known]), decoded_text(ids[start:end])
        # A character has at most 4 bytes.
        if decoded.endswith(_INCOMPLETE) and end < len(ids) and end - known < 4:
            pieces.append("")
            continue
        # Some decoders clean up the text before: " do not" becomes " don't".
        cut = decoded.startswith(before)
        added = decoded[len(before) :] if cut else f" {decoded_text(ids[end - 1 : end]).strip()}"
        pieces.append(added.lstrip() if not any(pieces) else added)
        start, known = known, end
    return tuple(pieces)


_ENDS = (".", "!", "?", "…", "。", "！", "？")


class Sentences:
    """Starts of the words and sentences of a text.

    Args:
        pieces: The text of every token (:func:`text_pieces`).

    Attributes:
        length: Number of tokens.
        words: Positions at which words start, ascending.
        starts: Positions at which sentences start, ascending.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self.length = len(pieces)
        self.words = [
            place for place, piece in enumerate(pieces) if place == 0 or piece.startswith((" ", "\n"))
        ]
        self.starts = [place for place in self.words if place == 0 or _ends_sentence(pieces[place - 1])]


def passage_around(text: Sentences, position: int, most: int) -> range:
    """Positions of a passage that contains a token and its sentence.

    The sentence of the token and as many whole sentences after and before it as fit. A sentence that does not fit is
    cut between words around the token, a word that does not fit anywhere.

    Args:
        text: The text.
        position: The token, from 0.
        most: Maximum number of tokens in the passage, at least 1.

    Returns:
        The positions, including ``position``.

    Example:
        >>> text = Sentences(("Do", " not", ".", " Not", " every", " question", " ends", "."))
        >>> passage_around(text, 5, 5), passage_around(text, 5, 3), passage_around(text, 5, 8)
        (range(3, 8), range(4, 6), range(0, 8))
    """
    if text.length <= most:
        return range(text.length)
    first, last = _part(text.starts, position, text.length)
    if last - first > most:
        return _cut(text.words, position, first, last, most)
    while True:
        after = _part(text.starts, last, text.length)[1] if last < text.length else last
        before = _part(text.starts, first - 1, text.length)[0] if first else first
        if last < after <= first + most:
            last = after
        elif last - most <= before < first:
            first = before
        else:
            return range(first, last)


def _ends_sentence(piece: str) -> bool:
    return piece.strip().rstrip("\"'”’)").endswith(_ENDS)


def _part(starts: Sequence[int], position: int, end: int) -> tuple[int, int]:
    """Start and end of the part that contains a position, given the starts of all parts."""
    following = bisect_right(starts, position)
    return starts[following - 1], starts[following] if following < len(starts) else end


def _cut(words: Sequence[int], position: int, first: int, last: int, most: int) -> range:
    low = max(first, min(position - most // 2, last - most))
    own_first, own_last = _part(words, position, last)
    if own_last - own_first > most:
        low = max(own_first, min(low, own_last - most))
        return range(low, low + most)
    low = max(own_last - most, min(low, own_first))
    start = words[bisect_left(words, low)]
    high = bisect_right(words, low + most)
    return range(start, last if last <= low + most else words[high - 1])


class WindowText:
    """Texts of the queries, or of the keys, of one window.

    Args:
        batch: The batch.
        row: The window's row.
        decoder: Whether the tokens are those of the decoder's input.
        length: Number of positions, padding included. If it is not the number of tokens, the input is not text.

    Attributes:
        pieces: The text of each token, with a space before it where a word begins; empty where the input is no text.
        length: Number of positions of the window, without padding.
        special: Whether each position is a special token.
        token: Function from a position to the text of its token; to its name where the input is no text.
        passage: Function from a position and a maximum number of tokens to the passage around it.
    """

    def __init__(self, batch: Batch, row: int, *, decoder: bool, length: int) -> None:
        self._batch, self._row = batch, row
        self._grid = None if batch.pictures is None else batch.pictures.grid(length)
        ids, mask = batch.tokens_of(decoder=decoder), batch.real_tokens(decoder=decoder)
        self._ids: list[int] = []
        if ids is not None and ids.shape[1:] == (length,):
            self._ids = ids[row].tolist()
        real = self._ids
        if mask is not None and mask.shape[1:] == (length,):
            places = mask[row].nonzero()
            real = real[: int(places.max()) + 1 if len(places) else 0]
        self.pieces = text_pieces(batch.tokenizer, real)
        self.length = len(self.pieces) or length
        known = set(getattr(batch.tokenizer, "all_special_ids", ()))
        self.special = [number in known for number in real] + [False] * (self.length - len(real))
        self._sentences = Sentences(self.pieces or (" ",) * self.length)
        self.token = cache(self._token)
        self.passage = cache(partial(passage_around, self._sentences))
        self._text_of_span = cache(self._text_of)

    def _token(self, position: int) -> str:
        if self._ids:
            return token_text(self._batch.tokenizer, self._ids[position])
        return f"position {position + 1}" if self._grid is None else self._grid.name(position)

    def picture(self, first_order: Tensor, exact: Tensor) -> Picture | None:
        """The image with the weights of all positions; None where positions are not patches of an image."""
        images, grid = self._batch.pictures, self._grid
        if images is None or grid is None:
            return None
        weights = (packed(side, Packing.FINE) for side in (first_order, exact))
        return Picture(images.thumbnail(self._row), grid.rows, grid.columns, grid.extra, *weights)

    def beginning(self, most: int) -> list[int]:
        """The first positions, as many whole words as fit."""
        ends = [place for place in (*self._sentences.words, self.length) if 0 < place <= most]
        return list(range(max(ends, default=most)))

    def context(self, position: int, most: int) -> tuple[str, tuple[int, int] | None]:
        """The passage around a token, with "…" for omitted words and no special tokens; and the span of the token."""
        if not self.pieces:
            return "", None
        text, starts = self._text_of_span(self.passage(position, most))
        if position not in starts:
            return text, None
        return text, (starts[position], starts[position] + len(self.pieces[position].lstrip()))

    def _text_of(self, span: range) -> tuple[str, dict[int, int]]:
        """The text of a passage and the start of each token in it."""
        text = "… " if not all(self.special[: span.start]) else ""
        starts: dict[int, int] = {}
        for place in span:
            if not self.special[place]:
                piece = self.pieces[place]
                piece = piece if starts else piece.lstrip()
                starts[place] = len(text) + len(piece) - len(piece.lstrip())
                text += piece
        return (f"{text} …" if not all(self.special[span.stop :]) else text), starts


class ExampleSearch:
    """Keeps, for each head, the counted queries with the largest total variation, of different patterns and windows.

    Candidates are the farthest queries of every window. The result does not depend on the order of the batches: among
    equals the earliest in the text is kept.

    Args:
        examples: The kept examples; updated at the end of each batch.
        matrices: The kept attention matrices; likewise.
        solving: Options with those of the solver.
    """

    def __init__(
        self, examples: FarQueries, matrices: dict[HeadKey, AttentionMatrix], solving: AuditOptions
    ) -> None:
        self.examples, self.matrices = examples, matrices
        # Weights of matrices are stored in 8 bits.
        self._rough = solving.model_copy(update={"tol": max(solving.tol, _MATRIX_TOL)})
        self.begin_batch()

    def begin_batch(self) -> None:
        """Discard the candidates of a batch that was not completed."""
        self._examples: list[HeadExample] = []
        self._matrices: list[AttentionMatrix] = []
        self._batch: Batch | None = None
        self._texts: dict[tuple[int, bool, int], WindowText] = {}

    def look(self, measured: MeasuredCall) -> None:
        """Search one attention call for queries that are farther than those kept."""
        kept: dict[HeadKey, tuple[FarQuery, ...]] = {key: self.examples.get(key, ()) for key in measured.keys}
        keep_the_farthest(kept, self._candidates(measured))
        self._examples += [
            _with_words(one, *self._sides(measured, one.row))
            for queries in kept.values()
            for one in queries
            if isinstance(one, _Candidate)
        ]
        self._matrices += self._longest(measured)

    def _sides(self, measured: MeasuredCall, row: int) -> tuple[WindowText, WindowText]:
        """The texts of the queries and of the templates of a row, cached."""
        call, batch = measured.call, measured.batch
        if batch is not self._batch:
            self._batch, self._texts = batch, {}
        lengths = call.query.shape[2], call.key.shape[2]
        sides = [(row, *side) for side in zip(decoder_sides(call.site.kind, batch), lengths, strict=True)]
        for side in sides:
            if side not in self._texts:
                self._texts[side] = WindowText(batch, row, decoder=side[1], length=side[2])
        return self._texts[sides[0]], self._texts[sides[1]]

    def end_batch(self) -> None:
        """Keep the examples and matrices of the batch."""
        keep_the_farthest(self.examples, self._examples)
        keep_the_longest(self.matrices, self._matrices)
        self.begin_batch()

    def _candidates(self, measured: MeasuredCall) -> Iterator[_Candidate]:
        """Queries that may have to be kept, with their patterns."""
        batch, keys, measures = measured.batch, measured.keys, measured.measures
        values, index = measures.values, measures.positions.clamp(min=0)
        positions = measured.sample.index.unsqueeze(1).expand(-1, len(keys), -1).gather(-1, index)
        variation, deviation = (
            values[name].gather(-1, index).float().cpu() for name in ("total_variation", "relative_deviation")
        )
        # The class of the query, and those that lose and gain most.
        ends = [
            torch.stack([values[f"{side}_{name}"].gather(-1, index) for name in KEY_CLASSES], -1)
            for side in ("leaves", "reaches")
        ]
        own = measured.tokens.classes.unsqueeze(1).expand(-1, len(keys), -1).gather(-1, index)
        patterns = torch.stack((own, *(of_side.argmax(-1) for of_side in ends)), -1).cpu()
        # Decoding the text of a query is expensive: skip those that cannot be kept.
        least = torch.tensor([least_variation(self.examples.get(key, ())) for key in keys])
        within = (measures.positions.cpu() >= 0) & (variation >= least[:, None])
        # Of queries of one window and one pattern only the farthest, which comes first, is kept.
        alike = (patterns.unsqueeze(-2) == patterns.unsqueeze(-3)).all(-1)
        within &= ~alike.tril(-1).any(-1)
        chosen = within.to(index.device)
        for (row, column, _), position, far, off, pattern, first, exact in zip(
            within.nonzero().tolist(),
            positions[chosen].tolist(),
            variation[within].tolist(),
            deviation[within].tolist(),
            patterns[within].tolist(),
            *(part[chosen].float().cpu() for part in (measures.first_order, measures.exact)),
            strict=True,
        ):
            query, left, reached = (KEY_CLASSES[number] for number in pattern)
            kind, layer, head = keys[column]
            place = batch.documents[row], batch.windows[row], position + 1
            kinds = query, left, reached
            yield _Candidate(kind, layer, head, far, off, *place, kinds, row, first, exact)

    def _longest(self, measured: MeasuredCall) -> list[AttentionMatrix]:
        """The matrices of the window that shows more of a sentence than those kept; empty where none does."""
        batch, keys = measured.batch, measured.keys
        lengths = [self._sides(measured, row)[0].length for row in range(len(batch.documents))]
        places = list(zip(batch.documents, batch.windows, lengths, strict=True))
        row = max(range(len(places)), key=lambda row: matrix_rank(*places[row]))
        rank, kept = matrix_rank(*places[row]), [self.matrices.get(key) for key in keys]
        if not lengths[row] or all(matrix is not None and matrix.rank >= rank for matrix in kept):
            return []
        sides = self._sides(measured, row)
        shown, on = (side.beginning(MOST_TOKENS) for side in sides)
        weights = both_weights(measured.call, row, measured.heads, shown, self._rough)
        pieces = sides[0].pieces, sides[1].pieces
        return [
            AttentionMatrix.of(key, places[row], first_order, exact, (shown, on), pieces)
            for key, first_order, exact in zip(keys, *weights, strict=True)
        ]


def _with_words(candidate: _Candidate, queries: WindowText, templates: WindowText) -> HeadExample:
    """The example with its tokens, its sentence and its heaviest templates."""
    both = torch.stack((candidate.first_order, candidate.exact))
    heavy = both.amax(0).argsort(descending=True, stable=True)[:NUM_TEMPLATES]
    position = candidate.position - 1
    # In cross-attention the query's position says nothing about the templates.
    centre = int((both[0] - both[1]).abs().argmax()) if candidate.key.kind == "cross" else position
    span = templates.passage(centre, _PASSAGE)
    context, token = queries.context(position, _PASSAGE)
    return HeadExample(
        **{field.name: getattr(candidate, field.name) for field in fields(FarQuery)},
        token=queries.token(position),
        templates=tuple(
            TemplateWeight(place + 1, templates.token(place), attended, inferred)
            for place, attended, inferred in zip(heavy.tolist(), *both[:, heavy].tolist(), strict=True)
            if max(attended, inferred) > 0
        ),
        context=context,
        context_token=token,
        picture=templates.picture(*both),
        passage=Passage(
            span.start + 1,
            templates.length,
            templates.pieces[span.start : span.stop],
            *(packed(side[span.start : span.stop], Packing.FINE) for side in both),
        )
        if templates.pieces
        else None,
    )
