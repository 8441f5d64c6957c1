"""A sinusoidal code of the distance, through a learned map, added to the keys; and what of it no query asks for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import check_device, check_dtype
from fenchel.errors import ProblemError
from fenchel.functional.relative_shift import of_pairs
from fenchel.nn.evidence.arguments import check_heads, check_pair, template_scale
from fenchel.nn.evidence.positional import AbstractPositionalEvidence
from fenchel.nn.evidence.templates import RelativeTemplates
from fenchel.nn.first_query import first_query_position
from fenchel.nn.sinusoid import frequencies, sinusoids
from fenchel.nn.sizes import check_positive, check_sizes

__all__ = ["TransformerXL"]


class TransformerXL(AbstractPositionalEvidence):
    r"""Transformer-XL's relative positions: :math:`z_i = q_i` and :math:`t_{ij} = (k_j + W_h R_{i-j})/\sqrt d`.

    R is the sinusoidal code of a distance. Of the four terms of the paper's score two are evidence and two are not:

    .. math:: \langle z_i, t_{ij}\rangle = \bigl(\langle q_i, k_j\rangle + \langle q_i, W R_{i-j}\rangle\bigr)/\sqrt d,
        \qquad \log u_{ij} = \bigl(\langle u, k_j\rangle + \langle v, W R_{i-j}\rangle\bigr)/\sqrt d

    The last two look at no query: the third is an importance of the key, the fourth one of the distance. They are a
    preference, which comes with the templates because it is made of them, and multiplies that of the layer. First
    order does not tell the two kinds apart; exact inference does.

    Args:
        heads: Number of heads.
        dim: d of each head.
        width: Length of R, even: the model's width in the paper.
        base: Of the sinusoids.
        scale: Of the templates and of both preferences; None is :math:`1/\sqrt d`.

    Attributes:
        distance_weight: W, (heads, dim, width), drawn from a normal distribution with standard deviation 0.02.
        key_importance: u, (heads, dim), from 0.
        distance_importance: v, (heads, dim), from 0.

    Raises:
        ProblemError: If an argument cannot be used; when called, if there are other heads or another d.

    Reference:
        Dai et al. 2019, Transformer-XL: attentive language models beyond a fixed-length context, section 3.3 and
        appendix B.

    Example:
        >>> q, k = torch.randn(2, 1, 2, 5, 4)
        >>> z, templates, scale = TransformerXL(heads=2, dim=4, width=8)(q[:, :, :3], k, query_offset=2)
        >>> templates.relative.shape, templates.log_preference.shape
        (torch.Size([1, 2, 7, 4]), torch.Size([1, 2, 3, 5]))
    """

    def __init__(
        self, heads: int, dim: int, width: int, base: float = 10_000.0, scale: float | None = None
    ) -> None:
        super().__init__()
        check_sizes("TransformerXL", heads=heads, dim=dim)
        frequencies(width, base, owner="TransformerXL")
        if scale is not None:
            check_positive("TransformerXL", scale=scale)
        self.base, self.scale = base, scale
        self.distance_weight = nn.Parameter(0.02 * torch.randn(heads, dim, width))
        self.key_importance = nn.Parameter(torch.zeros(heads, dim))
        self.distance_importance = nn.Parameter(torch.zeros(heads, dim))

    def forward(
        self, query: Tensor, key: Tensor, query_offset: int | None = None
    ) -> tuple[Tensor, RelativeTemplates, float]:
        """The query, keys with the codes of their distances, and the preference that is made of both."""
        check_pair(query, key)
        heads, dim, width = self.distance_weight.shape
        check_heads("TransformerXL", heads, query)
        for name, tensor in (("query", query), ("key", key)):
            if tensor.shape[-1] != dim:
                raise ProblemError(
                    f"{name} has shape {tuple(tensor.shape)}, but TransformerXL was built with dim={dim}, the last."
                )
        check_dtype("query", query, self.distance_weight.dtype, "TransformerXL")
        check_device("query", query, self.distance_weight.device, "TransformerXL")
        m, n = query.shape[2], key.shape[2]
        # Row ρ is that of pairs with j - i = ρ - m + 1 for queries counted from 0, so of this distance back.
        back = first_query_position(query_offset, m, n) + m - 1 - torch.arange(m + n - 1, device=query.device)
        code = sinusoids(back.to(torch.float64), width, base=self.base, layout="halves")
        relative = code.to(self.distance_weight.dtype) @ self.distance_weight.mT
        scale = template_scale(self.scale, key)
        # Several heads of the query may share one of the key.
        keys = key if heads == 1 else key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        of_key = keys @ self.key_importance.unsqueeze(-1).to(key.dtype)
        of_distance = (relative @ self.distance_importance.unsqueeze(-1)).mT
        by_pair = of_pairs(of_distance.expand(-1, m, -1), None, n)
        log_preference = scale * (of_key.mT + by_pair.unsqueeze(0))
        templates = RelativeTemplates(key, relative.unsqueeze(0).to(query.dtype), None, log_preference)
        return query, templates, scale

    def extra_repr(self) -> str:
        """Sizes."""
        heads, dim, width = self.distance_weight.shape
        scale = "" if self.scale is None else f", scale={self.scale}"
        return f"heads={heads}, dim={dim}, width={width}{scale}"
