"""The source sentence as states of recurrent layers: the templates of a translator."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fenchel.models.translation.sentence_dropout import SentenceDropout

__all__ = ["Encoder", "Reading"]


class Reading(NamedTuple):
    """What was read of source sentences.

    Attributes:
        templates: The states of the top layer, (B, n, width).
        padding: True where there is no word, bool (B, n).
        last: The state after the whole sentence, (B, width); of two directions each one's own, side by side.
    """

    templates: Tensor
    padding: Tensor
    last: Tensor


class Encoder(nn.Module):
    """Embeddings of words, and layers of LSTMs over them, from the left or from both sides.

    Words after the end of a sentence change nothing: from the left they come after it, and from the right each sentence
    begins at its own last word.

    Args:
        vocabulary: How many numbers words have; 0 is padding.
        width: Of embeddings and states; even where there are two directions.
        depth: How many layers.
        bidirectional: Whether each layer reads from the right too, each direction with half of the width.
        dropout: Probability in [0, 1) with which elements of embeddings and of what a layer gives are dropped.

    Example:
        >>> reading = Encoder(vocabulary=20, width=8)(torch.tensor([[4, 7, 3], [5, 3, 0]]))
        >>> reading.templates.shape, reading.last.shape
        (torch.Size([2, 3, 8]), torch.Size([2, 8]))
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        depth: int = 2,
        *,
        bidirectional: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        own = width // 2 if bidirectional else width
        self.forwards = nn.ModuleList(nn.LSTM(width, own, batch_first=True) for _ in range(depth))
        self.backwards = nn.ModuleList(
            nn.LSTM(width, own, batch_first=True) for _ in range(depth if bidirectional else 0)
        )
        self.dropout = SentenceDropout(dropout)

    def forward(self, source: Tensor) -> Reading:
        """The states of every word.

        Args:
            source: Numbers of words (B, n), at least one a sentence; padding behind them.
        """
        padding = source == 0
        lengths = (~padding).sum(1, keepdim=True)
        states = self.dropout(self.embed(source))
        for place, layer in enumerate(self.forwards):
            found = layer(states)[0]
            if self.backwards:
                from_right = self.backwards[place](_turned(states, lengths))[0]
                found = torch.cat((found, _turned(from_right, lengths)), -1)
            states = self.dropout(found)
        return Reading(states, padding, self._last(states, lengths))

    def _last(self, states: Tensor, lengths: Tensor) -> Tensor:
        """After the last word from the left, and after the first from the right."""
        ends = (lengths - 1).unsqueeze(-1).expand(-1, 1, states.shape[-1])
        last = states.gather(1, ends).squeeze(1)
        if not self.backwards:
            return last
        own = states.shape[-1] // 2
        return torch.cat((last[:, :own], states[:, 0, own:]), -1)


def _turned(states: Tensor, lengths: Tensor) -> Tensor:
    """The words of each sentence in the other order, padding where it is."""
    places = torch.arange(states.shape[1], device=states.device)
    index = torch.where(places < lengths, lengths - 1 - places, places)
    return states.gather(1, index.unsqueeze(-1).expand_as(states))
