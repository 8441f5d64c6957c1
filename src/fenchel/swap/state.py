"""A swap under way as one file: what complete steps measured, and where the next one starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fenchel.io.storage import Form, read_tensors, write_tensors
from fenchel.swap.saved import SavedSwap, check_measured, check_place
from fenchel.swap.step import Place

__all__ = ["SCHEMA", "STATE_FILE", "STATE_FORM", "SwapState"]

SCHEMA = 2
"""Version of the files that a swap writes; since 2 they have a digest."""

STATE_FILE = "swap-state.safetensors"
"""The file's name in a swap's folder."""

STATE_FORM = Form(
    name="saved swap",
    version=SCHEMA,
    schema=SavedSwap,
    advice="Put a good copy of it back, or start anew with --overwrite.",
)
"""What the file holds besides tensors."""


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

    @property
    def arms(self) -> int | None:
        """How many arms were measured; None before the first step."""
        return self.parts[0]["hidden"].shape[1] if self.parts else None

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
            STATE_FORM,
            {name: values.contiguous() for name, values in self.measured().items()},
            {
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
            InputError: If the folder holds no state, one of another version, one that was changed after it was
                written, or numbers that no swap can have given.
        """
        path = directory / STATE_FILE
        tensors, saved = read_tensors(path, STATE_FORM)
        with STATE_FORM.reading(path):
            check_place(saved["place"], saved["manifest"]["task"])
            check_measured(tensors, saved)
        return cls(
            manifest=saved["manifest"],
            place=saved["place"],
            documents=saved["documents"],
            tokens=saved["tokens"],
            finished=saved["finished"],
            parts=[tensors] if tensors else [],
        )
