"""A swap under way as one file: what complete steps measured, and where the next one starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fenchel.errors import InputError
from fenchel.storage import read_tensors, write_tensors
from fenchel.swap.step import Place

__all__ = ["SCHEMA", "STATE_FILE", "SwapState"]

SCHEMA = 1
"""Version of the files that a swap writes."""

STATE_FILE = "swap-state.safetensors"
"""The file's name in a swap's folder."""


@dataclass
class SwapState:
    """Everything that a swap knows between two steps.

    Attributes:
        manifest: What the swap is.
        place: Where the next step starts.
        documents: Documents read.
        tokens: Tokens counted.
        finished: Whether the last step was counted and every file was written.
        parts: What each step measured, tensors by name whose first dimension are its units.
    """

    manifest: dict[str, Any]
    place: Place = field(default_factory=dict)
    documents: int = 0
    tokens: int = 0
    finished: bool = False
    parts: list[dict[str, Tensor]] = field(default_factory=list)

    def add(self, part: Mapping[str, Tensor], place: Place, documents: int, tokens: int) -> None:
        """Counts a complete step."""
        self.parts.append(dict(part))
        self.place, self.documents, self.tokens = dict(place), documents, tokens
        self.manifest.update(documents=documents, tokens=tokens)

    def measured(self) -> dict[str, Tensor]:
        """What all steps measured, the units in order."""
        if not self.parts:
            return {}
        joined = {name: torch.cat([part[name] for part in self.parts]) for name in self.parts[0]}
        self.parts = [joined]
        order = joined["units"].argsort()
        return {name: values[order] for name, values in joined.items()}

    def write(self, directory: Path) -> None:
        """Save into a folder, in one step: the file there is the old state or the new one."""
        write_tensors(
            directory / STATE_FILE,
            {name: values.contiguous() for name, values in self.measured().items()},
            {
                "schema": SCHEMA,
                "manifest": self.manifest,
                "place": self.place,
                "documents": self.documents,
                "tokens": self.tokens,
                "finished": self.finished,
            },
        )

    @classmethod
    def read(cls, directory: Path) -> SwapState:
        """Load what ``write`` saved.

        Raises:
            InputError: If the folder holds no state, or one that is damaged or of another version.
        """
        path = directory / STATE_FILE
        try:
            tensors, saved = read_tensors(path)
        except InputError as error:
            raise InputError(
                f"{path} is not a saved swap: {error.__cause__}. Start anew with --overwrite."
            ) from error
        found = saved.get("schema") if isinstance(saved, dict) else None
        if found != SCHEMA:
            raise InputError(
                f"{path} has schema {found!r}; this version of fenchel reads schema {SCHEMA}. Read it with the version "
                "that wrote it, or start anew with --overwrite."
            )
        try:
            return cls(
                manifest=saved["manifest"],
                place=saved["place"],
                documents=saved["documents"],
                tokens=saved["tokens"],
                finished=saved["finished"],
                parts=[tensors] if tensors else [],
            )
        except KeyError as error:
            raise InputError(f"{path} is damaged: it lacks {error}. Start anew with --overwrite.") from error
