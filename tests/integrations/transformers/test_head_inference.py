"""Chosen heads infer, the others stay first order; weights and certificates are made on request."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fenchel import Exact
from fenchel.integrations.transformers.backend import OWN, AttentionProblem, Inference, Setting, infer

B, H, M, N = 2, 4, 3, 5
EXACT = Inference(Exact(tol=1e-12), 0.7)


@pytest.fixture(params=[4, 2, 1], ids=lambda key_heads: f"{key_heads}-key-heads")
def problem(request) -> AttentionProblem:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    key, value = draw(B, request.param, N, 6), draw(B, request.param, N, 7)
    return AttentionProblem(draw(B, H, M, 6), key, value, draw(B, H, 1, N), 0.4, 0.0)


def all_of(problem: AttentionProblem, how: Inference, heads: list[int] | None = None) -> Any:
    chosen = None if heads is None else tuple(heads)
    return infer(problem, Setting(how, heads=chosen), weights=True, certificate=True)


def same(one, other) -> None:
    # What a row is solved together with decides how many iterations it takes beyond its tolerance of 1e-12.
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("heads", [[1], [2, 4], [4, 1, 3]])
def test_chosen_heads_infer_and_the_others_stay_first_order(problem, heads):
    mixed, inferred, own = all_of(problem, EXACT, heads), all_of(problem, EXACT), all_of(problem, OWN)
    for head in range(1, H + 1):
        expected = inferred if head in heads else own
        same(mixed.output[:, head - 1], expected.output[:, head - 1])
        same(mixed.weights[:, head - 1], expected.weights[:, head - 1])
        for found, wanted in zip(mixed.certificate, expected.certificate, strict=True):
            same(found[:, head - 1], wanted[:, head - 1])
    assert (mixed.output - own.output).abs().max() > 1e-3


def test_all_heads_are_the_same_as_none_chosen(problem):
    same(all_of(problem, EXACT, [1, 2, 3, 4]).output, all_of(problem, EXACT).output)


def test_alpha_of_a_head_goes_with_its_head(problem):
    alpha = torch.tensor([0.5, 0.6, 0.7, 0.8], dtype=torch.float64)[:, None]
    mixed = all_of(problem, replace(EXACT, alpha=alpha), [2, 3])
    for head in (2, 3):
        alone = all_of(problem, replace(EXACT, alpha=float(alpha[head - 1])))
        same(mixed.output[:, head - 1], alone.output[:, head - 1])


def test_alpha_of_queries_is_shared_by_heads(problem):
    alpha = torch.linspace(0.5, 1, M, dtype=torch.float64)
    same(
        all_of(problem, replace(EXACT, alpha=alpha), [3]).output[:, 2],
        all_of(problem, replace(EXACT, alpha=alpha)).output[:, 2],
    )


def test_weights_and_certificates_are_only_made_on_request(problem):
    inferred = infer(problem, Setting(EXACT, heads=(1,)))
    assert inferred.weights is None
    assert inferred.certificate is None
