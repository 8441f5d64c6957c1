"""A training under way as one file: weights, optimiser and state, sealed with a digest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.errors import InputError
from fenchel.storage import Form, read_description, read_tensors, write_tensors
from fenchel.storage.schema import (
    Mismatch,
    Shown,
    TensorSchema,
    anything,
    check_tensors,
    mapping,
    record,
    text,
)
from fenchel.train.registry import task_in
from fenchel.train.state import STATE_SCHEMA, TrainState, check_state

__all__ = ["CHECKPOINT_FILE", "CHECKPOINT_FORM", "Checkpoint", "trained_task"]

CHECKPOINT_FILE = "checkpoint.safetensors"
"""The file's name in a training's folder."""

CHECKPOINT_FORM = Form(
    name="training checkpoint",
    version=3,
    schema=record(
        {
            "task": text(),
            "configuration": mapping(anything),
            "model": record({"name": text(), "configuration": mapping(anything)}, others=True),
            "state": STATE_SCHEMA,
        }
    ),
    advice="Put a good copy of it back, train anew with fenchel train --overwrite, or give another folder.",
)
"""What the file holds besides tensors."""

_MODEL, _SELECTED, _OPTIMISER = "model/", "selected/", "optimiser/"
_NAME = re.compile(r"(model|selected)/.+|optimiser/\d{1,6}/\w+")


@dataclass
class Checkpoint:
    """What is saved between two steps.

    Attributes:
        task: Name of the task.
        configuration: Everything that decides the numbers; a training goes on only from its own.
        model: Name and configuration of the model, and what its input is made of.
        state: Where the training is.
        tensors: Weights, those that were chosen among epochs, and optimiser state, on the processor.
    """

    task: str
    configuration: dict[str, Any]
    model: dict[str, Any]
    state: TrainState
    tensors: dict[str, Tensor]

    @classmethod
    def of(
        cls,
        task: str,
        configuration: Mapping[str, Any],
        description: Mapping[str, Any],
        state: TrainState,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        selected: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> Checkpoint:
        """A copy of a training as it is now."""
        tensors = {f"{_MODEL}{name}": value for name, value in model.state_dict().items()}
        tensors.update({f"{_SELECTED}{name}": value for name, value in selected.items()})
        for index, values in optimiser.state_dict()["state"].items():
            tensors.update({f"{_OPTIMISER}{index}/{name}": value for name, value in values.items()})
        saved = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        return cls(task, dict(configuration), dict(description), state, saved)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The model's parameters and buffers by name, after the last step."""
        return self._below(_MODEL)

    @property
    def selected(self) -> dict[str, Tensor]:
        """Those that were chosen among epochs; empty where none were."""
        return self._below(_SELECTED)

    def _below(self, folder: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(folder): value
            for name, value in self.tensors.items()
            if name.startswith(folder)
        }

    def first_not_finite(self) -> str | None:
        """The name of a tensor that holds a NaN or an infinity, if there is one."""
        return next((name for name, value in self.tensors.items() if not value.isfinite().all()), None)

    def restore(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        """Puts weights and optimiser state back.

        Raises:
            InputError: If they are not those of this model.
        """
        parameters = [one for group in optimiser.param_groups for one in group["params"]]
        # What is read may be a view of the file at any alignment; the optimiser works on memory of its own.
        states: dict[int, dict[str, Tensor]] = {}
        for name, value in self.tensors.items():
            if name.startswith(_OPTIMISER):
                index, _, key = name.removeprefix(_OPTIMISER).partition("/")
                states.setdefault(int(index), {})[key] = value.clone()
        try:
            self.check_weights(model.state_dict())
            _check_states(states, parameters)
        except Mismatch as error:
            raise InputError(
                f"the checkpoint does not fit the model: {error}. Train anew with fenchel train --overwrite."
            ) from error
        model.load_state_dict(self.weights)
        optimiser.load_state_dict({"state": states, "param_groups": optimiser.state_dict()["param_groups"]})

    def check_weights(self, expected: Mapping[str, Tensor]) -> None:
        """See that the weights have the names, types and shapes of a model's.

        Args:
            expected: The model's.

        Raises:
            Mismatch: If they have not.
        """
        schema = {name: TensorSchema((value.dtype,), tuple(value.shape)) for name, value in expected.items()}
        check_tensors(self.weights, schema)
        if self.selected:
            check_tensors(self.selected, schema)

    def write(self, directory: Path) -> None:
        """Save into a folder, in one step: the file there is the old checkpoint or the new one.

        Raises:
            OutputError: If it cannot be written; the old one is then intact.
        """
        write_tensors(
            directory / CHECKPOINT_FILE,
            CHECKPOINT_FORM,
            self.tensors,
            {
                "task": self.task,
                "configuration": self.configuration,
                "model": self.model,
                "state": self.state.to_json(),
            },
        )

    @classmethod
    def read(cls, directory: Path) -> Checkpoint:
        """Load what ``write`` saved.

        Raises:
            InputError: If there is none, another version of this package wrote it, it was changed after it was written,
                or it holds what no training can have saved.
        """
        path = directory / CHECKPOINT_FILE
        tensors, saved = read_tensors(path, CHECKPOINT_FORM)
        state = TrainState.from_json(saved["state"])
        checkpoint = cls(saved["task"], saved["configuration"], saved["model"], state, tensors)
        task = task_in(path, CHECKPOINT_FORM, saved["task"])
        with CHECKPOINT_FORM.reading(path):
            check_state(state, task)
            for name in tensors:
                if not _NAME.fullmatch(name):
                    raise Mismatch(
                        f"tensor {name[:60]}", Shown("there"), "tensors of the model and the optimiser"
                    )
            if name := checkpoint.first_not_finite():
                raise Mismatch(f"tensor {name}", Shown("not finite everywhere"), "finite numbers")
        return checkpoint


def trained_task(directory: Path) -> str:
    """Name of the task that a training is of, without reading its weights.

    Raises:
        InputError: If there is no checkpoint, it is no such file, or its task is not known here.
    """
    path = directory / CHECKPOINT_FILE
    return task_in(path, CHECKPOINT_FORM, read_description(path, CHECKPOINT_FORM)["task"]).name


def _check_states(states: Mapping[int, Mapping[str, Tensor]], parameters: Sequence[Tensor]) -> None:
    """Whether an optimiser's state is of these parameters: each tensor as large as its parameter, or one number."""
    kinds = {tuple(sorted(state)) for state in states.values()}
    if len(kinds) > 1:
        raise Mismatch(
            "the optimiser's state", Shown("not alike for all parameters"), "the same tensors for each"
        )
    for index, state in states.items():
        if index >= len(parameters):
            raise Mismatch(
                f"tensor {_OPTIMISER}{index}", Shown("there"), f"those of {len(parameters)} parameters"
            )
        for name, value in state.items():
            if value.shape not in (parameters[index].shape, torch.Size([])) or not value.is_floating_point():
                found = f"{value.dtype} of shape {tuple(value.shape)}"
                expected = f"floats of shape {tuple(parameters[index].shape)}"
                raise Mismatch(f"tensor {_OPTIMISER}{index}/{name}", Shown(found), expected)
