"""One preference of every kind, and inputs to try them on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fenchel.nn.preference import (
    AbstractPreference,
    Additive,
    ALiBi,
    AttentionInputs,
    Causal,
    Context,
    GaussianWindow,
    KeyPadding,
    LearnedBias,
    Location,
    ProportionalWindow,
    QuadraticPosition,
    Recency,
    RelativePosition,
    Tempered,
    Uniform,
    Window,
)

WIDTH = 6
HEADS = 3
LONGEST = 12

MASKS: dict[str, Callable[[], AbstractPreference]] = {
    "causal": Causal,
    "key padding": KeyPadding,
    "window": lambda: Window(2, 1),
    "window before": lambda: Window(2, None),
    "window after": lambda: Window(None, 0),
    "dilated window": lambda: Window(4, 4, dilation=2),
}

LOWERED: dict[str, Callable[[], AbstractPreference]] = {
    **MASKS,
    "uniform": Uniform,
    "relative position": lambda: RelativePosition(HEADS, buckets=8, max_distance=7),
    "relative position, one way": lambda: RelativePosition(HEADS, 6, 9, bidirectional=False),
    "relative position, shared": lambda: RelativePosition(1),
    "alibi": lambda: ALiBi(HEADS),
    "alibi, one way": lambda: ALiBi(HEADS, symmetric=False),
    "alibi, learned": lambda: ALiBi(HEADS, learned=True),
    "quadratic": lambda: QuadraticPosition(HEADS, width=3.0),
    "gaussian": lambda: GaussianWindow(HEADS, width=3.0),
    "gaussian, shared": lambda: GaussianWindow(1, width=3.0),
    "gaussian, pace": lambda: GaussianWindow(HEADS, width=3.0, pace=0.7),
    "gaussian, location": lambda: GaussianWindow(HEADS, 3.0, predict_location=True, query_dim=WIDTH),
    "gaussian, width": lambda: GaussianWindow(HEADS, 3.0, predict_width=True, query_dim=WIDTH),
    "gaussian, both": lambda: GaussianWindow(
        1, 3.0, predict_location=True, predict_width=True, query_dim=WIDTH
    ),
    "learned bias": lambda: LearnedBias(HEADS, LONGEST, LONGEST),
    "learned bias, shared": lambda: LearnedBias(1, 1, LONGEST),
    "context": lambda: Context(HEADS, WIDTH, hidden=5),
    "proportional": lambda: ProportionalWindow(HEADS, width=3.0),
    "proportional, shared": lambda: ProportionalWindow(1),
    "recency": lambda: Recency(HEADS),
    "recency, shared": lambda: Recency(1, rate=0.7),
    "context, given network": lambda: Context(1, network=nn.Linear(WIDTH, 1)),
    "tempered": lambda: QuadraticPosition(HEADS) ** 0.7,
    "tempered, learned": lambda: Tempered(ALiBi(1), 0.6, learned=True),
    "masks": lambda: Causal() * KeyPadding() * Window(3, 3),
    "three": lambda: Causal() * KeyPadding() * ALiBi(HEADS, learned=True),
    "three, learned": lambda: RelativePosition(HEADS) * Context(1, WIDTH) * LearnedBias(1, 1, LONGEST) ** 2.0,
    "square": lambda: (lambda u: u * u)(QuadraticPosition(HEADS)),
}

NOT_LOWERED: dict[str, Callable[[], AbstractPreference]] = {
    "additive": lambda: Additive(HEADS, WIDTH, hidden=4),
    "additive, in blocks": lambda: Additive(1, WIDTH, hidden=4, block_entries=1),
    "location": lambda: Location(HEADS, WIDTH, LONGEST),
    "three with additive": lambda: Causal() * Additive(HEADS, WIDTH, hidden=4) * ALiBi(HEADS),
}

EVERY = {**LOWERED, **NOT_LOWERED}


def perturbed(preference: AbstractPreference, seed: int = 0) -> AbstractPreference:
    """The preference in float64 with random parameters, so that none that starts at 0 stays out of the test."""
    generator = torch.Generator().manual_seed(seed)
    preference.double()
    with torch.no_grad():
        for parameter in preference.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return preference


def attention_inputs(
    queries: int = 5,
    keys: int = 7,
    *,
    offset: int = 0,
    heads: int = HEADS,
    dtype: torch.dtype = torch.float64,
    padded: bool = True,
    seed: int = 1,
) -> AttentionInputs:
    """Two examples, the second with two keys of padding, in the front and in the back."""
    generator = torch.Generator().manual_seed(seed)
    padding = torch.zeros(2, keys, dtype=torch.bool)
    padding[1, [0, -1]] = True
    return AttentionInputs(
        batch=2,
        heads=heads,
        queries=queries,
        keys=keys,
        device=torch.device("cpu"),
        dtype=dtype,
        query_inputs=torch.randn(2, queries, WIDTH, generator=generator, dtype=dtype),
        key_inputs=torch.randn(2, keys, WIDTH, generator=generator, dtype=dtype),
        key_padding=padding if padded else None,
        query_offset=offset,
    )


def as_log_weights(preference: Tensor | None, inputs: AttentionInputs) -> Tensor:
    """What a preference gave as float (B, H, m, n)."""
    if preference is None:
        preference = torch.ones((), dtype=torch.bool)
    if preference.dtype == torch.bool:
        preference = torch.zeros_like(preference, dtype=inputs.dtype).masked_fill(~preference, -torch.inf)
    return preference.expand(inputs.batch, inputs.heads, inputs.queries, inputs.keys)


def by_index(preference: AbstractPreference, inputs: AttentionInputs) -> Tensor:
    """Log-weights (B, H, m, n) from the functions of indices, each entry on its own as a fused kernel has it."""
    score_mod, mask_mod = preference.score_mod(inputs), preference.mask_mod(inputs)

    def entry(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        score = torch.zeros((), dtype=inputs.dtype)
        if score_mod is not None:
            score = score_mod(score, b, h, q, k)
        return score if mask_mod is None else torch.where(mask_mod(b, h, q, k), score, -torch.inf)

    for axis in (3, 2, 1, 0):
        entry = torch.vmap(entry, in_dims=tuple(0 if i == axis else None for i in range(4)))
    sizes = (inputs.batch, inputs.heads, inputs.queries, inputs.keys)
    return entry(*(torch.arange(size) for size in sizes))
