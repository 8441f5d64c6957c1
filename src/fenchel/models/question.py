"""The evidence of pooling: what every head wants to know, whatever is read."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fenchel.errors import ProblemError
from fenchel.nn.evidence import General
from fenchel.nn.sizes import check_choice

__all__ = ["SCORES", "Question", "check_score"]

SCORES = ("dot", "general", "additive")
"""Ways in which a query meets a key, by name."""


def check_score(owner: str, score: str, estimator: str) -> None:
    """Refuse a score that is unknown, or additive with an estimator that has no evidence to estimate from.

    Raises:
        ProblemError: With what was given.
    """
    check_choice(owner, SCORES, score=score)
    if score == "additive" and estimator != "first_order":
        raise ProblemError(
            f"estimator of {owner} is {estimator!r} with an additive score, which is all preference: the evidence "
            "is 0 and every estimator gives the preference. Expected 'first_order'"
        )


class Question(nn.Module):
    r"""One learned vector a head, as the evidence :math:`z_h`.

    Args:
        heads: How many.
        dim: Of the templates of a head.
        score: ``"dot"``; ``"general"``, :math:`z_h = W_h^\top q_h`; or ``"additive"``: z is 0, and the question is read
            by the preference alone.

    Example:
        >>> Question(heads=2, dim=4)(batch=3).shape
        torch.Size([3, 2, 1, 4])
    """

    def __init__(self, heads: int, dim: int, score: str = "dot") -> None:
        super().__init__()
        self.question = nn.Parameter(torch.randn(heads, 1, dim))
        self.general = General(heads, dim) if score == "general" else None
        self.is_read = score != "additive"

    def forward(self, batch: int) -> Tensor:
        """z, (batch, heads, 1, dim)."""
        question = self.question.expand(batch, -1, -1, -1)
        if not self.is_read:
            return torch.zeros_like(question)
        return question if self.general is None else self.general(question, question)[0]

    def asked(self, batch: int) -> Tensor:
        """The questions side by side, (batch, 1, heads·dim), for preferences that look at the query."""
        return self.question.reshape(1, 1, -1).expand(batch, -1, -1)
