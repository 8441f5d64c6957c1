"""The preference u: what is believed about the answer before the evidence is seen."""

from fenchel.preference.abstract import AbstractPreference as AbstractPreference
from fenchel.preference.abstract import Tilted as Tilted
from fenchel.preference.continuous import Continuous1d as Continuous1d
from fenchel.preference.continuous import Continuous2d as Continuous2d
from fenchel.preference.discrete import Discrete as Discrete
from fenchel.preference.gaussian import Gaussian as Gaussian
from fenchel.preference.mixture import GaussianMixture as GaussianMixture

__all__ = [
    "AbstractPreference",
    "Continuous1d",
    "Continuous2d",
    "Discrete",
    "Gaussian",
    "GaussianMixture",
    "Tilted",
]
