"""The query as it is."""

from __future__ import annotations

from torch import Tensor

from fenchel.nn.evidence.abstract import AbstractEvidence
from fenchel.nn.evidence.arguments import check_pair, template_scale
from fenchel.nn.sizes import check_positive

__all__ = ["ScaledDot"]


class ScaledDot(AbstractEvidence):
    r"""The query itself, with templates :math:`t_j = k_j / \sqrt d`: scaled dot-product attention.

    Args:
        scale: In place of :math:`1/\sqrt d`; 1 is Luong's dot and T5's score.

    Raises:
        ProblemError: If ``scale`` is not a positive number.

    Reference:
        Vaswani et al. 2017, Attention is all you need, eq. (1).

    Example:
        >>> import torch
        >>> z, templates, scale = ScaledDot()(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 5, 16))
        >>> scale
        0.25
    """

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        if scale is not None:
            check_positive("ScaledDot", scale=scale)
        self.scale = scale

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """Query and key as they are."""
        check_pair(query, key)
        return query, key, template_scale(self.scale, query)

    def extra_repr(self) -> str:
        """The scale, where it was given."""
        return "" if self.scale is None else f"scale={self.scale}"
