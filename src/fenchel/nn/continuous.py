r"""Continuous attention to a signal or an image: a query infers a density over positions, and averages a function.

A query observes a position, :math:`x \approx c` with a precision Λ, which is evidence on (x, xxᵀ):

.. math:: z = \bigl(\Lambda c,\ -\tfrac12\Lambda\bigr), \qquad
          \langle(x, xx^\top), z\rangle = -\tfrac12(x - c)^\top\Lambda(x - c) + \text{constant}

At first order the density over positions is therefore u times a Gaussian likelihood of precision αΛ: always a density.
The values become a function of the position by ridge regression on Gaussian bumps:

.. math:: v(x) = B\,\psi(x), \qquad \psi_j(x) = e^{-\lVert x-\mu_j\rVert^2/2\sigma^2}, \qquad
          B = V^\top W F\,(F^\top W F + \rho I)^{-1}

with the bumps at the positions in the rows of F, and a diagonal W that is 0 at padding. Under
:math:`x \sim \mathcal{N}(m, P)`

.. math:: \mathbb{E}[\psi_j(x)] = \det(I + P/\sigma^2)^{-1/2}\,
          e^{-\frac12 (m-\mu_j)^\top(P+\sigma^2 I)^{-1}(m-\mu_j)}
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments import shown
from fenchel.closeness import KL, AbstractCloseness
from fenchel.closeness.tsallis import closeness_of
from fenchel.errors import ProblemError
from fenchel.estimators import Estimator, EstimatorName, Exact, InferenceProblem
from fenchel.functional.arguments import without_autocast
from fenchel.functional.exact import untraced
from fenchel.nn.arguments import check_choice, check_grid, check_layer, check_positive, check_sizes
from fenchel.nn.calls import TorchCall
from fenchel.nn.inference import AttendingLayer, keep_number, number_of_heads, shown_number
from fenchel.preference import Continuous1d, Continuous2d, Gaussian
from fenchel.tensors import check_entries, check_flags, column, refuse_onnx, widened

EVIDENCE = ("content", "query")

# In float64; at a standard deviation of 0.001 the last digits of a precision are rounding errors.
DEFAULT_TOL = 1e-8


class ContinuousAttention(AttendingLayer, nn.Module):
    r"""Attention over the positions of a signal (``dimensions=1``) or an image (2), the unit interval or square.

    Templates are :math:`t = (x, xx^\top)` of a position x, and the preference u is a Gaussian. A query observes a
    position c with a precision Λ, which is evidence :math:`z = (\Lambda c, -\tfrac12\Lambda)`, and every head infers
    the density p near u whose moments agree with it: a Gaussian again. The values, on a regular grid, become a function
    of the position by ridge regression on Gaussian bumps ψ, and the output is its mean,

    .. math:: o = B\,\mathbb{E}_{p}[\psi(x)], \qquad p(x) \propto u(x)\,e^{\langle(x, xx^\top), \lambda\rangle},

    in closed form. At first order, λ = αz, p is u times a Gaussian likelihood of precision αΛ. The cost does not grow
    with queries times positions: B is computed once, and every query uses only the bumps.

    Args:
        embed_dim: Width E of all inputs and of the output, divisible by ``num_heads``.
        num_heads: Heads H.
        dimensions: 1 for a signal, 2 for an image.
        basis: Number of bumps along each dimension.
        ridge: ρ > 0 of the regression.
        evidence: Source of the observed position: ``"content"``: mean and spread of positions in dot-product attention
            to the keys; ``"query"``: a linear map of the query.
        width: Standard deviation of the observation: for ``"content"`` added to the spread, for ``"query"`` its initial
            value.
        preference_width: Initial standard deviation of u, around the middle.
        learn_preference: Whether every head learns the mean and standard deviations of its u.
        alpha: Reliability α > 0 of the evidence.
        learn_alpha: Whether every head learns its α.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``; or an object with its options, such as
            ``fenchel.Exact(tol=1e-6)``.
        closeness: KL, or None for the same: no other closeness gives a density over positions here.
        bias: Whether the projections have a bias.
        batch_first: Whether batched sequences are (N, L, E) rather than (L, N, E).
        tol: Tolerance of the exact estimator; None is 1e-5 in float32 and half types, 1e-8 in float64.
        max_steps: Maximum number of steps of the exact estimator.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ProblemError: If an argument is invalid.

    Reference:
        Section 7; Martins et al., Sparse and Continuous Attention Mechanisms (2020), for first order and uniform u.

    Example:
        >>> layer = ContinuousAttention(16, 4, dimensions=2)
        >>> question, image = torch.randn(2, 3, 16), torch.randn(2, 48, 16)
        >>> output, density = layer(question, image, grid=(6, 8))
        >>> output.shape, density.mean().shape                 # (sequences, heads, queries, 2), and their ellipses
        (torch.Size([2, 3, 16]), torch.Size([2, 4, 3, 2]))
    """

    log_alpha: nn.Parameter | None
    alpha: float | Tensor = number_of_heads("alpha")
    """α: a number, or (num_heads,) with gradient if it is learned. It can be assigned."""
    preference_mean: Tensor
    preference_log_width: Tensor
    heads_infer_together = True
    # So torch's transformer layers never take their fused path.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        dimensions: int = 1,
        basis: int = 16,
        ridge: float = 0.1,
        evidence: str = "content",
        width: float = 0.1,
        preference_width: float = 1.0,
        learn_preference: bool = False,
        alpha: float = 1.0,
        learn_alpha: bool = False,
        estimator: EstimatorName | Estimator = "first_order",
        closeness: AbstractCloseness | str | None = None,
        bias: bool = True,
        batch_first: bool = True,
        tol: float | None = None,
        max_steps: int = 50,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        owner = "ContinuousAttention"
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        check_layer(owner, embed_dim=embed_dim, num_heads=num_heads, **kind)
        if dimensions not in (1, 2) or isinstance(dimensions, bool):
            raise ProblemError(
                f"dimensions is {shown(dimensions)}; expected 1, for signals, or 2, for images"
            )
        check_sizes(owner, basis=basis)
        check_choice(owner, EVIDENCE, evidence=evidence)
        check_positive(owner, ridge=ridge, width=width, preference_width=preference_width)
        self._infer_by(estimator, tol, max_steps)
        check_flags(
            learn_preference=learn_preference, learn_alpha=learn_alpha, bias=bias, batch_first=batch_first
        )
        closeness = closeness_of(closeness)
        if closeness is not None and not isinstance(closeness, KL):
            raise ProblemError(
                f"closeness is {closeness!r}; expected None or fenchel.KL(): densities over positions are defined only "
                "for KL; fenchel.nn.MultiheadAttention accepts any closeness, over tokens"
            )
        self.embed_dim = self.kdim = self.vdim = embed_dim
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.dimensions, self.evidence_from, self.batch_first = dimensions, evidence, batch_first
        self.bumps = Bumps(dimensions, basis, ridge)
        if evidence == "query":
            self.evidence = QueryPlace(embed_dim, num_heads, dimensions, width, **kind)
        else:
            self.evidence = ContentPlace(embed_dim, num_heads, width, bias, **kind)
        self.value_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **kind)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **kind)
        self._width = float(preference_width)
        keep_number(self, "alpha", alpha, learned=learn_alpha)
        for name in ("preference_mean", "preference_log_width"):
            start = self.out_proj.weight.new_empty(num_heads, dimensions)
            setattr(
                self, name, nn.Parameter(start) if learn_preference else nn.Buffer(start, persistent=False)
            )
        self._reset_preference()

    def _reset_preference(self) -> None:
        with torch.no_grad():
            self.preference_mean.fill_(0.5)
            self.preference_log_width.fill_(math.log(self._width))

    def _reset_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        self._reset_preference()

    def preference(self, dtype: torch.dtype) -> Continuous1d | Continuous2d:
        """The preference u of every head, in a dtype."""
        mean, width = (x.to(dtype).unsqueeze(1) for x in (self.preference_mean, self.preference_log_width))
        places = Gaussian(mean, variance=(2 * width).exp())
        kind = Continuous1d if self.dimensions == 1 else Continuous2d
        return kind("quadratic", places)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        grid: tuple[int, int] | None = None,
        need_density: bool = True,
    ) -> tuple[Tensor, Gaussian | None]:
        """The mean of the values under inferred densities, and the densities.

        Called as ``torch.nn.MultiheadAttention`` is, or with fewer arguments. It returns densities instead of weights.

        Args:
            query: (N, L, E) where ``batch_first``, else (L, N, E); or (L, E) unbatched.
            key: (N, S, E), (S, N, E) or (S, E); ``query`` if None.
            value: The same shape; ``key`` if None.
            key_padding_mask: (N, S) or (S,): bool, True = padding, or float, -inf = padding and else 0. Padding affects
                neither the function of the values nor the density; the unit interval covers the unpadded part of a
                signal, and the pixels of an image keep their positions.
            need_weights: Whether to return the densities.
            attn_mask: Must be None: all queries of a sequence share one function of the position, computed from all
                values.
            average_attn_weights: Has no effect: every head has its own density.
            is_causal: Must be False, as there is no ``attn_mask``.
            grid: For images: (height, width) of the grid, whose S cells are given row by row. Positions are (x, y) in
                the unit square, x along a row and y downwards.
            need_density: Whether to return the densities.

        Returns:
            The output, of the layout of ``query`` and width E; and None, or p: a :class:`~fenchel.Gaussian` with
            ``mean()`` (N, H, L, k) and ``covariance()`` (N, H, L, k, k), with N = 1 where unbatched. A fully padded
            sequence gives zeros before the output projection.

        Raises:
            ProblemError: On a wrong shape, dtype or device, no keys, or a wrong grid.
            DomainError: If u has no moments at the second-order point; the exact estimator stays inside the domain.
        """
        key = query if key is None else key
        value = key if value is None else value
        check_flags(need_density=need_density)
        if attn_mask is not None:
            raise ProblemError(
                "attn_mask is given, but all queries of ContinuousAttention share one function of the position; "
                "expected None; key_padding_mask leaves out positions for all queries"
            )
        torch_arguments = (key_padding_mask, need_weights, None, average_attn_weights, is_causal)
        call = TorchCall(query, key, value, *torch_arguments, self.batch_first)
        masks = call.checked_masks(self)
        queries, keys = call.to_batch_first(query), call.to_batch_first(key)
        if keys.shape[1] == 0:
            raise ProblemError(
                f"key has shape {tuple(key.shape)}; expected at least one position to attend to"
            )
        counted = None if masks.key_padding is None else ~masks.key_padding
        if masks.keys is not None and masks.keys.dtype != torch.bool:
            expected = "0, or -inf at padding"
            check_entries("key_padding_mask", masks.keys, lambda x: (x == 0) | torch.isneginf(x), expected)
        places = self._places(grid, keys.shape[1], counted, query.device)
        centre, precision = self.evidence(queries, keys, places, counted)
        heads = call.to_heads(self.value_proj(value), self.num_heads)
        with without_autocast(query):
            dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
            density = self._density(evidence_of(centre.to(dtype), precision.to(dtype)))
            coefficients = self.bumps.regressed(places, heads.to(dtype), counted)
            mean = self.bumps.expected(density.mean(), density.covariance()) @ coefficients
        output = self.out_proj(call.from_heads(mean.to(heads.dtype)))
        return output, density if need_weights and need_density else None

    def _density(self, evidence: Tensor) -> Gaussian:
        """The tilted Gaussians of evidence (N, H, L, k + k²)."""
        preference, alpha = self.preference(evidence.dtype), self.alpha
        alpha = column(alpha.to(evidence.dtype) if isinstance(alpha, Tensor) else alpha)
        alpha, solver = self._for_now(alpha)
        if solver.name == "first_order" or evidence.numel() == 0:
            dual = evidence * column(alpha)
        else:
            dual = _solved(preference, evidence, alpha, solver)
        return preference.tilted(dual).places

    def _places(
        self, grid: tuple[int, int] | None, count: int, counted: Tensor | None, device: torch.device
    ) -> Tensor:
        """The positions of tokens, (S, k), or (N, S, k) where sequences differ in length."""
        if self.dimensions == 1:
            if grid is not None:
                raise ProblemError(
                    f"grid is {shown(grid)}, but dimensions is 1; expected None, or dimensions=2"
                )
            if counted is None:
                return grid_places((count,), device)
            lengths = counted.sum(-1, keepdim=True).clamp(min=1)
            return ((counted.cumsum(-1, dtype=torch.float64) - 0.5) / lengths).unsqueeze(-1)
        height, width = check_grid("ContinuousAttention", grid)
        if height * width != count:
            raise ProblemError(
                f"grid is {shown(grid)} and key has {count} positions; expected (height, width) with height · width = "
                f"{count}, for positions row by row"
            )
        return grid_places((height, width), device)

    def extra_repr(self) -> str:
        """Options that the child modules do not show."""
        learned = isinstance(self.preference_mean, nn.Parameter)
        return (
            f"{self.embed_dim}, num_heads={self.num_heads}, dimensions={self.dimensions}, "
            f"evidence={self.evidence_from!r}, estimator={self.estimator!r}, alpha={shown_number(self, 'alpha', 'g')}, "
            f"preference={'learned' if learned else f'{self._width:g} wide'}"
        )


# A data-dependent iteration cannot be traced.
@untraced
def _solved(
    preference: Continuous1d | Continuous2d, evidence: Tensor, alpha: float | Tensor, solver: Estimator
) -> Tensor:
    if isinstance(solver, Exact) and solver.tol is None:
        solver = replace(solver, tol=DEFAULT_TOL if evidence.dtype == torch.float64 else 1e-5)
    return InferenceProblem(preference, evidence, alpha).solve(solver).dual


# Smallest standard deviation of an observation, relative to the signal: precisions stay within float32.
LEAST_WIDTH = 1e-3


def evidence_of(centre: Tensor, precision: Tensor) -> Tensor:
    """The evidence z, (..., k + k²), of positions (..., k) observed with precisions (..., k, k)."""
    linear = (precision @ centre.unsqueeze(-1)).squeeze(-1)
    return torch.cat([linear, -precision.flatten(-2) / 2], -1)


class QueryPlace(nn.Module):
    """Position and precision from the query: a linear map, then a sigmoid and a Cholesky factor.

    Args:
        embed_dim: Width of queries.
        num_heads: H.
        dimensions: k.
        width: Standard deviation of the observation when the map gives 0.
        **kind: Device and dtype of the parameters.
    """

    def __init__(self, embed_dim: int, num_heads: int, dimensions: int, width: float, **kind: Any) -> None:
        super().__init__()
        self._heads, self._k, self._width = num_heads, dimensions, width
        numbers = dimensions + dimensions * (dimensions + 1) // 2
        self.map = nn.Linear(embed_dim, num_heads * numbers, **kind)

    def forward(
        self, query: Tensor, key: Tensor, places: Tensor, counted: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Centres (B, H, m, k) and precisions (B, H, m, k, k) of queries (B, m, E)."""
        raw = self.map(query).unflatten(-1, (self._heads, -1)).transpose(1, 2)
        raw = widened(raw)
        centre, rest = raw[..., : self._k].sigmoid(), raw[..., self._k :]
        diagonal = nn.functional.softplus(rest[..., : self._k] + math.log(math.e - 1)) / self._width
        # Larger precisions would overflow.
        root = torch.diag_embed(diagonal.clamp(max=1 / LEAST_WIDTH))
        if self._k == 2:
            below = (rest[..., 2] / self._width).clamp(-1 / LEAST_WIDTH, 1 / LEAST_WIDTH)
            root = root + nn.functional.pad(below[..., None, None], (0, 1, 1, 0))
        return centre, root @ root.mT


class ContentPlace(nn.Module):
    """Position and precision as mean and spread of the positions in dot-product attention to the keys.

    Args:
        embed_dim: Width of queries and keys.
        num_heads: H.
        width: Standard deviation added to the spread.
        bias: Whether the projections have a bias.
        **kind: Device and dtype of the parameters.
    """

    def __init__(self, embed_dim: int, num_heads: int, width: float, bias: bool, **kind: Any) -> None:
        super().__init__()
        self._heads, self._width = num_heads, max(width, LEAST_WIDTH)
        self.query_proj, self.key_proj = (
            nn.Linear(embed_dim, embed_dim, bias=bias, **kind) for _ in range(2)
        )

    def forward(
        self, query: Tensor, key: Tensor, places: Tensor, counted: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Centres (B, H, m, k) and precisions (B, H, m, k, k) of queries (B, m, E) that attend to keys (B, n, E)."""
        heads = (self._heads, -1)
        q, k = (
            map_of(x).unflatten(-1, heads).transpose(1, 2)
            for map_of, x in ((self.query_proj, query), (self.key_proj, key))
        )
        q, k = widened(q), widened(k)
        places = places.to(q.dtype)
        offsets = places - places.mean(-2, keepdim=True)
        squares = (offsets.unsqueeze(-1) * offsets.unsqueeze(-2)).flatten(-2)
        shown = torch.cat([offsets, squares], -1)
        shown = shown.expand(q.shape[0], *shown.shape[-2:]).unsqueeze(1).expand(-1, self._heads, -1, -1)
        mask = None
        if counted is not None:
            mask = (counted | ~counted.any(-1, keepdim=True))[:, None, None]
        averages = nn.functional.scaled_dot_product_attention(q, k, shown, attn_mask=mask)
        dim = places.shape[-1]
        mean, second = averages[..., :dim], averages[..., dim:].unflatten(-1, (dim, dim))
        spread = second - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        identity = torch.eye(dim, dtype=q.dtype, device=q.device)
        middle = places.mean(-2, keepdim=True)
        middle = middle if middle.dim() == 2 else middle.unsqueeze(1)
        return mean + middle, inverse_and_determinant(spread + self._width**2 * identity)[0]


def grid_places(counts: tuple[int, ...], device: torch.device | None = None) -> Tensor:
    """The centres of the cells of a grid over the unit interval or square, float64 (n, k); those of an image by rows.

    Example:
        >>> grid_places((2, 2)).tolist()          # (x, y), x along a row, y downwards
        [[0.25, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.75]]
    """
    axes = [(torch.arange(count, dtype=torch.float64, device=device) + 0.5) / count for count in counts]
    if len(axes) == 1:
        return axes[0].unsqueeze(-1)
    rows, columns = torch.meshgrid(*axes, indexing="ij")
    return torch.stack([columns, rows], -1).flatten(0, 1)


class Bumps(nn.Module):
    """Gaussian bumps on a regular grid over the unit interval or square.

    Args:
        dimensions: k, 1 or 2.
        count: Bumps along each dimension.
        ridge: ρ > 0 of the regression.

    Attributes:
        width: σ, the distance between neighbours.
    """

    def __init__(self, dimensions: int, count: int, ridge: float) -> None:
        super().__init__()
        self.width, self.ridge, self._shape = 1 / count, ridge, (count,) * dimensions

    def at(self, places: Tensor) -> Tensor:
        """ψ at positions (..., n, k), (..., n, J)."""
        apart = places.unsqueeze(-2) - self._centres(places)
        return (apart.square().sum(-1) / (-2 * self.width**2)).exp()

    def regressed(self, places: Tensor, values: Tensor, counted: Tensor | None) -> Tensor:
        """Coefficients Bᵀ of values (B, H, n, d), (B, H, J, d).

        Args:
            places: Positions, (n, k), or (B, n, k); without gradient.
            values: (B, H, n, d).
            counted: False where a position is padding, bool (B, n); None for no padding.
        """
        with torch.no_grad():
            # In float64, since the normal equations square the condition number.
            bumps = self.at(places.double())
            weighted = bumps if counted is None else bumps * counted.unsqueeze(-1)
            gram = weighted.mT @ bumps
            refuse_onnx("continuous attention")
            identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
            operator = torch.linalg.solve_ex(gram + self.ridge * identity, weighted.mT)[0].to(values.dtype)
        if operator.dim() == 3:
            operator = operator.unsqueeze(1)
        # Padding may contain NaN.
        if counted is not None:
            values = values.masked_fill(~counted[:, None, :, None], 0)
        return operator @ values

    def expected(self, mean: Tensor, covariance: Tensor) -> Tensor:
        """E[ψ(x)] under Gaussians with mean (..., m, k) and covariance (..., m, k, k), (..., m, J)."""
        identity = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        spread = covariance / self.width**2 + identity
        apart = (mean.unsqueeze(-2) - self._centres(mean)) / self.width
        inverse, determinant = inverse_and_determinant(spread)
        return (-(apart @ inverse * apart).sum(-1) / 2).exp() * determinant.rsqrt().unsqueeze(-1)

    def _centres(self, like: Tensor) -> Tensor:
        # Not a buffer, which the module's .to would cast to half types.
        return grid_places(self._shape, like.device).to(like.dtype)


def inverse_and_determinant(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse and determinant of symmetric matrices (..., k, k), k = 1 or 2, in closed form, which compilers fuse."""
    if matrix.shape[-1] == 1:
        return 1 / matrix, matrix[..., 0, 0]
    a, b, c = matrix[..., 0, 0], matrix[..., 0, 1], matrix[..., 1, 1]
    determinant = a * c - b * b
    adjugate = torch.stack([torch.stack([c, -b], -1), torch.stack([-b, a], -1)], -2)
    return adjugate / determinant[..., None, None], determinant
