"""Abstract preferences, defined by their cumulant and its first two derivatives; checks of parameters; small shifts."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Distribution
from typing_extensions import override

from fenchel.errors import DomainError, ProblemError
from fenchel.tensors import (
    PRECISE,
    UNIT,
    check_device,
    check_dtype,
    check_entries,
    check_floating,
    check_tensor,
    first_index,
    has,
    is_under_autocast,
    summed,
    values_are_known,
    widened,
)

# The shape of samples; () is one sample of each distribution.
Shape = int | tuple[int, ...] | torch.Size


class Replaceable:
    """An object that can be copied with some attributes replaced, of a class that others may extend.

    Attributes:
        unchecked: A list of whether its first use has to check it, shared by copies; true of other packages' classes.
    """

    unchecked: list[bool]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.unchecked = [not cls.__module__.startswith("fenchel.")]

    def _changed(self, **attributes: Any) -> Self:
        """A copy with some attributes replaced, unchecked."""
        made = copy.copy(self)
        vars(made).update(attributes)
        return made


class Convertible(Replaceable, ABC):
    """An object made of tensors that can be converted to another dtype and restricted to some queries."""

    @property
    @abstractmethod
    def lead(self) -> torch.Size:
        """The leading shape (..., m or 1)."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Self:
        """The same object in another floating-point dtype."""

    @abstractmethod
    def queries(self, part: slice) -> Self:
        """The same object for some of the m queries."""


class AbstractPreference(Convertible):
    r"""A distribution u of vectors t (..., d), defined by its cumulant.

    .. math:: \log M(\lambda) = \log \mathbb{E}_u\, e^{\langle t, \lambda\rangle}, \qquad
              \nabla\log M(\lambda) = \mathbb{E}_{p(\lambda)}[t], \qquad
              \nabla^2\log M(\lambda) = \operatorname{Cov}_{p(\lambda)}(t)

    where p(λ), u tilted by λ, has density :math:`e^{\langle t, \lambda\rangle}/M(\lambda)` with respect to u.
    Subclasses implement ``log_mgf``; ``tilted_mean`` and ``tilted_covariance`` are its derivatives by autograd unless
    overridden. With :class:`~fenchel.KL` this gives every estimator, bound and gradient. Dimension, dtype and device
    are those of the first attribute that is a tensor (..., d) or a preference; gradients reach all parameters among the
    attributes.

    Subclasses may override: ``dim``, ``dtype``, ``device`` and ``to``; ``reach``, where log M is finite;
    ``tilted_shift`` and ``rounding``, the shift of the mean without cancellation and its rounding error;
    ``smoothness``, a bound on the covariances; ``tilted``, ``sample`` and ``log_density``; and ``rows``, the
    attributes with one row per query.

    Reference:
        Section 4, eq. (8); Section 5.
    """

    resolves_shift: bool = False
    """Whether ``tilted_shift`` has a relative error of some roundings, bounded by ``rounding``."""

    rows: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes with one row per query: tensors (..., m or 1, any), and preferences."""

    def _rows_of_queries(self) -> dict[str, Tensor | Convertible]:
        parts = {name: getattr(self, name) for name in self.rows}
        return {name: part for name, part in parts.items() if isinstance(part, Tensor | Convertible)}

    @property
    def vectors(self) -> str:
        """Name of the vectors in error messages."""
        return "the preference's vectors"

    def _source(self) -> Tensor | AbstractPreference:
        """The attribute that determines dimension, dtype and device."""
        for part in vars(self).values():
            if isinstance(part, Tensor | AbstractPreference):
                return part
        raise NotImplementedError(
            f"{type(self).__name__} has no tensor among its attributes; implement dim, dtype, device and to"
        )

    @property
    def dim(self) -> int:
        """Dimension of a vector, d."""
        source = self._source()
        return source.shape[-1] if isinstance(source, Tensor) else source.dim

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all computations: float32 or float64."""
        return self._source().dtype

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return self._source().device

    @property
    def lead(self) -> torch.Size:
        """The leading shape (..., m or 1), by default the broadcast shape of all ``rows``."""
        rows = self._rows_of_queries().values()
        shapes = [row.shape[:-1] if isinstance(row, Tensor) else row.lead for row in rows]
        return torch.broadcast_shapes((1,), *shapes)

    def check_point(self, name: str, point: Tensor) -> None:
        """Check that a tensor (..., m, d), such as a dual point, matches the vectors.

        Raises:
            ProblemError: If it has another dimension, dtype or device.
        """
        self.check_vectors(name, point, f"(..., m, d), in the space of {self.vectors}", self.dim)

    def check_vectors(self, name: str, tensor: Tensor, form: str, width: int) -> None:
        """Check that a tensor (..., width) has the dtype and device of the vectors.

        Raises:
            ProblemError: If not, or if it has another last dimension; the message has the shape in words, ``form``.
        """
        check_tensor(name, tensor, form, sizes=(..., width), device=self.device, other=self.vectors)
        if not is_under_autocast(tensor):
            check_dtype(name, tensor, self.dtype, self.vectors)

    def check_inside(self, lam: Tensor) -> None:
        """Check that log M is finite at dual points (..., m, d), so that there are tilted distributions.

        Raises:
            DomainError: If not; the message has the number of such points, and the first.
        """
        inside = self.inside(lam)
        if inside is None or bool(inside.all()):
            return
        where = first_index(~inside)
        raise DomainError(
            f"log M of the {type(self).__name__} preference is infinite at {int((~inside).sum())} of {inside.numel()} "
            f"dual points (first at index {where}), where there is neither a tilted distribution nor a gradient; "
            "expected a smaller alpha or evidence, or tensors in float64 if this is due to rounding",
            query=where,
        )

    @abstractmethod
    def log_mgf(self, lam: Tensor) -> Tensor:
        r"""The cumulant :math:`\log M(\lambda)`, shape (..., m) for ``lam`` (..., m, d)."""

    def tilted_mean(self, lam: Tensor) -> Tensor:
        r"""The mean of p(λ), :math:`\nabla\log M(\lambda)`, shape (..., m, d); by autograd unless overridden."""
        return torch.func.grad(lambda at: self.log_mgf(at).sum())(lam)

    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        r"""The product of vectors (..., m, d) with the covariance of p(λ), :math:`\nabla^2\log M(\lambda)`."""
        return jacobian_of_gradient(self.tilted_mean, lam)

    def reach(self, lam: Tensor, direction: Tensor) -> Tensor | None:
        """The largest t with λ + t·direction in the domain of log M, (..., m); None if that is the whole space."""
        return None

    def inside(self, lam: Tensor) -> Tensor | None:
        """Whether log M is finite at λ, bool (..., m); None if it is finite everywhere.

        The domain is convex and contains 0: λ is inside if it can be reached from 0.
        """
        reach = self.reach(torch.zeros_like(lam), lam)
        return None if reach is None else reach > 1

    def tilted_shift(self, lam: Tensor) -> Tensor:
        """The mean of p(λ) minus the mean of u, (..., m, d), zero at λ = 0."""
        return self.tilted_mean(lam) - self.tilted_mean(torch.zeros_like(lam))

    def rounding(self, lam: Tensor) -> Tensor | None:
        """A bound on the error of ``tilted_shift`` in float64, (..., m); None if there is none."""
        return None

    def mean_rounding(self) -> Tensor | None:
        """Rounding error of the mean in addition to that of its shift and its last digits, (..., m); None for zero.

        For example if terms are much larger than their sum.
        """
        return None

    def resolvent(self, lam: Tensor, alpha: Tensor, vector: Tensor) -> Tensor | None:
        r""":math:`(I + \alpha\nabla^2\log M(\lambda))^{-1}v` in closed form, (..., m, d), or None if there is none.

        Args:
            lam: λ, (..., m, d).
            alpha: α, which broadcasts to (..., m, 1).
            vector: v, (..., m, d).
        """
        return None

    def smoothness(self) -> Tensor | None:
        """A bound on the eigenvalues of every tilted covariance, broadcasting to (..., m), or None."""
        return None

    @property
    def width(self) -> int:
        """Count of numbers in memory to evaluate the mean of one query; determines the size of blocks."""
        return self.dim

    def mean(self) -> Tensor:
        r"""The mean :math:`\mu = \mathbb{E}_u[t]`, shape (..., m or 1, d)."""
        return self.tilted_mean(torch.zeros((*self.lead, self.dim), dtype=self.dtype, device=self.device))

    def covariance_product(self, vector: Tensor) -> Tensor:
        r"""The product :math:`\Sigma v` with the covariance of u, shape (..., m, d) for ``vector`` (..., m, d)."""
        self.check_point("vector", vector)
        return self.tilted_covariance(torch.zeros_like(vector))(vector)

    def tilted(self, lam: Tensor) -> AbstractPreference:
        r"""p(λ) for λ (..., m, d): the density of u times :math:`e^{\langle t, \lambda\rangle}/M(\lambda)`."""
        self.check_point("lam", lam)
        return Tilted(self, lam)

    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Samples, shape (\*shape, ..., m or 1, d).

        Args:
            shape: Shape of the samples; () is one of each distribution.
            generator: Source of randomness; torch's default generator if None.

        Raises:
            ProblemError: If the family does not implement sampling.
        """
        raise ProblemError(f"{type(self).__name__} cannot be sampled: it does not implement sample")

    def log_density(self, points: Tensor) -> Tensor:
        """Log density (log probability if discrete) at points (..., m, d), (..., m).

        Raises:
            ProblemError: If the distribution has no density, or the family does not implement it.
        """
        raise ProblemError(
            f"the log density of {type(self).__name__} is not known: it does not implement log_density"
        )

    def torch_distribution(self) -> Distribution:
        """The distribution as an object of ``torch.distributions``, batch shape (..., m or 1), event shape (d,).

        It shares tensors and gradients with this preference, and does not validate its arguments.

        Raises:
            ProblemError: If torch has no such distribution, or the distribution has no density.
        """
        raise self._no_counterpart()

    def _no_counterpart(self) -> ProblemError:
        return ProblemError(
            f"torch.distributions has no counterpart of {type(self).__name__}; expected one of fenchel's Bernoulli, "
            "Poisson, Gamma, Laplace, Box, Gaussian and GaussianMixture; sample and log_density work without one"
        )

    def to(self, dtype: torch.dtype) -> Self:
        """The same preference with all floating-point attributes converted to another dtype.

        Raises:
            ProblemError: If it is neither float32 nor float64.
        """
        if dtype == self.dtype:
            return self
        check_floating("dtype", dtype, PRECISE)
        parts = {
            name: part.to(dtype)
            for name, part in vars(self).items()
            if isinstance(part, Convertible) or (isinstance(part, Tensor) and part.is_floating_point())
        }
        return self._changed(**parts)

    def queries(self, part: slice) -> Self:
        """The preference of some of the m queries; itself if all queries share one distribution."""
        if self.lead[-1] == 1:
            return self
        if not self.rows:
            raise NotImplementedError(
                f"{type(self).__name__} has one row per query; list these attributes in rows, or implement "
                "queries(part)"
            )
        rows = self._rows_of_queries().items()
        return self._changed(
            **{name: some_rows(x, part) if isinstance(x, Tensor) else x.queries(part) for name, x in rows}
        )

    @classmethod
    def _of(cls, **attributes: Any) -> Self:
        """An instance with these attributes, unchecked."""
        made = object.__new__(cls)
        vars(made).update(attributes)
        return made

    def _described(self, *parts: str) -> str:
        listed = ", ".join((f"queries={tuple(self.lead)}", *parts))
        return f"{type(self).__name__}({listed}, dtype={self.dtype}, device='{self.device}')"

    def __repr__(self) -> str:
        return self._described(f"dim={self.dim}")


class AbstractWeighted(AbstractPreference):
    """A preference with log weights, which are normalised: rounded sums of what is given.

    Attributes:
        log_weights: Log w, normalised, (..., m or 1, n).
    """

    rows = ("log_weights", "_original")
    log_weights: Tensor
    _original: Tensor | None = None

    def _set_weights(self, original: Tensor) -> None:
        self.log_weights = original.log_softmax(-1)
        if self.dtype != torch.float64:
            # Normalising rounds; conversion to another dtype normalises the original log weights.
            self._original = original.detach()

    @override
    def to(self, dtype: torch.dtype) -> Self:
        made = super().to(dtype)
        if made is self:
            return made
        given = made._original
        if given is None or (made.log_weights.requires_grad and torch.is_grad_enabled()):
            given = made.log_weights
        return made._changed(log_weights=given.log_softmax(-1), _original=None)


def of_source(name: str) -> Any:
    """The method with that name of a view's source, at the λ, if it takes one, that the view maps to."""

    def method(view: AbstractView, *tensors: Tensor) -> Any:
        return getattr(view.source, name)(*map(view._lam_of_source, tensors[:1]), *tensors[1:])

    return method


class AbstractView(AbstractPreference):
    """A preference that evaluates another one at a function of λ.

    Args:
        source: The other preference.
    """

    rows = ("source",)

    def __init__(self, source: AbstractPreference) -> None:
        self.source = source

    def _lam_of_source(self, lam: Tensor) -> Tensor:
        """The λ at which the source is evaluated; the same by default."""
        return lam

    log_mgf = of_source("log_mgf")
    tilted_mean = of_source("tilted_mean")
    tilted_covariance = of_source("tilted_covariance")
    reach = of_source("reach")
    inside = of_source("inside")
    resolvent = of_source("resolvent")
    smoothness = of_source("smoothness")

    @property
    @override
    def width(self) -> int:
        return self.source.width


class Tilted(AbstractView):
    r"""The distribution u tilted by λ, for families without a special form of it.

    .. math:: \log M_\lambda(\eta) = \log M(\lambda + \eta) - \log M(\lambda)

    Args:
        base: u.
        lam: λ, (..., m, d).
    """

    rows = ("source", "lam")

    def __init__(self, base: AbstractPreference, lam: Tensor) -> None:
        super().__init__(base)
        self.lam = lam

    @property
    def base(self) -> AbstractPreference:
        """U."""
        return self.source

    @override
    def _lam_of_source(self, lam: Tensor) -> Tensor:
        return self.lam + lam

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        return super().log_mgf(lam) - self.base.log_mgf(self.lam)

    @override
    def tilted(self, lam: Tensor) -> AbstractPreference:
        return self.base.tilted(self.lam + lam)

    @override
    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        raise ProblemError(
            f"a tilted {type(self.base).__name__} cannot be sampled: its class does not override tilted with a "
            "distribution that can be"
        )

    @override
    def log_density(self, points: Tensor) -> Tensor:
        tilt = (points * self.lam).sum(-1) - self.base.log_mgf(self.lam)
        return self.base.log_density(points) + tilt

    def __repr__(self) -> str:
        return f"Tilted({self.base!r}, queries={tuple(self.lead)})"


def some_rows(tensor: Tensor, part: slice, dims: int = 1) -> Tensor:
    """Some rows of a tensor, or its only one; ``dims`` dimensions follow that of the rows."""
    if tensor.dim() <= dims or tensor.shape[-dims - 1] == 1:
        return tensor
    return tensor[(..., part, *[slice(None)] * dims)]


def jacobian_of_gradient(gradient: Callable[[Tensor], Tensor], at: Tensor) -> Callable[[Tensor], Tensor]:
    """The derivative of a gradient as a function of vectors, by autograd.

    The derivative is symmetric, which makes vector-Jacobian products Jacobian-vector products.
    """
    differentiated: Any = torch.func.vjp(gradient, at)
    result, pullback = differentiated

    def product(vector: Tensor) -> Tensor:
        return pullback(vector.expand_as(result))[0]

    return product


def checked_parameter(
    name: str,
    value: Any,
    form: str,
    *,
    dims: int = 0,
    like: Tensor | None = None,
    of: str = "",
    above: float | None = None,
    least: float | None = None,
    remedy: str = "",
) -> Tensor:
    """A parameter of a distribution as a tensor, checked.

    Args:
        name: Name of the argument; a plural ends in "s".
        value: A tensor, or a number if ``like`` is given.
        form: Its shape in words.
        dims: Minimum number of dimensions of a tensor, none of which may have size 0.
        like: A tensor with the required dtype and device.
        of: Name of that tensor.
        above: Exclusive lower bound of the entries.
        least: Inclusive lower bound of the entries.
        remedy: Advice for entries that break a bound.

    Raises:
        ProblemError: If a check fails.
    """
    if like is not None and type(value) in (int, float):
        value, dims = torch.full((), float(value), dtype=like.dtype, device=like.device), 0
    check_tensor(name, value, form)
    if value.is_meta:
        raise ProblemError(f"{name} {has(name)} no values on the meta device; expected another device")
    value = widened(value)
    if like is not None:
        check_device(name, value, like.device, of)
        check_dtype(name, value, like.dtype, of)
    check_form(name, value, form, dims)
    check_entries(name, value, torch.isfinite, "finite numbers", remedy)
    if above is not None:
        check_entries(name, value, lambda x: x > above, f"numbers above {above:g}", remedy)
    if least is not None:
        check_entries(name, value, lambda x: x >= least, f"numbers of {least:g} or more", remedy)
    return value


def check_form(name: str, tensor: Tensor, form: str, dims: int) -> None:
    """Raise for a tensor with fewer dimensions than its form, or without entries.

    Raises:
        ProblemError: With its shape.
    """
    if tensor.dim() < dims or 0 in tensor.shape:
        empty = ", none of them 0" if 0 in tensor.shape else ""
        raise ProblemError(f"{name} {has(name)} shape {tuple(tensor.shape)}; expected {form}{empty}")


def sums(count: int) -> float:
    """Relative rounding error of two sums of ``count`` terms in float64, one after the other."""
    return (2 * summed(count) + 8) * UNIT


def check_together(
    note: str = "",
    what: str = "leading dimensions do not broadcast to one shape (..., m)",
    /,
    **shapes: tuple[int, ...],
) -> torch.Size:
    """The shape to which several shapes broadcast, by default the leading ones of parameters.

    Args:
        note: Follows the shapes in the message.
        what: The error, which precedes them.
        **shapes: The shapes, by name.

    Raises:
        ProblemError: If they do not broadcast; the message has all of them.
    """
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ProblemError(f"{what}: {listed}{note}") from None


# Potentials up to this, in units of the modulus, use formulas without cancellation.
SMALL = 0.5


def near_displacement(potential: Tensor, preference: Tensor) -> Tensor:
    r"""The difference p - u at a small potential (..., m, n), to rounding relative to itself.

    .. math:: p_i - u_i = u_i\,\frac{e_i - \langle u, e\rangle}{1 + \langle u, e\rangle}, \qquad e = e^f - 1
    """
    e = torch.expm1(potential)
    mass = (preference * e).sum(-1, keepdim=True)
    return preference * (e - mass) / (1 + mass)


def counted_and_small(
    exponents: Tensor, log_weights: Tensor | None, level: float | Tensor = SMALL
) -> tuple[Tensor, Tensor]:
    """Exponents, 0 where masked, (..., m, n), and the rows with absolute values within a level, bool (..., m, 1)."""
    if log_weights is not None:
        masked = torch.isneginf(log_weights)
        if not values_are_known(exponents) or bool(masked.any()):
            exponents = exponents.masked_fill(masked, 0)
    # Faster than the maximum absolute value, which would allocate an array.
    largest = torch.maximum(exponents.amax(-1, keepdim=True), -exponents.amin(-1, keepdim=True))
    return exponents, largest <= level
