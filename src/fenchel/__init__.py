"""Attention as inference: audit, build and explain attention through its convex problem."""

from fenchel import functional as functional
from fenchel import nn as nn
from fenchel.closeness import KL as KL
from fenchel.closeness import OptimalTransport as OptimalTransport
from fenchel.errors import ConvergenceError as ConvergenceError
from fenchel.errors import FenchelError as FenchelError
from fenchel.errors import ProblemError as ProblemError
from fenchel.estimate import Estimate as Estimate
from fenchel.inference import InferenceProblem as InferenceProblem
from fenchel.preference import Discrete as Discrete

# Last, and a function: importing the package of that name binds the module first.
from fenchel.auditing import audit as audit  # isort: skip

__version__ = "0.1.0"

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
