"""Where the files of a named set of texts are: under ``FENCHEL_DATA``, or in a folder that is given."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fenchel.data.file_lines import file_lines
from fenchel.errors import InputError

__all__ = ["TextFolder"]

_ROOT_VARIABLE = "FENCHEL_DATA"


@dataclass(frozen=True)
class TextFolder:
    """The folder of a set of texts that is published as files.

    Attributes:
        name: As users type it, such as ``trec``.
        folder: Of the data set, under the root.
        files: The files that it must hold, for messages.
        page: Where they are published.
    """

    name: str
    folder: str
    files: tuple[str, ...]
    page: str

    def found(self, name_or_path: str, root: str | Path | None = None) -> Path:
        """The folder that a name or path means.

        Args:
            name_or_path: The name, or the path of a folder.
            root: The folder that holds a folder for each data set. Default: the environment's ``FENCHEL_DATA``.

        Raises:
            InputError: If it is not there, with what is missing and where it can be had.
        """
        wanted = " and ".join(self.files)
        if name_or_path != self.name:
            path = Path(name_or_path).expanduser()
            if path.is_dir():
                return path
            raise InputError(
                f"{name_or_path!r} is neither a known set of texts nor a folder that exists; expected {self.name}, or "
                f"the folder that holds {wanted}."
            )
        given = root if root is not None else os.environ.get(_ROOT_VARIABLE)
        wanted = f"{wanted} in a folder {self.folder}"
        if not given:
            raise InputError(
                f"{self.name!r} is read from files, and neither {_ROOT_VARIABLE} nor a root says where they are. Put "
                f"{wanted}, and set {_ROOT_VARIABLE} to the folder that holds it. They are published at {self.page}."
            )
        folder = Path(given).expanduser() / self.folder
        if not folder.is_dir():
            raise InputError(
                f"{self.name!r} is not under {given}: {folder} is no folder. Put {wanted} there. They are published at "
                f"{self.page}."
            )
        return folder

    def file(self, folder: Path, *names: str) -> Path:
        """The first of some files that a folder holds.

        Raises:
            InputError: If it holds none of them.
        """
        found = next((folder / name for name in names if (folder / name).is_file()), None)
        if found is None:
            raise InputError(f"{folder} has no {' and no '.join(names)}. They are published at {self.page}.")
        return found

    def lines(self, path: Path, *, encoding: str = "utf-8") -> list[str]:
        """The lines of a file without their ends, as ``file_lines`` has them.

        Args:
            path: The file.
            encoding: Of it.

        Raises:
            InputError: If it cannot be read, or is not in that encoding.
        """
        return file_lines(path, encoding=encoding, remedy="Give the file as it was published.")
