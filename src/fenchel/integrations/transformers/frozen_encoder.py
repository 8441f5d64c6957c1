"""Token states of a pretrained encoder that is not trained further, as vectors of words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fenchel.errors import InputError
from fenchel.integrations.transformers.loading import load_model

__all__ = ["FrozenEncoder", "frozen_encoder"]

_TOGETHER = 64


class FrozenEncoder:
    """A pretrained encoder and the states of its last layer, each text's computed once and kept.

    Args:
        name: As :func:`load_model` takes it, such as ``demo``.

    Raises:
        ModelError: If there is no such model.
        InputError: If it reads no text, or has no fast tokenizer.
        MissingExtraError: If transformers, or the bundled encoder, is not installed.
    """

    def __init__(self, name: str) -> None:
        self._model, tokenizer, info = load_model(name)
        fast = getattr(tokenizer, "backend_tokenizer", None)
        if fast is None:
            raise InputError(f"{name} has no fast tokenizer; expected an encoder of texts that has one.")
        self.name, self.revision = name, info.revision
        self.width: int = self._model.config.hidden_size
        self.longest: int = self._model.config.max_position_embeddings
        self._first, self._last = tokenizer.cls_token_id, tokenizer.sep_token_id
        self.tokenizer = _without_padding(fast.to_str())
        self._kept: dict[tuple[int, ...], Tensor] = {}

    def states(self, texts: Iterable[Sequence[int]]) -> list[Tensor]:
        """The states of the tokens of texts, (n, width) each, without those of the tokens put around them.

        Texts of one length are computed together, so that padding is nowhere. What was asked for before is not computed
        again.

        Args:
            texts: Numbers of the tokens of each, at most ``longest`` - 2.
        """
        asked = [tuple(text) for text in texts]
        missing = sorted(
            {text for text in asked if text not in self._kept}, key=lambda text: (len(text), text)
        )
        begin = 0
        while begin < len(missing):
            end = begin + 1
            while end < len(missing) and end - begin < _TOGETHER and len(missing[end]) == len(missing[begin]):
                end += 1
            some = missing[begin:end]
            numbers = torch.tensor([[self._first, *text, self._last] for text in some])
            with torch.inference_mode():
                found = self._model(input_ids=numbers).last_hidden_state[:, 1:-1]
            for text, states in zip(some, found, strict=True):
                # A copy that autograd may save; a view would keep the tokens around it too.
                self._kept[text] = states.clone()
            begin = end
        return [self._kept[text] for text in asked]


@lru_cache(maxsize=2)
def frozen_encoder(name: str) -> FrozenEncoder:
    """The encoder of a name, loaded once; its states are kept for as long as the process lives."""
    return FrozenEncoder(name)


def _without_padding(text: str) -> str:
    """A tokenizer that neither pads nor cuts."""
    described: dict[str, Any] = json.loads(text)
    return json.dumps({**described, "padding": None, "truncation": None}, ensure_ascii=False)
