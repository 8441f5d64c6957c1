r"""Values at places as a function over all places: ridge regression on Gaussian bumps, and its mean under a Gaussian.

.. math:: v(x) = B\,\psi(x), \qquad \psi_j(x) = e^{-\lVert x-\mu_j\rVert^2/2\sigma^2}, \qquad
          B = V^\top W F\,(F^\top W F + \rho I)^{-1}

with the bumps at the places in the rows of F and W what counts. Under :math:`x \sim \mathcal{N}(m, P)`

.. math:: \mathbb{E}[\psi_j(x)] = \det(I + P/\sigma^2)^{-1/2}\,
          e^{-\frac12 (m-\mu_j)^\top(P+\sigma^2 I)^{-1}(m-\mu_j)}
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Bumps", "grid_places", "inverse_and_determinant"]


def grid_places(counts: tuple[int, ...], device: torch.device | None = None) -> Tensor:
    """The middles of the cells of a grid over the unit interval or square, (n, k): an image's rows one after another.

    Example:
        >>> grid_places((2, 2)).tolist()          # (x, y), x along a row, y downwards
        [[0.25, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.75]]
    """
    axes = [(torch.arange(count, device=device) + 0.5) / count for count in counts]
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
        centres: (J, k).
        width: σ, the distance of neighbours.
    """

    centres: Tensor

    def __init__(self, dimensions: int, count: int, ridge: float) -> None:
        super().__init__()
        self.width, self.ridge, self._shape = 1 / count, ridge, (count,) * dimensions
        self.register_buffer("centres", grid_places(self._shape), persistent=False)

    def at(self, places: Tensor) -> Tensor:
        """ψ at places (..., n, k), (..., n, J)."""
        apart = places.unsqueeze(-2) - self._centres(places)
        return (apart.square().sum(-1) / (-2 * self.width**2)).exp()

    def regressed(self, places: Tensor, values: Tensor, counted: Tensor | None) -> Tensor:
        """Coefficients Bᵀ of values (B, H, n, d), (B, H, J, d).

        Args:
            places: (n, k), or (B, n, k).
            values: Whose gradient passes.
            counted: Which places count, bool (B, n); None is all.
        """
        with torch.no_grad():
            # The normal equations square how far bumps are from independent.
            bumps = self.at(places.double())
            weighted = bumps if counted is None else bumps * counted.unsqueeze(-1)
            gram = weighted.mT @ bumps
            identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
            operator = torch.linalg.solve(gram + self.ridge * identity, weighted.mT).to(values.dtype)
        if operator.dim() == 3:
            operator = operator.unsqueeze(1)
        # A place that does not count may hold anything.
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
        # Not the buffer, which a module's .to makes a half type.
        return grid_places(self._shape, like.device).to(like.dtype)


def inverse_and_determinant(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Of symmetric matrices (..., k, k) of size 1 or 2, written out: compilers take them for elementwise work."""
    if matrix.shape[-1] == 1:
        return 1 / matrix, matrix[..., 0, 0]
    a, b, c = matrix[..., 0, 0], matrix[..., 0, 1], matrix[..., 1, 1]
    determinant = a * c - b * b
    adjugate = torch.stack([torch.stack([c, -b], -1), torch.stack([-b, a], -1)], -2)
    return adjugate / determinant[..., None, None], determinant
