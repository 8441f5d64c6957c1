"""A learned vector for every distance, added to the keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fenchel.arguments import checked
from fenchel.arguments.tensor import check_device, check_dtype
from fenchel.errors import ProblemError
from fenchel.nn.evidence.arguments import check_heads, check_pair, template_scale
from fenchel.nn.evidence.positional import AbstractPositionalEvidence
from fenchel.nn.evidence.templates import RelativeTemplates
from fenchel.nn.first_query import first_query_position
from fenchel.nn.sizes import check_positive, check_sizes

__all__ = ["RelativeKeys"]


class RelativeKeys(AbstractPositionalEvidence):
    r"""Shaw's relative positions, :math:`z_i = q_i` and :math:`t_{ij} = (k_j + a_{j - i})/\sqrt d`.

    Distances beyond ``max_distance`` share its vectors. Templates differ by query, so every query has a mean and a
    covariance of its own. The parameter ``weight`` (heads, 2 · max_distance + 1, dim), whose first row is that of
    keys farthest before the query, is drawn from a normal distribution with standard deviation 0.02.

    Args:
        heads: Number of heads, or 1 to share the vectors, as the paper does.
        dim: d of each head.
        max_distance: The clipping distance, at least 0.
        scale: Scale of the templates; None is :math:`1/\sqrt d`.

    Raises:
        ProblemError: If an argument cannot be used; when called, if there are other heads or another d.

    Reference:
        Shaw et al. 2018, Self-attention with relative position representations, eqs. (4)-(6). Its further vectors on
        the values are ``relative_value`` of :func:`fenchel.functional.relative_attention`.

    Example:
        >>> z, templates, scale = RelativeKeys(1, 4, max_distance=2)(torch.ones(1, 2, 5, 4), torch.ones(1, 2, 5, 4))
        >>> templates.row_index[0].tolist(), templates.relative.shape
        ([2, 3, 4, 4, 4], torch.Size([1, 1, 5, 4]))
    """

    def __init__(self, heads: int, dim: int, max_distance: int, scale: float | None = None) -> None:
        super().__init__()
        check_sizes("RelativeKeys", heads=heads, dim=dim)
        checked("reach", max_distance, name="max_distance of RelativeKeys", error=ProblemError)
        if scale is not None:
            check_positive("RelativeKeys", scale=scale)
        self.max_distance, self.scale = max_distance, scale
        self.weight = nn.Parameter(0.02 * torch.randn(heads, 2 * max_distance + 1, dim))

    def forward(
        self, query: Tensor, key: Tensor, query_offset: int | None = None
    ) -> tuple[Tensor, RelativeTemplates, float]:
        """The query, and keys with the vectors of their distances."""
        check_pair(query, key)
        heads, _, dim = self.weight.shape
        check_heads("RelativeKeys", heads, query)
        for name, tensor in (("query", query), ("key", key)):
            if tensor.shape[-1] != dim:
                raise ProblemError(
                    f"{name} has shape {tuple(tensor.shape)}, but RelativeKeys was built with dim={dim}, the last."
                )
        check_dtype("query", query, self.weight.dtype, "RelativeKeys")
        check_device("query", query, self.weight.device, "RelativeKeys")
        first = first_query_position(query_offset, query.shape[2], key.shape[2])
        i = torch.arange(first, first + query.shape[2], device=key.device).unsqueeze(-1)
        distance = torch.arange(key.shape[2], device=key.device) - i
        index = distance.clamp(-self.max_distance, self.max_distance) + self.max_distance
        templates = RelativeTemplates(key, self.weight.unsqueeze(0).to(query.dtype), index)
        return query, templates, template_scale(self.scale, key)

    def extra_repr(self) -> str:
        """Sizes."""
        heads, _, dim = self.weight.shape
        scale = "" if self.scale is None else f", scale={self.scale}"
        return f"heads={heads}, dim={dim}, max_distance={self.max_distance}{scale}"
