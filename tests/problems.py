"""Random inference problems."""

import torch
from hypothesis import strategies as st

from fenchel import Discrete, InferenceProblem


def random_problem(
    *,
    n: int = 12,
    d: int = 5,
    m: int = 4,
    batch: tuple[int, ...] = (),
    alpha: float = 1.0,
    norm: float = 1.0,
    evidence: float = 1.0,
    spread: float = 1.0,
    per_query: bool = False,
    masked: int = 0,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> InferenceProblem:
    """A problem with Gaussian templates of a given norm; ``masked`` templates a row are left out at random."""
    generator = torch.Generator().manual_seed(seed)
    templates = norm * torch.randn(*batch, n, d, dtype=torch.float64, generator=generator) / d**0.5
    z = evidence * norm * torch.randn(*batch, m, d, dtype=torch.float64, generator=generator) / d**0.5
    rows = m if per_query else 1
    log_weights = spread * torch.randn(*batch, rows, n, dtype=torch.float64, generator=generator)
    if masked:
        order = torch.rand(log_weights.shape, generator=generator, dtype=torch.float64).argsort(-1)
        log_weights = log_weights.masked_fill(order < masked, -torch.inf)
    return InferenceProblem(Discrete(templates.to(dtype), log_weights.to(dtype)), z.to(dtype), alpha)


@st.composite
def problems(draw: st.DrawFn, largest_alpha: float = 1e2) -> InferenceProblem:
    """Any reasonable problem: sizes, scales, masks and shared or per-query preferences."""
    n = draw(st.integers(1, 20))
    return random_problem(
        n=n,
        d=draw(st.integers(1, 12)),
        m=draw(st.integers(1, 4)),
        batch=draw(st.sampled_from([(), (1,), (2,), (2, 3)])),
        alpha=draw(st.floats(1e-3, largest_alpha)),
        norm=draw(st.sampled_from([1e-2, 1.0, 10.0])),
        evidence=draw(st.sampled_from([0.1, 1.0, 5.0])),
        spread=draw(st.sampled_from([0.0, 1.0, 10.0])),
        per_query=draw(st.booleans()),
        masked=draw(st.integers(0, max(0, n - 1))),
        seed=draw(st.integers(0, 2**31)),
    )
