r"""The three readings of α: a likelihood, a posterior, and a radius.

The penalty form (3), the regularised likelihood (27) and the posterior of Appendix B are one problem with
:math:`\alpha^{-1} = \eta\sigma^2`. The constrained form has a radius instead; its α is the multiplier of the constraint
on half the squared distance, found by :class:`fenchel.Constrained`; the radius for a given α follows from the exact
estimate.
"""

from __future__ import annotations

from torch import Tensor

from fenchel.estimate import Estimate
from fenchel.tensors import check_type, checked_argument

__all__ = ["alpha_from_noise", "noise_from_alpha", "radius_of"]


def alpha_from_noise(sigma: float, eta: float = 1.0) -> float:
    r"""The α of evidence with Gaussian noise: :math:`\alpha = 1/(\eta\sigma^2)`.

    Args:
        sigma: Standard deviation σ of the noise ε in :math:`z = h - \mu + \epsilon` (2), > 0.
        eta: Strength η of the divergence: its weight in the regularised likelihood (27), its rate of decay in the
            prior (29), > 0.

    Raises:
        ProblemError: If either is not positive.

    Reference:
        Appendix B, eqs. (27)–(30).

    Example:
        >>> alpha_from_noise(sigma=0.5, eta=2.0)
        2.0
    """
    sigma = checked_argument("positive", sigma, name="sigma")
    eta = checked_argument("positive", eta, name="eta")
    return 1 / (eta * sigma**2)


def noise_from_alpha(alpha: float, eta: float = 1.0) -> float:
    r"""The standard deviation of the noise that corresponds to an α: :math:`\sigma = 1/\sqrt{\eta\alpha}`.

    Args:
        alpha: α > 0.
        eta: η > 0, as in :func:`alpha_from_noise`.

    Raises:
        ProblemError: If either is not positive.

    Example:
        >>> noise_from_alpha(2.0, eta=2.0)
        0.5
    """
    alpha = checked_argument("alpha", alpha)
    eta = checked_argument("positive", eta, name="eta")
    return (eta * alpha) ** -0.5


def radius_of(estimate: Estimate) -> Tensor:
    r"""The radius at which the constrained form has this exact estimate.

    .. math:: \lVert\mu + z - h^\star\rVert = \lVert\lambda^\star\rVert/\alpha

    Args:
        estimate: An exact estimate.

    Returns:
        The radius, shape (..., m); NaN if α is 0 (an inactive constraint). Its error is at most ``estimate.dual_error /
        alpha``.

    Example:
        >>> import torch
        >>> from fenchel import Discrete, InferenceProblem
        >>> u = Discrete(torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
        >>> problem = InferenceProblem(u, torch.tensor([[0.8]], dtype=torch.float64), alpha=2.0)
        >>> radius = radius_of(problem.solve("exact", tol=1e-10))
        >>> again = problem.solve("constrained", radius=radius)      # recovers alpha
        >>> torch.allclose(again.alpha, problem.alpha)
        True
    """
    check_type("estimate", estimate, Estimate, "a result of problem.solve")
    return estimate.dual.norm(dim=-1) / estimate.alpha
