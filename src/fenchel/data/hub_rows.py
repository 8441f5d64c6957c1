"""The splits of a dataset of the ``datasets`` library: on its hub, in its cache, or in a folder here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fenchel.arguments import checked
from fenchel.errors import InputError, MissingExtraError

__all__ = ["HUB_PREFIX", "first_line", "hub_name", "hub_splits"]

HUB_PREFIX = "hf:"


def hub_name(name: str) -> tuple[str, str | None]:
    """Path and configuration of a name ``hf:NAME`` or ``hf:NAME:CONFIG``.

    Raises:
        InputError: If it names nothing.

    Example:
        >>> hub_name("hf:glue:sst2")
        ('glue', 'sst2')
    """
    path, _, config = name.removeprefix(HUB_PREFIX).partition(":")
    if not path:
        raise InputError(f"{name!r} names no dataset; expected hf:NAME or hf:NAME:CONFIG, such as hf:mnist.")
    return path, config or None


def hub_splits(path: str, config: str | None) -> Mapping[str, Any]:
    """The splits by name.

    Args:
        path: The dataset's name on the hub, or a folder.
        config: Its configuration, if it has several.

    Raises:
        InputError: If it cannot be opened.
        MissingExtraError: If ``datasets`` is not installed.
    """
    try:
        import datasets
    except ImportError:
        raise MissingExtraError("datasets", "hf") from None
    folder = checked("data_path", path, name="data")
    try:
        splits: Any
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            splits = datasets.load_from_disk(str(folder))
        else:
            splits = datasets.load_dataset(str(folder) if folder.is_dir() else path, config)
    except Exception as error:  # it raises whatever went wrong, from the network to the parser
        raise InputError(
            f"dataset {path!r} cannot be opened: {first_line(error)} Check the spelling and the network, or "
            "give the path of a folder."
        ) from None
    if not isinstance(splits, Mapping):
        splits = {str(getattr(splits, "split", None) or "train"): splits}
    return splits


def first_line(error: Exception) -> str:
    """What a library says first, as a sentence."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0].strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
