"""What a run goes on from: a run of another experiment, which is trained first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["After"]


@dataclass(frozen=True)
class After:
    """The experiment whose runs are trained before those of another.

    Its folder stands beside the other and is called by its name; of the needed arm, the run of the same seed is taken,
    on the data set and at the learning rate that its experiment has where nobody asks for others.

    Attributes:
        experiment: Its name.
        option: The option of a training that names the folder of the needed run.
    """

    experiment: str
    option: str

    def relative(self, place: Path) -> str:
        """The folder of a needed run as seen from the folder that holds both experiments.

        Args:
            place: Of the run, within its experiment's folder.
        """
        return str(Path(self.experiment, place))
