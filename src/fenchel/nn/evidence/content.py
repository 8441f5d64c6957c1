"""Content addressing: directions, and how sharply they are told apart."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import check_device, check_flags
from fenchel.nn.evidence.abstract import AbstractEvidence
from fenchel.nn.evidence.arguments import check_heads, check_pair
from fenchel.nn.sizes import check_positive, check_sizes

__all__ = ["Content"]


class Content(AbstractEvidence):
    r"""Content addressing by cosine similarity: :math:`z = \beta_h q/\lVert q\rVert`, :math:`t = k/\lVert k\rVert`.

    The sharpness :math:`\beta_h` belongs to the evidence, as does the key strength that a Turing machine's controller
    emits.
    Templates have norm 1, so the error that first order makes is bounded by :math:`\lVert\hat h - \mu\rVert \le 2`.

    Args:
        heads: Number of heads, or 1 to share the sharpness.
        sharpness: :math:`\beta` > 0, at the start if it is learned.
        learned: Whether each head learns it, as exp of a parameter, so that it stays positive.

    Raises:
        ProblemError: If a size or the sharpness is not positive; when called, if there are other heads.

    Reference:
        Graves et al. 2014, Neural Turing machines, eq. (5) and (6).

    Example:
        >>> z, templates, scale = Content(heads=2, sharpness=5.0)(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 4, 16))
        >>> z.norm(dim=-1)[0, 0], templates.norm(dim=-1)[0, 0]
        (tensor([5., 5., 5.], grad_fn=...), tensor([1., 1., 1., 1.]))
    """

    def __init__(self, heads: int, sharpness: float = 10.0, learned: bool = True) -> None:
        super().__init__()
        check_sizes("Content", heads=heads)
        check_positive("Content", sharpness=sharpness)
        check_flags(learned=learned)
        self.learned = learned
        log_sharpness = torch.full((heads,), math.log(sharpness))
        if learned:
            self.log_sharpness = nn.Parameter(log_sharpness)
        else:
            self.register_buffer("log_sharpness", log_sharpness)

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """Both normalised, the query times the sharpness."""
        check_pair(query, key)
        check_device("query", query, self.log_sharpness.device, "Content")
        check_heads("Content", self.log_sharpness.shape[0], query)
        sharpness = self.log_sharpness.exp().to(query.dtype)[:, None, None]
        return (
            sharpness * nn.functional.normalize(query, dim=-1),
            nn.functional.normalize(key, dim=-1),
            1.0,
        )

    def extra_repr(self) -> str:
        """Heads, and whether they learn."""
        return f"heads={self.log_sharpness.shape[0]}, learned={self.learned}"
