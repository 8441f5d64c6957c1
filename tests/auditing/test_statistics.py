from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fenchel.auditing.heads import METRICS, HeadKey, Kind
from fenchel.auditing.measure import Measures
from fenchel.auditing.statistics import AuditStatistics
from fenchel.errors import InputError, ProblemError


def drawn(seed: int, batch: int = 2, heads: int = 3, queries: int = 7) -> Measures:
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, heads, queries)
    return Measures(
        values={name: torch.rand(shape, generator=generator) ** 4 * 3 for name in METRICS},
        newton_steps=torch.randint(1, 6, shape, generator=generator, dtype=torch.int32),
        converged=torch.rand(shape, generator=generator) > 0.2,
    )


def counting(*seeds: int, kind: Kind = "encoder_self", layer: int = 1) -> AuditStatistics:
    statistics = AuditStatistics()
    for seed in seeds:
        measures = drawn(seed)
        counted = torch.rand(2, 7, generator=torch.Generator().manual_seed(seed)) > 0.3
        statistics.add(kind, layer, (1, 2, 3), measures, counted)
    return statistics


def frozen(statistics: AuditStatistics) -> tuple[dict[str, list[float]], str]:
    tensors, description = statistics.to_state()
    return {name: tensors[name].tolist() for name in sorted(tensors)}, json.dumps(description)


def test_record_agrees_with_numpy_on_the_counted_queries() -> None:
    statistics = AuditStatistics()
    kept: dict[str, list[np.ndarray]] = {name: [] for name in (*METRICS, "steps", "converged")}
    for seed in range(20):
        measures = drawn(seed)
        counted = torch.rand(2, 7, generator=torch.Generator().manual_seed(seed)) > 0.3
        statistics.add("cross", 2, (4, 5, 9), measures, counted)
        for name in METRICS:
            kept[name].append(measures.values[name][:, 1][counted].double().numpy())
        kept["steps"].append(measures.newton_steps[:, 1][counted].numpy())
        kept["converged"].append(measures.converged[:, 1][counted].numpy())
    record = statistics.record(HeadKey("cross", 2, 5))
    every = {name: np.concatenate(parts) for name, parts in kept.items()}
    assert record["queries"] == len(every["steps"])
    for name in METRICS:
        assert record[f"{name}_mean"] == pytest.approx(every[name].mean(), rel=1e-14)
        assert record[f"{name}_p50"] == pytest.approx(np.quantile(every[name], 0.5), rel=0.002)
        assert record[f"{name}_p95"] == pytest.approx(np.quantile(every[name], 0.95), rel=0.002)
        assert record[f"{name}_max"] == every[name].max()
    assert record["newton_steps_mean"] == pytest.approx(every["steps"].mean())
    assert record["not_converged"] == int((~every["converged"]).sum())
    assert (record["kind"], record["layer"], record["head"]) == ("cross", 2, 5)


def test_a_record_has_the_published_keys() -> None:
    expected = ["kind", "layer", "head", "queries"]
    expected += [f"{name}_{suffix}" for name in METRICS for suffix in ("mean", "p50", "p95", "max")]
    expected += ["certificate_unbounded", "newton_steps_mean", "not_converged"]
    assert list(counting(0).record(HeadKey("encoder_self", 1, 1))) == expected


def test_padding_never_counts() -> None:
    measures = drawn(3)
    counted = torch.ones(2, 7, dtype=torch.bool)
    counted[1, 4:] = False
    poisoned = {name: tensor.clone() for name, tensor in measures.values.items()}
    for tensor in poisoned.values():
        tensor[1, :, 4:] = math.nan
    statistics = AuditStatistics()
    statistics.add(
        "encoder_self", 1, (1, 2, 3), Measures(poisoned, measures.newton_steps, measures.converged), counted
    )
    expected = torch.cat([measures.values["gap"][0, 0], measures.values["gap"][1, 0, :4]]).double()
    assert statistics.queries(HeadKey("encoder_self", 1, 1)) == 11
    assert statistics.mean("gap", "encoder_self", 1, 1) == pytest.approx(float(expected.mean()), rel=1e-14)


@given(st.permutations([0, 1, 2, 3]), st.integers(1, 3))
@settings(deadline=None, max_examples=20)
def test_merging_is_commutative_and_associative_bit_for_bit(order: list[int], cut: int) -> None:
    whole = counting(0, 1, 2, 3)
    left, right = AuditStatistics(), AuditStatistics()
    for position, seed in enumerate(order):
        (left if position < cut else right).merge(counting(seed))
    right.merge(left)
    assert frozen(right) == frozen(whole)
    for key in whole.keys():  # noqa: SIM118
        assert right.record(key) == whole.record(key)


def test_the_comparison_of_statistics_sees_a_difference() -> None:
    assert frozen(counting(0, 1)) != frozen(counting(0, 2))
    assert frozen(counting(0)) != frozen(counting(0, layer=2))


def test_merging_layers_that_one_side_lacks() -> None:
    for order in itertools.permutations([counting(0), counting(1, layer=2), counting(2, kind="cross")]):
        total = AuditStatistics()
        for part in order:
            total.merge(part)
        assert total.layers() == [("encoder_self", 1), ("encoder_self", 2), ("cross", 1)]
        assert total.record(HeadKey("cross", 1, 2)) == counting(2, kind="cross").record(
            HeadKey("cross", 1, 2)
        )


def test_state_is_inverted_exactly_and_survives_json() -> None:
    statistics = counting(0, 1)
    statistics.merge(counting(5, kind="decoder_self", layer=3))
    tensors, description = statistics.to_state()
    restored = AuditStatistics.from_state(tensors, json.loads(json.dumps(description, allow_nan=False)))
    assert frozen(restored) == frozen(statistics)
    restored.merge(counting(7))
    assert frozen(restored) != frozen(statistics)


def test_keys_are_sorted_by_kind_layer_and_head() -> None:
    statistics = AuditStatistics()
    sites: list[tuple[Kind, int]] = [
        ("cross", 1), ("decoder_self", 2), ("encoder_self", 10), ("encoder_self", 2),
    ]  # fmt: skip
    for kind, layer in sites:
        statistics.merge(counting(0, kind=kind, layer=layer))
    found = [(key.kind, key.layer) for key in statistics.keys() if key.head == 1]  # noqa: SIM118
    assert found == [("encoder_self", 2), ("encoder_self", 10), ("decoder_self", 2), ("cross", 1)]
    assert [key.head for key in statistics.keys()][:3] == [1, 2, 3]  # noqa: SIM118


def test_an_unbounded_certificate_is_counted_apart_and_null_in_the_record() -> None:
    measures = drawn(0)
    measures.values["certificate"][0, 0, 0] = math.inf
    statistics = AuditStatistics()
    counted = torch.ones(2, 7, dtype=torch.bool)
    statistics.add("encoder_self", 1, (1, 2, 3), measures, counted)
    record = statistics.record(HeadKey("encoder_self", 1, 1))
    assert record["certificate_unbounded"] == 1
    assert record["certificate_mean"] is None
    assert record["certificate_max"] is None
    assert record["certificate_p50"] is not None
    assert statistics.mean("certificate", "encoder_self", 1) == math.inf
    assert statistics.record(HeadKey("encoder_self", 1, 2))["certificate_unbounded"] == 0
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize(("value", "shown"), [(math.nan, "nan"), (-1.0, "-1.0"), (-math.inf, "-inf")])
def test_a_metric_that_is_no_number_names_itself_and_nothing_is_counted(value: float, shown: str) -> None:
    measures = drawn(0)
    measures.values["mean_error"][1, 2, 3] = value
    statistics = AuditStatistics()
    counted = torch.ones(2, 7, dtype=torch.bool)
    message = f"mean_error is {shown} for 1 of 14 queries of cross layer 5 head 8"
    with pytest.raises(ProblemError, match=message):
        statistics.add("cross", 5, (4, 6, 8), measures, counted)
    assert statistics.keys() == []


def test_shapes_and_heads_that_do_not_match_are_refused() -> None:
    statistics = counting(0)
    counted = torch.ones(2, 6, dtype=torch.bool)
    with pytest.raises(ProblemError, match=r"has shape \(2, 3, 7\), but counted \(2, 6\)"):
        statistics.add("encoder_self", 1, (1, 2, 3), drawn(1), counted)
    counted = torch.ones(2, 7, dtype=torch.bool)
    with pytest.raises(ProblemError, match=r"heads \[1, 2, 3\] before and for \[1, 2, 4\] now"):
        statistics.add("encoder_self", 1, (1, 2, 4), drawn(1), counted)
    other = AuditStatistics()
    other.add("encoder_self", 1, (1, 2, 4), drawn(1), counted)
    with pytest.raises(ProblemError, match=r"heads \[1, 2, 3\] here and \[1, 2, 4\] there"):
        statistics.merge(other)


def test_what_was_not_audited_is_named() -> None:
    statistics = counting(0)
    with pytest.raises(InputError, match="cross layer 1 was not audited; audited layers: encoder_self 1"):
        statistics.mean("gap", "cross", 1)
    with pytest.raises(
        InputError, match=r"head 9 of encoder_self layer 1 was not audited; audited heads: \[1, 2"
    ):
        statistics.mean("gap", "encoder_self", 1, 9)
    with pytest.raises(InputError, match="metric 'steps' is not measured"):
        statistics.mean("steps", "encoder_self", 1)
    with pytest.raises(ProblemError, match=r"fraction 1.5"):
        statistics.quantile("gap", 1.5, "encoder_self", 1)


def test_a_layer_is_all_its_heads_together() -> None:
    statistics = counting(0, 1)
    heads = [statistics.mean("gap", "encoder_self", 1, head) for head in (1, 2, 3)]
    assert statistics.mean("gap", "encoder_self", 1) == pytest.approx(sum(heads) / 3, rel=1e-14)
    edges = [0.0, 0.5, 1.0, 2.0]
    by_head = [statistics.histogram("gap", "encoder_self", 1, head, edges=edges) for head in (1, 2, 3)]
    together = statistics.histogram("gap", "encoder_self", 1, edges=edges)
    assert together == [sum(counts) for counts in zip(*by_head, strict=True)]
    top = max(statistics.maximum("gap", "encoder_self", 1, head) for head in (1, 2, 3))
    assert statistics.maximum("gap", "encoder_self", 1) == top
    assert statistics.quantile("gap", 1.0, "encoder_self", 1) == top
