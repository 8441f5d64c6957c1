"""Every single query in parquet files, for those who ask for them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fenchel.auditing.examples import reads_decoder
from fenchel.auditing.heads import METRICS
from fenchel.errors import InputError, MissingExtraError
from fenchel.io.batches import Batch, Cursor
from fenchel.io.storage import CHANGED, atomic_path, digest_of_bytes, reason_of

if TYPE_CHECKING:
    from fenchel.auditing.capture import AttentionCall
    from fenchel.auditing.measure import Measures

__all__ = ["ROWS_IN_A_PART", "QueryFiles", "TokenColumn", "query_columns", "remove_queries"]

ROWS_IN_A_PART = 1 << 20
"""A file is closed after the first batch with which it holds this many queries."""

_WAITING = ".queries-waiting-"


@dataclass(frozen=True)
class TokenColumn:
    """Texts of tokens as a column, each text once.

    Attributes:
        ids: Token ids, -1 where there is none.
        texts: Text of every token, by id.
    """

    ids: torch.Tensor
    texts: Mapping[int, str]


def query_columns(
    call: AttentionCall,
    heads: Sequence[int],
    measures: Measures,
    batch: Batch,
    texts: Mapping[int, str],
) -> dict[str, list[Any] | torch.Tensor | TokenColumn]:
    """The counted queries of one attention call, a column each for where they are and what was measured.

    Args:
        call: The attention call.
        heads: Numbers of the heads that were measured, from 1.
        measures: What was measured, with the largest moves.
        batch: The batch that the model was called with.
        texts: Text of every token that was seen, by id.

    Returns:
        Columns of equal length by name, head by head, in the order of the batch. ``token`` is the query's id,
        -1 where the input is not text.
    """
    rows, positions = call.counted.cpu().nonzero(as_tuple=True)
    decoder = reads_decoder(call.site.kind, batch)
    tokens = _ids(batch, decoder, call.query.shape[2])[rows, positions]
    keys = _ids(batch, decoder and call.site.kind != "cross", call.key.shape[2])
    known = {} if batch.tokenizer is None else texts
    documents, windows = torch.tensor(batch.documents)[rows], torch.tensor(batch.windows)[rows]
    count = len(rows)

    def of_each_head(column: torch.Tensor) -> torch.Tensor:
        return column.repeat(len(heads))

    def measured(values: torch.Tensor) -> torch.Tensor:
        return values.detach().cpu().transpose(0, 1)[:, rows, positions].flatten()

    moved: dict[str, torch.Tensor | TokenColumn] = {}
    if measures.moves is not None:
        places = measured(measures.moves.positions)
        moved = {
            "moved_position": places + 1,
            "moved_text": TokenColumn(keys[of_each_head(rows), places], known),
            "moved_weight": measured(measures.moves.changes.float()),
        }
    return {
        "kind": [call.site.kind] * (count * len(heads)),
        "layer": torch.full((count * len(heads),), call.site.layer),
        "head": torch.tensor(list(heads)).repeat_interleave(count),
        "document": of_each_head(documents),
        "window": of_each_head(windows),
        "position": of_each_head(positions + 1),
        "token": of_each_head(tokens),
        **{name: measured(measures.values[name].float()) for name in METRICS},
        "newton_steps": measured(measures.newton_steps),
        "converged": measured(measures.converged),
        "token_text": TokenColumn(of_each_head(tokens), known),
        **moved,
    }


def _ids(batch: Batch, decoder: bool, length: int) -> torch.Tensor:
    """Token ids, (B, length); -1 where the input is not text."""
    ids = batch.tokens_of(decoder=decoder)
    if ids is None or ids.shape[1] != length:
        return torch.full((len(batch.documents), length), -1)
    return ids.cpu()


class QueryFiles:
    """Writes queries into ``queries-00000.parquet``, ``queries-00001.parquet`` and so on.

    Where a file ends depends on the batches alone. What has not filled a file at a checkpoint waits in a
    hidden one, so that an interrupted audit loses and repeats nothing and ends with the files of an
    uninterrupted one.

    Args:
        directory: The audit's folder.
        parts: How many files are complete.
    """

    def __init__(self, directory: Path, parts: int = 0) -> None:
        _pyarrow()
        self.directory = directory
        self.parts = parts
        self._waiting: list[Any] = []
        self._rows = 0

    def add(self, batch_columns: Sequence[dict[str, Any]]) -> None:
        """Add the queries of one batch, and write a file if it is full."""
        pa = _pyarrow()
        for columns in batch_columns:
            arrays = [_column(columns[field.name], field.type) for field in _schema()]
            self._waiting.append(pa.Table.from_arrays(arrays, schema=_schema()))
            self._rows += self._waiting[-1].num_rows
        if self._rows >= ROWS_IN_A_PART:
            self.close()

    def close(self) -> None:
        """Write what is waiting as the next file."""
        if self._rows:
            self._write(self.directory / f"queries-{self.parts:05}.parquet")
            self.parts += 1
            self._waiting, self._rows = [], 0

    def checkpoint(self, place: Cursor) -> str | None:
        """Save what is waiting beside the complete files, to be called before the state is saved.

        Args:
            place: Where the next batch starts; it names the hidden file.

        Returns:
            The digest of the hidden file, None where nothing is waiting.
        """
        if not self._rows:
            return None
        self._write(self._waiting_file(place))
        return digest_of_bytes(self._waiting_file(place).read_bytes())

    def forget_but(self, place: Cursor | None) -> None:
        """Remove what checkpoints left waiting, but for the one at ``place``, after the state is saved."""
        for path in self.directory.glob(f"{_WAITING}*.parquet"):
            if place is None or path != self._waiting_file(place):
                path.unlink(missing_ok=True)

    def resume(self, place: Cursor, waiting: str | None) -> None:
        """Take up what was waiting at a checkpoint and remove what was written after it.

        Args:
            place: Where the next batch starts.
            waiting: What ``checkpoint`` returned there.

        Raises:
            InputError: If the hidden file is not there, or was changed; nothing is removed then.
        """
        path, content = self._waiting_file(place), b""
        if waiting is not None:
            advice = "Put a good copy of it back, or start again with --overwrite."
            try:
                content = path.read_bytes()
            except OSError as error:
                raise InputError(
                    f"{path} cannot be read: {reason_of(error)}; the saved audit waits for it. {advice}"
                ) from error
            if digest_of_bytes(content) != waiting:
                raise InputError(f"{path} {CHANGED}. {advice}")
        _remove_parts(self.directory, self.parts)
        self.forget_but(place)
        if content:
            import pyarrow.parquet as pq

            table = pq.read_table(_pyarrow().BufferReader(content), schema=_schema())
            self._waiting, self._rows = [table], table.num_rows

    def _waiting_file(self, place: Cursor) -> Path:
        return self.directory / f"{_WAITING}{place.document}-{place.window}.parquet"

    def _write(self, path: Path) -> None:
        import pyarrow.parquet as pq

        # One chunk: how often the queries were taken up from a checkpoint must not show in the file.
        table = _pyarrow().concat_tables(self._waiting).combine_chunks()
        with atomic_path(path) as temporary:
            pq.write_table(table, temporary)


def remove_queries(directory: Path) -> None:
    """Remove every file of single queries from a folder."""
    _remove_parts(directory, 0)
    for path in directory.glob(f"{_WAITING}*.parquet"):
        path.unlink(missing_ok=True)


def _remove_parts(directory: Path, first: int) -> None:
    for path in directory.glob("queries-*.parquet"):
        with contextlib.suppress(ValueError):
            if int(path.stem.removeprefix("queries-")) >= first:
                path.unlink(missing_ok=True)


def _column(values: list[Any] | torch.Tensor | TokenColumn, kind: Any) -> Any:
    pa = _pyarrow()
    if isinstance(values, TokenColumn):
        seen, codes = torch.unique(values.ids, return_inverse=True)
        texts = pa.array([values.texts.get(number) for number in seen.tolist()], type=kind)
        return texts.take(pa.array(codes.numpy()))
    return pa.array(values if isinstance(values, list) else values.numpy()).cast(kind)


def _schema() -> Any:
    pa = _pyarrow()
    return pa.schema(
        [
            ("kind", pa.string()),
            ("layer", pa.int32()),
            ("head", pa.int32()),
            ("document", pa.int64()),
            ("window", pa.int64()),
            ("position", pa.int32()),
            ("token", pa.int64()),
            *((name, pa.float32()) for name in METRICS),
            ("newton_steps", pa.int32()),
            ("converged", pa.bool_()),
            ("token_text", pa.string()),
            ("moved_position", pa.int32()),
            ("moved_text", pa.string()),
            ("moved_weight", pa.float32()),
        ]
    )


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtraError("pyarrow", "report") from error
    return pyarrow
