"""Attention as inference: audit, build and explain attention through its convex problem."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fenchel.version import __version__ as __version__

if TYPE_CHECKING:
    from fenchel import auditing as auditing
    from fenchel import catalogue as catalogue
    from fenchel import comparing as comparing
    from fenchel import functional as functional
    from fenchel import integrations as integrations
    from fenchel import nn as nn
    from fenchel import reproducing as reproducing
    from fenchel import swap as swap
    from fenchel.auditing import audit as audit
    from fenchel.closeness import KL as KL
    from fenchel.closeness import Divergence as Divergence
    from fenchel.closeness import Hard as Hard
    from fenchel.closeness import OptimalTransport as OptimalTransport
    from fenchel.closeness import Tsallis as Tsallis
    from fenchel.closeness import check_closeness as check_closeness
    from fenchel.comparing import compare as compare
    from fenchel.errors import ConvergenceError as ConvergenceError
    from fenchel.errors import DomainError as DomainError
    from fenchel.errors import FenchelError as FenchelError
    from fenchel.errors import ProblemError as ProblemError
    from fenchel.estimate import Estimate as Estimate
    from fenchel.estimators import Constrained as Constrained
    from fenchel.estimators import Exact as Exact
    from fenchel.estimators import FirstOrder as FirstOrder
    from fenchel.estimators import GradientAscent as GradientAscent
    from fenchel.estimators import InferenceProblem as InferenceProblem
    from fenchel.estimators import SecondOrder as SecondOrder
    from fenchel.integrations.capture import Capture as Capture
    from fenchel.integrations.capture import CapturedHead as CapturedHead
    from fenchel.preference import Bernoulli as Bernoulli
    from fenchel.preference import Box as Box
    from fenchel.preference import Continuous1d as Continuous1d
    from fenchel.preference import Continuous2d as Continuous2d
    from fenchel.preference import Discrete as Discrete
    from fenchel.preference import Gamma as Gamma
    from fenchel.preference import Gaussian as Gaussian
    from fenchel.preference import GaussianMixture as GaussianMixture
    from fenchel.preference import Laplace as Laplace
    from fenchel.preference import Poisson as Poisson

__all__ = [
    "KL",
    "Bernoulli",
    "Box",
    "Capture",
    "CapturedHead",
    "Constrained",
    "Continuous1d",
    "Continuous2d",
    "ConvergenceError",
    "Discrete",
    "Divergence",
    "DomainError",
    "Estimate",
    "Exact",
    "FenchelError",
    "FirstOrder",
    "Gamma",
    "Gaussian",
    "GaussianMixture",
    "GradientAscent",
    "Hard",
    "InferenceProblem",
    "Laplace",
    "OptimalTransport",
    "Poisson",
    "ProblemError",
    "SecondOrder",
    "Tsallis",
    "__version__",
    "audit",
    "check_closeness",
    "compare",
    "functional",
    "nn",
]

_PACKAGES = ("auditing", "catalogue", "comparing", "functional", "integrations", "nn", "reproducing", "swap")
# In this order they are asked for a name: errors need no torch, and the last two an extra.
_HOMES = (
    *("errors", "closeness", "estimate", "preference", "estimators"),
    *("integrations.capture", "auditing", "comparing"),
)


def __getattr__(name: str) -> Any:
    """Packages and names are imported when they are first asked for, so that the command answers without torch."""
    if name in _PACKAGES:
        return import_module(f"fenchel.{name}")
    if name in __all__:
        homes = (import_module(f"fenchel.{home}") for home in _HOMES)
        result = globals()[name] = getattr(next(home for home in homes if name in home.__all__), name)
        return result
    raise AttributeError(f"module 'fenchel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PACKAGES, *__all__})
