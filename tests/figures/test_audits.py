"""Figures of audits: their numbers are those of the audit, whatever its shape and whatever is missing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.heads import HeadKey
from fenchel.errors import InputError
from fenchel.figures import make_figure
from tests.auditing.small_audits import small_audit, small_model, some_texts
from tests.comparing.small_comparisons import known_audit, known_values

CLOSE = 1e-5


@pytest.fixture(scope="module")
def with_twin() -> AuditReport:
    audit = known_audit(known_values(0))
    audit.twin = known_audit(known_values(1)).statistics
    return audit


def layers_of(figure: Any) -> dict[tuple[str, int], Any]:
    return {
        (kind["kind"], layer["layer"]): layer for kind in figure.numbers["kinds"] for layer in kind["layers"]
    }


@pytest.mark.parametrize("name", ["deviations", "covariance"])
def test_means_are_those_of_the_queries(name: str, with_twin: AuditReport) -> None:
    found = layers_of(make_figure(name, with_twin))
    shown = {"deviations": ("relative_deviation", "total_variation", "mean_error", "certificate"),
             "covariance": ("relative_deviation", "predicted_deviation", "total_variation")}[name]  # fmt: skip
    for seed, who in ((0, "model"), (1, "twin")):
        values = known_values(seed)
        assert set(found) == {(key.kind, key.layer) for key in values}
        for site, layer in found.items():
            own = {key: metrics for key, metrics in values.items() if key[:2] == site}
            assert set(layer[who]) == set(shown)
            for metric in shown:
                record, some = layer[who][metric], torch.stack([one[metric] for one in own.values()]).double()
                assert record["mean"] == pytest.approx(float(some.mean()), rel=CLOSE)
                assert record["heads"] == pytest.approx(some.mean(1).tolist(), rel=CLOSE)
                for share, called in ((0.05, "low"), (0.5, "median"), (0.95, "high")):
                    expected = float(torch.quantile(some.flatten(), share))
                    assert record[called] == pytest.approx(expected, rel=0.005)


def test_the_caption_of_the_covariance_says_the_ranges(with_twin: AuditReport) -> None:
    made = make_figure("covariance", with_twin)
    for who in ("model", "twin"):
        means = [layer[who]["total_variation"]["mean"] for layer in layers_of(made).values()]
        assert f"{min(means):.3f} to {max(means):.3f}" in made.caption
    assert "every exact solution is certified" in made.caption
    assert "tells them apart" not in made.caption


def test_the_caption_tells_the_two_apart_where_the_numbers_do(with_twin: AuditReport) -> None:
    audit = known_audit(known_values(0, dict.fromkeys(known_values(0), 20.0)))
    audit.twin = with_twin.twin
    assert "in the twin: this tells them apart." in make_figure("covariance", audit).caption


def test_an_audit_without_a_twin() -> None:
    alone = known_audit(known_values(0))
    made = make_figure("deviations", alone)
    assert all(layer["twin"] is None for layer in layers_of(made).values())
    assert "No untrained twin was audited." in made.caption
    made.draw()
    with pytest.raises(InputError, match=r"has no untrained twin.*--baseline twin"):
        make_figure("covariance", alone)


def test_what_is_infinite_is_left_out_and_not_drawn(with_twin: AuditReport) -> None:
    values = known_values(0)
    values[HeadKey("encoder_self", 1, 1)]["certificate"][:] = math.inf
    values[HeadKey("encoder_self", 1, 2)]["certificate"][:] = math.inf
    values[HeadKey("cross", 1, 1)]["relative_deviation"][0] = math.inf
    audit = known_audit(values)
    audit.twin = with_twin.twin
    made = make_figure("deviations", audit)
    found = layers_of(made)
    assert found["encoder_self", 1]["model"]["certificate"]["median"] is None
    assert found["cross", 1]["model"]["relative_deviation"]["mean"] is None
    made.draw()
    make_figure("covariance", audit).draw()


def test_an_audit_without_a_head_is_refused() -> None:
    with pytest.raises(InputError, match="holds no head"):
        make_figure(
            "deviations",
            AuditReport(
                known_audit(known_values(0)).manifest, type(known_audit(known_values(0)).statistics)()
            ),
        )


def test_queries_that_missed_the_tolerance_are_said(
    with_twin: AuditReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(with_twin.statistics), "not_converged", lambda *_: 7)
    alone, both = known_audit(known_values(0)), known_audit(known_values(0))
    both.twin, heads = with_twin.twin, len(alone.heads)
    assert f"{7 * 2 * heads:,} queries missed the tolerance" in make_figure("covariance", both).caption
    assert f"{7 * heads:,} queries missed the tolerance" in make_figure("deviations", alone).caption


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_small_models_from_end_to_end(family: str, tmp_path: Any) -> None:
    audit = small_audit(some_texts(2), model=small_model(family), baseline="twin", tol=1e-3, layers=[1, 2])
    audit.save(tmp_path / "audit")
    made = make_figure("deviations", tmp_path / "audit", directory=tmp_path / "figures")
    expected = {head["layer"]: 0 for head in audit.heads if head["kind"] == "encoder_self"}
    assert [kind["kind"] for kind in made.numbers["kinds"]] == (
        ["encoder_self"] if family == "bert" else ["encoder_self", "decoder_self", "cross"]
    )
    assert {layer["layer"] for layer in made.numbers["kinds"][0]["layers"]} == set(expected)
    record = next(head for head in audit.heads if head["layer"] == 1 and head["head"] == 2)
    first = made.numbers["kinds"][0]["layers"][0]["model"]
    assert first["total_variation"]["heads"][1] == pytest.approx(record["total_variation_mean"], rel=CLOSE)
    same = make_figure("deviations", audit)
    assert (same.of, same.numbers) == (made.of, made.numbers)
    other = known_audit(known_values(0))
    with pytest.raises(InputError, match="of something else"):
        make_figure("deviations", other, directory=tmp_path / "figures")
    make_figure("covariance", audit).draw()
