"""Any network of the query."""

from __future__ import annotations

from torch import Tensor, nn

from fenchel.arguments.tensor import check_tensor
from fenchel.errors import ProblemError
from fenchel.nn.evidence.abstract import AbstractEvidence
from fenchel.nn.evidence.arguments import check_pair, template_scale
from fenchel.nn.sizes import check_positive

__all__ = ["NetworkEvidence"]


class NetworkEvidence(AbstractEvidence):
    r"""Any network of the query, :math:`z = f(q)`, with templates as in :class:`ScaledDot`.

    Args:
        network: A module from (B, H, m, d) to (B, H, m, d of the keys), such as an MLP on the last dimension.
        scale: Scale of the templates; None is :math:`1/\sqrt d`.

    Raises:
        ProblemError: If ``network`` is not a module or the scale not positive; when called, if the network's answer has
            another shape.

    Example:
        >>> import torch
        >>> z, templates, scale = NetworkEvidence(nn.Tanh())(torch.zeros(1, 2, 3, 4), torch.ones(1, 2, 5, 4))
        >>> z.abs().max().item(), scale
        (0.0, 0.5)
    """

    def __init__(self, network: nn.Module, scale: float | None = None) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise ProblemError(
                f"NetworkEvidence got network of type {type(network).__name__}; expected a torch.nn.Module."
            )
        if scale is not None:
            check_positive("NetworkEvidence", scale=scale)
        self.network, self.scale = network, scale

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """The network's answer, and the key as it is."""
        check_pair(query, key)
        evidence = self.network(query)
        check_tensor("the answer of NetworkEvidence's network", evidence, "(B, H, m, d)")
        expected = (*query.shape[:-1], key.shape[-1])
        if tuple(evidence.shape) != expected:
            raise ProblemError(
                f"NetworkEvidence's network answered a query of shape {tuple(query.shape)} with shape "
                f"{tuple(evidence.shape)}; expected {expected}, the last being the dimension of the keys."
            )
        return evidence, key, template_scale(self.scale, key)
