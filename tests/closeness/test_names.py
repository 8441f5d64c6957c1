"""Closenesses by their names, wherever one goes; and those of one's own with numbers that differ by query."""

import pytest
import torch
from torch import Tensor

from fenchel import KL, Discrete, InferenceProblem, ProblemError, Tsallis, check_closeness
from fenchel import functional as F
from fenchel.closeness import AbstractCloseness
from fenchel.closeness.tsallis import closeness_of
from fenchel.nn import ContinuousAttention, MultiheadAttention


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


NAMES: dict[str, AbstractCloseness] = {
    "sparsemax": Tsallis(2),
    "entmax15": Tsallis(1.5),
    "tsallis:1.25:csiszar:temperature=0.5": Tsallis(1.25, "csiszar", 0.5),
    "softmax": KL(),
    "kl": KL(),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_what_it_stands_for(name: str) -> None:
    closeness = NAMES[name]
    assert repr(closeness_of(name)) == repr(closeness)
    problems = [InferenceProblem(Discrete(drawn(6, 3)), drawn(4, 3), closeness=c) for c in (name, closeness)]
    assert torch.equal(*(problem.solve("exact").weights for problem in problems))
    q, k, v = drawn(3, 1, 2, 5, 4)
    assert torch.equal(*(F.attention(q, k, v, closeness=c) for c in (name, closeness)))
    table = drawn(1, 2, 9, 4)
    placed = [F.relative_attention(q, k, v, table, closeness=c) for c in (name, closeness)]
    torch.testing.assert_close(*placed)
    layer = MultiheadAttention(8, 2, batch_first=True, closeness=name, dtype=torch.float64)
    x = drawn(2, 5, 8)
    named = layer(x, x, x)[0]
    layer.closeness = closeness
    assert torch.equal(named, layer(x, x, x)[0])
    layer.closeness = name
    assert torch.equal(named, layer(x, x, x)[0])


class Few(AbstractCloseness):
    """temperature * K(p, u) by its value and its weights alone."""

    numbers = ("temperature",)

    def __init__(self, temperature: Tensor) -> None:
        self.temperature = temperature

    def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        return self.temperature * KL().value(weights, log_preference)

    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        return KL().weights(potential / self.temperature[..., None], log_preference)

    @property
    def modulus(self) -> Tensor:
        return self.temperature


def test_layers_over_places_are_close_by_kl_alone() -> None:
    with pytest.raises(ProblemError, match=r"closeness is Tsallis\(1.5\); expected None or fenchel.KL\(\)"):
        ContinuousAttention(8, 2, closeness="entmax15")
    ContinuousAttention(8, 2, closeness="softmax")


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_numbers_of_ones_own_may_differ_by_query(estimator: str) -> None:
    temperature = 1 + torch.rand(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own, theirs = Few(temperature), Tsallis(1, temperature=temperature)
    assert max(check_closeness(own).worst.values()) < 1e-6
    assert own.query_shapes() == {"temperature": (5,)}
    assert repr(own) == "Few(...)"
    assert own.to(torch.float32).temperature.dtype == torch.float32
    u, z = Discrete(drawn(6, 3)), drawn(5, 3, seed=1)
    found, expected = (InferenceProblem(u, z, closeness=c).solve(estimator) for c in (own, theirs))
    torch.testing.assert_close(found.weights, expected.weights, rtol=1e-6, atol=1e-8)
    part = InferenceProblem(u, z[1:3], closeness=own.queries(slice(1, 3))).solve(estimator)
    torch.testing.assert_close(part.weights, expected.weights[1:3], rtol=1e-6, atol=1e-8)
