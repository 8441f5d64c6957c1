"""What a run was asked: the versions it ran with, and how two manifests differ in the words that the user typed."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from importlib import metadata
from typing import Any

import torch

from fenchel.version import __version__

__all__ = ["differences", "versions"]


def versions(schema: int) -> dict[str, Any]:
    """What a manifest of a run on a text model begins with.

    Args:
        schema: Version of the files that the run writes.

    Returns:
        Versions of the files, of this package and of what it computes with; None for what is not installed.
    """
    return {
        "schema": schema,
        "fenchel": __version__,
        "torch": torch.__version__,
        "transformers": _installed("transformers"),
        "python": platform.python_version(),
    }


def differences(
    there: Mapping[str, Any],
    asked: Mapping[str, Any],
    *,
    but: Collection[str] = (),
    said: tuple[str, str] = ("there", "asked for"),
) -> list[str]:
    """How two manifests differ, one phrase a field.

    Args:
        there: A manifest, such as that of the run in a folder.
        asked: Another, such as that of the run that is asked for.
        but: Keys that may differ.
        said: What to say of a value of the one and of the other.

    Returns:
        A phrase for every other key that differs, in the order of the manifests; spaces for underscores, as options are
        named wherever this package speaks of them.

    Example:
        >>> differences({"batch_size": 8, "tokens": 5}, {"batch_size": 4, "tokens": 6}, but={"tokens"})
        ['batch size: 8 there, 4 asked for']
    """
    return [
        f"{key.replace('_', ' ')}: {there.get(key)!r} {said[0]}, {asked.get(key)!r} {said[1]}"
        for key in {**there, **asked}
        if key not in but and there.get(key) != asked.get(key)
    ]


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
