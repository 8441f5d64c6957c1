"""Gradient checkpointing of whatever has a gradient of its own: the same values and gradients as without it."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fenchel import Discrete, Gaussian, InferenceProblem, OptimalTransport, Tsallis
from fenchel.closeness import sparse_weights
from tests.functional.calls import ESTIMATORS
from tests.functional.ops import OPS, infer, leaves

pytestmark = pytest.mark.filterwarnings("ignore::fenchel.errors.CostWarning")

reentrant_or_not = pytest.mark.parametrize("reentrant", [False, True])
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)

Function = Callable[..., Tensor]


def check_checkpointed(
    function: Function, inputs: Sequence[Tensor], reentrant: bool, parameters: Sequence[Tensor] = ()
) -> None:
    """Compare value and gradients of a function to those of the same function under checkpointing."""
    leaves = (*inputs, *parameters)
    direction = torch.randn(
        function(*inputs).shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )
    expected = function(*inputs)
    slopes = torch.autograd.grad((expected * direction).sum(), leaves, allow_unused=True)
    assert any(bool((slope != 0).any()) for slope in slopes if slope is not None)
    # Inputs of layers in a stack are no leaves.
    first = checkpoint(function, *(part * 1.0 for part in inputs), use_reentrant=reentrant)
    assert isinstance(first, Tensor)
    torch.testing.assert_close(first, expected, rtol=1e-12, atol=1e-12)
    # A reentrant checkpoint takes no torch.autograd.grad.
    for leaf in leaves:
        leaf.grad = None
    (first * direction).sum().backward()
    for leaf, slope in zip(leaves, slopes, strict=True):
        if slope is None:
            assert leaf.grad is None
        else:
            torch.testing.assert_close(leaf.grad, slope, rtol=1e-10, atol=1e-12)


@reentrant_or_not
@every_estimator
@pytest.mark.parametrize("name", OPS)
def test_ops(name: str, estimator: str, reentrant: bool) -> None:
    tensors = OPS[name].call(preference=(4, 5, 7), masked=0.0)
    wanted = leaves(tensors)

    def function(*given: Tensor) -> Tensor:
        found = infer(OPS[name], {**tensors, **dict(zip(wanted, given, strict=True))}, estimator)
        parts = [found.output, found.weights, found.dual, *([found.gap] if estimator != "exact" else [])]
        return torch.cat([part.flatten() for part in parts])

    check_checkpointed(function, list(wanted.values()), reentrant)


@reentrant_or_not
@pytest.mark.parametrize("csiszar", [False, True])
@pytest.mark.parametrize("a", [0.05, 0.5, 0.7, 1.0])
def test_sparse_weights(a: float, csiszar: bool, reentrant: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    f, log_u = (
        torch.randn(4, 6, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2)
    )
    check_checkpointed(
        lambda f, u: sparse_weights(f, u.log_softmax(-1), a, csiszar=csiszar), [f, log_u], reentrant
    )


CLOSENESSES: dict[str, Any] = {
    "KL": None,
    "sparse": Tsallis(1.5),
    "transport": OptimalTransport("squared_euclidean", 0.7),
}


@reentrant_or_not
@pytest.mark.parametrize("estimator", [*ESTIMATORS, "gradient_ascent"])
@pytest.mark.parametrize("preference", [*CLOSENESSES, "Gaussian"])
def test_estimates(preference: str, estimator: str, reentrant: bool) -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()

    templates, log_weights, evidence = drawn(7, 3), drawn(7), drawn(5, 3)

    def function(templates: Tensor, log_weights: Tensor, evidence: Tensor) -> Tensor:
        if preference == "Gaussian":
            covariance = templates.mT @ templates + torch.diag(log_weights[:3].exp())
            u: Any = Gaussian(templates[0], covariance)
        else:
            u = Discrete(templates, log_weights)
        problem = InferenceProblem(u, evidence, alpha=0.7, closeness=CLOSENESSES.get(preference))
        estimate = problem.solve(
            estimator, **({"max_steps": 5, "throw": False} if estimator == "gradient_ascent" else {})
        )
        return torch.cat([estimate.mean, estimate.dual], -1)

    check_checkpointed(function, [templates, log_weights, evidence], reentrant)
