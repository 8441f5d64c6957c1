"""Preference by distance that begins with neighbours, and knows of places that begin again in another language."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fenchel.nn.preference import AttentionInputs, RelativePosition

__all__ = ["PlacedInputs", "RelativePlace"]

_OTHER_SIDE, _LEAST = 2.0, -6.0


@dataclass(frozen=True)
class PlacedInputs(AttentionInputs):
    """What a preference may look at, with the place of every word in its own sentence.

    Attributes:
        places: int64 (B, n), of the queries as of the keys; None is their order.
    """

    places: Tensor | None = None


class RelativePlace(RelativePosition):
    r""":class:`~fenchel.nn.preference.RelativePosition` that is given places, and begins with neighbours first.

    .. math:: \log u_{ij} = w_{h, \beta(\mathrm{place}(j) - \mathrm{place}(i))}

    Where places begin again in a second sentence, the word of a translation that stands where a word stands is as near
    to it as itself. The log-weights begin falling with the distance: before a place in heads 1, 3, ..., after it in
    heads 2, 4, ..., and steeply in the first two. Optimisers move a weight by little more than the learning rate a
    step; from uniform ones, neighbours would stand out after thousands.

    Args:
        heads: Number of heads.

    Reference:
        The papers' section 3.1, a preference for templates of a similar location, and equation (17).

    Example:
        >>> preference = RelativePlace(heads=2)
        >>> inputs = PlacedInputs(1, 2, 4, 4, torch.device("cpu"), torch.float32, places=torch.tensor([[0, 1, 0, 1]]))
        >>> preference(inputs)[0, 0, 1]
        tensor([-1., -2., -1., -2.], grad_fn=...)
    """

    def __init__(self, heads: int) -> None:
        super().__init__(heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Puts the log-weights where they begin."""
        limit, buckets = self.max_distance, self.bucket_of_distance
        distances = torch.arange(-limit, limit + 1, device=buckets.device)
        weight = self.relative_attention_bias.weight
        with torch.no_grad():
            for head in range(weight.shape[1]):
                side = distances if head % 2 else -distances
                steepness = 2.0 ** -(head - head % 2)
                believed = -steepness * distances.abs() - _OTHER_SIDE * (side <= 0)
                # Of the distances that share a bucket, the nearest speaks for all.
                nearest = weight.new_full((len(weight),), _LEAST)
                weight[:, head] = nearest.scatter_reduce(0, buckets, believed.to(weight.dtype), "amax")

    def forward(self, inputs: AttentionInputs) -> Tensor | None:
        """The log-weights (B or 1, heads, m, n)."""
        places = inputs.places if isinstance(inputs, PlacedInputs) else None
        if places is None:
            return super().forward(inputs)
        self.check(inputs)
        limit = self.max_distance
        distances = (places.unsqueeze(1) - places.unsqueeze(2)).clamp(-limit, limit) + limit
        by_distance: Tensor = nn.functional.embedding(
            self.bucket_of_distance, self.relative_attention_bias.weight
        )
        return by_distance[distances].permute(0, 3, 1, 2).to(inputs.dtype)
