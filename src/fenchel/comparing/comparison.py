"""Comparison of audits with the same conventions and shapes: differences and order of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import Kind, checked, number_of, shown
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.heads import METRICS, HeadKey
from fenchel.auditing.manifest import KEYS, sample_words
from fenchel.auditing.statistics import AuditStatistics, finite
from fenchel.bootstrap import Bootstrap, Interval, rank_correlation
from fenchel.errors import InputError
from fenchel.io.runs import differences
from fenchel.tensors import check_type

# Simultaneous confidence level of the intervals of a metric.
CONFIDENCE = 0.95

# Names of the statistics of a metric, by their keys in ``compare.json``.
STATISTICS = {"p50": "median", "mean": "mean"}

_MOST_AUDITS = 200
# Entries of manifests that define the meaning of numbers: versions, problem, tolerance.
_CONVENTIONS = ("schema", "fenchel", "space", "closeness", "alpha", "tol", "convention")

# Defaults of conventions that are omitted from manifests.
_UNSAID = {"closeness": "softmax"}

# Entries that determine the sample: audits that differ in them are compared by the queries of both.
_DRAWN = ("queries", "seed")

_TIMED = ("seconds", "estimated_seconds")
_ADVICE = "Audit one of them again with the options of the other."
_RESAMPLES = 1000
_MOST_UNITS = 1000
# Maximum number of values of a head that are candidates for medians of resamples.
_PLACES = 160


@dataclass(frozen=True)
class Distribution:
    """A metric over the queries of a head, or of a layer.

    Attributes:
        mean: Infinite if the metric of a query is; NaN without queries.
        median: Likewise.
    """

    mean: float
    median: float


@dataclass(frozen=True)
class Audited:
    """An audit of a comparison.

    Attributes:
        name: Its name.
        manifest: Its manifest.
        statistics: Its statistics.
    """

    name: str
    manifest: dict[str, Any]
    statistics: AuditStatistics

    @property
    def sample(self) -> str | None:
        """Description of the sample of queries; None where all were measured."""
        return sample_words(self.manifest.get("queries"))

    def distribution(self, metric: str, *place: Any) -> Distribution:
        """A metric over the queries of a head, or of all heads of a layer, by kind, layer and number."""
        return Distribution(self.statistics.mean(metric, *place), self.statistics.median(metric, *place))


def same_text(*manifests: Mapping[str, Any]) -> bool:
    """Whether audits are of the same file or texts, so that their documents can be paired."""
    digests = {manifest.get("text_sha256") for manifest in manifests}
    return len(digests) == 1 and None not in digests


def comparable(audits: Sequence[Any], names: Sequence[str] | None) -> tuple[Audited, ...]:
    """Load the audits of a comparison and check that they are comparable; see :func:`fenchel.comparing.compare`.

    Raises:
        InputError: If an audit cannot be loaded or is repeated, or two differ in conventions or heads.
    """
    if not 2 <= len(audits) <= _MOST_AUDITS:
        number = "1 audit was" if len(audits) == 1 else f"{len(audits)} audits were"
        few, many = (
            "two or more, such as compare('before', 'after')",
            f"at most {_MOST_AUDITS}. Leave some out",
        )
        raise InputError(f"{number} given; expected {few if len(audits) < 2 else many}.")
    given = [_given(audit, position) for position, audit in enumerate(audits, start=1)]
    called = _names(given, names)
    _refuse_repetition(given, called)
    result: list[Audited] = []
    for audit, name in zip(given, called, strict=True):
        report = audit if isinstance(audit, AuditReport) else AuditReport.load(audit)
        result.append(Audited(name, report.manifest, report.statistics))
        if not report.statistics.keys():
            raise InputError(
                f"{name} holds an audit without heads: its shard had no documents. Give one that has heads."
            )
        _refuse_other_convention(result[0], result[-1])
        _refuse_other_heads(result[0], result[-1])
    manifests, statistics = zip(*((audit.manifest, audit.statistics) for audit in result), strict=True)
    drawn, tokens = ({tuple(map(one.get, keys)) for one in manifests} for keys in (_DRAWN, ("tokens",)))
    if same_text(*manifests) and len(tokens) == 1 < len(drawn):
        return tuple(replace(audit, statistics=audit.statistics.shared_with(statistics)) for audit in result)
    return tuple(result)


def _given(audit: object, place: int) -> Path | AuditReport:
    if isinstance(audit, AuditReport):
        return audit
    expected = "the folder of an audit, or the result of fenchel.audit"
    check_type(f"audit {place}", audit, str | Path, expected, error=InputError)
    return checked("audit_folder", audit, name=f"audit {place}")


def _names(given: Sequence[Path | AuditReport], names: Sequence[str] | None) -> list[str]:
    if names is None:
        result = [
            str(audit.manifest.get("model") or "an audit") if isinstance(audit, AuditReport) else str(audit)
            for audit in given
        ]
        return [
            f"{name} ({position})" if result.count(name) > 1 and isinstance(audit, AuditReport) else name
            for position, (name, audit) in enumerate(zip(result, given, strict=True), start=1)
        ]
    result = list(names)
    if len(result) != len(given) or not all(isinstance(name, str) and name.strip() for name in result):
        raise InputError(f"names is {shown(result)}; expected {len(given)} texts that are not empty.")
    if len(set(result)) < len(result):
        raise InputError(f"names is {shown(result)}; expected a different one for each audit.")
    return result


def _refuse_repetition(given: Sequence[Path | AuditReport], names: Sequence[str]) -> None:
    seen: dict[object, str] = {}
    for audit, name in zip(given, names, strict=True):
        key: object = id(audit) if isinstance(audit, AuditReport) else audit.resolve()
        if key in seen:
            twice = f"{name} is given twice" if seen[key] == name else f"{seen[key]} and {name} are one audit"
            raise InputError(f"{twice}; expected another audit to compare it with.")
        seen[key] = name


def _refuse_other_convention(one: Audited, other: Audited) -> None:
    """Raise if two audits have different conventions.

    Raises:
        InputError: With every convention in which they differ, and both values.
    """
    first, second = (
        {key: audit.manifest.get(key, _UNSAID.get(key)) for key in _CONVENTIONS} for audit in (one, other)
    )
    differing = differences(first, second, labels=(f"in {one.name}", f"in {other.name}"))
    if differing:
        raise InputError(
            f"{one.name} and {other.name} cannot be compared because they measure differently: "
            f"{'; '.join(differing)}. {_ADVICE}"
        )


def _refuse_other_heads(one: Audited, other: Audited) -> None:
    """Raise if two audits have different heads.

    Raises:
        InputError: With the first layer in which they differ.
    """
    heads = [audit.statistics.keys() for audit in (one, other)]
    if differing := {*heads[0]} ^ {*heads[1]}:
        kind, layer, _ = min(differing)
        ours, theirs = (_in_words([key.head for key in keys if key[:2] == (kind, layer)]) for keys in heads)
        raise InputError(
            f"{one.name} and {other.name} cannot be compared because their heads differ: {kind} layer {layer} has "
            f"{ours} in {one.name} and {theirs} in {other.name}. Compare models of one shape, and audit the same "
            "--layers and --heads of both."
        )


def _in_words(heads: list[int]) -> str:
    if not heads:
        return "none"
    if heads == list(range(1, len(heads) + 1)):
        return f"heads 1 to {len(heads)}" if len(heads) > 1 else "head 1"
    return f"heads {', '.join(map(str, heads))}"


class _Medians:
    """The medians of a head's metrics in any resample of documents.

    Args:
        values: (N, M), a column per metric.
        units: (N,), the document of each query, from 0.
        count: U, the number of documents.

    Candidates of the median are values with ranks near the middle, within five standard deviations of the rank over
    documents, and the two extremes. If these are all values, the median is exact.

    Attributes:
        exact: (M,), the medians of all values.
    """

    def __init__(self, values: Tensor, units: Tensor, count: int) -> None:
        ordered = values.T.sort().values
        number = ordered.shape[1]
        middle = ordered[:, (number - 1) // 2]
        self.exact = (middle.double() + ordered[:, number // 2].double()) / 2
        above = (values > middle).double() - 0.5
        spread = (
            8 * torch.zeros(count, len(ordered)).double().index_add_(0, units, above).square().sum(0).sqrt()
        )
        steps = torch.linspace(-1, 1, _PLACES - 2, dtype=torch.float64)
        # A quarter further: halves would be rounded to either of two ranks.
        middles = (number - 1) / 2 + 0.25
        near = (middles + spread.clamp(min=(_PLACES - 3) / 2)[:, None] * steps).round().long()
        ends = torch.tensor([[0, number - 1]]).expand(len(ordered), 2)
        ranks = torch.cat([near.clamp(0, number - 1), ends], 1).sort().values
        self._edges = ordered.gather(1, ranks)
        bins = torch.searchsorted(self._edges, values.T.contiguous())
        places = units * _PLACES + bins
        counts = torch.zeros(len(ordered), count * _PLACES).scatter_add_(
            1, places, torch.ones_like(places).float()
        )
        below = counts.view(len(ordered), count, _PLACES).cumsum(2)
        self._below = below.transpose(0, 1).reshape(count, -1)

    def __call__(self, weights: Tensor) -> Tensor:
        """The medians, (R, M), of R samples given by (R, U) multiplicities of the documents."""
        below = (weights.float() @ self._below).view(len(weights), *self._edges.shape)
        half = below[..., -1:] / 2
        # As in numpy, the median of an even number of values is the mean of the two in the middle.
        ends = [
            torch.searchsorted(below, half, right=right).squeeze(2).clamp(max=_PLACES - 1)
            for right in (False, True)
        ]
        low, high = (self._edges.gather(1, place.T).T for place in ends)
        return ((low + high) / 2).double()


def median_intervals(
    pairs: Sequence[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]], *, paired: bool
) -> list[list[Interval]]:
    """Simultaneous 95 % intervals, for each metric, of the differences of medians, by resampling documents.

    Args:
        pairs: For each of H heads, values (N, M) and document numbers (N,) of the first and of the last audit.
        paired: Whether documents with the same number are identical, and drawn together.

    Returns:
        For each of M metrics, an interval per head. More than a thousand documents are resampled in a thousand groups.
    """
    seen = [torch.cat([pair[side][1] for pair in pairs]).unique() for side in (0, 1)]
    known = [torch.cat(seen).unique()] * 2 if paired else seen
    sizes = [min(_MOST_UNITS, len(numbers)) for numbers in known]
    starts = (0, 0 if paired else sizes[0])
    units = starts[1] + sizes[1]
    strata = torch.arange(units).split(sizes[:1] if paired else sizes)
    fewest = min(min(size, len(numbers)) for size, numbers in zip(sizes, seen, strict=True))
    bootstrap, estimates, samples = Bootstrap(_RESAMPLES), [], []
    for first, last in pairs:
        medians = [
            _Medians(values, torch.searchsorted(numbers, of) % size + start, units)
            for (values, of), numbers, size, start in zip((first, last), known, sizes, starts, strict=True)
        ]

        def difference(weights: Tensor, medians: Sequence[_Medians] = medians) -> Tensor:
            return medians[1](weights) - medians[0](weights)

        estimates.append(medians[1].exact - medians[0].exact)
        among_candidates = difference(torch.ones(1, units))
        samples.append(estimates[-1] + (bootstrap.samples(difference, strata, units) - among_candidates))
    together = zip(torch.stack(estimates, 1), torch.stack(samples, 2).unbind(1), strict=True)
    return [Bootstrap.together(estimate, found, fewest) for estimate, found in together]


@dataclass(frozen=True)
class Change:
    """A metric of one head in two audits.

    Attributes:
        first: Its distribution in the first audit.
        second: Its distribution in the second.
        interval: Interval of the difference of the medians; without ends where it is unknown.
    """

    first: Distribution
    second: Distribution
    interval: Interval

    @property
    def mean(self) -> float | None:
        """Second mean minus first; None where either is infinite or missing."""
        return finite(self.second.mean - self.first.mean)

    @property
    def median(self) -> float | None:
        """Second median minus first; None where either is infinite or missing."""
        return finite(self.second.median - self.first.median)

    def to_json(self) -> dict[str, float | None]:
        """The differences with the interval of that of the medians, and whether that interval excludes 0."""
        return {
            "mean_difference": self.mean,
            "p50_difference": self.median,
            "p50_low": self.interval.low,
            "p50_high": self.interval.high,
            "moved": self.interval.direction,
        }


@dataclass(frozen=True)
class Comparison:
    """Comparison of audits: the last with the first, and those in between.

    Attributes:
        audits: Two or more, in the given order.
    """

    audits: tuple[Audited, ...]

    @property
    def first(self) -> Audited:
        """The first audit, the baseline."""
        return self.audits[0]

    @property
    def last(self) -> Audited:
        """The last audit."""
        return self.audits[-1]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the audits."""
        return tuple(audit.name for audit in self.audits)

    @cached_property
    def keys(self) -> tuple[HeadKey, ...]:
        """The heads, ordered by kind, layer and number."""
        return tuple(self.first.statistics.keys())

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of attention that occur."""
        return self.first.statistics.kinds

    @cached_property
    def differing(self) -> dict[str, list[Any]]:
        """Entries in which the manifests differ, such as model, text and versions, with the values of each audit."""
        manifests = [audit.manifest for audit in self.audits]
        names = [*KEYS, *sorted({name for manifest in manifests for name in manifest} - set(KEYS))]
        values = {
            name: [manifest.get(name) for manifest in manifests] for name in names if name not in _TIMED
        }
        return {name: of for name, of in values.items() if any(value != of[0] for value in of[1:])}

    @cached_property
    def changes(self) -> dict[HeadKey, dict[str, Change]]:
        """Changes from the first to the last audit, by head and metric."""
        first, last = self.first, self.last
        values = [[audit.statistics.values(key) for key in self.keys] for audit in (first, last)]
        result = median_intervals(list(zip(*values, strict=True)), paired=self.paired)
        by_head = zip(self.keys, zip(*result, strict=True), strict=True)
        return {
            key: {
                metric: Change(first.distribution(metric, *key), last.distribution(metric, *key), interval)
                for metric, interval in zip(METRICS, intervals, strict=True)
            }
            for key, intervals in by_head
        }

    @cached_property
    def paired(self) -> bool:
        """Whether first and last audit are of the same documents."""
        return same_text(self.first.manifest, self.last.manifest)

    @cached_property
    def documents(self) -> int:
        """Number of documents of the first or last audit, whichever has fewer."""
        return min(audit.statistics.documents for audit in (self.first, self.last))

    @property
    def resampled(self) -> str:
        """Description of the intervals."""
        if not any(change.interval.low is not None for of in self.changes.values() for change in of.values()):
            return f"no interval can be given for {number_of(self.documents, 'document')}"
        drawn = "the same documents of both" if self.paired else "the documents of each"
        return f"{100 * CONFIDENCE:.0f} % intervals for all heads at once, from resampling {drawn}"

    def moved(self, metric: str) -> list[HeadKey]:
        """The heads by the smallest change within the interval of their medians, in descending order."""

        def rank(key: HeadKey) -> tuple[float, float]:
            change = self.changes[key][metric]
            return -change.interval.least, -abs(change.median or 0.0)

        return sorted(self.keys, key=rank)

    def directions(self, metric: str) -> tuple[int, int]:
        """Number of heads whose interval of the difference of medians lies above 0, and below 0."""
        result = [self.changes[key][metric].interval.direction for key in self.keys]
        return result.count(1), result.count(-1)

    def rank_correlation(
        self, metric: str, statistic: str = "p50", *, first: int = 0, second: int = -1
    ) -> float | None:
        """Spearman's rank correlation of the heads of two audits.

        Args:
            metric: One of ``METRICS``.
            statistic: ``p50`` for medians, ``mean`` for means.
            first: Index of an audit.
            second: Index of another.

        Returns:
            From −1 to 1; None for fewer than three heads, or where all of one audit have the same value.
        """
        name, audits = STATISTICS[statistic], (self.audits[first], self.audits[second])
        one, other = (
            [getattr(audit.distribution(metric, *key), name) for key in self.keys] for audit in audits
        )
        return rank_correlation(list(zip(one, other, strict=True)))

    def to_json(self) -> dict[str, Any]:
        """The contents of ``compare.json``; infinite and unknown numbers are None.

        :meth:`fenchel.comparing.ComparisonReport.save` describes its entries.
        """
        steps = [
            {"from": one, "to": other}
            | {
                f"{name}_rank_correlation": self.rank_correlation(name, first=i, second=i + 1)
                for name in METRICS
            }
            for i, (one, other) in enumerate(pairwise(self.names))
        ]
        return {
            "confidence": CONFIDENCE,
            "resampled": {"documents": self.documents, "paired": self.paired},
            "audits": [
                {
                    "name": audit.name,
                    "not_converged": audit.statistics.total("not_converged"),
                    "manifest": audit.manifest,
                }
                for audit in self.audits
            ],
            "differing": self.differing,
            "metrics": {
                metric: {
                    "rank_correlation": self.rank_correlation(metric),
                    "rank_correlation_of_means": self.rank_correlation(metric, "mean"),
                    **dict(zip(("rose", "fell"), self.directions(metric), strict=True)),
                }
                for metric in METRICS
            },
            "heads": self.heads,
            "layers": [
                {"kind": kind, "layer": layer, **self._values(kind, layer)} for kind, layer in self.sites
            ],
            "steps": steps,
        }

    @cached_property
    def sites(self) -> tuple[tuple[Kind, int], ...]:
        """The layers, ordered by kind and number."""
        return tuple(self.first.statistics.layers())

    @cached_property
    def heads(self) -> list[dict[str, Any]]:
        """The records of ``compare.json``, one per head."""
        return [
            {
                **key._asdict(),
                "queries": [audit.statistics.of(*key)["queries"] for audit in self.audits],
                **self._values(*key),
                **{
                    f"{metric}_{name}": value
                    for metric, change in self.changes[key].items()
                    for name, value in change.to_json().items()
                },
            }
            for key in self.keys
        ]

    def _values(self, *place: Any) -> dict[str, list[float | None]]:
        result: dict[str, list[float | None]] = {}
        for metric in METRICS:
            shapes = [audit.distribution(metric, *place) for audit in self.audits]
            for statistic, name in STATISTICS.items():
                result[f"{metric}_{statistic}"] = [finite(getattr(shape, name)) for shape in shapes]
        return result
