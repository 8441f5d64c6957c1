"""A query through a learned bilinear form."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import check_device, check_dtype
from fenchel.errors import ProblemError
from fenchel.nn.evidence.abstract import AbstractEvidence
from fenchel.nn.evidence.arguments import check_heads, check_pair, template_scale
from fenchel.nn.sizes import check_positive, check_sizes

__all__ = ["General"]


class General(AbstractEvidence):
    r"""A learned bilinear form, :math:`z_{hi} = W_h^\top q_{hi}`, score :math:`q^\top W k`.

    The parameter ``weight`` (heads, query_dim, key_dim) starts as the identity, so that a fresh layer is scaled
    dot-product attention.

    Args:
        heads: Number of heads, or 1 to share the form.
        query_dim: d of the queries, per head.
        key_dim: d of the keys, per head; None is ``query_dim``.
        scale: Scale of the templates; None is :math:`1/\sqrt{\text{key\_dim}}`, and 1 is Luong's.

    Raises:
        ProblemError: If a size or the scale is not positive; when called, if heads or dimensions are others.

    Reference:
        Luong et al. 2015, Effective approaches to attention-based neural machine translation, section 3.1 (general).

    Example:
        >>> z, templates, scale = General(heads=2, query_dim=16)(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 5, 16))
        >>> z.shape
        torch.Size([1, 2, 3, 16])
    """

    def __init__(
        self, heads: int, query_dim: int, key_dim: int | None = None, scale: float | None = None
    ) -> None:
        super().__init__()
        key_dim = query_dim if key_dim is None else key_dim
        check_sizes("General", heads=heads, query_dim=query_dim, key_dim=key_dim)
        if scale is not None:
            check_positive("General", scale=scale)
        self.scale = scale
        self.weight = nn.Parameter(torch.eye(query_dim, key_dim).repeat(heads, 1, 1))

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """The query through the form, and the key as it is."""
        check_pair(query, key)
        heads, query_dim, key_dim = self.weight.shape
        check_heads("General", heads, query)
        for name, tensor, dim in (("query", query, query_dim), ("key", key, key_dim)):
            if tensor.shape[-1] != dim:
                raise ProblemError(
                    f"{name} has shape {tuple(tensor.shape)}, but General was built with {name}_dim={dim}, the last."
                )
        check_dtype("query", query, self.weight.dtype, "General")
        check_device("query", query, self.weight.device, "General")
        return query @ self.weight, key, template_scale(self.scale, key)

    def extra_repr(self) -> str:
        """Sizes."""
        heads, query_dim, key_dim = self.weight.shape
        return f"heads={heads}, query_dim={query_dim}, key_dim={key_dim}"
