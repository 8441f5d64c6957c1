"""Templates that differ by query."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["RelativeTemplates"]


class RelativeTemplates(NamedTuple):
    r"""Templates of pairs, :math:`t_{ij} = k_j + r_{\pi(i,j)}`, before their scale.

    :func:`fenchel.functional.relative_attention` infers with them.

    Attributes:
        key: (B, H or fewer, n, d).
        relative: The table r, (B or 1, H or 1, P, d).
        row_index: π, the row of each pair, int64 (m, n) or (B, m, n); None is row j - i + m - 1 of m + n - 1.
        log_preference: What of log u comes with the templates, because it is made of them and of no query; it
            broadcasts to (B, H, m, n), or is None.
    """

    key: Tensor
    relative: Tensor
    row_index: Tensor | None = None
    log_preference: Tensor | None = None
