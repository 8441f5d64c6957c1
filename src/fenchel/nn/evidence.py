r"""Modules that compute the evidence z and the templates from query and key.

Each maps (query, key) to (z, templates, scale), the query, key and scale of :func:`fenchel.functional.attention`; at
first order the score of key j is :math:`\alpha\,\text{scale}\,\langle t_j, z_i\rangle`. The number of heads is that of
the query, divisible by that of the keys. Templates that differ by query require ``relative_attention``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fenchel.errors import ProblemError
from fenchel.functional.relative import of_pairs
from fenchel.nn.arguments import (
    check_choice,
    check_grid,
    check_pixels,
    check_positive,
    check_sizes,
    shown_arguments,
)
from fenchel.nn.calls import first_query_position
from fenchel.nn.preference.positions import LAYOUTS, frequencies, sinusoids
from fenchel.tensors import check_flags, check_tensor, check_type, checked_argument

__all__ = [
    "AbstractEvidence",
    "AbstractPositionalEvidence",
    "Content",
    "General",
    "NetworkEvidence",
    "NoEvidence",
    "RelativeGridKeys",
    "RelativeKeys",
    "RelativeTemplates",
    "Rotary",
    "ScaledDot",
    "TransformerXL",
]


class RelativeTemplates(NamedTuple):
    r"""Templates of pairs, :math:`t_{ij} = k_j + r_{\pi(i,j)}`, before their scale.

    They are arguments of :func:`fenchel.functional.relative_attention`.

    Attributes:
        key: (B, H or fewer, n, d).
        relative: The table r, (B or 1, H or 1, P, d).
        row_index: π, the row of each pair, int64 (m, n) or (B, m, n); None is row j - i + m - 1 of m + n - 1.
        log_preference: A factor of u computed from the templates only, as log weights that broadcast to (B, H, m, n);
            or None.
    """

    key: Tensor
    relative: Tensor
    row_index: Tensor | None = None
    log_preference: Tensor | None = None


# Evidence, templates and their scale.
EvidenceOutput = tuple[Tensor, Tensor | RelativeTemplates, float | Tensor]


class AbstractEvidence(nn.Module):
    r"""Base class of evidence.

    Args:
        scale: Factor of the templates; None is :math:`1/\sqrt d`.
        **sizes: Arguments that are sizes, checked here.

    Raises:
        ProblemError: If the scale is not a positive number, or a size is not a whole number of at least 1.
    """

    def __init__(self, scale: float | None = None, **sizes: int) -> None:
        super().__init__()
        if scale is not None:
            check_positive(type(self).__name__, scale=scale)
        check_sizes(type(self).__name__, **sizes)
        self.scale = scale

    def extra_repr(self) -> str:
        """Arguments that differ from the default."""
        return shown_arguments(self)

    def _check(self, query: Tensor, key: Tensor, parameter: Tensor | None = None, **dims: int) -> None:
        """Raise unless query and key have the layout of attention and fit this module.

        Args:
            query: (B, H, m, d).
            key: (B, H or fewer, n, d).
            parameter: A parameter (1 or H, ...) of the module.
            **dims: Last dimensions by the argument that set them: ``dim``, or ``query_dim`` and ``key_dim``.
        """
        owner = type(self).__name__
        heads = None if parameter is None or parameter.shape[0] == 1 else parameter.shape[0]
        for name, tensor, count, like in (("query", query, heads, parameter), ("key", key, None, None)):
            argument = "dim" if "dim" in dims else f"{name}_dim"
            width = dims.get(argument)
            given = {argument: width, "heads": count and f"{count} (1 for any number)"}
            built = " and ".join(f"{size}={value}" for size, value in given.items() if value is not None)
            form = f"(batch, heads, tokens, dim){f', as {owner} was built with {built}' if built else ''}"
            check_tensor(name, tensor, form, sizes=(None, count, None, width), like=like, other=owner)
            if tensor.shape[-1] == 0:
                raise ProblemError(
                    f"{name} has shape {tuple(tensor.shape)}; expected a last dimension above 0"
                )

    @abstractmethod
    def forward(self, query: Tensor, key: Tensor) -> EvidenceOutput:
        """The evidence, the templates and their scale.

        Args:
            query: (B, H, m, d).
            key: (B, H or fewer, n, d).

        Returns:
            z (B, H, m, d'), templates (B, H or fewer, n, d') and the scale of the templates.
        """

    def _scale(self, templates: Tensor) -> float:
        """The scale of templates (..., d)."""
        return templates.shape[-1] ** -0.5 if self.scale is None else self.scale


class ScaledDot(AbstractEvidence):
    r"""The query itself, with templates :math:`t_j = k_j / \sqrt d`: scaled dot-product attention.

    Args:
        scale: Scale of the templates; None is :math:`1/\sqrt d`, and 1 gives Luong's dot and T5's score.

    Raises:
        ProblemError: If ``scale`` is not a positive number.

    Reference:
        Vaswani et al. 2017, Attention is all you need, eq. (1).

    Example:
        >>> import torch
        >>> z, templates, scale = ScaledDot()(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 5, 16))
        >>> scale
        0.25
    """

    def forward(self, query: Tensor, key: Tensor) -> EvidenceOutput:
        """Query and key as they are."""
        self._check(query, key)
        return query, key, self._scale(query)


class General(AbstractEvidence):
    r"""A learned bilinear form, :math:`z_{hi} = W_h^\top q_{hi}`, score :math:`q^\top W k`.

    The parameter ``weight`` (heads, query_dim, key_dim) starts as the identity: a new layer is scaled dot-product
    attention.

    Args:
        heads: Number of heads, or 1 to share the form.
        query_dim: d of the queries, per head.
        key_dim: d of the keys, per head; None is ``query_dim``.
        scale: Scale of the templates; None is :math:`1/\sqrt{\text{key\_dim}}`, and 1 is Luong's.

    Raises:
        ProblemError: If a size or the scale is not positive; when called, if heads or dimensions differ.

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
        key_dim = query_dim if key_dim is None else key_dim
        super().__init__(scale, heads=heads, query_dim=query_dim, key_dim=key_dim)
        self.heads, self.query_dim, self.key_dim = heads, query_dim, key_dim
        self.weight = nn.Parameter(torch.eye(query_dim, key_dim).repeat(heads, 1, 1))

    def forward(self, query: Tensor, key: Tensor) -> EvidenceOutput:
        """The transformed query, and the key unchanged."""
        self._check(query, key, self.weight, query_dim=self.query_dim, key_dim=self.key_dim)
        return query @ self.weight, key, self._scale(key)


class Content(AbstractEvidence):
    r"""Content addressing by cosine similarity: :math:`z = \beta_h q/\lVert q\rVert`, :math:`t = k/\lVert k\rVert`.

    The sharpness :math:`\beta_h` belongs to the evidence, like the key strength of a neural Turing machine. Templates
    have norm 1, so the error of first order is bounded by :math:`\lVert\hat h - \mu\rVert \le 2`.

    Args:
        heads: Number of heads, or 1 to share the sharpness.
        sharpness: :math:`\beta` > 0, the initial value if it is learned.
        learned: Whether each head learns it, as the exponential of a parameter.

    Raises:
        ProblemError: If a size or the sharpness is not positive; when called, if the number of heads differs.

    Reference:
        Graves et al. 2014, Neural Turing machines, eq. (5) and (6).

    Example:
        >>> z, templates, scale = Content(heads=2, sharpness=5.0)(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 4, 16))
        >>> z.norm(dim=-1)[0, 0], templates.norm(dim=-1)[0, 0]
        (tensor([5., 5., 5.], grad_fn=...), tensor([1., 1., 1., 1.]))
    """

    def __init__(self, heads: int, sharpness: float = 10.0, learned: bool = True) -> None:
        super().__init__(heads=heads)
        check_positive("Content", sharpness=sharpness)
        check_flags(learned=learned)
        self.heads, self.learned = heads, learned
        log_sharpness = torch.full((heads,), math.log(sharpness))
        self.log_sharpness = nn.Parameter(log_sharpness) if learned else nn.Buffer(log_sharpness)

    def forward(self, query: Tensor, key: Tensor) -> EvidenceOutput:
        """Both normalised, and the query multiplied by the sharpness."""
        self._check(query, key, self.log_sharpness.to(query.dtype))
        sharpness = self.log_sharpness.exp().to(query.dtype)[:, None, None]
        z, templates = (nn.functional.normalize(x, dim=-1) for x in (query, key))
        return sharpness * z, templates, 1.0


class NetworkEvidence(AbstractEvidence):
    r"""Any network of the query, :math:`z = f(q)`, with templates as in :class:`ScaledDot`.

    Args:
        network: A module from (B, H, m, d) to (B, H, m, d of the keys), such as an MLP.
        scale: Scale of the templates; None is :math:`1/\sqrt d`.

    Raises:
        ProblemError: If ``network`` is not a module or the scale is not positive; when called, if the output has a
            wrong shape.

    Example:
        >>> import torch
        >>> z, templates, scale = NetworkEvidence(nn.Tanh())(torch.zeros(1, 2, 3, 4), torch.ones(1, 2, 5, 4))
        >>> z.abs().max().item(), scale
        (0.0, 0.5)
    """

    def __init__(self, network: nn.Module, scale: float | None = None) -> None:
        super().__init__(scale)
        check_type("network of NetworkEvidence", network, nn.Module, "a torch.nn.Module")
        self.network = network

    def forward(self, query: Tensor, key: Tensor) -> EvidenceOutput:
        """The network's output, and the key unchanged."""
        self._check(query, key)
        evidence = self.network(query)
        sizes = (*query.shape[:-1], key.shape[-1])
        form = "(B, H, m, d), the last being the dimension of the keys"
        check_tensor("the output of NetworkEvidence's network", evidence, form, sizes=sizes)
        return evidence, key, self._scale(key)


class NoEvidence(AbstractEvidence):
    r"""No evidence, :math:`z = 0`: weights equal the preference, by every estimator.

    For scores that are all preference, such as those of :class:`~fenchel.nn.preference.Additive` and
    :class:`~fenchel.nn.preference.Location`. Every certificate is 0.

    Args:
        scale: Scale of the templates, without effect on the weights; None is :math:`1/\sqrt d`.

    Raises:
        ProblemError: If ``scale`` is not a positive number.

    Example:
        >>> import torch
        >>> z, templates, scale = NoEvidence()(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 5, 16))
        >>> z.shape, z.abs().max().item()
        (torch.Size([1, 2, 3, 16]), 0.0)
    """

    def forward(self, query: Tensor, key: Tensor) -> EvidenceOutput:
        """Zeros of the keys' dimension, and the key unchanged."""
        self._check(query, key)
        return query.new_zeros(*query.shape[:-1], key.shape[-1]), key, self._scale(key)


class AbstractPositionalEvidence(AbstractEvidence):
    """Base class of evidence that depends on positions: key j is at j, query i at ``query_offset + i``.

    Attributes:
        differs_by_query: Whether templates are :class:`RelativeTemplates`.
    """

    differs_by_query: ClassVar[bool] = True

    @abstractmethod
    def forward(self, query: Tensor, key: Tensor, query_offset: int | None = None) -> EvidenceOutput:
        """The evidence, the templates and their scale.

        Args:
            query: (B, H, m, d).
            key: (B, H or fewer, n, d).
            query_offset: Position of the first query on the keys' axis; n - m where keys come from a cache. None is 0
                if m ≥ n, and an error if m < n; a layer always gives a number.

        Returns:
            z (B, H, m, d), templates (B, H or fewer, n, d), or :class:`RelativeTemplates` if they differ by query, and
            the scale of the templates.
        """


class Rotary(AbstractPositionalEvidence):
    r"""Rotary positions, :math:`z_i = R_i q_i` and :math:`t_j = R_j k_j / \sqrt d`.

    :math:`R_s` rotates the c-th pair of coordinates by the angle :math:`s\,b^{-2c/d}`, so the score
    :math:`\langle q_i, R_{j-i} k_j\rangle/\sqrt d` depends on positions only through their distance. All queries share
    the templates. Inference of any order depends only on distances too: a shift of all positions by s rotates every
    template and every z by the same :math:`R_s`.

    Args:
        dim: d of each head, even.
        base: b.
        layout: Which coordinates are a pair: ``"pairs"``: 2c and 2c + 1, as in the paper; ``"halves"``: c and c + d/2,
            as in Llama and GPT-NeoX. The two differ by a permutation of coordinates.
        scale: Scale of the templates; None is :math:`1/\sqrt d`.

    Raises:
        ProblemError: If ``dim`` is odd, or another argument is invalid; when called, if d differs.

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
        super().__init__(scale)
        check_choice("Rotary", LAYOUTS, layout=layout)
        self.dim, self.base, self.layout = dim, base, layout
        frequencies(dim, base, owner="Rotary", argument="dim")

    def forward(self, query: Tensor, key: Tensor, query_offset: int | None = None) -> EvidenceOutput:
        """Both, rotated by their positions."""
        self._check(query, key, dim=self.dim)
        first = first_query_position(query_offset, query.shape[2], key.shape[2])
        return self._rotated(query, first), self._rotated(key, 0), self._scale(key)

    def _rotated(self, vectors: Tensor, first: int) -> Tensor:
        positions = torch.arange(first, first + vectors.shape[-2], device=vectors.device)
        # Not a buffer, whose angles would be rounded when the module is cast to half types.
        angles = positions.unsqueeze(-1) * frequencies(self.dim, self.base, vectors.device, owner="Rotary")
        cos, sin = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
        if self.layout == "pairs":
            if vectors.dtype in (torch.float32, torch.float64) and not torch.compiler.is_compiling():
                # One pass instead of seven; torch's compiler fuses these, and does not support complex numbers.
                pairs = vectors.unflatten(-1, (-1, 2)).clone(memory_format=torch.contiguous_format)
                return torch.view_as_real(torch.view_as_complex(pairs) * torch.complex(cos, sin)).flatten(-2)
            one, other = vectors.unflatten(-1, (-1, 2)).unbind(-1)
            return torch.stack((one * cos - other * sin, one * sin + other * cos), -1).flatten(-2)
        one, other = vectors.chunk(2, -1)
        return torch.cat((one * cos - other * sin, one * sin + other * cos), -1)


class RelativeKeys(AbstractPositionalEvidence):
    r"""Shaw's relative positions, :math:`z_i = q_i` and :math:`t_{ij} = (k_j + a_{j - i})/\sqrt d`.

    Distances are clipped to ``max_distance``. Templates differ by query, so every query has its own mean and
    covariance. The parameter ``weight`` (heads, 2 · max_distance + 1, dim), whose first row is for keys farthest before
    the query, is drawn from a normal distribution with standard deviation 0.02.

    Args:
        heads: Number of heads, or 1 to share the vectors, as the paper does.
        dim: d of each head.
        max_distance: The clipping distance, at least 0.
        scale: Scale of the templates; None is :math:`1/\sqrt d`.

    Raises:
        ProblemError: If an argument is invalid; when called, if the number of heads or d differs.

    Reference:
        Shaw et al. 2018, Self-attention with relative position representations, eqs. (4)-(6). Its further vectors on
        the values are ``relative_value`` of :func:`fenchel.functional.relative_attention`.

    Example:
        >>> z, templates, scale = RelativeKeys(1, 4, max_distance=2)(torch.ones(1, 2, 5, 4), torch.ones(1, 2, 5, 4))
        >>> templates.row_index[0].tolist(), templates.relative.shape
        ([2, 3, 4, 4, 4], torch.Size([1, 1, 5, 4]))
    """

    def __init__(self, heads: int, dim: int, max_distance: int, scale: float | None = None) -> None:
        super().__init__(scale, heads=heads, dim=dim)
        checked_argument("reach", max_distance, name="max_distance of RelativeKeys")
        self.heads, self.dim, self.max_distance = heads, dim, max_distance
        self.weight = nn.Parameter(0.02 * torch.randn(heads, 2 * max_distance + 1, dim))

    def forward(self, query: Tensor, key: Tensor, query_offset: int | None = None) -> EvidenceOutput:
        """The query, and keys plus the vectors of their distances."""
        self._check(query, key, self.weight, dim=self.dim)
        first = first_query_position(query_offset, query.shape[2], key.shape[2])
        i = torch.arange(first, first + query.shape[2], device=key.device).unsqueeze(-1)
        distance = torch.arange(key.shape[2], device=key.device) - i
        index = distance.clamp(-self.max_distance, self.max_distance) + self.max_distance
        templates = RelativeTemplates(key, self.weight.unsqueeze(0).to(query.dtype), index)
        return query, templates, self._scale(key)


class RelativeGridKeys(AbstractPositionalEvidence):
    r"""Offsets in an image, :math:`z_i = q_i` and :math:`t_{ij} = k_j + (a_{\text{rows}}, b_{\text{columns}})`.

    Tokens are the pixels of a grid, row by row. Half of the coordinates depend on how many rows the key is below the
    query, the other half on how many columns it is to its right. Offsets are clipped to ``reach``; combine with a
    :class:`~fenchel.nn.preference.GridWindow` of the same reach to avoid clipping. The parameters ``rows`` and
    ``columns`` (heads, 2 · reach + 1, dim / 2), which begin with the offset −reach, are drawn from a normal
    distribution with standard deviation 0.02.

    Args:
        heads: Number of heads, or 1 to share the vectors.
        dim: d of each head, even.
        grid: Rows and columns of the image.
        reach: The largest offset with its own vectors: (k − 1) / 2 for a window of k × k.
        scale: Scale of the templates; the paper has none.

    Raises:
        ProblemError: If an argument is invalid; when called, if the number of heads or d differs, or tokens do not fill
            the grid.

    Reference:
        Ramachandran et al. 2019, Stand-alone self-attention in vision models, eq. (3).

    Example:
        >>> z, templates, scale = RelativeGridKeys(1, 4, grid=(2, 3), reach=1)(*torch.ones(2, 1, 2, 6, 4))
        >>> templates.relative.shape, templates.row_index[0].tolist()
        (torch.Size([1, 1, 9, 4]), [4, 5, 5, 7, 8, 8])
    """

    def __init__(self, heads: int, dim: int, grid: tuple[int, int], reach: int, scale: float = 1.0) -> None:
        check_positive("RelativeGridKeys", scale=scale)
        super().__init__(scale, heads=heads, dim=dim, reach=reach)
        self.grid = check_grid("RelativeGridKeys", grid)
        if dim % 2:
            raise ProblemError(
                f"dim of RelativeGridKeys is {dim}; expected an even number: half is for rows, half for columns."
            )
        self.heads, self.dim, self.reach = heads, dim, reach
        self.rows = nn.Parameter(0.02 * torch.randn(heads, 2 * reach + 1, dim // 2))
        self.columns = nn.Parameter(0.02 * torch.randn(heads, 2 * reach + 1, dim // 2))

    def forward(self, query: Tensor, key: Tensor, query_offset: int | None = None) -> EvidenceOutput:
        """The query, and keys plus the vectors of their offsets."""
        offsets = self.rows.shape[1]
        self._check(query, key, self.rows, dim=self.dim)
        first = first_query_position(query_offset, query.shape[2], key.shape[2])
        last = first + query.shape[2]
        check_pixels("RelativeGridKeys", self.grid, key.shape[2], last)
        queries = torch.arange(first, last, device=key.device).unsqueeze(-1)
        keys = torch.arange(key.shape[2], device=key.device)
        row, column = (
            (at(keys) - at(queries)).clamp(-self.reach, self.reach) + self.reach
            for at in (lambda x: x // self.grid[1], lambda x: x % self.grid[1])
        )
        both = (
            self.rows.unsqueeze(2).expand(-1, -1, offsets, -1),
            self.columns.unsqueeze(1).expand(-1, offsets, -1, -1),
        )
        relative = torch.cat(both, -1).flatten(1, 2).unsqueeze(0)
        templates = RelativeTemplates(key, relative.to(query.dtype), row * offsets + column)
        return query, templates, self._scale(key)


class TransformerXL(AbstractPositionalEvidence):
    r"""Transformer-XL's relative positions: :math:`z_i = q_i` and :math:`t_{ij} = (k_j + W_h R_{i-j})/\sqrt d`.

    R is the sinusoidal code of a distance. Two of the four terms of the paper's score are evidence and two are not:

    .. math:: \langle z_i, t_{ij}\rangle = \bigl(\langle q_i, k_j\rangle + \langle q_i, W R_{i-j}\rangle\bigr)/\sqrt d,
        \qquad \log u_{ij} = \bigl(\langle u, k_j\rangle + \langle v, W R_{i-j}\rangle\bigr)/\sqrt d

    The last two do not depend on the query: the third is an importance of the key, the fourth of the distance. They
    form a preference, computed from the templates, that multiplies the layer's preference. At first order the two kinds
    of terms are equivalent; in exact inference they are not.

    Args:
        heads: Number of heads.
        dim: d of each head.
        width: Length of R, even: the model's width in the paper.
        base: Base of the sinusoids.
        scale: Scale of the templates and of both preferences; None is :math:`1/\sqrt d`.

    Attributes:
        distance_weight: W, (heads, dim, width), drawn from a normal distribution with standard deviation 0.02.
        key_importance: u, (heads, dim), initially 0.
        distance_importance: v, (heads, dim), initially 0.

    Raises:
        ProblemError: If an argument is invalid; when called, if the number of heads or d differs.

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
        super().__init__(scale, heads=heads, dim=dim)
        frequencies(width, base, owner="TransformerXL")
        self.heads, self.dim, self.width, self.base = heads, dim, width, base
        self.distance_weight = nn.Parameter(0.02 * torch.randn(heads, dim, width))
        self.key_importance = nn.Parameter(torch.zeros(heads, dim))
        self.distance_importance = nn.Parameter(torch.zeros(heads, dim))

    def forward(self, query: Tensor, key: Tensor, query_offset: int | None = None) -> EvidenceOutput:
        """The query, keys plus the codes of their distances, and the preference computed from both."""
        self._check(query, key, self.distance_weight, dim=self.dim)
        m, n = query.shape[2], key.shape[2]
        # Row ρ is for pairs with j - i = ρ - m + 1, with queries counted from 0, hence this distance back.
        back = first_query_position(query_offset, m, n) + m - 1 - torch.arange(m + n - 1, device=query.device)
        code = sinusoids(back.to(torch.float64), self.width, base=self.base, layout="halves")
        relative = code.to(self.distance_weight.dtype) @ self.distance_weight.mT
        scale = self._scale(key)
        # Several heads of the query may share one of the key.
        keys = key if self.heads == 1 else key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        of_key = keys @ self.key_importance.unsqueeze(-1).to(key.dtype)
        of_distance = (relative @ self.distance_importance.unsqueeze(-1)).mT
        by_pair = of_pairs(of_distance.expand(-1, m, -1), None, n)
        log_preference = scale * (of_key.mT + by_pair.unsqueeze(0))
        templates = RelativeTemplates(key, relative.unsqueeze(0).to(query.dtype), None, log_preference)
        return query, templates, scale
