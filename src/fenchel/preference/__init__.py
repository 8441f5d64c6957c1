"""The preference u: what is believed about the answer before the evidence is seen."""

from fenchel.preference.abstract import AbstractPreference as AbstractPreference
from fenchel.preference.abstract import Tilted as Tilted
from fenchel.preference.continuous import Continuous1d as Continuous1d
from fenchel.preference.continuous import Continuous2d as Continuous2d
from fenchel.preference.discrete import Discrete as Discrete
from fenchel.preference.exponential import AsymmetricLaplace as AsymmetricLaplace
from fenchel.preference.exponential import Box as Box
from fenchel.preference.exponential import Laplace as Laplace
from fenchel.preference.exponential import TruncatedExponential as TruncatedExponential
from fenchel.preference.gaussian import Gaussian as Gaussian
from fenchel.preference.gaussian import GaussianMixture as GaussianMixture
from fenchel.preference.independent import Bernoulli as Bernoulli
from fenchel.preference.independent import Gamma as Gamma
from fenchel.preference.independent import Poisson as Poisson

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
