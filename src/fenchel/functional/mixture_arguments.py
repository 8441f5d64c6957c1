"""The door of mixture attention: means, variances and what goes with them, checked and brought into one form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.arguments.tensor import (
    broadcasts_to,
    check_device,
    check_dtype,
    check_tensor,
    checked_scale,
    values_are_known,
)
from fenchel.errors import ProblemError
from fenchel.functional.arguments import AttentionArguments, checked
from fenchel.functional.precision import compute_dtype

__all__ = ["MixtureArguments", "checked_mixture"]


@dataclass(frozen=True)
class MixtureArguments:
    """Arguments of a call that fit together, in the dtype in which it is computed: never a half type.

    Attributes:
        lifted: The call as attention over components, whose keys are means and variances side by side,
            (B, H_kv, n, d + d) or, where variances are spherical, (B, H_kv, n, d + 1).
        evidence: z, (B, H, m, d).
        means: (B, H_kv, n, d).
        variances: (B, H_kv, n, d or 1).
        value: (B, H_kv, n, d_v), or None.
        scale: A number or a scalar tensor: templates are scale·x.
        dtype: Of the answer.
    """

    lifted: AttentionArguments
    evidence: Tensor
    means: Tensor
    variances: Tensor
    value: Tensor | None
    scale: float | Tensor
    dtype: torch.dtype

    @property
    def alpha(self) -> float | Tensor:
        """α, a number, or (B or 1, H or 1, m or 1, 1)."""
        return self.lifted.alpha

    def place(self, dual: Tensor) -> Tensor:
        """λ as means see it, scale·λ: what ⟨t, λ⟩ = ⟨x, scale·λ⟩ multiplies x by."""
        return dual if isinstance(self.scale, float) and self.scale == 1.0 else dual * self.scale

    def lift(self, place: Tensor) -> Tensor:
        """[ς, ς²/2], whose product with a component's [mean, variance] is its log-evidence, (B, H, m, d + d or 1)."""
        square = place.square()
        if self.variances.shape[-1] == 1:
            square = square.sum(-1, keepdim=True)
        return torch.cat([place, square / 2], -1)

    def mean(self, place: Tensor, average: Tensor) -> Tensor:
        """E[x] given the averages [mean, variance] of the components: each has moved by its variance times ς."""
        d = place.shape[-1]
        return average[..., :d] + average[..., d:] * place


def checked_mixture(
    query: Tensor,
    means: Tensor,
    variances: Tensor,
    value: Tensor | None,
    *,
    log_preference: Tensor | None,
    alpha: float | Tensor,
    scale: float | Tensor | None,
    **options: Any,
) -> MixtureArguments:
    """The arguments of a mixture attention call, if they fit together.

    Raises:
        ProblemError: Naming the argument, what it was and what it should be.
    """
    _check_components(query, means, variances, value)
    given = checked(
        query,
        means,
        means if value is None else value,
        log_preference=log_preference,
        alpha=alpha,
        scale=1.0,
        **options,
    )
    dtype, shape = compute_dtype(given.query.dtype), means.shape
    spherical = variances.dim() == 0 or (variances.shape[-1] == 1 and shape[-1] != 1)
    wide = means.to(dtype)
    spread = variances.to(dtype).expand(*shape[:3], 1 if spherical else shape[3])
    components = torch.cat([wide, spread], -1)
    lifted = AttentionArguments(
        query=given.query.to(dtype),
        key=components,
        value=components if value is None else given.value.to(dtype),
        log_preference=given.log_preference,
        empty_rows=given.empty_rows,
        alpha=given.alpha.to(dtype) if isinstance(given.alpha, Tensor) else given.alpha,
        scale=1.0,
    )
    if scale is None:
        factor: float | Tensor = max(query.shape[-1], 1) ** -0.5
    else:
        factor = checked_scale(scale, query)
        factor = factor.to(dtype) if isinstance(factor, Tensor) else factor
    return MixtureArguments(
        lifted=lifted,
        evidence=lifted.query,
        means=wide,
        variances=spread,
        value=None if value is None else lifted.value,
        scale=factor,
        dtype=given.query.dtype,
    )


def _check_components(query: Tensor, means: Tensor, variances: Tensor, value: Tensor | None) -> None:
    form = "(batch, heads, tokens, dim)"
    named = {"query": query, "means": means, **({} if value is None else {"value": value})}
    for name, tensor in named.items():
        check_tensor(name, tensor, form, dims=4)
        check_device(name, tensor, query.device)
        check_dtype(name, tensor, query.dtype)
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in named.items())
    if query.shape[0] != means.shape[0] or query.shape[3] != means.shape[3]:
        raise ProblemError(f"query and means differ in their first or last dimension: {shapes}")
    if means.shape[2] == 0:
        raise ProblemError(f"there is nothing to attend to (no components in means): {shapes}")
    if value is not None and value.shape[:3] != means.shape[:3]:
        raise ProblemError(f"means and value differ in batch, heads or components: {shapes}")
    heads, key_heads = query.shape[1], means.shape[1]
    if heads != key_heads and (key_heads == 0 or heads % key_heads):
        raise ProblemError(
            f"query has {heads} heads, which {key_heads} heads of means do not divide: {shapes}"
        )
    _check_variances(variances, means)


def _check_variances(variances: Tensor, means: Tensor) -> None:
    wanted = "that broadcasts to the shape of means, with a last dimension of 1 where they are spherical"
    check_tensor("variances", variances, wanted)
    check_device("variances", variances, means.device, "means")
    check_dtype("variances", variances, means.dtype, "means")
    if not broadcasts_to(variances.shape, means.shape):
        raise ProblemError(
            f"variances have shape {tuple(variances.shape)}; expected one that broadcasts to that of means, "
            f"{tuple(means.shape)}: one a coordinate, or a last dimension of 1 for spherical ones. Full covariance "
            "matrices have no fused form; fenchel.GaussianMixture takes them"
        )
    if not values_are_known(variances):
        return
    bad = ~((variances >= 0) & (variances < torch.inf))
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0]) if bad.dim() else ()
        entry = f" at index {where}" if where else ""
        raise ProblemError(
            f"variances hold {shown(variances.detach()[bad][0].item())}{entry}; expected finite numbers of at least 0 "
            "(0 is softmax attention): variances, not their logarithms or roots; make what is learned positive, such "
            "as by torch.nn.functional.softplus"
        )
