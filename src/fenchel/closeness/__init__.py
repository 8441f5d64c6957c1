"""The closeness D: divergences of the weights from the preference."""

from fenchel.closeness.abstract import KL, AbstractCloseness, Hard
from fenchel.closeness.custom import ClosenessReport, Divergence, check_closeness
from fenchel.closeness.optimal_transport import OptimalTransport
from fenchel.closeness.sparse_weights import sparse_weights
from fenchel.closeness.tsallis import Tsallis

__all__ = [
    "KL",
    "AbstractCloseness",
    "ClosenessReport",
    "Divergence",
    "Hard",
    "OptimalTransport",
    "Tsallis",
    "check_closeness",
    "sparse_weights",
]
