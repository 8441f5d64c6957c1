"""Ranks, intervals and the choice of a control: against scipy, by simulation, and on data whose answer is known."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy import stats

from fenchel.bootstrap import CONCLUSIVE, Bootstrap, Interval, midranks, spearman
from fenchel.swap.conditions import Condition
from fenchel.swap.findings import interval_of
from fenchel.swap.statistics import (
    Metric,
    Tables,
    against_best_control,
    halves,
    ranking_agreement,
    score_correlation,
    token_mean,
)
from fenchel.swap.tasks import sampled_pairs
from tests.pages import page


def values_with_ties(n: int = 80, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 12, (n,), generator=generator).double()
    return x, x + torch.randint(0, 9, (n,), generator=generator)


def by_scipy(x: torch.Tensor, y: torch.Tensor) -> float:
    found: Any = stats.spearmanr(x.numpy(), y.numpy())
    return float(found.statistic)


def test_correlations_are_scipys_with_ties_and_with_weights_as_repetitions():
    x, y = values_with_ties()
    assert float(spearman(x, y)) == pytest.approx(by_scipy(x, y), abs=1e-12)
    assert torch.equal(midranks(x, torch.ones(1, 80))[0], torch.from_numpy(stats.rankdata(x.numpy())))
    weights = torch.randint(0, 4, (5, 80), generator=torch.Generator().manual_seed(1)).double()
    for row, found in zip(weights, spearman(x, y, weights), strict=True):
        drawn = torch.arange(80).repeat_interleave(row.long())
        assert float(found) == pytest.approx(by_scipy(x[drawn], y[drawn]), abs=1e-12)
    assert bool(spearman(torch.ones(4), torch.arange(4.0)).isnan())


def means(difference: float, n: int, seed: int, noise: float = 0.1) -> Metric:
    """Two conditions whose per-token difference is known, on windows that differ far more among themselves."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(5, 20, (n,), generator=generator).double()
    level = 3 * torch.randn(n, generator=generator, dtype=torch.float64)
    own = noise * torch.randn(n, generator=generator, dtype=torch.float64)
    return token_mean({"model": level * counts, "condition": (level + difference + own) * counts}, counts)


def paired(metric: Metric, bootstrap: Bootstrap) -> Interval:
    return bootstrap.interval(
        lambda weights: metric.of("condition", weights) - metric.of("model", weights), metric.units
    )


def ends_of(found: Interval | None) -> tuple[float, float]:
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.estimate <= found.high
    return found.low, found.high


def test_resamples_are_seeded_paired_and_of_more_than_one_unit():
    metric = means(0.05, 50, 0, noise=0.02)
    pair = paired(metric, Bootstrap(200))
    alone = Bootstrap(200).interval(lambda weights: metric.of("condition", weights), metric.units)
    assert ends_of(pair)[0] > 0  # a difference that the windows hide
    low, high = ends_of(alone)
    assert high - low > 10 * 0.05
    assert paired(metric, Bootstrap(100, 3)) == paired(metric, Bootstrap(100, 3))
    assert paired(metric, Bootstrap(100, 3)) != paired(metric, Bootstrap(100, 4))
    one = paired(means(0.05, 1, 0), Bootstrap(100))
    assert (one.low, one.high) == (None, None)
    few = token_mean({"condition": torch.ones(3), "a": torch.ones(3)}, torch.ones(3))
    assert against_best_control(few, "condition", ["a"], Bootstrap(100)).compared is None
    first, second = halves(11, 0)
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(11))
    assert halves(11, 1)[0].tolist() != first.tolist()


def test_choosing_on_the_other_half_does_not_flatter_the_control():
    # Ten controls and a condition that are all the same but for noise: a control picked by its luck would look better.
    crossed, naive = [], []
    for seed in range(60):
        noise = torch.randn(11, 40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        metric = token_mean({str(k): row for k, row in enumerate(noise)}, torch.ones(40, dtype=torch.float64))
        controls = [str(k) for k in range(1, 11)]
        found = against_best_control(metric, "0", controls, Bootstrap(100, seed))
        assert found.compared is not None
        crossed.append(found.compared.estimate)
        naive.append(metric.of_all("0") - metric.of_all(found.best))
    assert abs(sum(crossed) / 60) < 0.1
    assert sum(naive) / 60 > 0.15


def test_a_better_condition_is_found_better_than_every_control():
    _, y = values_with_ties(200)
    noise = torch.randn(3, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    metric = score_correlation(
        {"condition": y + 0.1 * noise[0], "a": y + 8 * noise[1], "b": y + 9 * noise[2]}, y
    )
    found = against_best_control(metric, "condition", ["a", "b"], Bootstrap(200))
    assert found.best == "a"
    assert ends_of(found.compared)[0] > 0
    # Both halves choose it: the difference is that of the values in the table.
    assert found.compared is not None
    assert found.compared.estimate == pytest.approx(
        metric.of_all("condition") - metric.of_all("a"), abs=1e-12
    )


def test_ranking_agreement_draws_sentences():
    pairs = sampled_pairs(9, 100, 0)
    similarities = {
        key: torch.randn(36, generator=torch.Generator().manual_seed(k)) for k, key in enumerate("ma")
    }
    metric = ranking_agreement(similarities, "m", pairs, 9)
    assert metric.of_all("m") == pytest.approx(1.0)
    expected = by_scipy(similarities["m"], similarities["a"])
    assert metric.of_all("a") == pytest.approx(expected, abs=1e-12)
    without_first = torch.ones(1, 9).index_fill_(1, torch.tensor([0]), 0.0).double()
    kept = (pairs != 0).all(1)
    expected = by_scipy(similarities["m"][kept], similarities["a"][kept])
    assert float(metric.of("a", without_first)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("units", "coverage"), [(5, 0.83), (CONCLUSIVE, 0.90), (30, 0.93)])
def test_intervals_of_few_units_cover_less_than_they_say(units: int, coverage: float):
    sample = torch.randn(4_000, units, generator=torch.Generator().manual_seed(units), dtype=torch.float64)
    means = Bootstrap(1000).samples(lambda weights: weights @ sample.T, [torch.arange(units)], units) / units
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)
    covered = float(((low <= 0) & (high >= 0)).double().mean())
    assert covered == pytest.approx(coverage, abs=0.01)
    assert f"{coverage * 100:.0f}" in page("docs/swap.md").partition("covered the mean in")[2][:20]


@pytest.mark.parametrize(
    ("change", "eps", "direction"), [(1e-9, 2**-23, 0), (1e-6, 2**-23, 1), (1e-9, 2**-52, 1), (0.0, 2**-7, 0)]
)
def test_changes_within_rounding_have_no_direction(change: float, eps: float, direction: int) -> None:
    own = torch.full((30,), 4.0 * 50, dtype=torch.float64)
    measured = {
        "documents": torch.arange(30),
        "tokens": torch.full((30, 1), 50.0),
        "labels": torch.full((30,), 50.0),
        "hidden": torch.rand(30, 4, 1, generator=torch.Generator().manual_seed(0)) * change,
        "losses": torch.stack([own, own, own, own + 50 * change], 1),
        "distances": torch.rand(30, 1, 3, generator=torch.Generator().manual_seed(1)) * change,
    }
    conditions = [Condition(), *(Condition("first_order", alpha) for alpha in (0.9, 1.1)), Condition("exact")]
    task: Any = SimpleNamespace(unit="windows")
    found = Tables(conditions, measured, {"layers": 1}, task, Bootstrap(100), eps).results()
    moved = interval_of(found["conditions"][3], "loss_difference")
    assert moved.direction == interval_of(found["against_control"][0], "difference").direction == direction
    assert moved.span == (0.0, 0.0, 0.0) or change
    assert bool(found["smoothing"]) == (float(measured["distances"][..., 0].sum()) / 1500 > eps)


def test_sampled_pairs_are_different_pairs_of_different_things():
    found = sampled_pairs(50, 200, 0)
    assert found.shape == (200, 2)
    assert bool((found[:, 0] < found[:, 1]).all())
    assert len({tuple(pair) for pair in found.tolist()}) == 200
    assert torch.equal(found, sampled_pairs(50, 200, 0))


def test_windows_of_a_document_are_drawn_together():
    generator = torch.Generator().manual_seed(0)
    level = torch.randn(30, 1, generator=generator, dtype=torch.float64).expand(30, 8).reshape(-1)
    windows = {
        "tokens": torch.full((240, 1), 5.0, dtype=torch.float64),
        "labels": torch.full((240,), 5.0, dtype=torch.float64),
        "hidden": torch.rand(240, 2, 1, generator=generator),
        "losses": torch.stack([torch.zeros(240, dtype=torch.float64), 5 * level], 1),
    }
    conditions = [Condition(), Condition("zero", layer=1, head=1)]

    def width(documents: torch.Tensor) -> tuple[float | None, dict[str, int]]:
        measured = {**windows, "documents": documents}
        task: Any = SimpleNamespace(unit="windows")
        found = Tables(conditions, measured, {"layers": 1}, task, Bootstrap(500), 0.0).results()
        low, high = (found["conditions"][1][f"loss_difference_{end}"] for end in ("low", "high"))
        assert found["conditions"][1]["loss_difference"] == pytest.approx(float(level.mean()))
        return None if low is None else high - low, found["units"]

    together, units = width(torch.arange(30).repeat_interleave(8))
    apart, _ = width(torch.arange(240))
    assert units == {"windows": 240, "documents": 30}
    assert together is not None
    assert apart is not None
    assert together == pytest.approx(2 * 1.96 * float(level[::8].std()) / 30**0.5, rel=0.1)
    assert together > 2.5 * apart
    for few in (1, 2):
        assert width(torch.arange(240) % few)[0] is None
