"""The folder of a training, opened to be used: its model, what it was told of its input, and its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fenchel.arguments import checked
from fenchel.data.subwords import TOKENIZER_FILE, Subwords
from fenchel.errors import InputError
from fenchel.train.checkpoint import CHECKPOINT_FILE, Checkpoint
from fenchel.train.files import read_file
from fenchel.train.registry import TASKS
from fenchel.train.trained import model_of

__all__ = ["TrainedRun"]


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A trained model that is ready to answer.

    Attributes:
        folder: Of the training.
        task: Name of what was trained.
        model: In evaluation mode, with the weights that the training kept.
        description: What the training wrote of the model: its name, configuration, and what its input is made of.
        configuration: The options of the training.
    """

    folder: Path
    task: str
    model: nn.Module
    description: Mapping[str, Any]
    configuration: Mapping[str, Any]

    @classmethod
    def read(
        cls, folder: str | Path | TrainedRun, *, tasks: tuple[str, ...], device: str | None = None
    ) -> TrainedRun:
        """Opens the folder of a training.

        Args:
            folder: The folder; or a run that is open already, which is given back.
            tasks: Names of tasks of which one has to have been trained.
            device: Where the model is to be. Default: on the processor.

        Raises:
            InputError: If there is no training of such a task, or it is damaged.
        """
        if isinstance(folder, TrainedRun):
            cls._check(folder.folder, folder.task, tasks)
            return folder
        path, device = Path(checked("folder", folder, name="run")), checked("device", device)
        if not (path / CHECKPOINT_FILE).is_file():
            raise InputError(
                f"{path} holds no trained model ({CHECKPOINT_FILE} is not there). Give the folder of a training, which "
                f"fenchel train --model {TASKS[tasks[0]].models[0]} --out {path} would make."
            )
        checkpoint = Checkpoint.read(path)
        cls._check(path, checkpoint.task, tasks)
        model = model_of(checkpoint, path / CHECKPOINT_FILE)
        if device is not None:
            model = model.to(torch.device(device))
        return cls(path, checkpoint.task, model, checkpoint.model, checkpoint.configuration)

    @staticmethod
    def _check(folder: Path, task: str, tasks: tuple[str, ...]) -> None:
        if task not in tasks:
            wanted = " or ".join(model for name in tasks for model in TASKS[name].models)
            trained = ", ".join(TASKS[task].models)
            raise InputError(
                f"{folder} is the folder of a training of another kind ({trained}); expected one of {wanted}."
            )

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def file(self, name: str) -> str:
        """A file that the training wrote beside its weights.

        Raises:
            InputError: If it is missing or damaged.
        """
        return read_file(self.folder, name, self.description.get("files", {}))

    @cached_property
    def subwords(self) -> Subwords:
        """The tokenizer that was trained with the model.

        Raises:
            InputError: If it is missing or damaged.
            MissingExtraError: If ``tokenizers`` is not installed.
        """
        return Subwords(self.file(TOKENIZER_FILE))
