"""Evidence that looks at where query and key are, and templates that differ by query."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple

from torch import Tensor

from fenchel.nn.evidence.abstract import AbstractEvidence

__all__ = ["AbstractPositionalEvidence", "RelativeTemplates"]


class RelativeTemplates(NamedTuple):
    r"""Templates of pairs, :math:`t_{ij} = k_j + r_{\pi(i,j)}`, before their scale.

    :func:`fenchel.functional.relative_attention` infers with them.

    Attributes:
        key: (B, H or fewer, n, d).
        relative: The table r, (B or 1, H or 1, P, d).
        index: π, the row of each pair, int64 (m, n) or (B, m, n); None is row j - i + m - 1 of m + n - 1.
        log_preference: What of log u comes with the templates, because it is made of them and of no query; it
            broadcasts to (B, H, m, n), or is None.
    """

    key: Tensor
    relative: Tensor
    index: Tensor | None = None
    log_preference: Tensor | None = None


class AbstractPositionalEvidence(AbstractEvidence):
    """Evidence of which a layer says where its first query is. Key j is at place j, query i at ``query_offset + i``.

    Attributes:
        differs_by_query: Whether templates are :class:`RelativeTemplates`.
    """

    differs_by_query: ClassVar[bool] = True

    @abstractmethod
    def forward(
        self, query: Tensor, key: Tensor, query_offset: int = 0
    ) -> tuple[Tensor, Tensor | RelativeTemplates, float | Tensor]:
        """The evidence, the templates and their scale.

        Args:
            query: (B, H, m, d).
            key: (B, H or fewer, n, d).
            query_offset: Place of the first query on the keys' axis; n - m where keys come from a cache.

        Returns:
            z (B, H, m, d), templates (B, H or fewer, n, d), or :class:`RelativeTemplates` where they differ by query,
            and what these are multiplied by.
        """
