"""Which φ a preference and a closeness make together."""

from __future__ import annotations

from fenchel.arguments import shown
from fenchel.closeness import KL, AbstractCloseness
from fenchel.conjugate.abstract import AbstractConjugate
from fenchel.conjugate.finite import FiniteConjugate
from fenchel.conjugate.log_partition import LogPartition
from fenchel.errors import ProblemError
from fenchel.preference import AbstractPreference, Discrete

__all__ = ["conjugate_of"]


def conjugate_of(
    preference: AbstractPreference, closeness: AbstractCloseness | None = None
) -> AbstractConjugate:
    r"""φ of a preference and a closeness.

    Args:
        preference: u: a :class:`~fenchel.Discrete`, or any other distribution that gives its cumulant.
        closeness: D, :class:`~fenchel.KL` where None; a preference that is not discrete goes with that alone.

    Raises:
        ProblemError: If either is something else, or they do not go together.

    Example:
        >>> import torch
        >>> from fenchel import Discrete
        >>> conjugate_of(Discrete(torch.tensor([[1.0], [-1.0]]))).value(torch.tensor([[0.0], [1.0]]))   # log cosh
        tensor([0.0000, 0.4338])
    """
    if not isinstance(preference, AbstractPreference):
        raise ProblemError(
            f"preference is a {type(preference).__name__}; expected fenchel.Discrete(templates), "
            "fenchel.Gaussian(mean, covariance) or another distribution"
        )
    if closeness is None:
        closeness = KL()
    if not isinstance(closeness, AbstractCloseness):
        raise ProblemError(
            f"closeness is {shown(closeness)}; expected one such as fenchel.KL(), fenchel.Tsallis(1.5) or "
            "fenchel.OptimalTransport(cost, gamma)"
        )
    if isinstance(preference, Discrete):
        return FiniteConjugate(preference, closeness.bind(preference))
    if isinstance(closeness, KL):
        return LogPartition(preference, closeness)
    raise ProblemError(
        f"closeness is {closeness!r} and the preference a {type(preference).__name__}, which has no list of templates; "
        "expected fenchel.KL(), or a fenchel.Discrete preference"
    )
