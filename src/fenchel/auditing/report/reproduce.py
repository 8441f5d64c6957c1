"""The command that repeats an audit, from its manifest."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from fenchel.auditing.advice import FROM_PYTHON, is_loaded, python_words, source_words
from fenchel.auditing.twin import AUDITED
from fenchel.drawing import plain

__all__ = ["command", "manifest_entries"]

_TEXT_OPTIONS = ("text_column", "target_column")
_OPTIONS = (
    "space",
    "closeness",
    "alpha",
    "tol",
    "max_length",
    "stride",
    "batch_size",
    "max_tokens",
    "queries",
    "dtype",
    "layers",
    "heads",
    "seed",
)
_ABSENT = {
    "layers": "all",
    "heads": "all",
    "max_tokens": "no limit",
    "revision": "not given",
    "text_sha256": "not known",
}
_NAMES = {
    "fenchel": "fenchel version",
    "torch": "torch version",
    "transformers": "transformers version",
    "python": "Python version",
    "texts": "text",
    "text_sha256": "SHA-256 of the text",
    "queries": "queries of each window",
    "tol": "tolerance",
    "alpha": "α (reliability)",
    "even_so": "although the model attends otherwise",
}


def _argument(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(str(part) for part in value)
    return plain(value)


def command(manifest: Mapping[str, Any]) -> str:
    """What repeats an audit: a command for a POSIX shell, or a Python call where the texts had no file.

    Example:
        >>> command({"model": "demo", "texts": "my text.txt", "alpha": 1.0, "layers": [1, 2]})
        "fenchel audit demo --text 'my text.txt' --alpha 1 --layers 1,2 --out audit"
        >>> command({"model": "demo", "texts": "Python strings", "alpha": 1.0})
        "fenchel.audit('demo', None, texts, alpha=1.0)"
    """
    model = _argument(manifest.get("model") or "MODEL")
    given = {
        name: manifest[name]
        for name in ("revision", *_TEXT_OPTIONS, *_OPTIONS)
        if manifest.get(name) is not None
    }
    if str(given.get("revision", "")).startswith("sha256:"):
        del given["revision"]  # of a folder's files: it says what was read, and is not for the hub to look up
    if manifest.get("twin") is not None:
        given["baseline"] = "twin" if manifest["twin"] == AUDITED else "none"
    if is_loaded(manifest) or manifest.get("texts") in FROM_PYTHON:
        if manifest.get("even_so"):
            given["even_so"] = True
        options = "".join(f", {name}={value!r}" for name, value in given.items())
        return f"fenchel.audit({python_words(manifest, 'inputs')}{options})"
    words = ["fenchel", "audit", model, *source_words(manifest)]
    flags = [flag for flag in ("whole_file", "even_so") if manifest.get(flag)]
    words += [f"--{flag.replace('_', '-')}" for flag in flags]
    for name, value in given.items():
        words += [f"--{name.replace('_', '-')}", _argument(value)]
    return shlex.join([*words, "--out", "audit"])


def manifest_entries(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The manifest as names and values to read, in the order in which it was written."""
    entries = []
    for name, value in manifest.items():
        if name == "convention":  # the page prints it above, as prose
            continue
        if value is None:
            text = _ABSENT.get(name, "none")
        elif isinstance(value, (list, tuple)):
            text = ", ".join(str(part) for part in value)
        elif isinstance(value, Mapping):
            text = ", ".join(str(part) for part in value.values())
        else:
            text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else plain(value)
        entries.append((_NAMES.get(name, name.replace("_", " ")), text))
    return entries
