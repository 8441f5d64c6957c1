"""What an audit says of heads, against numpy on the rows of its table, and intervals that hold what they promise."""

import json
import math

import numpy as np
import pytest
import torch

from fenchel.auditing.heads import METRICS, HeadKey
from fenchel.auditing.statistics import AuditStatistics
from fenchel.errors import InputError
from tests.auditing.small_audits import known_statistics, small_audit

HEADS = (4, 5, 9)


def columns() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    shape = len(HEADS), 70
    return {
        **{name: torch.rand(shape, generator=draw) ** 4 * 3 for name in METRICS},
        "newton_steps": torch.randint(1, 6, shape, generator=draw),
        "converged": torch.rand(shape, generator=draw) > 0.2,
        "weight": torch.randint(1, 4, (1, 70), generator=draw).expand(shape).double(),
    }


def statistics() -> AuditStatistics:
    return known_statistics([("cross", 2, HEADS, columns())], in_a_document=8)


def test_a_record_agrees_with_numpy() -> None:
    found, known = statistics(), columns()
    record = found.record(HeadKey("cross", 2, 5))
    every = {name: values[1].double().numpy() for name, values in known.items()}
    weight, documents = every["weight"], np.arange(70) // 8
    assert (record["kind"], record["layer"], record["head"]) == ("cross", 2, 5)
    assert (record["queries"], record["population"]) == (70, int(weight.sum()))
    count = documents.max() + 1
    for name in METRICS:
        mean = np.average(every[name], weights=weight)
        sums = np.array([(weight * (every[name] - mean))[documents == place].sum() for place in range(count)])
        error = math.sqrt(count / (count - 1) * (sums**2).sum()) / weight.sum()
        assert record[f"{name}_mean"] == pytest.approx(mean, rel=1e-12)
        assert record[f"{name}_se"] == pytest.approx(error, rel=1e-10)
        assert record[f"{name}_p50"] == pytest.approx(np.quantile(every[name], 0.5), rel=1e-12)
        assert record[f"{name}_p95"] == pytest.approx(np.quantile(every[name], 0.95), rel=1e-12)
        assert record[f"{name}_max"] == every[name].max()
        of_layer = np.quantile(columns()[name].double().numpy(), 0.5)
        assert found.median(name, "cross", 2) == pytest.approx(of_layer, rel=1e-12)
        place = METRICS.index(name)
        values, of = found.values(HeadKey("cross", 2, 5))
        assert (values[:, place].tolist(), len(of)) == (every[name].tolist(), 70)
    assert record["newton_steps_mean"] == pytest.approx(every["newton_steps"].mean())
    assert record["not_converged"] == int((1 - every["converged"]).sum())
    assert tuple(record) == AuditStatistics.record_keys()
    assert found.resampled == "documents"


def test_a_layer_and_a_kind_are_all_their_heads_together() -> None:
    found = statistics()
    heads = [found.mean("gap", "cross", 2, head) for head in HEADS]
    assert found.mean("gap", "cross", 2) == pytest.approx(sum(heads) / 3, rel=1e-12)
    assert found.mean("gap", "cross") == pytest.approx(sum(heads) / 3, rel=1e-12)
    # Heads answer the same queries: their errors do not average out as those of other documents would.
    assert found.of("cross", 2)["gap_se"] > 0
    by_head = found.histograms("gap", 2.0, 4)
    for place, head in enumerate(HEADS):
        values = columns()["gap"][place].clamp(max=1.99)
        assert by_head[HeadKey("cross", 2, head)] == np.histogram(values, 4, (0, 2))[0].tolist()
    uppers = {HeadKey("cross", 2, head): 2.0 for head in HEADS[1:]}
    assert found.histograms("gap", uppers, 4) == {key: by_head[key] for key in uppers}
    assert found.of("cross", 2)["gap_max"] == max(found.of("cross", 2, head)["gap_max"] for head in HEADS)


def test_an_unbounded_certificate_is_counted_apart_and_null_in_the_record() -> None:
    given = columns()
    given["certificate"][0, 0] = math.inf
    found = known_statistics([("encoder_self", 1, HEADS, given)])
    record = found.record(HeadKey("encoder_self", 1, 4))
    assert record["certificate_unbounded"] == 1
    assert record["certificate_mean"] is record["certificate_max"] is record["certificate_se"] is None
    assert record["certificate_p50"] is not None
    assert found.mean("certificate", "encoder_self", 1) == math.inf
    json.dumps(record, allow_nan=False)
    given["certificate"][0] = math.inf
    infinite = known_statistics([("encoder_self", 1, HEADS, given)])
    assert infinite.median("certificate", "encoder_self", 1, 4) == math.inf


def test_what_was_not_audited_is_named() -> None:
    found = statistics()
    with pytest.raises(InputError, match=r"cross 2 1 was not audited; expected one of: cross 2 4, cross 2 5"):
        found.mean("gap", "cross", 2, 1)
    with pytest.raises(InputError, match="metric is 'steps'; expected one of relative_deviation"):
        found.mean("steps", "cross", 2)
    assert AuditStatistics().keys() == []


def test_intervals_over_documents_hold_what_they_promise() -> None:
    # 400 audits of 30 documents of 50 queries with an intraclass correlation of 0.3: one head each.
    draw = torch.Generator().manual_seed(0)
    effect = torch.randn(400, 30, 1, generator=draw) * math.sqrt(0.3)
    values = (5 + effect + math.sqrt(0.7) * torch.randn(400, 30, 50, generator=draw)).flatten(1)
    known = {name: torch.zeros_like(values) for name in METRICS} | {"gap": values}
    found = known_statistics([("cross", 1, range(1, 401), known)], in_a_document=50)
    covered = sum(
        abs(found.mean("gap", "cross", 1, head) - 5) <= 1.96 * found.of("cross", 1, head)["gap_se"]
        for head in range(1, 401)
    )
    # Queries taken for independent would give intervals that hold it in less than 0.8 of the audits.
    assert 0.90 <= covered / 400 <= 0.98


def test_a_single_document_is_resampled_by_its_windows_and_a_single_window_not_at_all() -> None:
    alone = known_statistics([("cross", 1, HEADS, columns())], in_a_document=70)
    assert alone.resampled == "windows"
    assert math.isnan(alone.of("cross", 1, 4)["gap_se"])
    assert alone.record(HeadKey("cross", 1, 4))["gap_se"] is None
    several = columns() | {"window": (torch.arange(70) // 10).expand(3, 70)}
    windows = known_statistics([("cross", 1, HEADS, several)], in_a_document=70)
    assert windows.of("cross", 1)["gap_se"] > 0


def test_base_rates_are_shares_of_the_positions() -> None:
    audited = small_audit(queries="all")
    found = audited.statistics.positions("encoder_self")
    rows = audited.queries.filter(layer=1, head=1).collect()
    for name, share in found.items():
        weight = rows["weight"].to_numpy()
        chosen = (rows["class"] == name).to_numpy()
        assert share == pytest.approx(float(weight[chosen].sum() / weight.sum()))
    assert sum(found.values()) == pytest.approx(1)
    assert audited.statistics.positions("cross") == found
    assert audited.statistics.positions("decoder_self") == {}
