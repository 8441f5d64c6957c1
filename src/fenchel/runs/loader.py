"""A trained model and what it reads, out of the folder of a run, by a Python file that knows how to load it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fenchel.arguments import checked, shown
from fenchel.errors import InputError
from fenchel.storage.digest import digest_of_bytes

__all__ = ["LoadedRun", "load_run", "refuse_beside_loader"]


@dataclass(frozen=True)
class LoadedRun:
    """What a loader gave.

    Attributes:
        model: The trained model.
        batches: What it reads; see :class:`fenchel.data.ready_batches.ReadyBatches`. Can be iterated over again.
        folder: Of the run, as it was given.
        loader: The file, as it was given.
        sha256: Of the file.
    """

    model: nn.Module
    batches: Iterable[Mapping[str, Any]]
    folder: str
    loader: str
    sha256: str

    @property
    def manifest(self) -> dict[str, str]:
        """What belongs in a manifest."""
        return {"loader": self.loader, "loader_sha256": self.sha256}


def load_run(loader: str | Path, folder: object) -> LoadedRun:
    """Import a Python file and have its ``load(folder)`` give a model and its batches. This runs the file's code.

    The folder of the file is importable during the import and the call, as it is for a script.

    Args:
        loader: A Python file with ``load(folder) -> (model, batches)``.
        folder: Of the run.

    Raises:
        InputError: If there is no such file or folder, the file has no ``load``, it raises, or it gives something else.
    """
    path: Path = checked("loader", loader)
    if not isinstance(folder, str | Path):
        raise InputError(
            f"model is {shown(folder)}; expected the folder of a run, which loader {path} loads."
        )
    run: Path = checked("folder", folder, name="model")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"loader {path} cannot be read: {error.strerror}. Give a Python file.") from error
    if not run.is_dir():
        raise InputError(f"there is no folder {run} for loader {path} to load. Give the folder of a run.")
    with _importable(path.resolve().parent):
        load = getattr(_imported(path), "load", None)
        if not callable(load):
            raise InputError(f"loader {path} has no function load(folder) that returns (model, batches).")
        with _said(f"load({str(run)!r}) of loader {path}"):
            found = load(run)
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], nn.Module):
        got = f"({', '.join(map(shown, found))})" if isinstance(found, tuple) else shown(found)
        raise InputError(f"load of loader {path} returned {got}; expected (model, batches).")
    model, batches = found
    if (
        isinstance(batches, Mapping | str)
        or not isinstance(batches, Iterable)
        or isinstance(batches, Iterator)
    ):
        raise InputError(
            f"load of loader {path} returned batches that are {shown(batches)}; expected a list, or an object that "
            "gives the same batches at every iteration. Write list(batches)."
        )
    return LoadedRun(model, batches, str(folder), str(loader), digest_of_bytes(content))


def refuse_beside_loader(loader: object, **given: object) -> None:
    """Refuse what cannot be given together with a loader.

    Raises:
        InputError: Naming the first.
    """
    wrong = next((name for name, value in given.items() if value is not None), None)
    if loader is not None and wrong is not None:
        name = wrong.replace("_", " ")
        raise InputError(
            f"{name} was given beside a loader, which loads the model and what it reads. Leave {name} out."
        )


def _imported(path: Path) -> object:
    name = f"fenchel_loader_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"loader {path} is no Python file; expected one that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look for their module there
    with _said(f"loader {path}"):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Has the modules beside a file be found first, also where others of the same names were imported before."""
    path, beside = list(sys.path), {one.stem for one in folder.glob("*.py")}
    others = {name: sys.modules.pop(name) for name in beside & sys.modules.keys() if not _is_in(folder, name)}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = path
        sys.modules.update(others)


def _is_in(folder: Path, module: str) -> bool:
    file = getattr(sys.modules[module], "__file__", None)
    return file is not None and Path(file).resolve().parent == folder


@contextmanager
def _said(what: str) -> Iterator[None]:
    """Whatever a loader raises, in one line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split())[:300] or "no message"
        raise InputError(f"{what} raised {type(error).__name__}: {reason}") from error
