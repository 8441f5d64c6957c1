"""Tables in Parquet files of a folder.

A part is written to a temporary file and renamed; its name ends with the digest of its content.
"""

from __future__ import annotations

import atexit
import io
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fenchel.arguments import reason_of
from fenchel.errors import InputError, require_packages
from fenchel.io.runs import atomic_path
from fenchel.io.storage import CHANGED, Field, digest_of_bytes

if TYPE_CHECKING:
    import polars

ROWS_IN_A_PART = 1 << 18
"""A part is written after the first batch with which there are this many rows."""

PartName = Annotated[str, Field(pattern=r"^[0-9]{5,9}-[0-9a-f]{16}\.parquet\z")]
"""File name of a part: its number and the first digits of its digest."""

_DIGITS = 16


def polars_module() -> Any:
    """The package polars.

    Raises:
        MissingExtraError: If it is not installed.
    """
    require_packages("hf", "polars")
    import polars

    return polars


class ParquetTable:
    """Parts of a table in a folder, and the rows of the next part.

    Args:
        folder: Folder of the parts; created with the first.
        parts: Paths of the existing parts.
    """

    def __init__(self, folder: Path, parts: Iterable[Path] = ()) -> None:
        self.folder = folder
        self.parts = list(parts)
        self._waiting: list[polars.DataFrame] = []
        self.waiting_rows = 0

    def add(self, frames: Iterable[polars.DataFrame]) -> None:
        """Add rows, which ``write`` writes."""
        for frame in frames:
            self._waiting.append(frame)
            self.waiting_rows += len(frame)

    @classmethod
    def temporary(cls) -> ParquetTable:
        """An empty table in a folder that is removed when Python exits: lazy frames may read it until then."""
        folder = Path(tempfile.mkdtemp(prefix="fenchel-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return cls(folder / "rows")

    @classmethod
    def read(cls, folder: Path, names: Iterable[str], *, check: bool = True) -> ParquetTable:
        """The table of these parts of a folder.

        Args:
            folder: The folder.
            names: File names of the parts, as ``names`` gave them.
            check: Whether to check that every part exists and has the digest in its name.

        Raises:
            InputError: Naming the first part that does not.
        """
        table = cls(folder, [folder / name for name in names])
        for path in table.parts if check else ():
            advice = "Restore it from a copy, or run again with --overwrite."
            try:
                content = path.read_bytes()
            except OSError as error:
                raise InputError(f"{path} cannot be read: {reason_of(error)}. {advice}") from error
            if digest_of_bytes(content).removeprefix("sha256:")[:_DIGITS] != path.stem.rpartition("-")[2]:
                raise InputError(f"{path} {CHANGED}. {advice}")
        return table

    @property
    def names(self) -> list[str]:
        """File names of the parts."""
        return [path.name for path in self.parts]

    @property
    def full(self) -> bool:
        """Whether the unwritten rows fill a part."""
        return self.waiting_rows >= ROWS_IN_A_PART

    def write(self) -> None:
        """Write the unwritten rows as a part.

        Raises:
            OutputError: If it cannot be written; the rows are kept.
        """
        if not self.waiting_rows:
            return
        pl = polars_module()
        content = io.BytesIO()
        pl.concat(self._waiting).write_parquet(content, compression="zstd", compression_level=1)
        content = content.getvalue()
        self.folder.mkdir(parents=True, exist_ok=True)
        digest = digest_of_bytes(content).removeprefix("sha256:")[:_DIGITS]
        path = self.folder / f"{len(self.parts):05}-{digest}.parquet"
        with atomic_path(path) as temporary:
            temporary.write_bytes(content)
        self.parts.append(path)
        self._waiting, self.waiting_rows = [], 0

    def scan(self) -> polars.LazyFrame:
        """All written rows of at least one part, lazily."""
        return polars_module().scan_parquet(self.parts)

    def rows(self) -> polars.DataFrame:
        """All rows, those that are not written last."""
        pl = polars_module()
        return pl.concat([*map(pl.read_parquet, self.parts), *self._waiting])

    def copy_to(self, folder: Path) -> ParquetTable:
        """Copy the parts to another folder, except those that are already there."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for path in self.parts:
            paths.append(folder / path.name)
            if not paths[-1].exists():
                with atomic_path(paths[-1]) as temporary:
                    shutil.copyfile(path, temporary)
        return ParquetTable(folder, paths)

    def remove_others(self) -> None:
        """Remove other parts in the folder, complete or not, such as those of an interrupted audit."""
        own = {path.name for path in self.parts}
        for path in self.folder.glob("*.parquet*"):
            if path.name not in own:
                path.unlink(missing_ok=True)
