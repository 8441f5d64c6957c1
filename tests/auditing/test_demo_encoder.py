"""The demo encoder's numbers against a computation that shares nothing with the audit but the weights."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import fenchel
from fenchel.integrations.transformers.loading import load_model
from tests.problems import by_dense_newton

TEXT = "The bank of the river was steep, and nobody had crossed it since the bridge fell in the spring flood."
HEADS = [(1, 3), (1, 10), (4, 6), (6, 1)]


def independently(layer: int, head: int) -> dict[str, np.ndarray]:
    """Section 8 written out for one head: templates x/√d', evidence Kᵀ(Qx + b), α = 1, uniform preference."""
    model, tokenizer, _ = load_model("demo", dtype="float64")
    with torch.no_grad():
        inputs = tokenizer(TEXT, return_tensors="pt")
        x = model(**inputs, output_hidden_states=True).hidden_states[layer - 1][0]
        attention = model.encoder.layer[layer - 1].attention.self
        width = attention.attention_head_size
        rows = slice((head - 1) * width, head * width)
        query = x @ attention.query.weight[rows].T + attention.query.bias[rows]
        t = (x / math.sqrt(width)).numpy()
        z = (query @ attention.key.weight[rows]).numpy()
    n = len(t)
    u = np.full(n, 1 / n)
    mu = u @ t
    found: dict[str, list[float]] = {
        name: []
        for name in ("relative_deviation", "total_variation", "mean_error", "gap", "predicted_deviation")
    }
    covariance = (t - mu).T @ (u[:, None] * (t - mu))
    for evidence in z:
        logits = t @ evidence
        p = np.exp(logits - logits.max())
        p /= p.sum()
        lam, exact = by_dense_newton(t, u, evidence, 1.0)
        found["relative_deviation"].append(float(np.linalg.norm(lam - evidence) / np.linalg.norm(lam)))
        found["total_variation"].append(np.abs(p - exact).sum() / 2)
        found["mean_error"].append(float(np.linalg.norm((p - exact) @ t) / np.linalg.norm(exact @ t)))
        found["gap"].append(np.square(p @ t - mu).sum() / 2)
        second = np.linalg.solve(np.eye(len(covariance)) + covariance, evidence)
        found["predicted_deviation"].append(
            float(np.linalg.norm(covariance @ second) / np.linalg.norm(second))
        )
    return {name: np.array(values) for name, values in found.items()}


@pytest.fixture(scope="module")
def records() -> dict[tuple[int, int], dict[str, Any]]:
    report = fenchel.audit("demo", None, [TEXT], layers=[1, 4, 6], space="input", queries="all")
    return {(record["layer"], record["head"]): record for record in report.heads}


@pytest.mark.parametrize(("layer", "head"), HEADS)
def test_heads_agree_within_half_a_percent(
    records: dict[tuple[int, int], dict[str, Any]], layer: int, head: int
) -> None:
    record = records[layer, head]
    for name, values in independently(layer, head).items():
        assert record["queries"] == len(values)
        summaries = {"mean": values.mean(), "max": values.max()}
        summaries |= {f"p{percent}": np.percentile(values, percent) for percent in (50, 95)}
        for statistic, expected in summaries.items():
            assert record[f"{name}_{statistic}"] == pytest.approx(expected, rel=5e-3), (name, statistic)


def test_the_covariance_alone_predicts_the_deviation_as_well_for_the_untrained_twin() -> None:
    """Fact 14: what the papers' number measures is there without training; what moves is not."""
    report = fenchel.audit(
        "demo", None, [" ".join([TEXT] * 6)], max_length=128, baseline="twin", space="input"
    )

    def layers(records: list[dict[str, Any]], metric: str) -> list[float]:
        return [
            float(np.mean([record[f"{metric}_mean"] for record in records if record["layer"] == layer]))
            for layer in range(1, 7)
        ]

    for records, closeness in ((report.heads, 0.5), (report.twin_heads, 0.01)):
        predicted, solved = layers(records, "predicted_deviation"), layers(records, "relative_deviation")
        assert predicted == pytest.approx(solved, rel=closeness)
        assert all(0.02 < deviation < 0.1 for deviation in solved)
    moved, untrained = (
        np.mean(layers(records, "total_variation")) for records in (report.heads, report.twin_heads)
    )
    assert moved > 10 * untrained
