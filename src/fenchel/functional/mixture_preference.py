r"""What mixture attention is given, checked, and a Gaussian mixture a head as a preference, for solvers.

With components :math:`N(m_k, \operatorname{diag} s_k)` of weights :math:`w_k` (fact 11),

.. math:: \log M(\lambda) = \log\sum_k w_k e^{\langle m_k,\lambda\rangle + \frac12\langle s_k,\lambda^2\rangle}, \qquad
          \nabla\log M(\lambda) = \sum_k r_k c_k, \qquad c_k = m_k + s_k\circ\lambda, \qquad
          \nabla^2\log M(\lambda) = \sum_k r_k \operatorname{diag} s_k + \operatorname{Cov}_r(c)

and nothing of (m, n) outlives its block of queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.arguments import shown
from fenchel.errors import ProblemError
from fenchel.functional.arguments import AttentionArguments, checked
from fenchel.functional.operator import compute_dtype, recomputed, unit_of_products
from fenchel.functional.output import attend
from fenchel.layout import spans
from fenchel.preference import AbstractPreference
from fenchel.preference.abstract import sums
from fenchel.preference.discrete import displacement, log_weights
from fenchel.rounding import SMALL, UNIT
from fenchel.tensors import (
    broadcasts_to,
    check_device,
    check_dtype,
    check_tensor,
    checked_scale,
    values_are_known,
)

__all__ = ["HeadMixtures", "MixtureArguments", "checked_mixture"]


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
    scale: float | Tensor | None = None,
    **options: Any,
) -> MixtureArguments:
    """The arguments of a mixture attention call, if they fit together.

    Raises:
        ProblemError: Naming the argument, what it was and what it should be.
    """
    _check_components(query, means, variances, value)
    given = checked(query, means, means if value is None else value, scale=1.0, **options)
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


BLOCK_BYTES = 2**26
"""Size aimed at for one (B, H, queries, n) array of a block of queries."""


@dataclass(frozen=True)
class HeadMixtures(AbstractPreference):
    """The mixtures of all heads of a call, of which the queries of a head share one or have one each.

    Attributes:
        components: Means and variances side by side, (B, H_kv, n, d + d or 1), of templates.
        log_preference: Bool or floating, up to a constant a row, (B or 1, H or 1, m or 1, n), or None.
        heads: H.
        size: d.
        resolved: Whether shifts of the mean are right relative to themselves, for small dual points too. Otherwise they
            are differences of two means, which take half as long.
    """

    components: Tensor
    log_preference: Tensor | None
    heads: int
    size: int
    resolved: bool = False

    @property
    @override
    def resolves_shift(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.resolved

    @classmethod
    def of(cls, given: MixtureArguments) -> HeadMixtures:
        """Those of a call, whose templates are scale·x."""
        scale = given.scale
        components = torch.cat([given.means * scale, given.variances * scale**2], -1)
        return cls(components, given.lifted.log_preference, given.evidence.shape[1], given.evidence.shape[-1])

    @property
    @override
    def dim(self) -> int:
        return self.size

    @property
    @override
    def dtype(self) -> torch.dtype:
        return self.components.dtype

    @property
    @override
    def device(self) -> torch.device:
        return self.components.device

    @property
    @override
    def lead(self) -> torch.Size:
        queries = 1 if self.log_preference is None else self.log_preference.shape[2]
        return torch.Size((self.components.shape[0], self.heads, queries))

    @override
    def to(self, dtype: torch.dtype) -> Self:
        preference = self.log_preference
        if preference is not None and preference.is_floating_point():
            preference = preference.to(dtype)
        return replace(self, components=self.components.to(dtype), log_preference=preference)

    @override
    def queries(self, part: slice) -> Self:
        if self.lead[-1] == 1 or self.log_preference is None:
            return self
        return replace(self, log_preference=self.log_preference[:, :, part])

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        def cumulant(at: Tensor, log_weights: Tensor, components: Tensor) -> Tensor:
            logits = self._lifted(at) @ components.mT + log_weights
            return logits.logsumexp(-1, keepdim=True) - log_weights.logsumexp(-1, keepdim=True)

        return self._in_blocks(cumulant, lam).squeeze(-1)

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        lifted = self._lifted(lam).contiguous()
        average, _ = attend(lifted, self.components, self.components, self.log_preference, scale=1.0)
        return average[..., : self.size] + average[..., self.size :] * lam

    @override
    def tilted_shift(self, lam: Tensor) -> Tensor:
        r""":math:`\sum_k (r_k - w_k)\,m_k + \sum_k r_k s_k\circ\lambda`, in which nothing cancels where λ is small."""
        if not self.resolved:
            return super().tilted_shift(lam)

        def shift(at: Tensor, log_weights: Tensor, components: Tensor) -> Tensor:
            exponents = self._exponents(at, components)
            normalised = log_weights.log_softmax(-1)
            shared, moved = (normalised + exponents).softmax(-1), displacement(exponents, normalised)
            centred = self._centred(components)[..., : self.size]
            return moved @ centred + (shared @ components[..., self.size :]) * at

        return self._in_blocks(shift, lam)

    @override
    def rounding(self, lam: Tensor) -> Tensor | None:
        """As of :class:`~fenchel.GaussianMixture`."""
        if not self.resolved:
            return None
        unit = unit_of_products(lam.dtype, lam.device.type) / UNIT
        unit *= sums(self.size) + sums(self.components.shape[2])

        def spread(at: Tensor, log_weights: Tensor, components: Tensor) -> Tensor:
            r = (log_weights + self._exponents(at, components)).softmax(-1)
            return (1 - r.amax(-1, keepdim=True)).clamp(min=unit).sqrt()

        centred = self._centred(self.components).repeat_interleave(self.heads // self.components.shape[1], 1)
        variances = centred[..., self.size :]
        radius = centred[..., : self.size].norm(dim=-1).amax(-1)[..., None, None]
        trace = (variances.sum(-1) * (self.size // variances.shape[-1])).amax(-1)[..., None, None]
        length = lam.norm(dim=-1, keepdim=True)
        size = length * radius + trace * length.square() / 2
        far = unit * (radius + trace * length) * (1 + 4 * (1 + size) * self._in_blocks(spread, lam))
        close = unit * (4 * size * radius + trace * length)
        return torch.where(size <= SMALL, torch.minimum(close, far), far).squeeze(-1)

    def _centred(self, components: Tensor) -> Tensor:
        """Components whose means are less their mean: a common vector changes no responsibility, only rounding."""
        means, variances = components.split([self.size, components.shape[-1] - self.size], -1)
        return torch.cat([means - means.mean(-2, keepdim=True), variances], -1)

    def _exponents(self, at: Tensor, components: Tensor) -> Tensor:
        return self._lifted(at) @ self._centred(components).mT

    @override
    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        def product(at: Tensor, log_weights: Tensor, components: Tensor, vector: Tensor) -> Tensor:
            shared = (self._lifted(at) @ components.mT + log_weights).softmax(-1)
            moved = self._moved(at, vector) @ components.mT
            moved = shared * (moved - (shared * moved).sum(-1, keepdim=True))
            between, within = moved @ components, shared @ components[..., self.size :]
            return between[..., : self.size] + between[..., self.size :] * at + within * vector

        return lambda vector: self._in_blocks(product, lam, vector)

    def _lifted(self, lam: Tensor) -> Tensor:
        return torch.cat([lam, self._spread(lam.square()) / 2], -1)

    def _moved(self, lam: Tensor, vector: Tensor) -> Tensor:
        """The derivative of :meth:`_lifted` along a vector."""
        return torch.cat([vector, self._spread(lam * vector)], -1)

    def _spread(self, squares: Tensor) -> Tensor:
        """What variances multiply: each coordinate's, or the sum where they are spherical."""
        spherical = self.components.shape[-1] == self.size + 1
        return squares.sum(-1, keepdim=True) if spherical else squares

    def _in_blocks(self, of_block: Callable[..., Tensor], *points: Tensor) -> Tensor:
        """A function of (dual points, log weights, components, others) for some queries of all heads at a time."""
        batch, _, n, _ = self.components.shape
        components = self.components.repeat_interleave(self.heads // self.components.shape[1], 1)
        preference = self.log_preference
        if preference is None:
            preference = components.new_zeros(1, 1, 1, n)
        preference = log_weights(preference, self.dtype)
        queries = points[0].shape[2]
        each = max(1, BLOCK_BYTES // (batch * self.heads * n * components.element_size()))
        found = []
        for part in spans(queries, each):
            rows = preference if preference.shape[2] == 1 else preference[:, :, part]
            first, *others = (point[:, :, part] for point in points)
            found.append(recomputed(of_block, first, rows, components, *others))
        return torch.cat(found, 2)
