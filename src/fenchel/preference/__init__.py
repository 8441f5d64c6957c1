"""The preference u: what is believed about the answer before the evidence is seen."""

from fenchel.preference.abstract import AbstractPreference as AbstractPreference
from fenchel.preference.discrete import Discrete as Discrete

__all__ = ["AbstractPreference", "Discrete"]
