"""The errors of ``fenchel``; messages have the cause, the expected value and a remedy.

Each class has the exit code of the command line when it is raised; the table is in ``docs/command-line.md``.
"""

from __future__ import annotations

import importlib.util
from typing import ClassVar

__all__ = [
    "CaptureError",
    "ConvergenceError",
    "CostWarning",
    "DomainError",
    "FenchelError",
    "InputError",
    "MissingExtraError",
    "ModelError",
    "NotKeptError",
    "OutputError",
    "ProblemError",
]


class FenchelError(Exception):
    """Base class of the errors of this package."""

    exit_code: ClassVar[int] = 1


class ProblemError(FenchelError, ValueError):
    """The inference problem is not well posed: a shape, a dtype, α ≤ 0, a NaN, or nothing left to attend to."""

    exit_code = 3


class DomainError(ProblemError):
    """A dual point at which log M of the preference is infinite, so there is no tilted distribution.

    Attributes:
        query: Index of the query farthest outside; None if the error is not about a single query.
        largest_alpha: The largest admissible α of the estimator there, or None.
    """

    def __init__(
        self, message: str, *, query: tuple[int, ...] | None = None, largest_alpha: float | None = None
    ) -> None:
        super().__init__(message)
        self.query = query
        self.largest_alpha = largest_alpha


class NotKeptError(ProblemError, AttributeError):
    """A result of the last call that the layer does not store: set ``keep_certificate`` or ``keep_gap``.

    ``hasattr`` is False for such an attribute.
    """


class InputError(FenchelError, ValueError):
    """A text, folder or option cannot be used."""

    exit_code = 3


class ModelError(FenchelError, ValueError):
    """The model cannot be loaded, or computes attention in a way that cannot be audited."""

    exit_code = 4


class CaptureError(ModelError):
    """A hook or an attention function was not called, or was called with unexpected arguments."""


class ConvergenceError(FenchelError, RuntimeError):
    """A solver stopped before its certificate met the tolerance."""

    exit_code = 5


class OutputError(FenchelError, OSError):
    """A result could not be written; earlier results are intact."""

    exit_code = 6


def _with_extra(extra: str) -> str:
    """The requirement with an extra for pip: of the clone or wheel that this package was installed from, if any."""
    import json
    from importlib import metadata
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        record = json.loads(metadata.distribution("fenchel").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        record = {}
    url = urlsplit(record.get("url", ""))
    source = url2pathname(url.path) if url.scheme == "file" else "fenchel"
    editable = "-e " if record.get("dir_info", {}).get("editable") else ""
    return f"{editable}'{source}[{extra}]'"


class MissingExtraError(FenchelError, ImportError):
    """An optional dependency is not installed; the message names the extra that installs it.

    Args:
        package: The import name that failed.
        extra: The extra of ``fenchel`` that installs it.
    """

    exit_code = 7

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed. Run: pip install {_with_extra(extra)}")
        self.package = package
        self.extra = extra


def require_packages(extra: str, *packages: str) -> None:
    """Raise unless packages are installed; they are not imported.

    Args:
        extra: The extra of ``fenchel`` that installs them.
        packages: Their import names.

    Raises:
        MissingExtraError: If one is not.

    Example:
        >>> require_packages("report", "no_such_package")
        Traceback (most recent call last):
        fenchel.errors.MissingExtraError: no_such_package is not installed. Run: pip install ...[report]'
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, extra)


class CostWarning(UserWarning):
    """A transport cost under which some template is nearer to another template than to itself."""
