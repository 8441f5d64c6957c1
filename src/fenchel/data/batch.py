"""A batch, which is what a model is called with once, and the place after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from fenchel.data.patches import PatchImages
from fenchel.data.pieces import text_pieces
from fenchel.data.token_texts import PADDING
from fenchel.errors import CaptureError

__all__ = ["Batch", "Cursor", "Measure"]

Measure = Callable[[Any], Tensor]
"""From what a model returned for B rows to (B,) numbers."""


@dataclass(frozen=True)
class Cursor:
    """A place between two batches, from which an interrupted run goes on; plain integers, for JSON.

    Attributes:
        document: Index (from 0) of the document that the next window comes from.
        window: How many windows of that document were already given.
        tokens: How many tokens were counted before this place.
        documents: How many documents gave at least one token before this place.
    """

    document: int = 0
    window: int = 0
    tokens: int = 0
    documents: int = 0


@dataclass(frozen=True)
class Batch:
    """What a model is called with once, and which of its tokens count. Tensors are on the CPU.

    Rows are padded on the right whatever the tokenizer's ``padding_side`` says: nothing is generated here,
    and on the right padding moves no position and is behind every causal mask.

    Attributes:
        inputs: The model's keyword arguments.
        counted: (B, n) bool, tokens of the encoder (or of the only stack) that count as queries: padding does
            not, nor tokens that overlap the window before. None: all of them.
        counted_decoder: (B, m) bool, the same for the decoder of an encoder-decoder model. None: all of them,
            or none.
        documents: (B,) number of each row's document, from 1: its line in a text file, its row in a table.
        windows: (B,) number of each row's window within its document, from 1.
        tokens: How many tokens this batch counts (rows, where the inputs do not say how many tokens they
            have).
        after: Where the next batch starts.
        fraction: Share of the source read so far, from 0 to 1, or None where the source does not know its
            length.
        tokenizer: What made the tokens, to have their texts; None where there is none.
        pictures: Which positions are which patches of which images; None where the input is no image.
        ids: (B, n) tokens as the tokenizer knows them, where they are no input. Default: the model's ``input_ids``.
        ids_decoder: (B, m), the same for the decoder.
        loss: From what the model returns to (B,) numbers, lower is better; None where nobody said.
        score: Likewise, higher is better.
    """

    inputs: dict[str, Tensor]
    counted: Tensor | None
    counted_decoder: Tensor | None
    documents: tuple[int, ...]
    windows: tuple[int, ...]
    tokens: int
    after: Cursor
    fraction: float | None = None
    tokenizer: Any = field(default=None, repr=False)
    pictures: PatchImages | None = field(default=None, repr=False)
    ids: Tensor | None = field(default=None, repr=False)
    ids_decoder: Tensor | None = field(default=None, repr=False)
    loss: Measure | None = field(default=None, repr=False)
    score: Measure | None = field(default=None, repr=False)

    @property
    def has_decoder(self) -> bool:
        """Whether there are tokens of a decoder beside those of an encoder."""
        return (
            "decoder_input_ids" in self.inputs
            or self.ids_decoder is not None
            or self.counted_decoder is not None
        )

    def tokens_of(self, *, decoder: bool) -> Tensor | None:
        """(B, n) ids of the tokens; None where the input is not text."""
        given, name = (self.ids_decoder, "decoder_input_ids") if decoder else (self.ids, "input_ids")
        return self.inputs.get(name) if given is None else given

    def real_tokens(self, *, decoder: bool) -> Tensor | None:
        """(B, n), nonzero where a token is no padding; None where nothing says so."""
        given = self.ids_decoder if decoder else self.ids
        if given is not None:
            return given != PADDING
        return self.inputs.get("decoder_attention_mask" if decoder else "attention_mask")

    def of_sequences(self, count: int) -> Batch:
        """The batch as a layer sees it that attends in ``count`` sequences: itself, or each row cut into as many parts.

        Of parts nothing is known but their row and their number, which is that of the window.

        Raises:
            CaptureError: If rows cannot have been cut into so many parts.
        """
        rows = len(self.documents)
        parts, left = divmod(count, rows)
        if left or not parts:
            raise CaptureError(
                f"a layer attends in {count} sequences, and the batch has {rows} rows, so which row a query "
                "is of is not "
                "known. Give one input a batch"
            )
        if parts == 1:
            return self
        return replace(
            self,
            inputs={},
            counted=None,
            counted_decoder=None,
            ids=None,
            ids_decoder=None,
            documents=tuple(document for document in self.documents for _ in range(parts)),
            windows=tuple(range(1, parts + 1)) * rows,
            pictures=None,
        )

    def token(self, row: int, position: int, *, decoder: bool = False) -> str:
        """The token at a position, as text that a person can read.

        Args:
            row: Row of the batch, from 0.
            position: Position in the row, from 0.
            decoder: Whether the position is the decoder's, in an encoder-decoder model.

        Returns:
            The token's text; ``position k`` (from 1) where the input is not text.
        """
        ids = self._ids(row, decoder)
        if ids is None:
            return f"position {position + 1}"
        number = int(ids[position])
        if self.tokenizer is None:
            return str(number)
        return str(self.tokenizer.decode([number])).strip() or str(
            self.tokenizer.convert_ids_to_tokens(number)
        )

    def place(self, position: int, length: int) -> str:
        """What a position (from 0) of ``length`` is called that is no token: a patch of an image, or its number."""
        grid = None if self.pictures is None else self.pictures.grid(length)
        return f"position {position + 1}" if grid is None else grid.name(position)

    def is_text_of(self, length: int, *, decoder: bool = False) -> bool:
        """Whether the input is text with a token for each of ``length`` positions, padding included."""
        ids = self.tokens_of(decoder=decoder)
        return ids is not None and tuple(ids.shape[1:]) == (length,)

    def pieces(self, row: int, *, decoder: bool = False) -> tuple[str, ...]:
        """What each token of a row adds to its text, without padding; together they are the text.

        Args:
            row: Row of the batch, from 0.
            decoder: Whether the tokens are the decoder's, in an encoder-decoder model.

        Returns:
            A text a token, special tokens included; ids where there is no tokenizer, nothing where the input is not
            text.
        """
        ids = self._real_ids(row, decoder)
        if self.tokenizer is None:
            return tuple(f" {number}" for number in ids)
        return text_pieces(self.tokenizer, ids)

    def special(self, row: int, *, decoder: bool = False) -> tuple[bool, ...]:
        """Which tokens of a row are special ones, without padding."""
        known = set(getattr(self.tokenizer, "all_special_ids", ()))
        return tuple(number in known for number in self._real_ids(row, decoder))

    def _real_ids(self, row: int, decoder: bool) -> list[int]:
        ids = self._ids(row, decoder)
        if ids is None:
            return []
        mask = self.real_tokens(decoder=decoder)
        if mask is None or mask.shape[1:] != ids.shape:
            return ids.tolist()
        real = mask[row].nonzero()
        return ids[: int(real.max()) + 1 if len(real) else 0].tolist()

    def _ids(self, row: int, decoder: bool) -> Tensor | None:
        ids = self.tokens_of(decoder=decoder)
        return None if ids is None else ids[row]
