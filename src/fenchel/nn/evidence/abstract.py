"""What every evidence module is: from query and key to evidence, templates and their scale."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from fenchel.nn.evidence.templates import RelativeTemplates

__all__ = ["AbstractEvidence"]


class AbstractEvidence(nn.Module):
    """What a query says of the templates."""

    @abstractmethod
    def forward(
        self, query: Tensor, key: Tensor
    ) -> tuple[Tensor, Tensor | RelativeTemplates, float | Tensor]:
        """The evidence, the templates and their scale.

        Args:
            query: (B, H, m, d).
            key: (B, H or fewer, n, d).

        Returns:
            z (B, H, m, d'), templates (B, H or fewer, n, d') and what these are multiplied by.
        """
