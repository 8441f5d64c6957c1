"""Distance in buckets, as T5 has it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import check_flags, check_tensor
from fenchel.errors import ProblemError
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.dense import IndexFunction
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.preference.table import head_row, table
from fenchel.nn.sizes import check_sizes

__all__ = ["RelativePosition", "relative_position_bucket"]


class RelativePosition(AbstractPreference):
    r"""One learned log-weight for every head and bucket of distances, :math:`\log u_{ij} = w_{h, \beta(j - i)}`.

    Small distances have buckets of their own, larger ones share buckets that widen logarithmically up to
    ``max_distance``; all beyond share the last. i is the query's position on the keys' axis.

    The parameter is ``relative_attention_bias.weight`` of shape (buckets, heads), drawn from a normal distribution with
    standard deviation 0.02, so that a fresh layer is close to uniform. It has T5's name: a state dict of the
    ``SelfAttention`` module of a T5 stack's first block, cut down to that entry, loads as it is.

    Args:
        heads: Number of heads, or 1 to share the bias.
        buckets: How many buckets there are; even if ``bidirectional``.
        max_distance: Distance from which on all share a bucket.
        bidirectional: Buckets for both directions, as in T5's encoder; otherwise all keys after the query share the
            bucket of distance 0, as in its decoder, which is causal.

    Raises:
        ProblemError: If there are too few buckets, or ``max_distance`` does not exceed the distances that have
            buckets of their own.

    Reference:
        Raffel et al. 2020, Exploring the limits of transfer learning, section 2.1.

    Example:
        >>> import torch
        >>> from fenchel.nn.preference import AttentionInputs
        >>> inputs = AttentionInputs(2, 8, 5, 7, torch.device("cpu"), torch.float32, query_offset=0)
        >>> RelativePosition(heads=8)(inputs).shape
        torch.Size([1, 8, 5, 7])
    """

    depends_on_distance = True
    bucket_of_distance: Tensor

    def __init__(
        self, heads: int, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__()
        check_sizes("RelativePosition", heads=heads, buckets=buckets, max_distance=max_distance)
        check_flags(bidirectional=bidirectional)
        one_way = buckets // 2 if bidirectional else buckets
        if one_way < 2 or (bidirectional and buckets % 2):
            needed = "an even number of at least 4" if bidirectional else "at least 2"
            raise ProblemError(
                f"RelativePosition got buckets={buckets}; bidirectional={bidirectional} needs {needed}."
            )
        if max_distance <= one_way // 2:
            raise ProblemError(
                f"RelativePosition got max_distance={max_distance}, but with buckets={buckets} the distances below "
                f"{one_way // 2} have buckets of their own; max_distance has to be larger than that."
            )
        self.heads, self.buckets = heads, buckets
        self.max_distance, self.bidirectional = max_distance, bidirectional
        self.relative_attention_bias = nn.Embedding(buckets, heads)
        nn.init.normal_(self.relative_attention_bias.weight, std=0.02)
        # Beyond max_distance the bucket no longer changes, so that clamped distances look up all that there is.
        distances = torch.arange(-max_distance, max_distance + 1)
        bucket_of_distance = relative_position_bucket(distances, buckets, max_distance, bidirectional)
        self.register_buffer("bucket_of_distance", bucket_of_distance, persistent=False)

    @classmethod
    def from_t5(cls, weight: Tensor, max_distance: int = 128, bidirectional: bool = True) -> RelativePosition:
        """The relative position of a pretrained T5.

        Args:
            weight: ``relative_attention_bias.weight`` of the first block of a stack, (buckets, heads); it is copied.
            max_distance: ``config.relative_attention_max_distance``.
            bidirectional: True for the encoder's, False for the decoder's.

        Raises:
            ProblemError: If the weight is not a matrix.
        """
        check_tensor("weight", weight, "(buckets, heads)", dims=2)
        preference = cls(weight.shape[1], weight.shape[0], max_distance, bidirectional)
        preference.to(device=weight.device, dtype=weight.dtype)
        with torch.no_grad():
            preference.relative_attention_bias.weight.copy_(weight)
        return preference

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The log-weight of the bucket of k - q, from a table with a row for every distance up to the largest."""
        position, limit, heads = inputs.query_position(), self.max_distance, self.heads or 1
        by_distance = table(self.relative_attention_bias(self.bucket_of_distance))

        def at_distance(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            row = torch.clamp(k - position(q), -limit, limit) + limit
            return by_distance[row, head_row(h, heads)]

        return at_distance

    def extra_repr(self) -> str:
        """Sizes and direction."""
        return (
            f"heads={self.heads}, buckets={self.buckets}, max_distance={self.max_distance}, "
            f"bidirectional={self.bidirectional}"
        )


def relative_position_bucket(
    distance: Tensor, buckets: int, max_distance: int, bidirectional: bool
) -> Tensor:
    r"""T5's bucket :math:`\beta` of a distance j - i.

    With e exact buckets in each direction out of b, a distance r has bucket r if r < e and otherwise
    :math:`\min(b - 1, e + \lfloor (b - e)\log(r/e) / \log(r_{\max}/e) \rfloor)`; computed in float32 as T5 does,
    since the floor depends on rounding.

    Args:
        distance: Key position minus query position, integers of any shape.
        buckets: How many buckets there are.
        max_distance: :math:`r_{\max}`.
        bidirectional: Whether keys after the query have half of the buckets, or share bucket 0.

    Returns:
        Buckets from 0 to ``buckets`` - 1, int64, in the shape of ``distance``.

    Example:
        >>> relative_position_bucket(torch.tensor([-200, -3, 0, 3, 50]), 32, 128, bidirectional=True).tolist()
        [15, 3, 0, 19, 29]
    """
    start = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        start = (distance > 0).long() * buckets
        reach = distance.abs()
    else:
        reach = -distance.clamp(max=0)
    exact = buckets // 2
    # A distance of 0 has a bucket of its own; the 1 only keeps its logarithm finite.
    growth = torch.log(reach.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    logarithmic = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
    return start + torch.where(reach < exact, reach, logarithmic)
