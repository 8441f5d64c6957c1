"""Transport attention: against the written-out formula, its gradients, scales, parts, memory, dtypes, and bad input."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import functional as F
from fenchel.errors import CostWarning, ProblemError
from fenchel.functional import transport
from tests.functional.calls import ESTIMATORS, PREFERENCES, call, gradients
from tests.functional.ops import leaves
from tests.functional.test_transforms import check_against_autograd, weighted
from tests.normal import drawn
from tests.side_effects import Made

pytestmark = pytest.mark.filterwarnings("ignore::fenchel.errors.CostWarning")

COSTS = ("dot", "squared_euclidean", "cosine", "given")
ATOMS = 6


def call_of(
    cost: str = "squared_euclidean", *, atoms: bool = True, masked: bool = False, **options: Any
) -> dict[str, Any]:
    given: dict[str, Any] = call(alpha=(4, 1), masked=0.3, **options)
    generator, dtype = torch.Generator().manual_seed(1), given["query"].dtype

    def drawn(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=dtype)

    given["gamma"] = 0.5 + drawn(4, 1)
    if atoms:
        given |= {"atoms": 2 * drawn(2, 4, ATOMS, 3) - 1, "atom_values": drawn(2, 4, ATOMS, 2)}
    if cost == "given":
        half = drawn(2, 1, *(given["key"].shape[2] + ATOMS * atoms,) * 2)
        given["cost"] = half + half.mT
        given["cost"][..., 0, -1] = given["cost"][..., -1, 0] = math.inf
    given = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
    given.setdefault("cost", cost)
    return given | ({"atom_mask": drawn(2, 1, 5, ATOMS) < 0.6} if masked else {})


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("cost", COSTS)
def test_values_and_all_gradients_are_those_of_the_written_out_formula(cost: str, estimator: str) -> None:
    tolerance: dict[str, Any] = {"tol": 1e-11} if estimator == "exact" else {}
    at = COSTS.index(cost) + ESTIMATORS.index(estimator)
    atoms, masked = [(True, True), (True, False), (False, False)][at % 3]
    given = call_of(cost, preference=PREFERENCES[at % 4], atoms=atoms, masked=masked)
    found = F.transport_attention(**given, estimator=estimator, **tolerance)
    expected = F.reference.transport_attention(**given, estimator=estimator)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    ours, theirs = (gradients(output, leaves(given)) for output in (found, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("cost", ["dot", "squared_euclidean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_scales_stay_finite_and_right(dtype: torch.dtype, cost: str) -> None:
    for size, gamma in itertools.product((1e-3, 1.0, 30.0, 1e3, 1e6), (1e-3, 1.0, 1e3)):
        given = call_of(cost, dtype=dtype)
        for name in ("query", "key", "atoms"):
            given[name] = (size * given[name].detach()).requires_grad_()
        given |= {"gamma": torch.tensor(gamma, dtype=dtype, requires_grad=True), "alpha": 1.0, "scale": 1.0}
        found = F.transport_attention(**given)
        wide: dict[str, Any] = {name: x.double() if isinstance(x, Tensor) else x for name, x in given.items()}
        torch.testing.assert_close(found.double(), F.reference.transport_attention(**wide), atol=2e-4, rtol=0)
        assert all(
            bool(torch.isfinite(gradient).all()) for gradient in gradients(found, leaves(given)).values()
        )


@pytest.mark.parametrize("estimator", ["first_order", "second_order"])
def test_no_array_of_queries_by_keys_by_atoms_is_made(estimator: str) -> None:
    q, k, v = (drawn(1, 1, 64, 4, seed=seed).requires_grad_() for seed in range(3))
    atoms, values = (drawn(1, 1, 8000, 4, seed=seed).requires_grad_() for seed in (3, 4))
    options: dict[str, Any] = {"gamma": 8.0, "cost": "squared_euclidean", "estimator": estimator}
    with Made() as made:
        F.transport_attention(q, k, v, atoms=atoms, atom_values=values, **options).sum().backward()
    assert atoms.grad is not None
    assert bool(atoms.grad.any())
    assert max(tensor.numel() for tensor in made.tensors) < 64 * 64 * 8000 / 8


@pytest.mark.filterwarnings("default::fenchel.errors.CostWarning")
def test_the_dot_cost_is_warned_of_at_the_first_call_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_looked_at", set())
    with pytest.warns(CostWarning, match="under the cost 'dot'") as record:  # noqa: PT031 - twice, warned of once
        F.transport_attention(**call_of("dot"))
        F.transport_attention(**call_of("dot"))
    assert len(record) == 1


@pytest.mark.parametrize("estimator", ["first_order", "second_order"])
@pytest.mark.parametrize("cost", ["dot", "squared_euclidean"])
def test_costs_that_float32_does_not_hold_are_refused_and_a_nan_is_handed_on(
    cost: str, estimator: str
) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 6, 4, generator=generator) for _ in range(3))
    options: dict[str, Any] = {"gamma": 1.0, "cost": cost, "estimator": estimator}
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(
            ProblemError, match="costs or scores, divided by gamma, that float32 cannot represent"
        ):
            F.transport_attention(q.to(dtype), (1e20 * k).to(dtype), v.to(dtype), **options)
    wide = F.transport_attention(q.double(), 1e20 * k.double(), v.double(), **options)
    assert bool(torch.isfinite(wide).all())
    v[0, 0, 0, 0] = torch.nan
    assert bool(F.transport_attention(q, k, v, **options)[0, 0, :, 0].isnan().all())


def test_exact_transport_of_keys_far_from_zero_is_solved_in_float32() -> None:
    """At an offset of 100 float32 has no digits left for the certificate, which the float64 stage then gives."""
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        q, k = (torch.randn(1, 1, count, 4, generator=generator) for count in (3, 8))
        for cost in ("dot", "squared_euclidean"):
            options: dict[str, Any] = {"gamma": 1.0, "cost": cost, "estimator": "exact"}
            found = F.transport_attention(q, k + 100, k, **options)
            truth = F.transport_attention(q.double(), k.double() + 100, k.double(), tol=1e-8, **options)
            assert float((found - truth).abs().max()) < 2e-3, (seed, cost)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_by_torch_func_where_factors_underflow(estimator: str) -> None:
    tensors = call(preference=(5, 7), masked=0.0)
    tensors["gamma"] = torch.tensor([[0.7]], dtype=torch.float64)
    tensors["key"] = 40.0 * tensors["key"].detach()
    given: dict[str, Any] = {"tol": 1e-4} if estimator == "exact" else {}
    given |= {"cost": "squared_euclidean", "estimator": estimator}
    check_against_autograd(lambda **parts: weighted(F.transport_attention(**parts, **given)), tensors)
