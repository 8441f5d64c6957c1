"""Every custom operator returns what it tells the compiler of its results, however its inputs are laid out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

B, H, M, N, D, VALUES = 2, 4, 5, 7, 3, 2
OPERATORS = torch.ops.fenchel
PREFERENCES: dict[str, Any] = {
    "none": lambda: None,
    "bool": lambda: torch.ones(M, N).tril(2).bool()[None, None],
    "float": lambda: torch.randn(B, H, M, N, dtype=torch.float64),
    "shared": lambda: torch.randn(1, H, 1, N, dtype=torch.float64),
    "half": lambda: torch.randn(1, 1, M, N, dtype=torch.bfloat16),
    "transposed": lambda: torch.randn(B, H, N, M, dtype=torch.float64).mT,
    "expanded": lambda: torch.randn(1, 1, M, N, dtype=torch.float64).expand(B, H, M, N),
}


def laid_out(layout: str, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A tensor (B, heads, tokens, width), contiguous, cut from a packed projection, or with sequences that are one."""
    batch, heads, tokens, width = shape
    if layout == "packed":
        return torch.randn(batch, tokens, heads, 3 * width, dtype=dtype)[..., :width].transpose(1, 2)
    if layout == "expanded":
        return torch.randn(1, heads, tokens, width, dtype=dtype).expand(shape)
    return torch.randn(shape, dtype=dtype)


def row_inputs(preference: str, layout: str, *, heads: int = H) -> tuple[Any, ...]:
    alpha = torch.rand(1, H, M, 1, dtype=torch.float64) + 0.5
    evidence, templates = laid_out(layout, B, H, M, D), laid_out(layout, B, heads, N, D)
    return evidence, templates, PREFERENCES[preference](), alpha


def opcheck(operator: Any, inputs: tuple[Any, ...], *, differentiate: bool = False) -> None:
    if differentiate:
        inputs = tuple(
            x.detach().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x
            for x in inputs
        )
    torch.library.opcheck(operator, inputs)


CASES = [
    *((preference, "packed", H) for preference in PREFERENCES),
    ("float", "contiguous", 2),
    ("float", "expanded", 1),
]
"""Preference, layout, heads of the keys."""


@pytest.mark.parametrize(
    ("estimator", "preference", "layout", "heads"),
    [
        *(("second_order", *case) for case in CASES),
        ("exact", "bool", "packed", H),
        ("exact", "float", "expanded", 2),
    ],
)
def test_gradients_of_dual_points(estimator: str, preference: str, layout: str, heads: int) -> None:
    backward = getattr(OPERATORS, f"{estimator}_dual_point_backward").default
    inputs = row_inputs(preference, layout, heads=heads)
    duals = [laid_out(layout, B, H, M, D) for _ in range(2)]
    opcheck(backward, (*duals, *inputs, wants_gradient(inputs[2])))


@pytest.mark.parametrize(
    ("preference", "layout"), [("none", "packed"), ("bool", "expanded"), ("float", "packed")]
)
@pytest.mark.parametrize("estimator", ["second_order", "exact"])
def test_dual_points(estimator: str, preference: str, layout: str) -> None:
    operator = getattr(OPERATORS, f"{estimator}_dual_point").default
    options = (1e-8, 50) if estimator == "exact" else ()
    opcheck(operator, (*row_inputs(preference, layout), *options), differentiate=preference == "float")


@pytest.mark.parametrize("csiszar", [False, True])
@pytest.mark.parametrize("a", [0.5, None])
def test_sparse_weights(a: float | None, csiszar: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    potential = torch.randn(B, H, M, N, dtype=torch.float64, generator=generator).requires_grad_()
    believed = torch.randn(M, N, dtype=torch.float64, generator=generator).log_softmax(-1).requires_grad_()
    order = (
        None
        if a is not None
        else torch.rand(H, 1, 1, dtype=torch.float64, generator=generator).requires_grad_()
    )
    opcheck(OPERATORS.sparse_weights.default, (potential, believed, order, -1.0 if a is None else a, csiszar))


def wants_gradient(preference: Tensor | None) -> bool:
    return preference is not None and preference.is_floating_point()


def test_every_operator_is_checked_here() -> None:
    registered = {
        name.removeprefix("fenchel::").split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("fenchel::")
    }
    assert registered == {
        "second_order_dual_point",
        "second_order_dual_point_backward",
        "exact_dual_point",
        "exact_dual_point_backward",
        "sparse_weights",
    }
