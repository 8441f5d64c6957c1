"""The tasks that there are, by name and by the type of their options."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from fenchel.arguments import shown
from fenchel.errors import InputError, ProblemError
from fenchel.storage import Form
from fenchel.storage.form import refused
from fenchel.train.options import LoopOptions
from fenchel.train.task import AnyTask

__all__ = ["TASKS", "registered", "task_in", "task_of", "task_of_model"]

TASKS: dict[str, type[AnyTask]] = {}
"""Tasks by the name that files have for them."""

_AnyTaskT = TypeVar("_AnyTaskT", bound=type[AnyTask])


def registered(task: _AnyTaskT) -> _AnyTaskT:
    """Makes a task known, as a decorator of its class: it can then be trained, and its files be read.

    Raises:
        ProblemError: If another task has its name; the same one, defined again as in a notebook, takes its own place.
    """
    there = TASKS.get(task.name, task)
    if (there.__module__, there.__qualname__) != (task.__module__, task.__qualname__):
        raise ProblemError(f"there is a task {task.name!r} already; expected another name.")
    TASKS[task.name] = task
    return task


def task_of(options: LoopOptions) -> type[AnyTask]:
    """The task whose options these are.

    Raises:
        InputError: If they are of none.
    """
    for task in TASKS.values():
        if type(options) is task.options_type:
            return task
    known = ", ".join(task.options_type.__name__ for task in TASKS.values())
    raise InputError(f"options is {shown(options)}; expected one of {known}.")


def task_of_model(name: str) -> type[AnyTask]:
    """The task that trains the models of a name.

    Raises:
        InputError: If there is none.
    """
    for task in TASKS.values():
        if name in task.models:
            return task
    known = ", ".join(model for task in TASKS.values() for model in task.models)
    raise InputError(f"model is {shown(name)}; expected one of {known}.")


def task_in(path: Path, form: Form, name: str) -> type[AnyTask]:
    """The task that a file is of.

    Args:
        path: The file.
        form: What it is.
        name: As the file has it.

    Raises:
        InputError: If there is none of that name.
    """
    if name not in TASKS:
        known = ", ".join(TASKS)
        raise refused(path, form, f"is of the task {name[:60]!r}, and those that are known here are {known}")
    return TASKS[name]
