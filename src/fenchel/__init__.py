"""Attention as inference: audit, build and explain attention through its convex problem."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fenchel import auditing as auditing
    from fenchel import catalogue as catalogue
    from fenchel import closeness as closeness
    from fenchel import comparing as comparing
    from fenchel import errors as errors
    from fenchel import functional as functional
    from fenchel import integrations as integrations
    from fenchel import nn as nn
    from fenchel import preference as preference
    from fenchel import reliability as reliability
    from fenchel import reproducing as reproducing
    from fenchel import swap as swap
    from fenchel.auditing import audit
    from fenchel.closeness import KL, Divergence, Hard, OptimalTransport, Tsallis, check_closeness
    from fenchel.comparing import compare
    from fenchel.errors import ConvergenceError, DomainError, FenchelError, ProblemError
    from fenchel.estimate import Estimate
    from fenchel.estimators import (
        Constrained,
        Exact,
        FirstOrder,
        GradientAscent,
        InferenceProblem,
        SecondOrder,
    )
    from fenchel.integrations.capture import Capture, CapturedHead
    from fenchel.preference import (
        Bernoulli,
        Box,
        Continuous1d,
        Continuous2d,
        Discrete,
        Gamma,
        Gaussian,
        GaussianMixture,
        Laplace,
        Poisson,
    )

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

__version__ = "0.2.0"

_PUBLIC_MODULES = (
    *("auditing", "catalogue", "closeness", "comparing", "errors", "functional", "integrations"),
    *("nn", "preference", "reliability", "reproducing", "swap"),
)
# Searched in this order: errors need no torch, and the last two need an extra.
_MODULES = ["errors", "closeness", "estimate", "preference", "estimators"]
_MODULES += ["integrations.capture", "auditing", "comparing"]


def __getattr__(name: str) -> Any:
    """Import a module or a name when it is first used, so that the command starts without torch."""
    if name in _PUBLIC_MODULES:
        return import_module(f"fenchel.{name}")
    if name in __all__:
        modules = (import_module(f"fenchel.{module}") for module in _MODULES)
        result = globals()[name] = getattr(next(module for module in modules if name in module.__all__), name)
        return result
    raise AttributeError(f"module 'fenchel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC_MODULES, *__all__})
