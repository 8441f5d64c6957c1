"""Evidence that looks at where query and key are."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from fenchel.nn.evidence.abstract import AbstractEvidence
from fenchel.nn.evidence.templates import RelativeTemplates

__all__ = ["AbstractPositionalEvidence"]


class AbstractPositionalEvidence(AbstractEvidence):
    """Evidence of which a layer says where its first query is. Key j is at place j, query i at ``query_offset + i``.

    Attributes:
        differs_by_query: Whether templates are :class:`RelativeTemplates`.
    """

    differs_by_query: ClassVar[bool] = True

    @abstractmethod
    def forward(
        self, query: Tensor, key: Tensor, query_offset: int | None = None
    ) -> tuple[Tensor, Tensor | RelativeTemplates, float | Tensor]:
        """The evidence, the templates and their scale.

        Args:
            query: (B, H, m, d).
            key: (B, H or fewer, n, d).
            query_offset: Place of the first query on the keys' axis; n - m where keys come from a cache. None is 0
                where m ≥ n, and an error where m < n; a layer always gives a number.

        Returns:
            z (B, H, m, d), templates (B, H or fewer, n, d), or :class:`RelativeTemplates` where they differ by query,
            and what these are multiplied by.
        """
