"""The preference u: the prior distribution of templates, before evidence."""

from fenchel.preference.abstract import AbstractPreference, Tilted
from fenchel.preference.continuous import Continuous1d, Continuous2d
from fenchel.preference.discrete import Discrete
from fenchel.preference.exponential import AsymmetricLaplace, Box, Laplace, TruncatedExponential
from fenchel.preference.gaussian import Gaussian, GaussianMixture
from fenchel.preference.independent import Bernoulli, Gamma, Poisson

__all__ = [
    "AbstractPreference",
    "AsymmetricLaplace",
    "Bernoulli",
    "Box",
    "Continuous1d",
    "Continuous2d",
    "Discrete",
    "Gamma",
    "Gaussian",
    "GaussianMixture",
    "Laplace",
    "Poisson",
    "Tilted",
    "TruncatedExponential",
]
