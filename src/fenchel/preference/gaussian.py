"""Gaussian preferences, for which second order is exact, and mixtures of Gaussians."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily
from typing_extensions import override

from fenchel.errors import ProblemError
from fenchel.preference.abstract import (
    AbstractPreference,
    AbstractWeighted,
    Shape,
    check_together,
    checked_parameter,
    counted_and_small,
    some_rows,
    sums,
)
from fenchel.preference.covariance import checked_covariance
from fenchel.preference.discrete import (
    center_of,
    checked_log_weights,
    checked_sample_shape,
    displacement,
    drawn_indices,
    log_mean_exp,
    picked,
)
from fenchel.tensors import HALF, first_index, values_are_known


class Gaussian(AbstractPreference):
    r"""The normal distribution :math:`\mathcal{N}(\mu, \Sigma)`.

    .. math:: \log M(\lambda) = \langle\mu, \lambda\rangle + \tfrac12\langle\lambda, \Sigma\lambda\rangle, \qquad
              p(\lambda) = \mathcal{N}(\mu + \Sigma\lambda, \Sigma)

    The cumulant is quadratic, which makes second order exact. No d × d matrix is formed unless one is given.

    Args:
        mean: μ, shape (d,) for all queries, or (..., m or 1, d). Half types are converted to float32.
        covariance: Σ, (d, d) or (..., m or 1, d, d), symmetric positive semidefinite. Alternatively:
        variance: Variances of uncorrelated coordinates, (d,) or (..., m or 1, d), or one for all coordinates, a
            number or (..., m or 1, 1); 0 is allowed.
        factor: F of low rank, (d, k) or (..., m or 1, d, k): adds :math:`FF^\top` to the variances, which are 0 if
            not given.

    Raises:
        ProblemError: If shapes, dtypes or devices are inconsistent, an entry is NaN or infinite, the covariance is not
            symmetric positive semidefinite, a variance is negative, or no covariance is given.

    Reference:
        Section 5; Section 6, eqs. (12) and (13).

    Example:
        >>> from fenchel import InferenceProblem
        >>> u = Gaussian(torch.tensor([1.0, 0.0], dtype=torch.float64), variance=1.0)
        >>> b = torch.tensor([[3.0, 3.0]], dtype=torch.float64)                     # an observation of the mean
        >>> problem = InferenceProblem(u, b - u.mean(), alpha=2.0)
        >>> problem.solve("second_order").mean                # section 5: (mu + alpha b) / (1 + alpha)
        tensor([[2.3333, 2.0000]], dtype=torch.float64)
    """

    resolves_shift = True
    rows = ("_mean", "_covariance")

    def __init__(
        self,
        mean: Tensor,
        covariance: Tensor | None = None,
        *,
        variance: float | Tensor | None = None,
        factor: Tensor | None = None,
    ) -> None:
        mean = checked_parameter("mean", mean, "(d,) or (..., m, d)", dims=1)
        result = checked_covariance(mean, covariance, variance, factor)
        check_together(mean=mean.shape[:-1], covariance=tuple(result.lead))
        self._mean, self._covariance = mean, result

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        return (lam * (self._mean + self._covariance.product(lam) / 2)).sum(-1)

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        return self._mean + self.tilted_shift(lam)

    @override
    def tilted_shift(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        return self._covariance.product(lam)

    @override
    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        return self._covariance.product

    def resolvent(self, lam: Tensor, alpha: Tensor, vector: Tensor) -> Tensor:
        """With one step of iterative refinement, since the first residual is rounding times the covariance."""
        result = self._covariance.resolvent(alpha, vector)
        residual = vector - result - alpha * self._covariance.product(result)
        return result + self._covariance.resolvent(alpha, residual)

    def rounding(self, lam: Tensor) -> Tensor:
        """The error of sums of products: ‖|Σ||λ|‖ is at most tr Σ ‖λ‖ for each of the three structures."""
        return sums(self.dim) * self._covariance.trace() * lam.norm(dim=-1)

    @override
    def smoothness(self) -> Tensor:
        return self._covariance.trace().expand(torch.broadcast_shapes((1,), self._covariance.lead))

    def torch_distribution(self) -> Distribution:
        """``Independent(Normal)``, ``MultivariateNormal`` or ``LowRankMultivariateNormal``, depending on Σ.

        Raises:
            ProblemError: If the covariance is singular, as there is no density.
        """
        self._covariance.check_definite()
        return self._covariance.normal(self._mean).expand(self.lead)

    def covariance(self) -> Tensor:
        """The covariance Σ as a matrix, (..., m or 1, d, d)."""
        return self._covariance.matrix()

    @override
    def tilted(self, lam: Tensor) -> Gaussian:
        return self._changed(_mean=self.tilted_mean(lam))

    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Samples μ + Σ^½ε, shape (\*shape, ..., m or 1, d), differentiable in both parameters.

        Args:
            shape: Shape of the samples; () is one of each distribution.
            generator: Source of randomness; torch's default generator if None.

        Raises:
            ProblemError: If the shape is invalid.
        """
        sizes = checked_sample_shape(shape, generator, self.device)
        return self._mean + self._covariance.noise((*sizes, *self.lead, self.dim), generator)

    def log_density(self, points: Tensor) -> Tensor:
        """The log density at points (..., m, d), (..., m).

        Raises:
            ProblemError: If the covariance is singular, as there is no density.
        """
        self.check_point("points", points)
        self._covariance.check_definite()
        return self._covariance.log_density(points - self._mean)

    def __repr__(self) -> str:
        kind = type(self._covariance).__name__.lower()
        return self._described(f"dim={self.dim}", f"covariance={kind}")


class GaussianMixture(AbstractWeighted):
    r"""The mixture :math:`u = \sum_k w_k\,\mathcal{N}(m_k, S_k)`.

    .. math:: \log M(\lambda) = \log\sum_k w_k
              e^{\langle m_k, \lambda\rangle + \frac12\langle\lambda, S_k\lambda\rangle}, \qquad
              h(\lambda) = \sum_k r_k\,(m_k + S_k\lambda)

    with the responsibilities r(λ), the shares of the terms in the sum. If every :math:`S_k` is 0 this is a
    :class:`~fenchel.Discrete` preference on the means, and first order is softmax attention (fact 11).

    Args:
        means: :math:`m_k`, shape (..., K, d). Half types are converted to float32.
        variances: Variances of uncorrelated coordinates, (..., K, d), or one for all coordinates, a number or
            (..., K, 1); 0 is allowed.
        log_weights: :math:`\log w_k`, (K,), (m, K) (one row per query) or (..., m or 1, K), of weights that sum to one;
            or a bool mask of such a shape, True for unmasked components. None is the uniform mixture.
        covariances: :math:`S_k`, (..., K, d, d), instead of the variances, symmetric positive semidefinite.
        factors: :math:`F_k` of low rank, (..., K, d, k): add :math:`F_kF_k^\top` to the variances, which are 0 if not
            given.

    Raises:
        ProblemError: If shapes, dtypes or devices are inconsistent, an entry is NaN or infinite, a covariance is not
            symmetric positive semidefinite, a variance is negative, or weights do not sum to one or are all zero.

    Reference:
        Section 7, which leaves continuous preferences open; ``docs/continuous.md``.

    Example:
        >>> from fenchel import InferenceProblem
        >>> means = torch.tensor([[2.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
        >>> variances = torch.tensor([[1.0, 1.0], [0.1, 0.1]], dtype=torch.float64)
        >>> problem = InferenceProblem(GaussianMixture(means, variances), torch.ones(1, 2, dtype=torch.float64))
        >>> problem.solve("exact").distribution.weights()                    # evidence moves the wide component more
        tensor([[0.5398, 0.4602]], dtype=torch.float64)
    """

    resolves_shift = True

    def __init__(
        self,
        means: Tensor,
        variances: float | Tensor | None = None,
        log_weights: Tensor | None = None,
        *,
        covariances: Tensor | None = None,
        factors: Tensor | None = None,
    ) -> None:
        means = checked_parameter("means", means, "(..., K, d)", dims=2)
        result = checked_covariance(means, covariances, variances, factors, components=means.shape[-2])
        self.means, self._covariances = means, result
        self._set_weights(_checked_weights(log_weights, means))
        # Whether each query has its own components (..., m, K, d), as after a tilt.
        self._own = False
        batch = {"means": (*means.shape[:-2], 1), "covariances": (*result.lead[:-1], 1)}
        check_together(**batch, log_weights=self.log_weights.shape[:-1])

    @property
    def components(self) -> int:
        """Number of components, K."""
        return self.means.shape[-2]

    @property
    @override
    def lead(self) -> torch.Size:
        batch = torch.broadcast_shapes(self.means.shape[:-2], self._covariances.lead[:-1])
        if self._own:
            return torch.broadcast_shapes(batch, self.log_weights.shape[:-2])
        return torch.broadcast_shapes((*batch, 1), self.log_weights.shape[:-1])

    @property
    @override
    def width(self) -> int:
        return max(self.dim, self.components * self._covariances.width)

    def _rows(self, vectors: Tensor) -> Tensor:
        """Vectors (..., m, d) with a dimension for the components of their query, if each has its own."""
        return vectors.unsqueeze(-2) if self._own else vectors

    def _back(self, rows: Tensor) -> Tensor:
        return rows.squeeze(-2) if self._own else rows

    def _center(self) -> Tensor:
        """A common vector; subtracting it changes responsibilities only by rounding."""
        return center_of(self.means, self.log_weights)

    def _tilt(self, lam: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows of λ, centred means, exponents (..., m, K) and the responsibilities."""
        rows, centers = self._rows(lam), self.means - self._center()
        exponents = self._covariances.exponents(centers, rows)
        return rows, centers, exponents, torch.softmax(self.log_weights + exponents, -1)

    def weights(self) -> Tensor:
        """The weights w of the components, (..., m or 1, K)."""
        return self._back(self.log_weights.exp())

    def responsibilities(self, lam: Tensor) -> Tensor:
        r"""The weights r(λ) of the components in p(λ), (..., m, K)."""
        self.check_point("lam", lam)
        return self._back(self._tilt(lam)[3])

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        rows, center = self._rows(lam), self._center()
        exponents = self._covariances.exponents
        plain, centred = (exponents(means, rows) for means in (self.means, self.means - center))
        result = log_mean_exp(plain, centred, (rows @ center.mT).squeeze(-1), self.log_weights)
        return self._back(result.unsqueeze(-1)).squeeze(-1)

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        rows, _, _, r = self._tilt(lam)
        return self._back(r @ self.means + self._covariances.combined(r, rows))

    def tilted_shift(self, lam: Tensor) -> Tensor:
        r""":math:`\sum_k (r_k - w_k)\,m_k + \sum_k r_k S_k\lambda`, without cancellation for small λ."""
        self.check_point("lam", lam)
        rows, centers, exponents, r = self._tilt(lam)
        moved = displacement(exponents, self.log_weights, r)
        return self._back(moved @ centers + self._covariances.combined(r, rows))

    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        r""":math:`\sum_k r_k S_k + \operatorname{Cov}_r(m_k + S_k\lambda)`."""
        rows, centers, _, r = self._tilt(lam)
        covariances = self._covariances
        mean = r @ centers + covariances.combined(r, rows)

        def product(vector: Tensor) -> Tensor:
            v = self._rows(vector)
            along = v @ centers.mT + covariances.forms(rows, v)
            moved = r * (along - (r * along).sum(-1, keepdim=True))
            # The sum of moved, a rounding error, is assigned to the component with nearly all weight.
            rest = moved.sum(-1, keepdim=True)
            return self._back(
                moved @ centers + covariances.combined(moved, rows) + covariances.combined(r, v) - rest * mean
            )

        return product

    def rounding(self, lam: Tensor) -> Tensor:
        r"""The rounding of exponents times the distance of components, as for weights of templates.

        With :math:`\rho = \max\lVert m_k - c\rVert` and :math:`T = \max\operatorname{tr}S_k` the error of an exponent
        is some roundings of :math:`\delta = L\rho + \frac12TL^2`, and the distance of components is at most
        :math:`\rho + TL`, which matters if responsibilities are spread. For small exponents errors are relative to the
        changes that they cause.
        """
        rows, centers, exponents, r = self._tilt(lam)
        length = rows.norm(dim=-1)
        counted = (self.log_weights > -torch.inf).any(-2)
        radius = (centers.norm(dim=-1) * counted).amax(-1, keepdim=True)
        trace = (self._covariances.trace() * counted).amax(-1, keepdim=True)
        near = counted_and_small(exponents, self.log_weights)[1].squeeze(-1)
        unit = sums(self.dim) + sums(self.components)
        unit *= torch.finfo(lam.dtype).eps / torch.finfo(torch.float64).eps
        size = length * radius + trace * length.square() / 2
        spread = (1 - r.amax(-1)).clamp(min=unit).sqrt()
        far = unit * (radius + trace * length) * (1 + 4 * (1 + size) * spread)
        close = unit * (4 * size * radius + trace * length)
        return self._back(torch.where(near, torch.minimum(close, far), far).unsqueeze(-1)).squeeze(-1)

    def mean_rounding(self) -> Tensor:
        """The error of component means that may be much larger than the mean of the mixture."""
        counted = (self.log_weights > -torch.inf).any(-2)
        largest = (self.means.norm(dim=-1) * counted).amax(-1, keepdim=True)
        return self._back((sums(self.components) * largest).unsqueeze(-1)).squeeze(-1)

    def tilted(self, lam: Tensor) -> GaussianMixture:
        r"""The tilted components :math:`\mathcal{N}(m_k + S_k\lambda, S_k)`, weighted by the responsibilities."""
        self.check_point("lam", lam)
        rows, centers = self._rows(lam), self.means - self._center()
        log_weights = torch.log_softmax(self.log_weights + self._covariances.exponents(centers, rows), -1)
        if self._own:
            moved = self._covariances.product(rows)
            return self._changed(means=self.means + moved, log_weights=log_weights, _original=None)
        # Components first, as all rows share the matrix of each.
        moved = self._covariances.unsqueezed(-1).product(rows.unsqueeze(-3)).transpose(-2, -3)
        return self._changed(
            means=self.means.unsqueeze(-3) + moved,
            _covariances=self._covariances.unsqueezed(-2),
            log_weights=log_weights.unsqueeze(-2),
            _original=None,
            _own=True,
        )

    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Samples, shape (\*shape, ..., m or 1, d), each from a sampled component.

        Differentiable in means and covariances; the choice of a component has no gradient with respect to the weights.

        Args:
            shape: Shape of the samples; () is one of each distribution.
            generator: Source of randomness; torch's default generator if None.

        Raises:
            ProblemError: If the shape is invalid.
        """
        index = drawn_indices(self.weights(), self.lead, shape, generator)

        def pick(parameter: Tensor, dims: int) -> Tensor:
            return picked(self._before_components(parameter, dims), index, dims)

        return pick(self.means, 1) + self._covariances.noise((*index.shape, self.dim), generator, pick)

    def _before_components(self, parameter: Tensor, dims: int) -> Tensor:
        """A parameter (..., K, *) as (..., m or 1, K, *)."""
        return parameter if self._own else parameter.unsqueeze(-dims - 2)

    def torch_distribution(self) -> MixtureSameFamily:
        """``MixtureSameFamily``.

        Raises:
            ProblemError: If a covariance is singular, as there is no density.
        """
        self._covariances.check_definite()
        means = self._before_components(self.means, 1)
        covariances = self._covariances if self._own else self._covariances.unsqueezed(-2)
        shape = (*self.lead, self.components)
        weights = Categorical(logits=self.log_weights.reshape(*self.weights().shape), validate_args=False)
        return MixtureSameFamily(
            weights.expand(self.lead), covariances.normal(means).expand(shape), validate_args=False
        )

    def log_density(self, points: Tensor) -> Tensor:
        """The log density at points (..., m, d), (..., m).

        Raises:
            ProblemError: If a covariance is singular, as there is no density.
        """
        self.check_point("points", points)
        self._covariances.check_definite()
        rows, each = self._rows(points), self._covariances.unsqueezed(-1)
        # Components first, as all rows share the matrix of each.
        of_each = each.log_density(rows.unsqueeze(-3) - self.means.unsqueeze(-2)).mT
        return self._back(torch.logsumexp(self.log_weights + of_each, -1, keepdim=True)).squeeze(-1)

    @override
    def queries(self, part: slice) -> GaussianMixture:
        if self.lead[-1] == 1 or not self._own:
            return super().queries(part)
        return self._changed(
            means=some_rows(self.means, part, 2),
            _covariances=self._covariances.part(-2, part),
            log_weights=some_rows(self.log_weights, part, 2),
        )

    def __repr__(self) -> str:
        kind = type(self._covariances).__name__.lower()
        return self._described(f"components={self.components}", f"dim={self.dim}", f"covariances={kind}")


def _checked_weights(log_weights: Tensor | None, means: Tensor) -> Tensor:
    """Log weights (..., m or 1, K), of weights that sum to about one."""
    components = means.shape[-2]
    if log_weights is None:
        return means.new_zeros(1, components)
    result = checked_log_weights(log_weights, components, means, of="means", thing="components")
    if log_weights.dtype != torch.bool and values_are_known(result):
        total = result.detach().double().exp().sum(-1)
        wrong = (total - 1).abs() > (2e-2 if log_weights.dtype in HALF else 1e-3)
        if bool(wrong.any()):
            where = first_index(wrong)
            plain = bool((result >= 0).all()) and bool(((result.detach().sum(-1) - 1).abs() < 1e-3).all())
            remedy = (
                "log_weights.log(), since these are the weights" if plain else "log_weights.log_softmax(-1)"
            )
            raise ProblemError(
                f"log_weights are those of weights that sum to {float(total[where]):.6g} at index {where}; expected a "
                f"sum of 1: pass {remedy}, or a bool mask"
            )
    return result
