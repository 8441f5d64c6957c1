"""Statistics of heads, layers and kinds of attention: queries on the table of an audit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fenchel.arguments import Kind, one_of
from fenchel.auditing.heads import METRICS, HeadKey
from fenchel.auditing.table import schema
from fenchel.auditing.weight_moves import MOVE_COLUMNS
from fenchel.errors import InputError
from fenchel.io.storage import ParquetTable, polars_module

if TYPE_CHECKING:
    import polars

# Quantiles in the record of a head, by suffix.
RECORD_QUANTILES: dict[str, float] = {"p50": 0.50, "p95": 0.95}

_HEAD = ("kind", "layer", "head")
_METRIC = one_of(*METRICS)


class AuditStatistics:
    r"""Distribution of every metric over the queries of every head, layer and kind of attention.

    A sampled query represents ``weight`` queries of its window, and means are weighted by that. With
    :math:`w_i` the weights, :math:`\bar x = \sum w_i x_i / \sum w_i` and D documents, the standard error of a mean is

    .. math:: \mathrm{se}^2 = \frac{D}{D - 1}\,
              \frac{\sum_d \bigl(\sum_{i \in d} w_i (x_i - \bar x)\bigr)^2}{\bigl(\sum_i w_i\bigr)^2},

    which takes documents, not queries, as independent. For a single document it is computed over its windows; for a
    single window there is none. Sums in another order (parts, shards) agree to 1e-6.

    Args:
        table: The table, of which the written parts count; None for an empty one.
        words: Texts of tokens by id.
    """

    def __init__(self, table: ParquetTable | None = None, words: dict[int, str] | None = None) -> None:
        self.table = ParquetTable.temporary() if table is None else table
        self.words: dict[int, str] = {} if words is None else words
        self._layer = lru_cache(maxsize=1)(self._values_of_layer)
        self._aggregated = lru_cache(self._aggregate)

    @cached_property
    def rows(self) -> polars.LazyFrame:
        """The rows of the table at the time of the first access."""
        return self.table.scan() if self.table.parts else polars_module().LazyFrame(schema=schema())

    @cached_property
    def documents(self) -> int:
        """Number of documents of the queries."""
        return self.rows.select(polars_module().col("document").n_unique()).collect().item()

    @property
    def resampled(self) -> str:
        """What standard errors take as independent: ``documents``, or ``windows`` of a single document."""
        return "documents" if self.documents > 1 else "windows"

    def of(self, kind: Kind | str, layer: int | None = None, head: int | None = None) -> dict[str, Any]:
        """All statistics of a head, of a layer, or of a kind, with the keys of ``record``.

        Raises:
            InputError: If it was not audited.
        """
        place = tuple(part for part in (kind, layer, head) if part is not None)
        groups = self._aggregated(_HEAD[: len(place)])
        if place not in groups:
            there = ", ".join(" ".join(map(str, known)) for known in groups) or "nothing"
            raise InputError(f"{' '.join(map(str, place))} was not audited; expected one of: {there}.")
        return groups[place]

    @cached_property
    def heads(self) -> list[dict[str, Any]]:
        """Of every head its ``key`` and what :meth:`of` gives, ordered by kind (as in ``KINDS``), layer and number."""
        return [{"key": HeadKey(*place), **row} for place, row in self._aggregated(_HEAD).items()]

    def keys(self) -> list[HeadKey]:
        """The keys of the heads, in their order."""
        return [head["key"] for head in self.heads]

    def layers(self) -> list[tuple[Kind, int]]:
        """Every layer, ordered by kind (as in ``KINDS``) and number."""
        return list(dict.fromkeys((key.kind, key.layer) for key in self.keys()))

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of attention that occur."""
        return tuple(dict.fromkeys(key.kind for key in self.keys()))

    def of_kind(self, kind: Kind) -> list[dict[str, Any]]:
        """The heads of one kind."""
        return [head for head in self.heads if head["kind"] == kind]

    def layers_of(self, kind: Kind) -> list[int]:
        """The layers of one kind."""
        return [layer for of, layer in self.layers() if of == kind]

    def farthest(self, metric: str, number: int) -> list[dict[str, Any]]:
        """The heads with the largest means, largest first; of equal ones the earlier head."""
        return sorted(self.heads, key=lambda head: -head[f"{metric}_mean"])[:number]

    def total(self, count: str) -> int:
        """A count summed over heads: ``queries``, ``population``, ``not_converged`` or ``certificate_unbounded``."""
        return sum(head[count] for head in self.heads)

    @cached_property
    def sampled(self) -> bool:
        """Whether only a sample of the queries was measured."""
        return any(head["population"] > head["queries"] for head in self.heads)

    def mean(
        self, metric: str, kind: Kind | None = None, layer: int | None = None, head: int | None = None
    ) -> float:
        """Mean over all queries, those of a kind, of a layer, or of a head; infinite if one of them is."""
        if kind is not None:
            return self.of(kind, layer, head)[f"{_METRIC.check('metric', metric)}_mean"]
        sums = (head["population"] * head[f"{metric}_mean"] for head in self.heads)
        return math.fsum(sums) / self.total("population")

    def median(self, metric: str, kind: Kind, layer: int, head: int | None = None) -> float:
        """Unweighted median over the queries of a head, or of a layer, as defined by ``numpy.quantile``."""
        row = self.of(kind, layer, head) if head else self._aggregated(_HEAD[:2], quantiles=True)[kind, layer]
        return row[f"{_METRIC.check('metric', metric)}_p50"]

    def values(self, key: HeadKey) -> tuple[Tensor, Tensor]:
        """Every metric of a head's queries, (queries, metrics) float32, and their documents, (queries,)."""
        result = self._layer(key.kind, key.layer).filter(head=key.head)
        return result.select(METRICS).to_torch(), result["document"].to_torch()

    def shared_with(self, others: Iterable[AuditStatistics]) -> AuditStatistics:
        """Restrict the queries to those that others have, too, by document, window and position.

        A query has the largest of its weights, so that it has the same weight in all of them.
        """
        pl = polars_module()
        result = AuditStatistics(self.table, self.words)
        place = [*_HEAD, "document", "window", "position"]
        for other in others:
            if other is not self:
                theirs = other.rows.select(*place, pl.col("weight").alias("other"))
                weight = pl.max_horizontal("weight", "other").alias("weight")
                result.rows = (
                    result.rows.join(theirs, on=place).with_columns(weight).drop("other").sort(place)
                )
        return result

    def histograms(
        self, metric: str, uppers: float | Mapping[HeadKey, float], bins: int
    ) -> dict[HeadKey, list[int]]:
        """Histogram of each head with equal bins from 0; the last bin also counts larger values.

        Args:
            metric: One of ``METRICS``.
            uppers: Upper end of the last bin, for all heads or by head.
            bins: Number of bins.
        """
        pl = polars_module()
        if not isinstance(uppers, Mapping):
            uppers = dict.fromkeys(self.keys(), uppers)
        ranges = pl.LazyFrame(
            [{**key._asdict(), "upper": float(upper)} for key, upper in uppers.items()],
            schema={name: kind for name, kind in self.rows.collect_schema().items() if name in _HEAD}
            | {"upper": pl.Float64},
        )
        place = pl.col(_METRIC.check("metric", metric)).cast(pl.Float64) / pl.col("upper") * bins
        number = place.clip(0, bins - 1).floor().cast(pl.Int32).alias("bin")
        counts = self.rows.join(ranges, on=list(_HEAD)).group_by(*_HEAD, number).len().collect()
        result = {key: [0] * bins for key in uppers}
        for *head, bin_number, count in counts.iter_rows():
            result[HeadKey(*head)][bin_number] = count
        return result

    def moves(self) -> polars.DataFrame:
        """Weighted means of ``MOVE_COLUMNS`` for each head, with the number and total weight of its queries."""
        pl = polars_module()
        weight = pl.col("weight")
        return (
            self.rows.filter(pl.col(MOVE_COLUMNS[0]).is_not_null())
            .group_by(*_HEAD, maintain_order=True)
            .agg(
                pl.len().alias("queries"),
                weight.sum(),
                *((pl.col(name) * weight).sum() / weight.sum() for name in MOVE_COLUMNS),
            )
            .sort(*_HEAD)
            .collect()
        )

    def positions(self, kind: Kind) -> dict[str, float]:
        """Share of each class among the keys of a kind of attention: the base rate of weight on it.

        Keys of cross-attention are tokens of the encoder. Empty where these were not audited or are not text;
        ``itself`` and ``neighbour`` have none.
        """
        pl = polars_module()
        seen = "encoder_self" if kind == "cross" else kind
        key = next((key for key in self.keys() if key.kind == seen), None)
        if key is None:
            return {}
        rows = self.rows.filter(**key._asdict()).filter(pl.col("class").is_not_null())
        result = rows.group_by("class").agg(pl.col("weight").sum()).collect()
        total = result["weight"].sum()
        return {name: weight / total for name, weight in result.iter_rows()}

    def moved_tokens(self) -> polars.DataFrame:
        """Weight that tokens gain (``net``) as the keys that lose or gain most of a query, by head and token id."""
        pl = polars_module()
        sides = [
            self.rows.filter(pl.col(f"{side}_token").is_not_null()).select(
                *_HEAD,
                pl.col(f"{side}_token").alias("token"),
                (sign * pl.col(f"{side}_weight") * pl.col("weight")).alias("net"),
            )
            for side, sign in (("leaves", -1), ("reaches", 1))
        ]
        by_token = pl.concat(sides).group_by(*_HEAD, "token", maintain_order=True)
        return by_token.agg(pl.col("net").sum()).sort(*_HEAD, "token").collect()

    def means_by_kind(self) -> dict[str, Any]:
        """``kinds`` of ``summary.json``: counts and means of each kind, and of each of its layers."""
        result: dict[str, Any] = {}
        for kind, layer in self.layers():
            if kind not in result:
                result[kind] = {**self._means(kind), "layers": []}
            result[kind]["layers"].append({"layer": layer, **self._means(kind, layer)})
        return result

    def _means(self, kind: Kind, layer: int | None = None) -> dict[str, Any]:
        result = self.of(kind, layer)
        counts = ("queries", "population", "not_converged", "certificate_unbounded")
        means = (f"{metric}_{name}" for metric in METRICS for name in ("mean", "se"))
        return {
            "heads": sum(key.kind == kind and layer in (None, key.layer) for key in self.keys()),
            **{name: finite(result[name]) for name in ("newton_steps_mean", *counts, *means)},
        }

    @staticmethod
    def record_keys() -> tuple[str, ...]:
        """The keys of ``record``, in their order."""
        suffixes = ("mean", "se", *RECORD_QUANTILES, "max")
        metrics = (f"{metric}_{suffix}" for metric in METRICS for suffix in suffixes)
        last = ("certificate_unbounded", "newton_steps_mean", "not_converged")
        return ("kind", "layer", "head", "queries", "population", *metrics, *last)

    def record(self, key: HeadKey) -> dict[str, float | int | str | None]:
        """The head's entry in ``heads.json``.

        Returns:
            ``kind``, ``layer``, ``head``, ``queries``, ``population`` (number of queries that they represent), then
            ``NAME_mean``, ``NAME_se``, ``NAME_p50``, ``NAME_p95``, ``NAME_max`` for each metric,
            ``certificate_unbounded``, ``newton_steps_mean`` and ``not_converged``. Infinite and unknown numbers are
            None.
        """
        row = self.of(*key)
        return {name: finite(row[name]) for name in self.record_keys()}

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The records of all heads, in their order."""
        return [self.record(key) for key in self.keys()]

    def _aggregate(
        self, by: tuple[str, ...], *, quantiles: bool = False
    ) -> dict[tuple[Any, ...], dict[str, Any]]:
        pl = polars_module()
        weight = pl.col("weight")
        # Quantiles take nine tenths of the time; those of layers are rarely needed, those of kinds never.
        wanted = RECORD_QUANTILES.items() if quantiles or by == _HEAD else ()
        numbers = [
            expression
            for metric in METRICS
            for x in [pl.col(metric).cast(pl.Float64)]
            for expression in (
                ((x * weight).sum() / weight.sum()).alias(f"{metric}_mean"),
                x.max().alias(f"{metric}_max"),
                x.is_infinite().sum().alias(f"{metric}_unbounded"),
                # Between two infinite values, interpolation gives NaN.
                *(x.quantile(q, "linear").fill_nan(math.inf).alias(f"{metric}_{name}") for name, q in wanted),
            )
        ]
        result = self.rows.group_by(*by, maintain_order=True).agg(
            pl.len().alias("queries"),
            weight.sum().round().cast(pl.Int64).alias("population"),
            (pl.col("newton_steps").cast(pl.Int64).sum() / pl.len()).alias("newton_steps_mean"),
            (~pl.col("converged")).sum().alias("not_converged"),
            *numbers,
        )
        rows = result.collect().join(self._errors(by), on=list(by), how="left").sort(*by)
        return {tuple(row[name] for name in by): row for row in rows.iter_rows(named=True)}

    def _errors(self, by: Sequence[str]) -> polars.DataFrame:
        """Standard errors of all means, from sums of documents that are added in the order of documents.

        The order in which polars adds within nested groups depends on its threads.
        """
        pl = polars_module()
        weight = pl.col("weight")
        cluster = ["document"] if self.resampled == "documents" else ["document", "window"]
        sums = (
            self.rows.group_by(*by, *cluster, maintain_order=True)
            .agg(*((pl.col(metric).cast(pl.Float64) * weight).sum() for metric in METRICS), weight.sum())
            .sort(*by, *cluster)
            .collect()
        )
        places = sums.select(by).unique(maintain_order=True)
        number = sums.select(pl.struct(by).rle_id().cast(pl.Int64)).to_series().to_torch()
        totals = sums.select(*METRICS, "weight").to_torch()

        def over_documents(values: Tensor) -> Tensor:
            return values.new_zeros(len(places), values.shape[1]).index_add_(0, number, values)

        documents = number.bincount(minlength=len(places))[:, None]
        together = over_documents(totals)
        mean, weights = together / together[:, -1:], together[:, -1:]
        squared = over_documents((totals - mean[number] * totals[:, -1:]) ** 2) * documents / (documents - 1)
        errors = (squared.sqrt() / weights).where(documents > 1, math.nan)
        return places.with_columns(
            pl.Series(f"{metric}_se", errors[:, column].numpy()) for column, metric in enumerate(METRICS)
        )

    def _values_of_layer(self, kind: Kind, layer: int) -> polars.DataFrame:
        return self.rows.filter(kind=kind, layer=layer).select("head", "document", *METRICS).collect()


def finite(value: Any) -> Any:
    """The value for JSON: None in place of a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
