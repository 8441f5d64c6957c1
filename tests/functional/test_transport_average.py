"""The backward pass written by hand, against autograd through the coupling."""

import pytest
import torch
from torch import Tensor

from fenchel.closeness.coupling import Coupling, Part
from fenchel.functional.transport import factored_average

SHAPES = [
    ((2, 3, 4, 9), (2, 3, 9, 5), (1, 1, 1, 5), (2, 3, 9, 2)),
    ((2, 3, 4, 9), (1, 1, 9, 5), (2, 1, 4, 5), (2, 3, 9, 2)),
    ((2, 3, 1, 9), (2, 1, 9, 5), (2, 3, 1, 5), (2, 3, 9, 2)),
]
"""Of log a, log K, log u and the values."""


def draw(shapes: tuple[tuple[int, ...], ...], scale: float = 2.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    log_tilt, log_kernel, log_u, values = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    log_tilt, log_kernel, log_u = scale * log_tilt, scale * log_kernel, log_u.log_softmax(-1)
    log_tilt[..., 3], log_kernel[..., 4, 1], log_u[..., 2] = -torch.inf, -torch.inf, -torch.inf
    return [x.requires_grad_() for x in (log_tilt, log_kernel, log_u, values)]


@pytest.mark.parametrize("shapes", SHAPES)
def test_values_and_gradients_are_those_of_the_coupling(shapes: tuple[tuple[int, ...], ...]) -> None:
    given = draw(shapes)
    log_tilt, log_kernel, log_u, values = given
    found, missed = factored_average(log_tilt, log_kernel, log_u, values)
    assert not bool(missed)
    expected = Coupling([Part(slice(0, 9), lambda: (log_tilt, log_kernel))], log_u).average(values)
    torch.testing.assert_close(found, expected, atol=1e-13, rtol=0)
    probe = torch.randn(found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad((found * probe).sum(), given)
    theirs = torch.autograd.grad((expected * probe).sum(), given)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-13, rtol=1e-11)


def test_where_a_sum_is_lost_it_says_so_unless_nothing_depends_on_it() -> None:
    log_tilt = torch.tensor([[[0.0, -800.0]]], dtype=torch.float64)
    log_kernel = torch.tensor([[[0.0, -800.0], [-1.0, 0.0]]], dtype=torch.float64)
    values = torch.tensor([[[1.0], [2.0]]], dtype=torch.float64)
    even = torch.tensor([[[0.5, 0.5]]], dtype=torch.float64).log()
    assert bool(factored_average(log_tilt, log_kernel, even, values)[1])
    one_sided = torch.tensor([[[0.0, -torch.inf]]], dtype=torch.float64)
    found, missed = factored_average(log_tilt, log_kernel, one_sided, values)
    assert (float(found), bool(missed)) == (1.0, False)
