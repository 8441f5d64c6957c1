"""Ops that solve something for every query: how their tensors are cut into rows, and their gradients put back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from fenchel.blocks import QueryBlock
from fenchel.functional.grid import Block, Grid, grouped, rows

__all__ = ["DualGradients", "Rowwise", "RowwiseGradients"]


@dataclass(frozen=True)
class DualGradients:
    """Gradients to what a dual point depends on.

    Attributes:
        evidence: (g, r, d).
        templates: (g, n, d).
        log_weights: (g, r, n), of each row.
        alpha: (g, r, 1), of each row.
    """

    evidence: Tensor
    templates: Tensor
    log_weights: Tensor
    alpha: Tensor


class Rowwise:
    """The queries of one call as blocks of rows that share templates.

    Args:
        evidence: z, (B, H, m, d).
        templates: (B, H_kv, n, d).
        log_preference: Bool or floating, (B or 1, H or 1, m or 1, n), something to attend to in every row; or None.
        alpha: α, (B or 1, H or 1, m or 1, 1).
    """

    def __init__(
        self, evidence: Tensor, templates: Tensor, log_preference: Tensor | None, alpha: Tensor
    ) -> None:
        self._grid = Grid(evidence, templates)
        self._templates = templates
        if log_preference is None:
            log_preference = templates.new_zeros(1, 1, 1, templates.shape[2])
        self._evidence, self._log_preference, self._alpha = map(
            self._grid.by_key_head, (evidence, log_preference, alpha)
        )

    def blocks(self, array_bytes: int | None = None) -> Iterator[tuple[Block, QueryBlock]]:
        """Every block, and its rows; see :meth:`Grid.blocks`."""
        for block in chain.from_iterable(self._grid.blocks(self._templates, array_bytes)):
            evidence = block.of(self._evidence)
            preference = grouped(block.of(self._log_preference), evidence.shape)
            if preference.dtype == torch.bool:
                allowed = preference
                preference = torch.zeros_like(allowed, dtype=evidence.dtype)
                preference.masked_fill_(~allowed, -torch.inf)
            yield (
                block,
                QueryBlock(
                    templates=block.of_keys(self._templates).flatten(0, 1),
                    log_preference=preference.to(evidence.dtype).log_softmax(-1),
                    evidence=rows(evidence).flatten(0, 1),
                    alpha=grouped(block.of(self._alpha), evidence.shape),
                ),
            )

    def take(self, tensor: Tensor, block: Block) -> Tensor:
        """Rows (g, r, c) of a tensor (B, H, m, c)."""
        return rows(block.of(self._grid.by_key_head(tensor))).flatten(0, 1)

    def put(self, into: Tensor, block: Block, part: Tensor) -> None:
        """Write rows (g, r, c) into a tensor (B, H, m, c)."""
        target = block.of(self._grid.by_key_head(into))
        target.copy_(part.reshape(target.shape))

    def add(self, into: Tensor, block: Block, part: Tensor) -> None:
        """Add rows (g, r, c) to a tensor (B or 1, H or 1, m or 1, c), summed where it is broadcast."""
        target = block.of(self._grid.by_key_head(into))
        full = block.of(self._evidence).shape[:4]
        target.add_(part.reshape(*full, part.shape[-1]).sum_to_size(target.shape))

    def add_to_keys(self, into: Tensor, block: Block, part: Tensor) -> None:
        """Add (g, n, d) to a tensor (B, H_kv, n, d)."""
        target = block.of_keys(into)
        target.add_(part.reshape(target.shape))


class RowwiseGradients:
    """Gradients of a dual point to everything it depends on, gathered block by block.

    Args:
        rowwise: How the rows are cut.
        evidence, templates, alpha: Tensors that gradients are shaped like.
        log_preference: Likewise, or None where it gets none.
    """

    def __init__(
        self,
        rowwise: Rowwise,
        evidence: Tensor,
        templates: Tensor,
        log_preference: Tensor | None,
        alpha: Tensor,
    ) -> None:
        self._rowwise = rowwise
        self._evidence = evidence.new_empty(evidence.shape)
        self._templates, self._alpha = templates.new_zeros(templates.shape), alpha.new_zeros(alpha.shape)
        self._to_preference = log_preference is not None
        self._log_preference = templates.new_zeros(() if log_preference is None else log_preference.shape)

    def put(self, block: Block, found: DualGradients) -> None:
        """Store or add the gradients of one block."""
        self._rowwise.put(self._evidence, block, found.evidence)
        self._rowwise.add(self._alpha, block, found.alpha)
        self._rowwise.add_to_keys(self._templates, block, found.templates)
        if self._to_preference:
            self._rowwise.add(self._log_preference, block, found.log_weights)

    def build(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients to evidence, templates, log-preference and α."""
        return self._evidence, self._templates, self._log_preference, self._alpha
