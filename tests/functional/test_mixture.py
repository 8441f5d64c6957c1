"""Mixture attention at the edges: variances of zero, evidence of any size, widths that fused kernels take."""

from typing import Any

import pytest
import torch

from fenchel import functional as F
from tests.functional.calls import ESTIMATORS
from tests.functional.ops import OPS, TIGHT


def test_without_dimensions_values_are_averaged_under_the_preference() -> None:
    value = torch.randn(2, 3, 4, 2)
    found = F.mixture_attention(torch.zeros(2, 3, 6, 0), torch.zeros(2, 3, 4, 0), torch.zeros(1), value)
    torch.testing.assert_close(found, value.mean(2, keepdim=True).expand(2, 3, 6, 2))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_without_variance_it_is_softmax_attention(estimator: str) -> None:
    tensors = {n: x.detach() for n, x in OPS["softmax"].call(preference=(2, 4, 5, 7), alpha=(4, 1)).items()}
    query, means, value = (tensors.pop(name) for name in ("query", "key", "value"))
    options: dict[str, Any] = {**tensors, "estimator": estimator, **TIGHT[estimator]}
    for answer in (value, None):
        found = F.mixture_attention(query, means, torch.zeros(1).double(), answer, **options)
        expected = F.attention(query, means, means if answer is None else value, **options)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [1e-4, 1e-9, 1e-16])
def test_the_certificate_of_tiny_evidence_bounds_its_error(size: float) -> None:
    means = torch.tensor([[[[2.0, 0.0], [0.0, 2.0]]]])
    query = torch.tensor([[[[size, 2 * size]]]])
    _, certificate = F.mixture_attention_with_certificate(query, means, torch.tensor(3.0), scale=1.0)
    # h(λ) - μ = Σλ to second order, with Σ = 3I + Cov.
    covariance = torch.tensor([[4.0, -1.0], [-1.0, 4.0]])
    apart = float((covariance @ query[0, 0, 0]).norm())
    assert apart * (1 - 1e-3) <= float(certificate.mean_error[0, 0, 0]) <= 5 * apart


@pytest.mark.parametrize(("preference", "size"), [(None, 1e-5), ((5, 7), 1e-14)])
def test_exact_answers_of_tiny_evidence_are_those_of_second_order(
    preference: tuple[int, ...] | None, size: float
) -> None:
    """Whose error is of the order of its square; some queries are not tiny, and some are 0."""
    tensors = {"means" if n == "key" else n: x for n, x in OPS["mixture"].call(preference=preference).items()}
    del tensors["value"]
    sizes = torch.tensor([1.0, size, size, 0.0, size], dtype=torch.float64).unsqueeze(-1)
    tensors["query"] = (tensors["query"].detach() * sizes).requires_grad_()
    tiny = (sizes.squeeze(-1) == size).nonzero().squeeze(-1)
    at_rest = F.mixture_attention(**{**tensors, "query": 0 * tensors["query"]})
    shifts, slopes = {}, {}
    for estimator in ("second_order", "exact"):
        found = F.mixture_attention(**tensors, estimator=estimator)
        shifts[estimator] = (found - at_rest)[:, :, tiny].detach()
        wanted = (tensors["query"], tensors["means"])
        slopes[estimator] = torch.autograd.grad(found[:, :, tiny].square().sum(), wanted)
    rounding, curved = 1e-14, 1e2 * size**2
    assert bool(shifts["exact"].abs().amax() > size / 10)
    torch.testing.assert_close(shifts["exact"], shifts["second_order"], rtol=0, atol=curved + rounding)
    torch.testing.assert_close(slopes["exact"], slopes["second_order"], rtol=1e-3, atol=1e3 * size + 1e-8)


def test_half_types_survive_evidence_whose_square_they_do_not_hold() -> None:
    query = torch.full((1, 1, 1, 2), 300.0, dtype=torch.float16)
    means = torch.zeros(1, 1, 2, 2, dtype=torch.float16)
    variances = torch.tensor([[1e-3], [1e-4]], dtype=torch.float16)
    output = F.mixture_attention(query, means, variances, scale=1.0)
    assert float(output[0, 0, 0, 0]) == pytest.approx(0.3, rel=1e-2)
