"""A training under way as one file: weights, optimiser and state, with a digest of them all."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.errors import InputError
from fenchel.storage import json_text, read_tensors, write_tensors
from fenchel.train.state import TrainState

__all__ = ["CHECKPOINT_FILE", "SCHEMA", "Checkpoint", "differences"]

SCHEMA = 1
"""Version of the files that a training writes."""

CHECKPOINT_FILE = "checkpoint.safetensors"
"""The file's name in a training's folder."""

_MODEL, _OPTIMISER = "model/", "optimiser/"


@dataclass
class Checkpoint:
    """What is saved between two steps.

    Attributes:
        configuration: Everything that decides the numbers; a training goes on only from its own.
        model: Name and configuration of the model, and what its images are made of.
        state: Where the training is.
        tensors: Weights and optimiser state, on the processor.
    """

    configuration: dict[str, Any]
    model: dict[str, Any]
    state: TrainState
    tensors: dict[str, Tensor]

    @classmethod
    def of(
        cls,
        configuration: Mapping[str, Any],
        description: Mapping[str, Any],
        state: TrainState,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
    ) -> Checkpoint:
        """A copy of a training as it is now."""
        tensors = {f"{_MODEL}{name}": value for name, value in model.state_dict().items()}
        for index, values in optimiser.state_dict()["state"].items():
            tensors.update({f"{_OPTIMISER}{index}/{name}": value for name, value in values.items()})
        saved = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        return cls(dict(configuration), dict(description), state, saved)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The model's parameters and buffers by name."""
        return {
            name.removeprefix(_MODEL): value
            for name, value in self.tensors.items()
            if name.startswith(_MODEL)
        }

    def first_not_finite(self) -> str | None:
        """The name of a tensor that holds a NaN or an infinity, if there is one."""
        return next((name for name, value in self.tensors.items() if not value.isfinite().all()), None)

    def restore(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        """Puts weights and optimiser state back.

        Raises:
            InputError: If they are not those of this model.
        """
        try:
            model.load_state_dict(self.weights)
        except RuntimeError as error:
            raise InputError(
                f"the checkpoint does not fit the model: {' '.join(str(error).split())} Start anew with --overwrite."
            ) from error
        # What is read may be a view of the file at any alignment; the optimiser works on memory of its own.
        states: dict[int, dict[str, Tensor]] = {}
        for name, value in self.tensors.items():
            if name.startswith(_OPTIMISER):
                index, _, key = name.removeprefix(_OPTIMISER).partition("/")
                states.setdefault(int(index), {})[key] = value.clone()
        optimiser.load_state_dict({"state": states, "param_groups": optimiser.state_dict()["param_groups"]})

    def write(self, directory: Path) -> None:
        """Save into a folder, in one step: the file there is the old checkpoint or the new one.

        Raises:
            OutputError: If it cannot be written; the old one is then intact.
        """
        described = {
            "schema": SCHEMA,
            "configuration": self.configuration,
            "model": self.model,
            "state": self.state.to_json(),
        }
        write_tensors(
            directory / CHECKPOINT_FILE,
            self.tensors,
            {**described, "sha256": _digest(self.tensors, described)},
        )

    @classmethod
    def read(cls, directory: Path) -> Checkpoint:
        """Load what ``write`` saved.

        Raises:
            InputError: If there is none, it is damaged, or another version of this package wrote it.
        """
        path = directory / CHECKPOINT_FILE
        advice = "Start anew with --overwrite, or choose another folder."
        try:
            tensors, description = read_tensors(path)
        except InputError as error:
            raise InputError(f"{error} {advice}") from error
        if not isinstance(description, dict) or description.get("schema") != SCHEMA:
            found = description.get("schema") if isinstance(description, dict) else None
            raise InputError(f"{path} has version {found!r} of a checkpoint; expected {SCHEMA}. {advice}")
        written = description.pop("sha256", None)
        if (found := _digest(tensors, description)) != written:
            raise InputError(
                f"{path} is damaged: its content has SHA-256 {found[:16]}..., and {str(written)[:16]}... was written. "
                f"{advice}"
            )
        return cls(
            description["configuration"],
            description["model"],
            TrainState.from_json(description["state"]),
            tensors,
        )


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """How the configuration of a checkpoint differs from the one asked for, one phrase a field.

    Args:
        ours: The checkpoint's.
        theirs: What is asked for.

    Example:
        >>> differences({"seed": 0, "epochs": 2}, {"seed": 1, "epochs": 2})
        ['seed: 0 there, 1 asked for']
    """
    return [
        f"{key.replace('_', ' ')}: {ours.get(key)!r} there, {theirs.get(key)!r} asked for"
        for key in {**theirs, **ours}
        if ours.get(key) != theirs.get(key)
    ]


def _digest(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json_text(description).encode())
    for name in sorted(tensors):
        digest.update(f"{name}:{tuple(tensors[name].shape)}:".encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
