"""What a swap is asked for, checked once; among it the estimators and controls that can tell something."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fenchel.arguments import checked, shown
from fenchel.data.text.documents import Documents, open_documents
from fenchel.errors import InputError
from fenchel.runs.observer import SilentObserver
from fenchel.runs.occupied import refuse_without_folder
from fenchel.runs.progress import ReadingObserver
from fenchel.swap.pairs import PairColumns, ScoredPairs, read_pairs, scored_pairs

__all__ = [
    "DEFAULT_ALPHAS",
    "DEFAULT_COLUMNS",
    "DEFAULT_ESTIMATORS",
    "SwapOptions",
    "checked_alphas",
    "checked_estimators",
]

DEFAULT_ESTIMATORS = ("second_order", "exact")
DEFAULT_ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
DEFAULT_COLUMNS = PairColumns()

_NOT_IN_THE_TABLE = frozenset({"columns", "dtype"})  # checked where they are understood


def checked_estimators(estimators: Sequence[str]) -> tuple[str, ...]:
    """The estimators to swap in, each once.

    Raises:
        InputError: If there are none, or one is unknown or the model's own.
    """
    if isinstance(estimators, list | tuple) and "first_order" in estimators:
        raise InputError(
            "estimators names first_order, which is the model itself. It is measured anyway, and at other α as the "
            f"control; give some of {', '.join(DEFAULT_ESTIMATORS)}."
        )
    return checked("estimators", estimators)


def checked_alphas(alphas: Sequence[float]) -> tuple[float, ...]:
    """The α of the controls in order, each once.

    Raises:
        InputError: If there are none but 1, or one is not a finite number above 0.
    """
    found = tuple(sorted(set(checked("alphas", alphas))))
    if not set(found) - {1.0}:
        raise InputError(
            f"alphas is {list(found)}; expected at least one that is not 1. Without a control nothing tells a better "
            "estimator from a softer attention."
        )
    return found


@dataclass(frozen=True, kw_only=True)
class SwapOptions:
    """The options of ``fenchel.swap``, by the same names; see there."""

    estimators: tuple[str, ...]
    alphas: tuple[float, ...]
    per_layer: bool
    per_head: bool
    layers: tuple[int, ...] | None
    heads: tuple[int, ...] | None
    max_length: int | None
    stride: int | None
    batch_size: int
    max_tokens: int | None
    max_pairs: int | None
    sample_pairs: int
    mask_probability: float
    bootstrap: int
    tol: float | None
    device: str | None
    dtype: Any
    revision: str | None
    whole_file: bool
    text_column: str | None
    target_column: str | None
    columns: PairColumns
    seed: int
    observer: ReadingObserver | None
    directory: Path | None
    resume: bool
    overwrite: bool
    checkpoint_seconds: float

    @classmethod
    def checked(cls, **given: Any) -> SwapOptions:
        """The options as they were given.

        Raises:
            InputError: If one cannot be meant, or asks for a folder where there is none.
        """
        own = {"estimators": checked_estimators, "alphas": checked_alphas}
        options: dict[str, Any] = {}
        for name in (field.name for field in fields(cls)):
            value = given[name]
            if name in own:
                value = own[name](value)
            elif name not in _NOT_IN_THE_TABLE and not (name == "tol" and value is None):
                value = checked(name, value)
            options[name] = value
        if not isinstance(options["columns"], PairColumns):
            raise InputError(
                f"columns is {shown(options['columns'])}; expected fenchel.swap.PairColumns(first, second, score)."
            )
        self = cls(**options)
        refuse_without_folder(self.directory, resume=self.resume, overwrite=self.overwrite)
        return self

    @property
    def told(self) -> ReadingObserver:
        """Who is told about the progress."""
        return self.observer or SilentObserver()

    @property
    def of_text(self) -> dict[str, Any]:
        """How texts are read."""
        return {
            "whole_file": self.whole_file,
            "text_column": self.text_column,
            "target_column": self.target_column,
        }

    def refuse_options_of_text(self, read: str, *, limited: bool = False) -> None:
        """Refuse options that say how texts are read, where something else is.

        Args:
            read: What is.
            limited: Whether it can be read up to a number of tokens.

        Raises:
            InputError: Naming the first.
        """
        given = {
            "max length": self.max_length,
            "stride": self.stride,
            **({} if limited else {"max tokens": self.max_tokens}),
            **{name.replace("_", " "): value for name, value in self.of_text.items()},
        }
        changed = {
            "sample pairs": (self.sample_pairs, 10_000),
            "mask probability": (self.mask_probability, 0.15),
        }
        wrong = [name for name, value in given.items() if value not in (None, False)]
        wrong += [name for name, (value, usual) in changed.items() if value != usual]
        if self.columns != DEFAULT_COLUMNS:
            wrong.append("columns of pairs")
        if wrong:
            raise InputError(f"{wrong[0]} is an option of texts, and {read} were given. Leave it out.")

    def documents(self, texts: str | Path | Iterable[str] | None) -> Documents | None:
        """The documents of texts, if there are texts."""
        return None if texts is None else open_documents(texts, **self.of_text)

    def scored(self, pairs: str | Path | Iterable[Sequence[object]] | None) -> ScoredPairs | None:
        """The scored pairs, if there are any.

        Raises:
            InputError: If they cannot be read, or an option is about pairs and there are none.
        """
        if isinstance(pairs, str | Path):
            return read_pairs(pairs, self.columns, self.max_pairs)
        if pairs is not None:
            found = scored_pairs(pairs)
            return replace(
                found, sentences=found.sentences[: self.max_pairs], scores=found.scores[: self.max_pairs]
            )
        if self.max_pairs is not None:
            raise InputError(
                f"max pairs is {self.max_pairs}, but no scored pairs were given. Add --pairs, or leave it out."
            )
        if self.columns != DEFAULT_COLUMNS:
            raise InputError("columns of pairs were named, but no scored pairs were given. Add --pairs FILE.")
        return None
