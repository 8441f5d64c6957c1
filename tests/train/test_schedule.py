from __future__ import annotations

import itertools

import pytest

from fenchel.train.schedule import learning_rate_factor


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_it_rises_then_falls_and_is_never_zero_nor_above_one(steps, warmup):
    factors = [learning_rate_factor(step, steps, warmup) for step in range(steps)]
    assert all(0 < factor <= 1 for factor in factors)
    top = factors.index(1.0)
    assert top == int(warmup * steps)
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)


def test_warm_up_is_linear_and_the_rest_half_a_cosine():
    factors = [learning_rate_factor(step, 100, 0.2) for step in range(100)]
    rises = [after - before for before, after in itertools.pairwise(factors[:21])]
    assert rises == pytest.approx([1 / 21] * 20)
    assert factors[60] == pytest.approx(0.5)
    assert factors[99] < 0.001
