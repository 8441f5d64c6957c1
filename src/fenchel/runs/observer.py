"""Whoever is told how a run goes; nobody by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

__all__ = ["RunObserver", "SilentObserver"]

P = TypeVar("P", contravariant=True)


class RunObserver(Protocol[P]):
    """Shows how far a run is, in the progress that its kind of run counts."""

    def started(self, manifest: Mapping[str, Any], /) -> None:
        """The first batch or step is about to be taken; ``manifest`` says of what run."""

    def advanced(self, progress: P, /) -> None:
        """A batch or step has been counted."""

    def finished(self) -> None:
        """The run has ended or was interrupted: nothing more will be told."""


class SilentObserver:
    """Shows nothing."""

    def started(self, manifest: Mapping[str, Any], /) -> None:
        """See ``RunObserver``."""

    def advanced(self, progress: Any, /) -> None:
        """See ``RunObserver``."""

    def finished(self) -> None:
        """See ``RunObserver``."""
