"""What a batch of ready-made inputs says of its rows and tokens, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.data.batch import Measure
from fenchel.data.token_texts import PADDING, TokenTexts
from fenchel.errors import InputError

__all__ = ["KnownOfBatch"]

_TOKENS = {"counted": "tokens", "counted_decoder": "tokens_decoder"}
_NAMES = ("inputs", *_TOKENS, "documents", "windows", *_TOKENS.values(), "loss", "score")


class KnownOfBatch:
    """What is known of a batch; see :class:`~fenchel.data.ready_batches.ReadyBatches`.

    Args:
        batch: As it was given; empty where nothing is known but the inputs.
        rows: How many rows it has.
        number: Its number, from 1.
        texts: Gives token texts their numbers.

    Raises:
        InputError: If it has something of another name.
    """

    def __init__(self, batch: Mapping[str, Any], rows: int, number: int, texts: TokenTexts) -> None:
        self._batch, self._rows, self._number, self._texts = batch, rows, number, texts
        unknown = [name for name in batch if name not in _NAMES]
        if unknown:
            raise InputError(
                f"batch {number} has {shown(unknown[0])}; expected names among {', '.join(_NAMES)}."
            )

    @property
    def has_texts(self) -> bool:
        """Whether texts of tokens are known."""
        return any(self._batch.get(name) is not None for name in _TOKENS.values())

    def counted(self, name: str) -> Tensor | None:
        """Which tokens count: as was said, else those that have a text."""
        found = self._batch.get(name)
        if found is None:
            ids = self.ids(_TOKENS[name])
            return None if ids is None else ids != PADDING
        if (
            not isinstance(found, Tensor)
            or found.dtype != torch.bool
            or found.dim() != 2
            or len(found) != self._rows
        ):
            got = f"{tuple(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else shown(found)
            raise self._error(name, got, f"a tensor ({self._rows}, tokens) of torch.bool")
        return found.cpu()

    def ids(self, name: str) -> Tensor | None:
        """The tokens as numbers, (rows, tokens), with padding after the shorter rows."""
        rows = self._batch.get(name)
        if rows is None:
            return None
        expected = f"a list of token texts for each of {self._rows} rows"
        if not isinstance(rows, list | tuple) or len(rows) != self._rows:
            raise self._error(
                name, f"{len(rows)} rows" if isinstance(rows, list | tuple) else shown(rows), expected
            )
        for row in rows:
            if not isinstance(row, list | tuple) or not all(isinstance(text, str) for text in row):
                raise self._error(name, f"a row {shown(row)}", expected)
        mask = self._batch.get(name.replace("tokens", "counted"))
        longest = max(map(len, rows))
        length = longest if mask is None else mask.shape[1]
        if longest > length:
            raise self._error(name, f"a row of {longest} tokens", f"at most {length}, as its counted has")
        return self._texts.ids(rows, length)

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """A number a row."""
        found = self._batch.get(name)
        if found is None:
            return None
        if isinstance(found, Tensor):
            found = found.tolist()
        fits = isinstance(found, list | tuple) and len(found) == self._rows
        if not fits or not all(type(one) is int and one >= 1 for one in found):
            raise self._error(name, shown(found), f"{self._rows} whole numbers from 1")
        return tuple(found)

    def measure(self, name: str) -> Measure | None:
        """A function of what the model returns."""
        found: Measure | None = self._batch.get(name)
        if found is None or callable(found):
            return found
        raise self._error(
            name, shown(found), "a function of what the model returns, which gives a number a row"
        )

    def _error(self, name: str, got: str, expected: str) -> InputError:
        return InputError(f"batch {self._number} has {name} {got}; expected {expected}.")
