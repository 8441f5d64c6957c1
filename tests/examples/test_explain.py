"""examples/explain.py."""

from pathlib import Path

import pytest
import torch
from numpy.polynomial.legendre import leggauss

import explain
import reading
from tests.examples.measured import few_toys, trained

WORDS = torch.arange(2, 16)


@pytest.mark.parametrize("encoder", ["words", "lstm"])
def test_integrated_gradients_are_a_sum_over_the_way_and_add_up(encoder: str) -> None:
    torch.manual_seed(0)
    classifier = reading.Classifier(30, 3, reading.ReadingOptions(width=16, heads=4, encoder=encoder)).eval()
    for one in classifier.parameters():  # so that weights are not uniform, and answers not all alike
        one.data.mul_(3)
    opened = explain.Opened(classifier, WORDS)
    found = explain.measures(classifier, WORDS, opened, "exact")
    assert tuple(found) == explain.MEASURES
    said, target = explain.from_embeddings(classifier, WORDS), opened.chances(opened.weights).argmax()
    embedded = classifier.states.embed(WORDS[None]).detach()
    total = torch.zeros_like(embedded)
    for place, share in zip(*leggauss(explain.STEPS), strict=True):
        at = ((1 + place) / 2 * embedded).requires_grad_()
        (slope,) = torch.autograd.grad(said(at)[0, target], at)
        total += share / 2 * slope
    expected = (total * embedded)[0].sum(-1)
    assert torch.allclose(found["integrated gradients"], expected.abs(), rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        change = (said(embedded) - said(0 * embedded))[0, target]
    assert float(expected.sum()) == pytest.approx(float(change), rel=0.1, abs=1e-3)
    (slope,) = torch.autograd.grad(said(at := embedded.clone().requires_grad_())[0, target], at)
    assert torch.allclose(found["gradient"], slope[0].norm(dim=-1), rtol=1e-4)
    with torch.no_grad():
        without = classifier(torch.cat((WORDS[:3], WORDS[4:]))[None])["logits"].softmax(-1)[0, target]
    change = opened.chances(opened.weights)[target] - without
    assert float(found["leave one out"][3]) == pytest.approx(abs(float(change)), abs=1e-6)


def test_a_run_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "toy", few_toys)
    monkeypatch.setattr(explain, "SOME", 20)
    trained(reading.Reading, reading.ReadingOptions, tmp_path / "run", epochs=1, width=16)
    found = explain.study(explain.Options(run=str(tmp_path / "run"), texts=2, epochs=1))
    lines = [*explain.printed(found)]
    assert sum(line.startswith("| effective attention") for line in lines) == 1
    one = found["encoders"]["run"]
    assert one["trained"]["other weights: change"][0] < 1e-4
    assert one["trained"]["same mean: farther"][0] == pytest.approx(
        one["trained"]["same mean: divergence"][0], abs=1e-5
    )
    assert one["models"]["as trained"]["agrees"] == (1, 0)
    task, make = explain.prepared(explain.Options(train=40), "demo")  # a frozen encoder
    model = explain.trained(task, make("soft"), 1)
    found = explain.explained(model, torch.tensor(task.splits["test"][0]["words"][0]), "exact")
    assert found["attention: tau to attention"] == pytest.approx(1)
    assert not any(one.requires_grad for one in model.states.parameters())
