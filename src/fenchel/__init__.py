"""Attention as inference: audit, build and explain attention through its convex problem."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fenchel.closeness import KL as KL
from fenchel.closeness import OptimalTransport as OptimalTransport
from fenchel.errors import ConvergenceError as ConvergenceError
from fenchel.errors import FenchelError as FenchelError
from fenchel.errors import ProblemError as ProblemError
from fenchel.estimate import Estimate as Estimate
from fenchel.inference import InferenceProblem as InferenceProblem
from fenchel.preference import Discrete as Discrete
from fenchel.version import __version__ as __version__

if TYPE_CHECKING:
    from fenchel import auditing as auditing
    from fenchel import data as data
    from fenchel import experiments as experiments
    from fenchel import functional as functional
    from fenchel import integrations as integrations
    from fenchel import models as models
    from fenchel import nn as nn
    from fenchel import swap as swap
    from fenchel import train as train
    from fenchel.auditing import audit as audit

__all__ = [
    "KL",
    "ConvergenceError",
    "Discrete",
    "Estimate",
    "FenchelError",
    "InferenceProblem",
    "OptimalTransport",
    "ProblemError",
    "__version__",
    "audit",
    "functional",
    "nn",
]

_PACKAGES = (
    "auditing",
    "data",
    "experiments",
    "functional",
    "integrations",
    "models",
    "nn",
    "swap",
    "train",
)


def __getattr__(name: str) -> Any:
    """Packages, and what is in one, are imported when they are first asked for."""
    if name in _PACKAGES:
        return import_module(f"fenchel.{name}")
    if name == "audit":
        return import_module("fenchel.auditing").audit
    raise AttributeError(f"module 'fenchel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PACKAGES, "audit"})
