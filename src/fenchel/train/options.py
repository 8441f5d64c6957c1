"""What may be asked of any training: checked once, at the door, with the names that the user typed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

from fenchel.arguments import ARGUMENTS, AbstractRule, checked
from fenchel.errors import InputError

__all__ = ["LoopOptions"]


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """What decides a training's numbers whatever is trained; a task's options derive from it and add its own.

    Attributes:
        data: What is trained on: a name that the task knows, or a path.
        epochs: How often every example is seen.
        batch_size: Examples in a step, over all processes together.
        learning_rate: The largest one.
        weight_decay: AdamW's decoupled decay of matrices; None for the task's choice, 0.01 where it has none.
        warmup_fraction: Share of all steps in which the learning rate rises; None likewise, 0.05.
        gradient_clip: Largest Euclidean norm of the whole gradient, 0 for no limit; None likewise, 0.
        precision: ``float32``, ``bfloat16`` (autocast; weights and optimiser stay float32), or ``auto``: bfloat16
            where the hardware multiplies fast in it. Models with LSTMs are refused in bfloat16 where torch runs none.
        seed: Of the weights and of everything that is drawn in training.
        evaluate_every: Evaluate after every so many epochs, and after the last.

    Raises:
        InputError: If a value is out of range or unknown, naming it.
    """

    RULES: ClassVar[Mapping[str, str | AbstractRule]] = MappingProxyType({"batch_size": "train_batch_size"})
    """Options whose rule stands in the table of arguments under another name, or is not in it."""
    WORDS: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"evaluate_every": "the number of epochs from one test to the next (--evaluate-every)"}
    )
    """What users are to read of an option, where its name alone says too little."""

    data: str
    epochs: int = 20
    batch_size: int = 128
    learning_rate: float = 3e-4
    weight_decay: float | None = None
    warmup_fraction: float | None = None
    gradient_clip: float | None = None
    precision: str = "auto"
    seed: int = 0
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.data, Path):
            object.__setattr__(self, "data", str(self.data))
        rules = {**LoopOptions.RULES, **self.RULES}
        for field in dataclasses.fields(self):
            found = rules.get(field.name, field.name)
            rule = ARGUMENTS[found] if isinstance(found, str) else found
            words = self.WORDS.get(field.name, field.name.replace("_", " "))
            object.__setattr__(self, field.name, rule.check(words, getattr(self, field.name), InputError))

    def resolved(self) -> Self:
        """The same options with nothing left open, and precision alone to the machine."""
        return self.filled({"weight_decay": 0.01, "warmup_fraction": 0.05, "gradient_clip": 0.0})

    def filled(self, values: Mapping[str, Any]) -> Self:
        """The same options with values for those that are None."""
        missing = {name: value for name, value in values.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **missing)

    @property
    def model_title(self) -> str:
        """What is trained, in a few words, for the heading of a figure."""
        return "a model"

    @property
    def manner(self) -> str:
        """How it is trained, likewise; may be empty."""
        return ""

    def to_json(self) -> dict[str, Any]:
        """The options as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave.

        Raises:
            InputError: If a name is unknown or ``data`` is missing.
        """
        values = checked("options", values)
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise InputError(f"{unknown[0]!r} is no option of a training; expected some of {sorted(known)}.")
        if "data" not in values:
            raise InputError("the options of a training name no data; expected 'data'.")
        return cls(**values)
