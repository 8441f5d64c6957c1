"""Query and key turned by their places."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fenchel.errors import ProblemError
from fenchel.nn.evidence.arguments import check_pair, template_scale
from fenchel.nn.evidence.positional import AbstractPositionalEvidence
from fenchel.nn.first_query import first_query_position
from fenchel.nn.sinusoid import LAYOUTS, frequencies
from fenchel.nn.sizes import check_choice, check_positive

__all__ = ["Rotary"]

_WITH_COMPLEX = (torch.float32, torch.float64)


class Rotary(AbstractPositionalEvidence):
    r"""Rotary positions, :math:`z_i = R_i q_i` and :math:`t_j = R_j k_j / \sqrt d`.

    :math:`R_s` turns the c-th pair of coordinates by the angle :math:`s\,b^{-2c/d}`, so that the score
    :math:`\langle q_i, R_{j-i} k_j\rangle/\sqrt d` sees places through their distance alone. All queries share the
    templates. Inference of any order sees distances alone too: moving all places by s turns every template and every z
    by the same :math:`R_s`, which changes no length.

    Args:
        dim: d of each head, even.
        base: b.
        layout: Which coordinates are a pair: ``"pairs"``: 2c and 2c + 1, as in the paper; ``"halves"``: c and c + d/2,
            as in Llama and GPT-NeoX. The two are one another with coordinates renamed.
        scale: Scale of the templates; None is :math:`1/\sqrt d`.

    Raises:
        ProblemError: If ``dim`` is odd, or another argument cannot be used; when called, if heads have another d.

    Reference:
        Su et al. 2021, RoFormer: enhanced transformer with rotary position embedding, eqs. (14)-(16), (34).

    Example:
        >>> q, k = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64)
        >>> z, t, scale = Rotary(4)(q, k)
        >>> later, there, _ = Rotary(4)(q[:, :, 1:], k, query_offset=1)
        >>> torch.allclose(later, z[:, :, 1:]), torch.allclose(t.norm(dim=-1), k.norm(dim=-1))
        (True, True)
    """

    differs_by_query: ClassVar[bool] = False

    def __init__(
        self, dim: int, base: float = 10_000.0, layout: str = "pairs", scale: float | None = None
    ) -> None:
        super().__init__()
        check_choice("Rotary", LAYOUTS, layout=layout)
        if scale is not None:
            check_positive("Rotary", scale=scale)
        self.dim, self.base, self.layout, self.scale = dim, base, layout, scale
        # No buffer: a module that is cast to half types would turn far places by other angles.
        self._frequencies = frequencies(dim, base, owner="Rotary", argument="dim")

    def forward(
        self, query: Tensor, key: Tensor, query_offset: int | None = None
    ) -> tuple[Tensor, Tensor, float]:
        """Both, turned by their places."""
        check_pair(query, key)
        for name, tensor in (("query", query), ("key", key)):
            if tensor.shape[-1] != self.dim:
                raise ProblemError(
                    f"{name} has shape {tuple(tensor.shape)}, but Rotary was built with dim={self.dim}, the last."
                )
        first = first_query_position(query_offset, query.shape[2], key.shape[2])
        return self._turned(query, first), self._turned(key, 0), template_scale(self.scale, key)

    def _turned(self, vectors: Tensor, first: int) -> Tensor:
        places = torch.arange(first, first + vectors.shape[-2], device=vectors.device)
        angles = places.unsqueeze(-1) * self._frequencies.to(vectors.device)
        cos, sin = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
        if self.layout == "pairs":
            if vectors.dtype in _WITH_COMPLEX and not torch.compiler.is_compiling():
                # One pass in place of seven; torch's compiler makes one of them, and has none for complex numbers.
                pairs = vectors.unflatten(-1, (-1, 2)).clone(memory_format=torch.contiguous_format)
                return torch.view_as_real(torch.view_as_complex(pairs) * torch.complex(cos, sin)).flatten(-2)
            one, other = vectors.unflatten(-1, (-1, 2)).unbind(-1)
            return torch.stack((one * cos - other * sin, one * sin + other * cos), -1).flatten(-2)
        one, other = vectors.chunk(2, -1)
        return torch.cat((one * cos - other * sin, one * sin + other * cos), -1)

    def extra_repr(self) -> str:
        """What was given."""
        scale = "" if self.scale is None else f", scale={self.scale}"
        return f"dim={self.dim}, base={self.base:g}, layout={self.layout!r}{scale}"
