"""The loop of a swap: every arm on every step, and no step is ever half counted."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fenchel.errors import ConvergenceError, InputError, ModelError, OutputError
from fenchel.loading import evaluating, on_device, seeded
from fenchel.progress import ProgressClock, ReadingObserver, SavingPace
from fenchel.swap.arms import Arm
from fenchel.swap.observation import Observation
from fenchel.swap.state import SwapState
from fenchel.swap.step import Step, Task

__all__ = ["SwapRun", "check_room"]

_MOST_EMBEDDING_BYTES = 4 * 2**30
_SAME = {torch.float64: 1e-6, torch.float32: 1e-3}
_SAME_IN_HALF = 0.1


class SwapRun:
    """A swap under way.

    Args:
        model: The model, with a language-model head if the task has labels.
        task: What it is asked to do.
        arms: The arms, the model itself first.
        state: What to start from, and what is added to.
        tol: Tolerance of the exact estimator, None for its default.
        observer: Who is told about the progress.
        directory: Where to save, or None to keep everything in memory.
        seconds: Least time between two savings.
    """

    def __init__(
        self,
        model: Any,
        task: Task,
        arms: Sequence[Arm],
        state: SwapState,
        *,
        tol: float | None,
        observer: ReadingObserver,
        directory: Path | None = None,
        seconds: float = 60.0,
    ) -> None:
        self._model = model
        self._task = task
        self._arms = list(arms)
        self._state = state
        self._tol = tol
        self._observer = observer
        self._directory = directory
        self._pace = SavingPace(seconds)
        self._clock = ProgressClock(state.tokens)
        self._fraction = 0.0
        self._checked = False

    def run(self) -> None:
        """Count every step that the state has not counted.

        Whatever stops it, what complete steps gave is saved first, if there is a folder to save it in.

        Raises:
            InputError: If no step has a token that counts.
            ModelError: If the model says something that cannot be compared.
            ConvergenceError: If an exact solve does not reach its tolerance.
        """
        self._observer.started(self._state.manifest)
        try:
            with evaluating(self._model), seeded(int(self._state.manifest["seed"]), self._model):
                for step in self._task.steps(self._state.place):
                    self._count(step)
        except BaseException as error:
            if not isinstance(error, OutputError):
                with contextlib.suppress(Exception):  # the first error is the one to be told
                    self._save()
            raise
        finally:
            self._observer.finished()
        self._save()

    def _count(self, step: Step) -> None:
        part = self._measure(step)
        self._state.add(part, step.after, step.documents, step.tokens)
        self._fraction = step.fraction or 0.0
        if self._directory is not None and self._pace.due:
            self._save()

    def _save(self) -> None:
        if self._directory is not None and self._state.parts:
            self._state.write(self._directory)
        self._pace.saved()

    def _measure(self, step: Step) -> dict[str, Tensor]:
        own = self._observe(self._arms[0], step)
        self._check_control(own, step)
        self._state.manifest["stacks"] = {stack.name: len(stack.states) for stack in own.stacks}
        last = own.stacks[-1]
        # The model and its controls come before the arms that are compared with them.
        compared = [last]
        columns: dict[str, list[Tensor]] = {
            name: [] for name in ("hidden", "losses", "scores", "embeddings", "distances")
        }
        for done, arm in enumerate(self._arms, start=1):
            seen = own if arm.estimator is None else self._observe(arm, step)
            changes = [stack.changes(before) for stack, before in zip(seen.stacks, own.stacks, strict=True)]
            columns["hidden"].append(torch.cat(changes, -1).float())
            for name in ("losses", "scores", "embeddings"):
                if (values := getattr(seen, name)) is not None:
                    columns[name].append(values)
            if seen.embeddings is None:
                if arm.is_model_wide_control:
                    compared.append(seen.stacks[-1])
                elif arm.is_model_wide_estimator:
                    apart = [seen.stacks[-1].apart(other, last) for other in compared]
                    columns["distances"].append(torch.stack(apart, -1).float())
            self._tell(step, done / len(self._arms))
        return {
            "units": step.units,
            "tokens": torch.stack([stack.counts for stack in own.stacks], -1),
            "labels": step.label_counts,
            **{name: torch.stack(column, 1) for name, column in columns.items() if column},
        }

    def _observe(self, arm: Arm, step: Step) -> Observation:
        try:
            with arm.installed(self._model, self._tol):
                return self._task.observed(self._model, step, on_device(step.inputs, self._model))
        except ConvergenceError as error:
            raise ConvergenceError(
                f"swapping in {arm.key}: {error} Raise --tol (the default is 1e-5 in float32), or use --dtype float64; "
                "what was measured before is saved for --resume with the same options."
            ) from error

    def _check_control(self, own: Observation, step: Step) -> None:
        """First order at α = 1 has to be the model itself, or nothing that follows means anything. Looked at once."""
        if self._checked:
            return
        again = self._observe(Arm("first_order"), step)
        last, other = own.stacks[-1], again.stacks[-1]
        mean = float(other.apart(last).sum() / last.counts.sum().clamp_min(1))
        allowed = _SAME.get(last.states[-1].dtype, _SAME_IN_HALF)
        if not mean <= allowed:
            raise ModelError(
                f"{type(self._model).__name__} under first order at alpha 1 is {mean:.1e} (relative) from itself, and "
                f"at most {allowed:g} is rounding: its attention is not softmax(scaling·⟨q, k⟩ + log u)·v, so no swap "
                "of it means anything. Use a model of another family"
            )
        self._checked = True

    def _tell(self, step: Step, share: float) -> None:
        fraction = None
        if step.fraction is not None:
            fraction = self._fraction + share * (step.fraction - self._fraction)
        self._observer.advanced(self._clock.progress(step.documents, step.tokens, fraction))


def check_room(arms: int, sentences: int, width: int) -> None:
    """Refuse more embeddings than memory may be expected to hold.

    Raises:
        InputError: If they take more than 4 GiB.
    """
    needed = 4 * arms * sentences * width
    if needed > _MOST_EMBEDDING_BYTES:
        raise InputError(
            f"{arms} arms times {sentences} sentences of width {width} are {needed / 2**30:.1f} GiB of embeddings; at "
            "most 4 are held. Lower --max-tokens or --max-pairs, give fewer --alphas, or choose --layers and --heads."
        )
