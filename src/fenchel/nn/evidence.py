r"""The evidence z: what a query says of the templates, as modules that also say what the templates are.

Each maps (query, key) to (z, templates, scale), which go to :func:`fenchel.functional.attention` as its query, key and
scale; at first order the score of key j is then :math:`\alpha\,\text{scale}\,\langle t_j, z_i\rangle`. Heads are those
of the query; keys may have fewer, which divide them, as in grouped-query attention.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import check_device, check_dtype, check_flags, check_tensor
from fenchel.errors import ProblemError
from fenchel.nn.sizes import check_positive, check_sizes

__all__ = ["AbstractEvidence", "Content", "General", "NetworkEvidence", "NoEvidence", "ScaledDot"]


class AbstractEvidence(nn.Module):
    """What a query says of the templates."""

    @abstractmethod
    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float | Tensor]:
        """The evidence, the templates and their scale.

        Args:
            query: (B, H, m, d).
            key: (B, H or fewer, n, d).

        Returns:
            z (B, H, m, d'), templates (B, H or fewer, n, d') and what these are multiplied by.
        """


class ScaledDot(AbstractEvidence):
    r"""The query itself, with templates :math:`t_j = k_j / \sqrt d`: scaled dot-product attention.

    Args:
        scale: In place of :math:`1/\sqrt d`; 1 is Luong's dot and T5's score.

    Raises:
        ProblemError: If ``scale`` is not a positive number.

    Reference:
        Vaswani et al. 2017, Attention is all you need, eq. (1).

    Example:
        >>> z, templates, scale = ScaledDot()(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 5, 16))
        >>> scale
        0.25
    """

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        if scale is not None:
            check_positive("ScaledDot", scale=scale)
        self.scale = scale

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """Query and key as they are."""
        _check_tensors(query, key)
        return query, key, _scale(self.scale, query)

    def extra_repr(self) -> str:
        """The scale, where it was given."""
        return "" if self.scale is None else f"scale={self.scale}"


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
        _check_tensors(query, key)
        heads, query_dim, key_dim = self.weight.shape
        _check_heads("General", heads, query)
        for name, tensor, dim in (("query", query, query_dim), ("key", key, key_dim)):
            if tensor.shape[-1] != dim:
                raise ProblemError(
                    f"{name} has shape {tuple(tensor.shape)}, but General was built with {name}_dim={dim}, the last."
                )
        check_dtype("query", query, self.weight.dtype, "General")
        check_device("query", query, self.weight.device, "General")
        return query @ self.weight, key, _scale(self.scale, key)

    def extra_repr(self) -> str:
        """Sizes."""
        heads, query_dim, key_dim = self.weight.shape
        return f"heads={heads}, query_dim={query_dim}, key_dim={key_dim}"


class Content(AbstractEvidence):
    r"""Content addressing by cosine similarity: :math:`z = \beta_h q/\lVert q\rVert`, :math:`t = k/\lVert k\rVert`.

    The sharpness :math:`\beta_h` belongs to the evidence, as does the key strength that a Turing machine's controller
    emits.
    Templates have norm 1, so the error that first order makes is bounded by :math:`\lVert\hat h - \mu\rVert \le 2`.

    Args:
        heads: Number of heads, or 1 to share the sharpness.
        sharpness: :math:`\beta` > 0, at the start if it is learned.
        learned: Whether each head learns it, as exp of a parameter, so that it stays positive.

    Raises:
        ProblemError: If a size or the sharpness is not positive; when called, if there are other heads.

    Reference:
        Graves et al. 2014, Neural Turing machines, eq. (5) and (6).

    Example:
        >>> z, templates, scale = Content(heads=2, sharpness=5.0)(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 4, 16))
        >>> z.norm(dim=-1)[0, 0], templates.norm(dim=-1)[0, 0]
        (tensor([5., 5., 5.], grad_fn=...), tensor([1., 1., 1., 1.]))
    """

    def __init__(self, heads: int, sharpness: float = 10.0, learned: bool = True) -> None:
        super().__init__()
        check_sizes("Content", heads=heads)
        check_positive("Content", sharpness=sharpness)
        check_flags(learned=learned)
        self.learned = learned
        log_sharpness = torch.full((heads,), math.log(sharpness))
        if learned:
            self.log_sharpness = nn.Parameter(log_sharpness)
        else:
            self.register_buffer("log_sharpness", log_sharpness)

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """Both normalised, the query times the sharpness."""
        _check_tensors(query, key)
        check_device("query", query, self.log_sharpness.device, "Content")
        _check_heads("Content", self.log_sharpness.shape[0], query)
        sharpness = self.log_sharpness.exp().to(query.dtype)[:, None, None]
        return (
            sharpness * nn.functional.normalize(query, dim=-1),
            nn.functional.normalize(key, dim=-1),
            1.0,
        )

    def extra_repr(self) -> str:
        """Heads, and whether they learn."""
        return f"heads={self.log_sharpness.shape[0]}, learned={self.learned}"


class NetworkEvidence(AbstractEvidence):
    r"""Any network of the query, :math:`z = f(q)`, with templates as in :class:`ScaledDot`.

    Args:
        network: A module from (B, H, m, d) to (B, H, m, d of the keys), such as an MLP on the last dimension.
        scale: Scale of the templates; None is :math:`1/\sqrt d`.

    Raises:
        ProblemError: If ``network`` is not a module or the scale not positive; when called, if the network's answer has
            another shape.

    Example:
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
        _check_tensors(query, key)
        evidence = self.network(query)
        check_tensor("the answer of NetworkEvidence's network", evidence, "(B, H, m, d)")
        expected = (*query.shape[:-1], key.shape[-1])
        if tuple(evidence.shape) != expected:
            raise ProblemError(
                f"NetworkEvidence's network answered a query of shape {tuple(query.shape)} with shape "
                f"{tuple(evidence.shape)}; expected {expected}, the last being the dimension of the keys."
            )
        return evidence, key, _scale(self.scale, key)


class NoEvidence(AbstractEvidence):
    r"""Nothing is said of the templates, :math:`z = 0`: weights are the preference, by every estimator.

    This is the evidence of scores that are all preference, such as those of
    :class:`~fenchel.nn.preference.Additive` and :class:`~fenchel.nn.preference.Location`. Every certificate is 0.

    Args:
        scale: Of the templates, which do not matter then; None is :math:`1/\sqrt d`.

    Raises:
        ProblemError: If ``scale`` is not a positive number.

    Example:
        >>> z, templates, scale = NoEvidence()(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 5, 16))
        >>> z.shape, z.abs().max().item()
        (torch.Size([1, 2, 3, 16]), 0.0)
    """

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        if scale is not None:
            check_positive("NoEvidence", scale=scale)
        self.scale = scale

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """Zeros of the keys' dimension, and the key as it is."""
        _check_tensors(query, key)
        return query.new_zeros(*query.shape[:-1], key.shape[-1]), key, _scale(self.scale, key)

    def extra_repr(self) -> str:
        """The scale, where it was given."""
        return "" if self.scale is None else f"scale={self.scale}"


def _scale(scale: float | None, templates: Tensor) -> float:
    return templates.shape[-1] ** -0.5 if scale is None else scale


def _check_tensors(query: Tensor, key: Tensor) -> None:
    for name, tensor in (("query", query), ("key", key)):
        check_tensor(name, tensor, "(batch, heads, tokens, dim)", dims=4)
        if tensor.shape[-1] == 0:
            raise ProblemError(
                f"{name} has shape {tuple(tensor.shape)}; expected at least one dimension, the last"
            )


def _check_heads(owner: str, heads: int, query: Tensor) -> None:
    if heads not in (1, query.shape[1]):
        raise ProblemError(
            f"{owner} was built for {heads} heads, but query has {query.shape[1]} (shape {tuple(query.shape)}); "
            f"build it with heads={query.shape[1]}, or heads=1 to share it."
        )
