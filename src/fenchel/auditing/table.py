"""The table of an audit: one row per query and head, in Parquet files.

A part is written to a temporary file and renamed; its name ends with the digest of its content. ``report.queries`` and
:mod:`fenchel.auditing.statistics` read the parts lazily.
"""

from __future__ import annotations

import atexit
import io
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fenchel.arguments import KINDS, reason_of
from fenchel.auditing.heads import MEASURES, METRICS
from fenchel.auditing.weight_moves import KEY_CLASSES, MOVE_COLUMNS, TOKEN_TYPES, decoder_sides
from fenchel.errors import InputError, ProblemError, require_packages
from fenchel.io.batches import Batch
from fenchel.io.runs import atomic_path
from fenchel.io.storage import CHANGED, digest_of_bytes

if TYPE_CHECKING:
    import polars

    from fenchel.auditing.measure import MeasuredCall

ROWS_IN_A_PART = 1 << 18
"""A part is written after the first batch with which there are this many rows."""

QUERIES = "queries"
"""Subfolder with the parts of the model."""

TWIN_QUERIES = "twin"
"""Subfolder with the parts of its untrained twin."""

PART_NAME = r"[0-9]{5,9}-[0-9a-f]{16}\.parquet"
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


def schema() -> dict[str, Any]:
    """Columns of the table, see :attr:`fenchel.auditing.AuditReport.queries`, with their polars types."""
    pl = polars_module()
    real = dict.fromkeys(MEASURES, pl.Float32)
    return {
        "kind": pl.Enum(KINDS),
        "layer": pl.Int32,
        "head": pl.Int32,
        "document": pl.Int64,
        "window": pl.Int64,
        "position": pl.Int32,
        "token": pl.Int64,
        "text": pl.String,
        "type": pl.Enum(TOKEN_TYPES),
        "class": pl.Enum(KEY_CLASSES),
        "weight": pl.Float64,
        **real,
        "newton_steps": pl.Int32,
        "converged": pl.Boolean,
        "leaves": pl.Int32,
        "reaches": pl.Int32,
        "leaves_token": pl.Int64,
        "reaches_token": pl.Int64,
        "leaves_weight": pl.Float32,
        "reaches_weight": pl.Float32,
        **dict.fromkeys(MOVE_COLUMNS, pl.Float32),
    }


def query_rows(measured: MeasuredCall, texts: Mapping[int, str]) -> polars.DataFrame:
    """Create the rows of the counted queries of one attention call, head by head, in the order of the batch.

    Args:
        measured: The attention call and its measures.
        texts: Texts of tokens, by id.

    Raises:
        ProblemError: If a measure of a counted query is NaN or negative, or shapes do not match.
    """
    pl = polars_module()
    call, batch, tokens = measured.call, measured.batch, measured.tokens
    site, counted = call.site, measured.counted.cpu()
    rows, columns = counted.nonzero(as_tuple=True)
    positions = measured.positions.cpu()[rows, columns]
    count, several = len(rows), len(measured.heads)
    expected = (len(counted), several, counted.shape[1])

    def counted_only(values: Tensor) -> Any:
        if tuple(values.shape) != expected:
            raise ProblemError(
                f"a measure of {site.kind} layer {site.layer} has shape {tuple(values.shape)}, but counted "
                f"{tuple(counted.shape)} and {several} heads require {expected}."
            )
        values = values.detach().cpu().transpose(0, 1)[:, rows, columns].flatten()
        return values.float() if values.is_floating_point() else values

    def of_each_head(column: Tensor) -> Any:
        return column.repeat(several).numpy()

    of_queries, of_keys = decoder_sides(site.kind, batch)
    ids = _ids(batch, of_queries, call.query.shape[2])[rows, positions]
    keys = _ids(batch, of_keys, call.key.shape[2])
    known = {} if batch.tokenizer is None else texts
    weight = torch.ones(len(counted), dtype=torch.float64)
    if measured.sample is not None:
        weight = measured.sample.population / counted.sum(1).clamp(min=1)
    values = {name: counted_only(value) for name, value in measured.measures.values.items()}
    for name in ("leaves", "reaches"):
        values[f"{name}_token"] = keys[rows.repeat(several), values[name]]
        values[name] = values[name] + 1
    text = pl.Series("text", [known.get(token) for token in ids.tolist()], dtype=pl.String)
    data = {
        "kind": pl.repeat(site.kind, count * several, dtype=pl.String, eager=True),
        "layer": pl.repeat(site.layer, count * several, dtype=pl.Int32, eager=True),
        "head": torch.tensor(list(measured.heads)).repeat_interleave(count).numpy(),
        "document": of_each_head(torch.tensor(batch.documents)[rows]),
        "window": of_each_head(torch.tensor(batch.windows)[rows]),
        "position": of_each_head(positions + 1),
        "token": of_each_head(ids),
        "text": pl.concat([text] * several) if several else text,
        "type": _named(tokens.types.cpu()[rows, columns], TOKEN_TYPES, several),
        "class": _named(tokens.classes.cpu()[rows, columns], KEY_CLASSES, several),
        "weight": of_each_head(weight[rows].double()),
        **{name: value.numpy() for name, value in values.items()},
    }
    typed = schema()
    frame = pl.DataFrame({name: data[name] for name in typed}).cast(typed)
    _check(frame, count, f"{site.kind} layer {site.layer}")
    missing = [pl.col(name).replace(-1, None) for name in ("token", "leaves_token", "reaches_token")]
    return frame.with_columns(*missing, pl.col("output_error").fill_nan(None))


def _ids(batch: Batch, decoder: bool, length: int) -> Tensor:
    """Token ids, (B, length); -1 where the input is not text."""
    ids = batch.tokens_of(decoder=decoder)
    if ids is None or ids.shape[1] != length:
        return torch.full((len(batch.documents), length), -1)
    return ids.cpu()


def _named(numbers: Tensor, names: Sequence[str], several: int) -> Any:
    """Look up names by index, repeated for each head."""
    pl = polars_module()
    every = pl.Series(names, dtype=pl.Enum(names))
    return every.gather(pl.Series(numbers.repeat(several).numpy()))


def _check(frame: polars.DataFrame, count: int, name: str) -> None:
    """Raise on NaN and negative measures, which would make every mean wrong."""
    pl = polars_module()
    is_wrong = {metric: (pl.col(metric) < 0) | pl.col(metric).is_nan() for metric in METRICS}
    found = frame.select(test.any().alias(metric) for metric, test in is_wrong.items())
    for metric, test in is_wrong.items():
        if found[metric][0]:
            wrong = frame.filter(test)
            head = wrong["head"][0]
            raise ProblemError(
                f"{metric} is {wrong[metric][0]} for {len(wrong.filter(head=head))} of {count} queries of {name} head "
                f"{head}; it must be a non-negative number. Check the model for NaN weights, or audit with dtype "
                "float32."
            )


class QueryTable:
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
    def temporary(cls) -> QueryTable:
        """An empty table in a folder that is removed when Python exits: lazy frames may read it until then."""
        folder = Path(tempfile.mkdtemp(prefix="fenchel-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return cls(folder / QUERIES)

    def beside(self, name: str) -> QueryTable:
        """An empty table in a folder beside this one."""
        return QueryTable(self.folder.parent / name)

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
        """All written rows, lazily."""
        pl = polars_module()
        if not self.parts:
            return pl.LazyFrame(schema=schema())
        return pl.scan_parquet(self.parts)

    def check(self) -> None:
        """Check that every part exists and has the digest in its name.

        Raises:
            InputError: Naming the first that does not.
        """
        for path in self.parts:
            advice = "Restore it from a copy, or audit again with --overwrite."
            try:
                content = path.read_bytes()
            except OSError as error:
                raise InputError(f"{path} cannot be read: {reason_of(error)}. {advice}") from error
            if digest_of_bytes(content).removeprefix("sha256:")[:_DIGITS] != path.stem.rpartition("-")[2]:
                raise InputError(f"{path} {CHANGED}. {advice}")

    def copy_to(self, folder: Path) -> QueryTable:
        """Copy the parts to another folder, except those that are already there."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for path in self.parts:
            paths.append(folder / path.name)
            if not paths[-1].exists():
                with atomic_path(paths[-1]) as temporary:
                    shutil.copyfile(path, temporary)
        return QueryTable(folder, paths)

    def remove_others(self) -> None:
        """Remove other parts in the folder, complete or not, such as those of an interrupted audit."""
        own = {path.name for path in self.parts}
        for path in self.folder.glob("*.parquet*"):
            if path.name not in own:
                path.unlink(missing_ok=True)
