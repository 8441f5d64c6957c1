"""What the dual sees of a preference, its cumulant and the two derivatives of that; and what its parameters may be."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Distribution
from typing_extensions import override

from fenchel.arguments import shown
from fenchel.errors import ProblemError
from fenchel.tensors import (
    UNIT,
    check_device,
    check_entries,
    check_tensor,
    check_type,
    check_vectors,
    has,
    summed,
)

Shape = int | tuple[int, ...] | torch.Size
"""How many samples are drawn: none more than one a query, a number, or a shape."""


class Replaceable:
    """An object of which copies with other attributes are made."""

    def _changed(self, **attributes: Any) -> Self:
        """A copy with other attributes, which are not checked."""
        made = copy.copy(self)
        vars(made).update(attributes)
        return made


class Convertible(Replaceable, ABC):
    """An object made of tensors, with copies in another dtype and for some of the queries."""

    @property
    @abstractmethod
    def lead(self) -> torch.Size:
        """The leading shape (..., m or 1)."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Self:
        """The same in another floating-point dtype."""

    @abstractmethod
    def queries(self, part: slice) -> Self:
        """The same for some of the m queries."""


class AbstractPreference(Convertible):
    r"""A distribution u of vectors t (..., d), known by its cumulant.

    .. math:: \log M(\lambda) = \log \mathbb{E}_u\, e^{\langle t, \lambda\rangle}, \qquad
              \nabla\log M(\lambda) = \mathbb{E}_{p(\lambda)}[t], \qquad
              \nabla^2\log M(\lambda) = \operatorname{Cov}_{p(\lambda)}(t)

    where p(λ), u tilted by λ, has density :math:`e^{\langle t, \lambda\rangle}/M(\lambda)` with respect to u. A
    member writes the first of these three, and the others where there are formulas (``log_mgf``, ``tilted_mean``,
    ``tilted_covariance``); with :class:`~fenchel.KL` every estimator, bound and gradient follows. Tensors of its
    own are found by themselves where gradients are wanted, and give dimension, dtype and device: those of the first
    tensor (..., d), or preference, among its attributes. What else a member may write: these three where they are
    others (``dim``, ``dtype``, ``device``, ``to``), where log M is finite (``reach``), the shift of the mean without
    cancellation and what rounding does to it (``tilted_shift``, ``rounding``), a bound on the covariances
    (``smoothness``), the tilted distribution within a family (``tilted``), ``sample`` and ``log_density``; and what
    queries may have of their own (``rows``).

    Reference:
        Section 4, eq. (8); Section 5.
    """

    resolves_shift: bool = False
    """Whether ``tilted_shift`` is right to rounding relative to itself, and ``rounding`` says how far."""

    rows: ClassVar[tuple[str, ...]] = ()
    """Attributes that queries may have of their own: tensors (..., m or 1, any), and preferences."""

    def _rows_of_queries(self) -> dict[str, Tensor | Convertible]:
        parts = {name: getattr(self, name) for name in self.rows}
        return {name: own for name, own in parts.items() if isinstance(own, Tensor | Convertible)}

    @property
    def vectors(self) -> str:
        """What messages call what it is a distribution of."""
        return "the preference's vectors"

    def _source(self) -> Tensor | AbstractPreference:
        """What has its dimension, dtype and device."""
        for part in vars(self).values():
            if isinstance(part, Tensor | AbstractPreference):
                return part
        raise NotImplementedError(
            f"{type(self).__name__} has no tensor among its attributes: write dim, dtype, device and to"
        )

    @property
    def dim(self) -> int:
        """Dimension of a vector, d."""
        source = self._source()
        return source.shape[-1] if isinstance(source, Tensor) else source.dim

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which everything is computed: float32 or float64."""
        return self._source().dtype

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self._source().device

    @property
    def lead(self) -> torch.Size:
        """The leading shape (..., m or 1) of one number a query; by default that of all ``rows``."""
        rows = self._rows_of_queries().values()
        shapes = [own.shape[:-1] if isinstance(own, Tensor) else own.lead for own in rows]
        return torch.broadcast_shapes((1,), *shapes)

    def check_point(self, name: str, point: Tensor) -> None:
        """Hold a tensor (..., m, d), such as a dual point, against the vectors.

        Raises:
            ProblemError: If it has another dimension, dtype or device.
        """
        check_vectors(
            name, point, f"(..., m, {self.dim}), in the space of {self.vectors}", self.dim, self, self.vectors
        )

    @abstractmethod
    def log_mgf(self, lam: Tensor) -> Tensor:
        r"""The cumulant :math:`\log M(\lambda)`, shape (..., m) for ``lam`` (..., m, d)."""

    def tilted_mean(self, lam: Tensor) -> Tensor:
        r"""The mean of p(λ), :math:`\nabla\log M(\lambda)`, shape (..., m, d): here by autograd."""
        return torch.func.grad(lambda at: self.log_mgf(at).sum())(lam)

    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        r"""The covariance of p(λ), :math:`\nabla^2\log M(\lambda)`, as a function of vectors (..., m, d): likewise."""
        return jacobian_of_gradient(self.tilted_mean, lam)

    def reach(self, lam: Tensor, direction: Tensor) -> Tensor | None:
        """The largest t for which λ + t·direction is in the domain of log M, (..., m); None where that is all of it."""
        return None

    def inside(self, lam: Tensor) -> Tensor | None:
        """Whether λ is where log M is finite, bool (..., m); None where that is everywhere.

        The domain is convex and holds 0, so that what is outside is what cannot be reached from there.
        """
        reach = self.reach(torch.zeros_like(lam), lam)
        return None if reach is None else reach > 1

    def tilted_shift(self, lam: Tensor) -> Tensor:
        """The mean of p(λ) less that of u, (..., m, d), zero at λ = 0."""
        return self.tilted_mean(lam) - self.tilted_mean(torch.zeros_like(lam))

    def rounding(self, lam: Tensor) -> Tensor | None:
        """How far at most ``tilted_shift`` in float64 is from exact, (..., m); None where that is not known."""
        return None

    def mean_rounding(self) -> Tensor | None:
        """What is rounded in a mean besides its shift and some roundings of itself, (..., m); None where nothing is.

        Such as terms that are much larger than their sum.
        """
        return None

    def unsettled(self, lam: Tensor) -> Tensor | None:
        """Where integrals that log M is made of do not converge, bool (..., m); None where nothing is integrated."""
        return None

    def resolvent(self, lam: Tensor, alpha: Tensor, vector: Tensor) -> Tensor | None:
        r""":math:`(I + \alpha\nabla^2\log M(\lambda))^{-1}v` in closed form, (..., m, d), or None where there is none.

        Args:
            lam: λ, (..., m, d).
            alpha: α, which broadcasts to (..., m, 1).
            vector: v, (..., m, d).
        """
        return None

    def smoothness(self) -> Tensor | None:
        """A bound on the eigenvalues of every tilted covariance, broadcasting to (..., m); None where there is none."""
        return None

    @property
    def width(self) -> int:
        """Numbers that evaluating the mean of one query holds at once: blocks of queries are sized by it."""
        return self.dim

    def mean(self) -> Tensor:
        r"""The mean :math:`\mu = \mathbb{E}_u[t]`, shape (..., m or 1, d)."""
        return self.tilted_mean(torch.zeros((*self.lead, self.dim), dtype=self.dtype, device=self.device))

    def covariance_product(self, vector: Tensor) -> Tensor:
        r"""The product :math:`\Sigma v` with the covariance of u, shape (..., m, d) for ``vector`` (..., m, d)."""
        self.check_point("vector", vector)
        return self.tilted_covariance(torch.zeros_like(vector))(vector)

    def tilted(self, lam: Tensor) -> AbstractPreference:
        r"""P(λ), u tilted by λ (..., m, d): the density of u times :math:`e^{\langle t, \lambda\rangle}/M(\lambda)`."""
        self.check_point("lam", lam)
        return Tilted(self, lam)

    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Samples, shape (\*shape, ..., m or 1, d).

        Args:
            shape: How many; () is one of each distribution.
            generator: Where randomness comes from; torch's own where None.

        Raises:
            ProblemError: Where the family says nothing of sampling.
        """
        raise ProblemError(f"{type(self).__name__} cannot be sampled from: its class has no method sample")

    def log_density(self, points: Tensor) -> Tensor:
        """Log density at points (..., m, d), or log probability where the distribution is discrete, (..., m).

        Raises:
            ProblemError: Where the distribution has none, or the family says nothing of it.
        """
        raise ProblemError(
            f"the log density of {type(self).__name__} is not known: its class has no log_density"
        )

    def torch_distribution(self) -> Distribution:
        """The same as an object of ``torch.distributions``, with batch shape (..., m or 1) and event shape (d,).

        It shares tensors and gradients with this one, and does not check its arguments.

        Raises:
            ProblemError: Where torch has no such distribution, or it has no density.
        """
        raise self._no_counterpart()

    def _no_counterpart(self) -> ProblemError:
        return ProblemError(
            f"torch.distributions has no counterpart of {type(self).__name__}; expected one of fenchel's Bernoulli, "
            "Poisson, Gamma, Laplace, Box, Gaussian and GaussianMixture. sample and log_density are there without it"
        )

    def to(self, dtype: torch.dtype) -> Self:
        """The same preference in another floating-point dtype: with every attribute that has one in that dtype.

        Raises:
            ProblemError: If it is neither float32 nor float64.
        """
        if dtype == self.dtype:
            return self
        check_precision(dtype)
        parts = {
            name: part.to(dtype)
            for name, part in vars(self).items()
            if isinstance(part, Convertible) or (isinstance(part, Tensor) and part.is_floating_point())
        }
        return self._changed(**parts)

    def queries(self, part: slice) -> Self:
        """The same for some of the m queries; itself where all queries share one distribution."""
        if self.lead[-1] == 1:
            return self
        if not self.rows:
            raise NotImplementedError(
                f"{type(self).__name__} has rows of its own for queries: name them in rows, or write queries(part)"
            )
        rows = self._rows_of_queries().items()
        return self._changed(
            **{name: some_rows(x, part) if isinstance(x, Tensor) else x.queries(part) for name, x in rows}
        )

    @classmethod
    def _of(cls, **attributes: Any) -> Self:
        """An instance with these attributes, which are not checked."""
        made = object.__new__(cls)
        vars(made).update(attributes)
        return made

    def _described(self, *parts: str) -> str:
        listed = ", ".join((f"queries={tuple(self.lead)}", *parts))
        return f"{type(self).__name__}({listed}, dtype={self.dtype}, device='{self.device}')"

    def __repr__(self) -> str:
        return self._described(f"dim={self.dim}")


def asked(name: str) -> Any:
    """A method of a view: that of its source, at the λ that the view makes of its own."""

    def method(view: AbstractView, lam: Tensor, *others: Tensor) -> Any:
        return getattr(view.source, name)(view._seen(lam), *others)

    return method


class AbstractView(AbstractPreference):
    """A preference that asks another one, at a λ which it makes of that at which it is asked.

    Args:
        source: The other one.
    """

    rows = ("source",)

    def __init__(self, source: AbstractPreference) -> None:
        self.source = source

    def _seen(self, lam: Tensor) -> Tensor:
        """At which λ the source is asked; here the same."""
        return lam

    log_mgf = asked("log_mgf")
    tilted_mean = asked("tilted_mean")
    tilted_covariance = asked("tilted_covariance")
    reach = asked("reach")
    inside = asked("inside")
    unsettled = asked("unsettled")
    resolvent = asked("resolvent")

    @property
    @override
    def width(self) -> int:
        return self.source.width

    @override
    def smoothness(self) -> Tensor | None:
        return self.source.smoothness()


class Tilted(AbstractView):
    r"""U tilted by λ, for a family that says nothing of what its tilt is.

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
    def _seen(self, lam: Tensor) -> Tensor:
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
            f"{type(self.base).__name__}, tilted, cannot be sampled from: its class has no method tilted that gives a "
            "distribution which can"
        )

    @override
    def log_density(self, points: Tensor) -> Tensor:
        tilt = (points * self.lam).sum(-1) - self.base.log_mgf(self.lam)
        return self.base.log_density(points) + tilt

    def __repr__(self) -> str:
        return f"Tilted({self.base!r}, queries={tuple(self.lead)})"


def some_rows(tensor: Tensor, part: slice, own: int = 1) -> Tensor:
    """Some of the rows of a tensor, all where it has one, given how many of its dimensions come after them."""
    if tensor.dim() <= own or tensor.shape[-own - 1] == 1:
        return tensor
    return tensor[(..., part, *[slice(None)] * own)]


def jacobian_of_gradient(gradient: Callable[[Tensor], Tensor], at: Tensor) -> Callable[[Tensor], Tensor]:
    """The derivative of a gradient as a function of vectors, by autograd.

    It is symmetric, so that its transpose, which autograd multiplies with, is itself.
    """
    differentiated: Any = torch.func.vjp(gradient, at)
    result, multiplied = differentiated

    def product(vector: Tensor) -> Tensor:
        return multiplied(vector.expand_as(result))[0]

    return product


HALF = (torch.float16, torch.bfloat16)


def widened(tensor: Tensor) -> Tensor:
    """Half types in float32, in which everything is then computed."""
    return tensor.float() if tensor.dtype in HALF else tensor


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
    """A parameter as the rest of the package takes it.

    Args:
        name: What the user calls it; a plural ends in "s".
        value: A tensor, or a number where there is a tensor that it can be made like.
        form: Its shape in words.
        dims: The fewest dimensions that it may have; where it has any, none may be empty.
        like: A tensor whose dtype and device it has to have.
        of: What that tensor is called.
        above: What every entry has to exceed.
        least: What no entry may fall below.
        remedy: What to do about an entry that is not within.

    Raises:
        ProblemError: Naming the argument, what it was and what it should be.
    """
    if like is not None and type(value) in (int, float):
        value, dims = torch.full((), float(value), dtype=like.dtype, device=like.device), 0
    check_tensor(name, value, form)
    if value.is_meta:
        raise ProblemError(f"{name} {has(name)} no values, being on meta; expected a device that computes")
    value = widened(value)
    if like is not None:
        check_device(name, value, like.device, of)
        if value.dtype != like.dtype:
            raise ProblemError(
                f"{name} {has(name)} dtype {value.dtype}, {of} {like.dtype}; convert one of them"
            )
    check_form(name, value, form, dims)
    check_entries(name, value, torch.isfinite, "finite numbers", remedy)
    if above is not None:
        check_entries(name, value, lambda x: x > above, f"numbers above {above:g}", remedy)
    if least is not None:
        check_entries(name, value, lambda x: x >= least, f"numbers of {least:g} or more", remedy)
    return value


def check_form(name: str, tensor: Tensor, form: str, dims: int) -> None:
    """Refuse a tensor of fewer dimensions than its form has, or without entries.

    Raises:
        ProblemError: With its shape.
    """
    if tensor.dim() < dims or 0 in tensor.shape:
        empty = ", none of them 0" if 0 in tensor.shape else ""
        raise ProblemError(f"{name} {has(name)} shape {tuple(tensor.shape)}; expected {form}{empty}")


def check_precision(dtype: Any) -> None:
    """Refuse a dtype in which nothing is computed.

    Raises:
        ProblemError: If it is neither float32 nor float64.
    """
    if dtype not in (torch.float32, torch.float64):
        got = dtype if isinstance(dtype, torch.dtype) else shown(dtype)
        raise ProblemError(f"dtype is {got}; expected torch.float32 or torch.float64")


def sums(count: int) -> float:
    """What two sums of so many terms in float64, one after the other, may lose of the sizes of their terms."""
    return (2 * summed(count) + 8) * UNIT


def check_together(**shapes: tuple[int, ...]) -> torch.Size:
    """The shape to which the leading shapes of parameters broadcast.

    Raises:
        ProblemError: If there is none, naming them all.
    """
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ProblemError(f"leading dimensions do not broadcast to one shape (..., m): {listed}") from None


def checked_sample_shape(shape: Any, generator: Any, device: torch.device) -> tuple[int, ...]:
    """How many samples, as a shape.

    Raises:
        ProblemError: If it is none, or the generator is no generator of the device.
    """
    expected = "a torch.Generator, such as torch.Generator().manual_seed(0)"
    check_type("generator", generator, torch.Generator | None, expected)
    if generator is not None and generator.device.type != device.type:
        raise ProblemError(
            f"generator is on {generator.device}, the distribution on {device}; make one with "
            f"torch.Generator({str(device)!r})"
        )
    sizes = (shape,) if isinstance(shape, int) and not isinstance(shape, bool) else shape
    if not isinstance(sizes, tuple | list) or not all(
        isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes
    ):
        raise ProblemError(
            f"shape is {shown(shape)}; expected a number of samples, or a tuple such as (100, 2)"
        )
    return tuple(sizes)


def normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)
