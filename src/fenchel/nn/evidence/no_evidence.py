"""Nothing said of the templates."""

from __future__ import annotations

from torch import Tensor

from fenchel.nn.evidence.abstract import AbstractEvidence
from fenchel.nn.evidence.arguments import check_pair, template_scale
from fenchel.nn.sizes import check_positive

__all__ = ["NoEvidence"]


class NoEvidence(AbstractEvidence):
    r"""Nothing is said of the templates, :math:`z = 0`: weights are the preference, by every estimator.

    This is the evidence of scores that are all preference, such as those of
    :class:`~fenchel.nn.preference.Additive` and :class:`~fenchel.nn.preference.Location`. Every certificate is 0.

    Args:
        scale: Of the templates, which do not matter then; None is :math:`1/\sqrt d`.

    Raises:
        ProblemError: If ``scale`` is not a positive number.

    Example:
        >>> import torch
        >>> z, templates, scale = NoEvidence()(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 5, 16))
        >>> z.shape, z.abs().max().item()
        (torch.Size([1, 2, 3, 16]), 0.0)
    """

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        if scale is not None:
            check_positive("NoEvidence", scale=scale)
        self.scale = scale

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """Zeros of the keys' dimension, and the key as it is."""
        check_pair(query, key)
        return query.new_zeros(*query.shape[:-1], key.shape[-1]), key, template_scale(self.scale, key)

    def extra_repr(self) -> str:
        """The scale, where it was given."""
        return "" if self.scale is None else f"scale={self.scale}"
