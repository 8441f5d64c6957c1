"""What an attention of a trained model asks and how it is answered: first-order and exact weights, certified."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.errors import InputError
from fenchel.inference import InferenceProblem
from fenchel.nn.attending import AttendingLayer, LayerCall, attention_layers
from fenchel.preference import Discrete

__all__ = ["AttentionMap", "Grid", "SeenAttention", "seen_attention"]


@dataclass(frozen=True)
class Grid:
    """The image whose cells are the keys, row by row.

    Attributes:
        image: A data URI of it, as the model saw it.
        rows: Cells from top to bottom.
        columns: Cells from left to right.
    """

    image: str
    rows: int
    columns: int


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The weights of m queries on n keys by two estimators. All tensors are float64, on the processor.

    Attributes:
        title: What attends to what.
        queries: What each row is called.
        keys: What each column is called.
        first_order: Dot-product attention's weights (m, n), those of the first-order answer.
        exact: The exact weights (m, n).
        moved: Total variation between the two, (m,).
        error: The certificate of the exact weights: how far they are, at most, from the solution, in total variation,
            rounding included, (m,).
        solved: Whether the exact solver reached its tolerance, bool (m,).
        estimator: By which the model itself answers.
        grid: The image whose cells the keys are; None where they are words.
    """

    title: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    first_order: Tensor
    exact: Tensor
    moved: Tensor
    error: Tensor
    solved: Tensor
    estimator: str
    grid: Grid | None = None

    def to_json(self) -> dict[str, Any]:
        """The map as JSON values, without its image."""
        return {
            "title": self.title,
            "estimator": self.estimator,
            "queries": list(self.queries),
            "keys": list(self.keys),
            "first_order": self.first_order.tolist(),
            "exact": self.exact.tolist(),
            "total_variation": self.moved.tolist(),
            "certified_error": self.error.tolist(),
            "solved": self.solved.tolist(),
        }


@dataclass(frozen=True)
class SeenAttention:
    """A call of an attention layer of a trained model.

    Attributes:
        layer: The layer.
        call: What it asked.
    """

    layer: AttendingLayer
    call: LayerCall

    def maps(
        self,
        title: str,
        queries: Sequence[str],
        keys: Sequence[str],
        *,
        row: int = 0,
        grid: Grid | None = None,
    ) -> tuple[AttentionMap, ...]:
        """The maps of one row of the batch, one a head.

        Args:
            title: What attends to what; where there are several heads, each map says which it is.
            queries: What the first queries are called; those after them, which are padding, are left out.
            keys: What the first keys are called; those after them have to be without weight.
            row: Which row of the batch.
            grid: The image whose cells the keys are.

        Raises:
            InputError: If there are more names than queries or keys, or a key without a name has weight.
        """
        problem, log_preference = self.call.problem, self.call.log_preference
        heads, asked, there = *problem.evidence.shape[1:3], problem.templates.shape[2]
        if len(queries) > asked or len(keys) > there:
            raise InputError(
                f"there are {len(queries)} names of {asked} queries and {len(keys)} of {there} keys; expected no more "
                "than there are."
            )
        evidence = _double(problem.evidence[row, :, : len(queries)])
        templates = _double(problem.templates[row]) * float(problem.scale)
        preference = None
        if log_preference is not None:
            four = log_preference.reshape((1,) * (4 - log_preference.dim()) + tuple(log_preference.shape))
            chosen = four[row if four.shape[0] > 1 else 0]
            chosen = chosen[:, : len(queries)] if chosen.shape[1] > 1 else chosen
            chosen = chosen.expand(*chosen.shape[:2], there).detach().cpu()
            preference = chosen if chosen.dtype == torch.bool else chosen.double()
        alpha = problem.alpha
        if isinstance(alpha, Tensor):
            alpha = _double(alpha).expand(heads, 1)
        asks = InferenceProblem(Discrete(templates, preference), evidence, alpha, problem.closeness)
        first, exact = asks.solve("first_order"), asks.solve("exact", throw=False)
        count = len(keys)
        beyond = exact.weights[..., count:].sum(-1) + first.weights[..., count:].sum(-1)
        if bool((beyond > 0).any()):
            raise InputError(
                f"{title}: keys after the first {count} have weight; expected names of all {there} keys."
            )
        moved = (exact.weights - first.weights).abs().sum(-1) / 2
        return tuple(
            AttentionMap(
                title if heads == 1 else f"{title}, head {head + 1}",
                tuple(queries),
                tuple(keys),
                first.weights[head, :, :count],
                exact.weights[head, :, :count],
                moved[head],
                exact.total_variation_error[head],
                exact.converged[head],
                self.layer.effective_estimator,
                grid,
            )
            for head in range(heads)
        )


@dataclass
class _Looking:
    seen: list[SeenAttention] = field(default_factory=list)

    def __call__(self, layer: Any, call: LayerCall) -> None:
        self.seen.append(SeenAttention(layer, call))


@contextlib.contextmanager
def seen_attention(model: nn.Module) -> Iterator[list[SeenAttention]]:
    """Sees every call of a model's attention layers, in the order in which they are made.

    Args:
        model: In it.

    Yields:
        The list that fills with calls.

    Example:
        >>> from fenchel.models import Inference
        >>> block, words = Inference(), torch.randn(1, 1, 3, 8)
        >>> with seen_attention(block) as seen:
        ...     answer = block(words, words, words)
        >>> seen[0].maps("self", ["a", "dog", "barks"], ["a", "dog", "barks"])[0].exact.shape
        torch.Size([3, 3])
    """
    looking, layers = _Looking(), attention_layers(model).values()
    for layer in layers:
        layer.onlooker = looking
    try:
        yield looking.seen
    finally:
        for layer in layers:
            layer.__dict__.pop("onlooker", None)


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().double().cpu()
