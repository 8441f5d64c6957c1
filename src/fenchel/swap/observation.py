"""What one forward of a model says: losses, the states of every layer, and embeddings of sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fenchel.errors import ModelError

__all__ = ["IGNORED", "Observation", "Stack", "mean_pooled", "observe", "relative_change"]

IGNORED = -100
"""A label that no loss counts."""


@dataclass(frozen=True)
class Stack:
    """The states of an encoder or a decoder, of attention layers, or of a model's output alone.

    Attributes:
        name: ``encoder`` or ``decoder`` where a model has both, else ``layers``; or ``attention`` and ``output``.
        states: (B, n, w) after every layer.
        counted: (B, n) bool for every layer, which positions count.
        by_row: Whether a row counts once, by the mean over its positions, and not every position for itself.
    """

    name: str
    states: tuple[Tensor, ...]
    counted: tuple[Tensor, ...]
    by_row: bool = False

    @property
    def counts(self) -> Tensor:
        """(B,) float64, how often each row counts: its positions that count, or once."""
        own = self.counted[-1].sum(-1).cpu().double()
        return torch.ones_like(own) if self.by_row else own

    def changes(self, before: Stack) -> Tensor:
        """(B, layers): relative change of every layer's output, summed over what counts in a row."""
        return torch.stack(
            [self._change(place, before.states[place], None) for place in range(len(self.states))], -1
        )

    def apart(self, other: Stack, scale: Stack | None = None) -> Tensor:
        """(B,): how far the last outputs are apart, relative to ``other``'s lengths or those of ``scale``."""
        return self._change(-1, other.states[-1], None if scale is None else scale.states[-1])

    def _change(self, place: int, other: Tensor, scale: Tensor | None) -> Tensor:
        counted = self.counted[place]
        found = relative_change(self.states[place], other, counted, scale)
        return found / counted.sum(-1).clamp_min(1).cpu() if self.by_row else found


@dataclass(frozen=True)
class Observation:
    """What one forward says.

    Attributes:
        stacks: The states, the stack that the output comes from last.
        losses: (B,) float64, sum of the losses of the labelled tokens in nats, or the loss of each row; None without.
        embeddings: (B, w) sentence embeddings of length 1; None where none are asked for.
        scores: (B,) float64, how good each row is, such as 1 where its class is found; None without.
    """

    stacks: tuple[Stack, ...]
    losses: Tensor | None
    embeddings: Tensor | None
    scores: Tensor | None = None


def observe(
    model: Any,
    inputs: Mapping[str, Tensor],
    counted: Tensor,
    counted_decoder: Tensor | None,
    labels: Tensor | None,
) -> Observation:
    """Run the model once.

    Args:
        model: A transformers model in evaluation mode; with a language-model head if there are labels.
        inputs: Its keyword arguments.
        counted: (B, n) bool, tokens of the encoder or the only stack that count.
        counted_decoder: (B, m) bool, the same for a decoder beside an encoder.
        labels: (B, n) or (B, m), the token that each position predicts, -100 where none counts.

    Returns:
        What it says.

    Raises:
        ModelError: If an output is missing, or is NaN or infinite.
    """
    with torch.no_grad():
        output = model(**inputs, output_hidden_states=True)
    names = {"layers": "hidden_states"}
    if counted_decoder is not None:
        names = {"encoder": "encoder_hidden_states", "decoder": "decoder_hidden_states"}
    stacks = []
    for name, attribute in names.items():
        states = getattr(output, attribute, None)
        if not states:
            raise ModelError(
                f"{type(model).__name__} returned no {attribute} with output_hidden_states=True, so changes cannot be "
                "measured. Use a model of another family"
            )
        mask = counted_decoder if name == "decoder" and counted_decoder is not None else counted
        # The first of the states are the embeddings, before any layer.
        own = tuple(states)[1:]
        stacks.append(Stack(name, own, (mask.to(own[0].device),) * len(own)))
    last = stacks[-1]
    if not bool(last.states[-1][last.counted[-1]].isfinite().all()):
        raise ModelError(
            f"{type(model).__name__} has NaN or infinity in its last hidden states on this text. Check its weights, "
            "and its dtype: float16 overflows where bfloat16 and float32 do not"
        )
    if labels is None:
        pooled = mean_pooled(last.states[-1], inputs["attention_mask"])
        return Observation(tuple(stacks), None, pooled.cpu())
    return Observation(tuple(stacks), _losses(output.logits, labels).cpu(), None)


def mean_pooled(states: Tensor, mask: Tensor) -> Tensor:
    """The mean of the real tokens' states, scaled to length 1: how sentence encoders are read.

    Args:
        states: (B, n, w).
        mask: (B, n), nonzero for real tokens.

    Returns:
        (B, w) float32.

    Example:
        >>> states = torch.tensor([[[3.0, 0.0], [3.0, 8.0], [9.0, 9.0]]])
        >>> mean_pooled(states, torch.tensor([[1, 1, 0]])).tolist()
        [[0.6..., 0.8...]]
    """
    weights = mask.to(torch.float32)[..., None]
    mean = (states.float() * weights).sum(1) / weights.sum(1).clamp_min(1e-9)
    return torch.nn.functional.normalize(mean, dim=-1)


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    labels = labels.to(logits.device)
    wanted = labels != IGNORED
    chosen = torch.nn.functional.cross_entropy(logits[wanted].float(), labels[wanted], reduction="none")
    rows = wanted.nonzero()[:, 0]
    return torch.zeros(len(labels), dtype=torch.float64, device=logits.device).index_add_(
        0, rows, chosen.double()
    )


def relative_change(states: Tensor, other: Tensor, counted: Tensor, scale: Tensor | None = None) -> Tensor:
    r"""How far two states of a batch are apart, summed over the tokens of a row that count.

    .. math:: \sum_i \lVert h'_i - h_i \rVert / \lVert h_i \rVert

    Args:
        states: (B, n, w), h'.
        other: (B, n, w), h.
        counted: (B, n) bool.
        scale: (B, n, w), whose lengths to divide by instead of those of h.

    Returns:
        (B,) float64 on the CPU.
    """
    difference = (states.double() - other.double()).norm(dim=-1)
    length = (other if scale is None else scale).double().norm(dim=-1)
    ratio = torch.where(length > 0, difference / length, torch.zeros_like(difference))
    return ratio.masked_fill(~counted, 0.0).sum(-1).cpu()
