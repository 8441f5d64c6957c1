"""The closeness D: how the answer is kept near the preference."""

from fenchel.closeness.abstract import AbstractCloseness as AbstractCloseness
from fenchel.closeness.abstract import ClosenessReport as ClosenessReport
from fenchel.closeness.abstract import Divergence as Divergence
from fenchel.closeness.abstract import check_closeness as check_closeness
from fenchel.closeness.kl import KL as KL
from fenchel.closeness.kl import Hard as Hard
from fenchel.closeness.optimal_transport import OptimalTransport as OptimalTransport
from fenchel.closeness.sparse_weights import sparse_weights as sparse_weights
from fenchel.closeness.tsallis import Tsallis as Tsallis

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
