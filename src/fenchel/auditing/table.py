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

# Subfolder with the parts of the model.
QUERIES = "queries"

# Subfolder with the parts of its untrained twin.
TWIN_QUERIES = "twin"


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


def query_columns(measured: MeasuredCall) -> dict[str, Tensor]:
    """Columns of the counted queries of one attention call, head by head, in the order of the batch.

    ``text`` is missing, a kind, type or class is its index, and a missing token -1.
    """
    call, batch, tokens = measured.call, measured.batch, measured.tokens
    site, counted = call.site, measured.sample.there.cpu()
    rows, columns = counted.nonzero(as_tuple=True)
    count, several = len(rows), len(measured.heads)
    positions = measured.sample.index.cpu()[rows, columns]
    of_queries, of_keys = decoder_sides(site.kind, batch)
    keys = _ids(batch, of_keys, call.key.shape[2])
    weight = measured.sample.population / counted.sum(1).clamp(min=1)
    of_query = {
        "kind": torch.full((count,), KINDS.index(site.kind)),
        "layer": torch.full((count,), site.layer),
        "document": torch.tensor(batch.documents)[rows],
        "window": torch.tensor(batch.windows)[rows],
        "position": positions + 1,
        "token": _ids(batch, of_queries, call.query.shape[2])[rows, positions],
        "type": tokens.types.cpu()[rows, columns],
        "class": tokens.classes.cpu()[rows, columns],
        "weight": weight[rows].double(),
    }
    result = {name: column.repeat(several) for name, column in of_query.items()}
    result["head"] = torch.tensor(list(measured.heads)).repeat_interleave(count)
    for name, value in measured.measures.values.items():
        value = value.detach().cpu().transpose(0, 1)[:, rows, columns].flatten()
        result[name] = value.float() if value.is_floating_point() else value
    for name in ("leaves", "reaches"):
        result[f"{name}_token"] = keys[rows.repeat(several), result[name]]
        result[name] = result[name] + 1
    return result


def query_rows(calls: Sequence[Mapping[str, Tensor]], texts: Mapping[int, str]) -> polars.DataFrame:
    """Create the rows of attention calls.

    Args:
        calls: Their columns, as :func:`query_columns` returns them.
        texts: Texts of tokens, by id.

    Raises:
        ProblemError: If a measure of a counted query is NaN or negative.
    """
    pl, typed = polars_module(), schema()
    data = {name: torch.cat([call[name] for call in calls]).numpy() for name in typed if name != "text"}
    for name, names in (("kind", KINDS), ("type", TOKEN_TYPES), ("class", KEY_CLASSES)):
        data[name] = pl.Series(names, dtype=typed[name]).gather(pl.Series(data[name]))
    tokens = [token for token in pl.Series(data["token"]).unique() if token in texts]
    known = pl.DataFrame(
        {"token": tokens, "text": [texts[token] for token in tokens]}, {"token": pl.Int64, "text": pl.String}
    )
    frame = pl.DataFrame(data).join(known, on="token", how="left", maintain_order="left")
    frame = frame.select(pl.col(name).cast(kind) for name, kind in typed.items())
    _check(frame)
    missing = [pl.col(name).replace(-1, None) for name in ("token", "leaves_token", "reaches_token")]
    return frame.with_columns(*missing, pl.col("output_error").fill_nan(None))


def _ids(batch: Batch, decoder: bool, length: int) -> Tensor:
    """Token ids, (B, length); -1 where the input is not text."""
    ids = batch.tokens_of(decoder=decoder)
    if ids is None or ids.shape[1] != length:
        return torch.full((len(batch.documents), length), -1)
    return ids.cpu()


def _check(frame: polars.DataFrame) -> None:
    """Raise on NaN and negative measures, which would make every mean wrong."""
    pl = polars_module()
    is_wrong = {metric: (pl.col(metric) < 0) | pl.col(metric).is_nan() for metric in METRICS}
    found = frame.select(test.any().alias(metric) for metric, test in is_wrong.items())
    for metric, test in is_wrong.items():
        if found[metric][0]:
            head = {name: frame.filter(test)[name][0] for name in ("kind", "layer", "head")}
            of_head = frame.filter(**head)
            wrong = of_head.filter(test)
            raise ProblemError(
                f"{metric} is {wrong[metric][0]} for {len(wrong)} of {len(of_head)} queries of {head['kind']} layer "
                f"{head['layer']} head {head['head']}; it must be a non-negative number. Check the model for NaN "
                "weights, or audit with dtype float32."
            )
