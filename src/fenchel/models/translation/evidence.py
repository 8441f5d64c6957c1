"""From a query to the evidence z: how a score compares it with templates."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["SCORES", "NoEvidence", "evidence_of"]

SCORES = ("dot", "general", "additive")
"""Scores by name."""


class NoEvidence(nn.Module):
    """Nothing is known besides the preference, z = 0."""

    def forward(self, queries: Tensor) -> Tensor:
        """Zeros in the shape of the queries."""
        return queries.new_zeros(queries.shape)


def evidence_of(score: str, width: int) -> nn.Module:
    r"""What makes evidence of a query q.

    * ``dot``: z = q, so that a word scores :math:`\langle t_i, q\rangle`.
    * ``general``: z = W q.
    * ``additive``: z = 0; the score is a preference, :class:`fenchel.nn.preference.Additive`.

    Args:
        score: One of these.
        width: Of queries and templates.

    Reference:
        Luong et al. 2015, section 3.1; textbook's 15.4.3.

    Example:
        >>> evidence_of("general", 8)
        Linear(in_features=8, out_features=8, bias=False)
    """
    if score == "general":
        return nn.Linear(width, width, bias=False)
    return nn.Identity() if score == "dot" else NoEvidence()
