"""Heads that look to one side of a pixel each are a convolution, to within what leaks."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fenchel import functional as F
from fenchel.errors import ProblemError
from fenchel.nn import MultiheadAttention
from fenchel.nn.evidence import NoEvidence
from fenchel.nn.preference import AttentionInputs, QuadraticGridPosition
from tests.nn.preferences import by_index, perturbed

GRID = (4, 5)


def inputs_of(
    grid: tuple[int, int], padding: tuple[int, int], heads: int, offset: int = 0
) -> AttentionInputs:
    keys = (grid[0] + 2 * padding[0]) * (grid[1] + 2 * padding[1])
    queries = grid[0] * grid[1] - offset
    return AttentionInputs(2, heads, queries, keys, torch.device("cpu"), torch.float64, query_offset=offset)


def log_weights(preference: QuadraticGridPosition, inputs: AttentionInputs) -> Tensor:
    found = preference(inputs)
    assert found is not None
    return found


@pytest.mark.parametrize("offset", [0, 7])
@pytest.mark.parametrize(("heads", "kernel"), [(4, None), (9, None), (6, (2, 3)), (1, None)])
def test_it_is_a_paraboloid_around_a_shifted_pixel(heads, kernel, offset):
    padding = (1, 2)
    preference = perturbed(QuadraticGridPosition(GRID, heads, kernel, width=0.8, padding=padding))
    assert isinstance(preference, QuadraticGridPosition)
    inputs = inputs_of(GRID, padding, max(heads, 2), offset)
    found = log_weights(preference, inputs).expand(1, max(heads, 2), -1, -1)[0]
    pixels = list(itertools.product(range(GRID[0]), range(GRID[1])))[offset:]
    around = list(itertools.product(range(-1, GRID[0] + 1), range(-2, GRID[1] + 2)))
    for h in range(heads):
        a, centre = preference.curvature[h], preference.centre[h].tolist()
        square = [
            [(y[0] - x[0] - centre[0]) ** 2 + (y[1] - x[1] - centre[1]) ** 2 for y in around] for x in pixels
        ]
        torch.testing.assert_close(found[h], -a * torch.tensor(square, dtype=torch.float64))
    torch.testing.assert_close(by_index(preference, inputs)[0], found)


@pytest.mark.parametrize(
    ("kernel", "padding"), [((3, 3), (1, 1)), ((2, 2), (0, 1)), ((1, 4), (0, 2)), ((5, 3), (2, 1))]
)
@pytest.mark.parametrize("curvature", [1.0, 2.0, 5.0, 10.0, 25.0])
def test_it_is_a_convolution_to_within_what_leaks(kernel, padding, curvature):
    """With zeros around the image, also more of them than the kernel needs."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    (rows, columns), heads = kernel, kernel[0] * kernel[1]
    image, weight = normal(2, 3, *GRID), normal(4, 3, *kernel)
    pads = (max(rows // 2, padding[0]), max(columns // 2, padding[1]))
    preference = QuadraticGridPosition(
        GRID, heads, kernel, width=(2 * curvature) ** -0.5, padding=pads
    ).double()
    padded = torch.nn.functional.pad(image, (pads[1], pads[1], pads[0], pads[0])).flatten(2).mT.unsqueeze(1)
    value = padded.expand(-1, heads, -1, -1)
    log_u = log_weights(preference, inputs_of(GRID, pads, heads)).detach()
    nothing = torch.zeros(2, heads, GRID[0] * GRID[1], 3, dtype=torch.float64)
    shifted = F.attention(nothing, value, value, log_preference=log_u)
    maps = weight.flatten(2).permute(2, 0, 1)  # by head: (heads, out, in)
    found = torch.einsum("bhqi,hoi->boq", shifted, maps).unflatten(-1, GRID)
    sides = ((columns - 1) // 2, columns // 2, (rows - 1) // 2, rows // 2)  # as padding="same" has them
    expected = torch.nn.functional.conv2d(torch.nn.functional.pad(image, sides), weight)
    leakage, a = float(preference.leakage.detach().max()), curvature
    assert leakage == pytest.approx(
        min(1, 4 * (e := math.exp(-a) / (1 - math.exp(-3 * a))) * (1 + e)), rel=1e-5
    )
    farthest = torch.cdist(value[:, 0], value[:, 0]).max()
    norms = torch.linalg.matrix_norm(maps, 2).sum()
    error = (found - expected).detach().norm(dim=1).max()
    assert error <= leakage * farthest * norms * (1 + 1e-9) + 1e-12

    # The bound on the weight beside the centre holds for each pixel, and is no larger than twice what is there inside.
    beside = 1 - log_u.softmax(-1).amax(-1)
    assert float(beside.max()) <= leakage * (1 + 1e-6) + 1e-14
    if a >= 5 and min(kernel) > 1:
        assert leakage < 2 * float(beside.max())


def test_values_outside_of_the_image_are_not_nearest_pixels():
    """Without padding a head that looks beyond the border sees the nearest pixel, which a convolution does not."""
    preference = QuadraticGridPosition((1, 3), 2, (1, 2), width=0.1).double()
    weights = log_weights(preference, inputs_of((1, 3), (0, 0), 2)).softmax(-1)[0]
    torch.testing.assert_close(weights[1], torch.eye(3, dtype=torch.float64)[[1, 2, 2]])
    padded = QuadraticGridPosition((1, 3), 2, (1, 2), width=0.1, padding=(0, 1)).double()
    weights = log_weights(padded, inputs_of((1, 3), (0, 1), 2)).softmax(-1)[0]
    torch.testing.assert_close(weights[1], torch.eye(5, dtype=torch.float64)[[2, 3, 4]])


def test_centres_and_widths_are_learned_in_a_layer():
    layer = MultiheadAttention(
        8, 4, batch_first=True, preference=QuadraticGridPosition((2, 3), 4), evidence=NoEvidence()
    )
    x = torch.randn(2, 6, 8)
    output, _ = layer(x, x, x)
    output.square().sum().backward()
    preference = layer.preference
    assert isinstance(preference, QuadraticGridPosition)
    for parameter in (preference.centre, preference.log_curvature):
        assert parameter.grad is not None
        assert float(parameter.grad.abs().min()) > 0
    layer.estimator = "exact"
    torch.testing.assert_close(layer(x, x, x)[0], output)


def test_all_pixels_need_no_offset_and_some_do():
    preference, inputs = QuadraticGridPosition(GRID, 4, padding=1), inputs_of(GRID, (1, 1), 4)
    assert torch.equal(
        log_weights(preference, replace(inputs, query_offset=None)), log_weights(preference, inputs)
    )
    with pytest.raises(ProblemError, match="query_offset is not given"):
        preference(replace(inputs, queries=3, query_offset=None))
