"""The target sentence so far as states of recurrent layers: three ways in which a query comes about."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fenchel.models.translation.head import Head
from fenchel.models.translation.sentence_dropout import SentenceDropout

__all__ = ["DECODERS", "AbstractDecoder", "Bahdanau", "Look", "Luong", "Paper"]

Look = Callable[[Tensor, int], Tensor]
"""From queries (B, m, width) and the place of the first of them to the inferred means h, (B, m, width)."""

State = tuple[Tensor, ...]
"""What a decoder keeps between words, each (B, width): hidden and cell of each layer, and more where it needs it."""


class AbstractDecoder(nn.Module, ABC):
    """Embeddings of the target's words, and layers of LSTMs over them.

    Args:
        vocabulary: How many numbers words have; 0 is padding.
        width: Of embeddings and states.
        depth: How many layers.
        dropout: Probability in [0, 1) with which elements of embeddings and of what a layer gives are dropped.
    """

    def __init__(self, vocabulary: int, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.width, self.depth = width, depth
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        self.dropout = SentenceDropout(dropout)

    def start(self, hidden: Tensor, cell: Tensor) -> State:
        """What is kept before the first word.

        Args:
            hidden: Of each layer (B, depth, width).
            cell: Likewise.
        """
        return tuple(part[:, layer] for layer in range(self.depth) for part in (hidden, cell))

    @abstractmethod
    def forward(self, words: Tensor, state: State, look: Look, head: Head) -> Tensor:
        """What the head scores the next word from, after each of some words, (B, m, width).

        Args:
            words: Numbers (B, m).
            state: From ``start``.
            look: Attends.
            head: Puts the inferred mean and the state together.
        """

    @abstractmethod
    def step(self, word: Tensor, state: State, look: Look, head: Head, place: int) -> tuple[Tensor, State]:
        """The same for one word, (B, 1, width), with what is kept after it; for use, not for training.

        Args:
            word: Numbers (B, 1).
            state: What was kept.
            look: Attends.
            head: Puts the inferred mean and the state together.
            place: Of the word, from 0.
        """


class Paper(AbstractDecoder):
    """The query is the state of LSTMs over the words so far, which never see h: one call for a whole sentence.

    Reference:
        The papers' figure 2a.
    """

    def __init__(self, vocabulary: int, width: int, depth: int = 2, dropout: float = 0.0) -> None:
        super().__init__(vocabulary, width, depth, dropout)
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(depth))

    def forward(self, words: Tensor, state: State, look: Look, head: Head) -> Tensor:
        """All words at once."""
        return self.step(words, state, look, head, 0)[0]

    def step(self, word: Tensor, state: State, look: Look, head: Head, place: int) -> tuple[Tensor, State]:
        """One word, or several that are known."""
        states, kept = self.dropout(self.embed(word)), []
        for number, layer in enumerate(self.layers):
            before = tuple(part.unsqueeze(0).contiguous() for part in state[2 * number : 2 * number + 2])
            states, (hidden, cell) = layer(states, before)
            states = self.dropout(states)
            kept += [hidden[0], cell[0]]
        return head.joined(look(states, place), states), tuple(kept)


class _OneByOne(AbstractDecoder):
    """LSTMs that see what came of attention to the word before: words are done one by one, in training too."""

    def __init__(self, vocabulary: int, width: int, depth: int = 2, dropout: float = 0.0) -> None:
        super().__init__(vocabulary, width, depth, dropout)
        self.layers = nn.ModuleList(
            nn.LSTMCell(width if layer else 2 * width, width) for layer in range(depth)
        )

    def forward(self, words: Tensor, state: State, look: Look, head: Head) -> Tensor:
        """Word by word."""
        embedded, found = self.dropout(self.embed(words)), []
        masks = [self.dropout.mask(embedded) for _ in self.layers]
        for place, word in enumerate(embedded.split(1, 1)):
            x, state = self._step(word, state, look, head, place, masks)
            found.append(x)
        return torch.cat(found, 1)

    def step(self, word: Tensor, state: State, look: Look, head: Head, place: int) -> tuple[Tensor, State]:
        """One word."""
        return self._step(self.embed(word), state, look, head, place, [None] * self.depth)

    @abstractmethod
    def _step(
        self, word: Tensor, state: State, look: Look, head: Head, place: int, masks: list[Tensor | None]
    ) -> tuple[Tensor, State]:
        """``step`` with the embedding of the word, (B, 1, width), and what each layer's dropout multiplies with."""

    def _next(self, found: Tensor, state: State, masks: list[Tensor | None]) -> tuple[Tensor, list[Tensor]]:
        """The top layer's state (B, 1, width), and hidden and cell of each layer."""
        kept: list[Tensor] = []
        for number, (layer, mask) in enumerate(zip(self.layers, masks, strict=True)):
            hidden, cell = layer(found.squeeze(1), state[2 * number : 2 * number + 2])
            found = hidden.unsqueeze(1) if mask is None else hidden.unsqueeze(1) * mask
            kept += [hidden, cell]
        return found, kept


class Bahdanau(_OneByOne):
    r"""The query is the state before: :math:`c_t` from :math:`h_{t-1}`, then :math:`h_t = f([y_{t-1}; c_t], h_{t-1})`.

    Reference:
        Textbook's 15.4.4; Bahdanau et al. 2015.
    """

    def _step(
        self, word: Tensor, state: State, look: Look, head: Head, place: int, masks: list[Tensor | None]
    ) -> tuple[Tensor, State]:
        context = look(state[2 * self.depth - 2].unsqueeze(1), place)
        top, kept = self._next(torch.cat((word, context.to(word.dtype)), -1), state, masks)
        return head.joined(context, top), tuple(kept)


class Luong(_OneByOne):
    r"""The query is the state after: :math:`h_t = f([y_{t-1}; x_{t-1}], h_{t-1})`, then :math:`c_t` from it.

    :math:`x_t`, what the head makes of :math:`c_t` and :math:`h_t`, is fed to the next step.

    Reference:
        Luong et al. 2015, sections 3 and 3.3.
    """

    def start(self, hidden: Tensor, cell: Tensor) -> State:
        """Hidden and cell of each layer, and zeros to be fed."""
        return (*super().start(hidden, cell), torch.zeros_like(hidden[:, 0]))

    def _step(
        self, word: Tensor, state: State, look: Look, head: Head, place: int, masks: list[Tensor | None]
    ) -> tuple[Tensor, State]:
        fed = state[-1].unsqueeze(1).to(word.dtype)
        top, kept = self._next(torch.cat((word, fed), -1), state, masks)
        x = head.joined(look(top, place), top)
        return x, (*kept, x.squeeze(1))


DECODERS: dict[str, type[Paper | Bahdanau | Luong]] = {"paper": Paper, "bahdanau": Bahdanau, "luong": Luong}
"""Decoders by the name of their query."""
