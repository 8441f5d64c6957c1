"""The table of an audit: one row per query and head.

``report.queries`` and :mod:`fenchel.auditing.statistics` read its Parquet files lazily.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fenchel.arguments import KINDS
from fenchel.auditing.heads import MEASURES, METRICS
from fenchel.auditing.weight_moves import KEY_CLASSES, MOVE_COLUMNS, TOKEN_TYPES, decoder_sides
from fenchel.errors import ProblemError
from fenchel.io.batches import Batch
from fenchel.io.storage import polars_module

if TYPE_CHECKING:
    import polars

    from fenchel.auditing.measure import MeasuredCall

QUERIES = "queries"
"""Subfolder with the parts of the model."""

TWIN_QUERIES = "twin"
"""Subfolder with the parts of its untrained twin."""


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
        ProblemError: If a measure of a counted query is NaN or negative.
    """
    pl = polars_module()
    call, batch, tokens = measured.call, measured.batch, measured.tokens
    site, counted = call.site, measured.sample.there.cpu()
    rows, columns = counted.nonzero(as_tuple=True)
    positions = measured.sample.index.cpu()[rows, columns]
    count, several = len(rows), len(measured.heads)

    def counted_only(values: Tensor) -> Any:
        values = values.detach().cpu().transpose(0, 1)[:, rows, columns].flatten()
        return values.float() if values.is_floating_point() else values

    def of_each_head(column: Tensor) -> Any:
        return column.repeat(several).numpy()

    of_queries, of_keys = decoder_sides(site.kind, batch)
    ids = _ids(batch, of_queries, call.query.shape[2])[rows, positions]
    keys = _ids(batch, of_keys, call.key.shape[2])
    known = {} if batch.tokenizer is None else texts
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
