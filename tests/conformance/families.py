"""The families that the suite runs through: a new one is a line in ``FAMILIES``."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel import (
    KL,
    Bernoulli,
    Box,
    Discrete,
    Divergence,
    Gamma,
    Gaussian,
    GaussianMixture,
    InferenceProblem,
    Laplace,
    OptimalTransport,
    Poisson,
    Tsallis,
)
from fenchel.closeness import AbstractCloseness
from fenchel.preference import (
    AbstractPreference,
    AsymmetricLaplace,
    Continuous1d,
    Continuous2d,
    TruncatedExponential,
)
from tests.conformance import toys
from tests.conformance.toys import Exponential, Few

TEMPLATES, DIM, QUERIES = 7, 3, 5

Parts = dict[str, Tensor]


@dataclass(frozen=True)
class Family:
    """One preference with one closeness.

    Attributes:
        name: For the tests' names.
        parts: Shapes of what it is made of; names that end in ``scale`` are drawn positive.
        preference: Made of the parts.
        closeness: Likewise.
        batch: Leading dimensions of the evidence.
        dim: Of the evidence.
    """

    name: str
    parts: dict[str, tuple[int, ...]]
    preference: Callable[[Parts], AbstractPreference]
    closeness: Callable[[Parts], AbstractCloseness] = lambda parts: KL()
    batch: tuple[int, ...] = ()
    dim: int = DIM

    def draw(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> Parts:
        generator = torch.Generator().manual_seed(seed)
        shapes = {**self.parts, "evidence": (*self.batch, QUERIES, self.dim), "alpha_scale": (QUERIES,)}

        def part(name: str, shape: tuple[int, ...]) -> Tensor:
            drawn = torch.randn(shape, dtype=torch.float64, generator=generator)
            return (drawn.abs() / 4 + 0.4 if name.endswith("scale") else 0.7 * drawn).to(dtype)

        return {name: part(name, shape) for name, shape in shapes.items()}

    def problem(self, parts: Parts) -> InferenceProblem:
        return InferenceProblem(
            self.preference(parts), parts["evidence"], parts["alpha_scale"], self.closeness(parts)
        )


def _discrete(parts: Parts) -> Discrete:
    return Discrete(parts["templates"], parts.get("log_weights"))


def _masked(parts: Parts) -> Discrete:
    mask = torch.arange(TEMPLATES) < TEMPLATES - 2
    return Discrete(parts["templates"], parts["log_weights"].masked_fill(~mask, -torch.inf))


def _transport(parts: Parts) -> OptimalTransport:
    return OptimalTransport("squared_euclidean", parts["gamma_scale"], parts.get("atoms"), warn=False)


def _tsallis(order: float, relative: str = "bregman") -> Callable[[Parts], Tsallis]:
    return lambda parts: Tsallis(order, relative, parts.get("temperature_scale", 1.0))


def _own_functions(parts: Parts) -> Divergence:
    """Sparse weights of somebody's own, whose curvature is left to autograd."""
    scale, own = parts["temperature_scale"], Tsallis(2)
    return Divergence(
        lambda p, log_u: scale * own.value(p, log_u),
        lambda f, log_u: scale * own.conjugate(f / scale, log_u),
        lambda f, log_u: own.weights(f / scale, log_u),
        modulus=scale.detach() / TEMPLATES,
    )


def _square(root: Tensor) -> Tensor:
    return root @ root.mT + 0.1 * torch.eye(root.shape[-1], dtype=root.dtype)


def _gaussian(parts: Parts) -> Gaussian:
    covariance = _square(parts["root"]) if "root" in parts else None
    return Gaussian(
        parts["mean"], covariance, variance=parts.get("variance_scale"), factor=parts.get("factor")
    )


def _mixture(parts: Parts, *, mask: bool = False) -> GaussianMixture:
    kept = torch.arange(TEMPLATES) < TEMPLATES - 2 * mask
    log_weights = parts["log_weights"].masked_fill(~kept, -torch.inf).log_softmax(-1)
    covariances = _square(parts["root"]) if "root" in parts else None
    variances, factors = parts.get("variance_scale"), parts.get("factor")
    return GaussianMixture(parts["means"], variances, log_weights, factors=factors, covariances=covariances)


def _bumps(width: Tensor) -> Callable[[Tensor], Tensor]:
    """Three bumps in a row, as functions of places (n, 1) or (n, 2)."""

    def basis(places: Tensor) -> Tensor:
        centers = torch.linspace(-1, 1, DIM, dtype=places.dtype)
        apart = places.sum(-1, keepdim=True) - centers
        return torch.exp(-apart.square() / (2 * width.to(places.dtype) ** 2))

    return basis


MIXTURE = {"means": (TEMPLATES, DIM), "log_weights": (TEMPLATES,)}
SHARED = {"templates": (TEMPLATES, DIM), "log_weights": (TEMPLATES,)}
OF_QUERIES = {"templates": (2, 1, TEMPLATES, DIM), "log_weights": (QUERIES, TEMPLATES)}

FAMILIES = [
    Family("KL", SHARED, _discrete),
    Family("KL, a preference a query", OF_QUERIES, _discrete, batch=(2, 3)),
    Family("KL, masked", SHARED, _masked),
    Family("KL, more dimensions than templates", {"templates": (2, DIM)}, _discrete),
    Family("transport", {**SHARED, "gamma_scale": ()}, _discrete, _transport),
    Family("transport of queries", {**OF_QUERIES, "gamma_scale": ()}, _discrete, _transport, batch=(2, 3)),
    Family("transport to atoms", {**SHARED, "gamma_scale": (), "atoms": (4, DIM)}, _discrete, _transport),
    Family(
        "scaled KL",
        {**OF_QUERIES, "temperature_scale": ()},
        _discrete,
        lambda p: Few(p["temperature_scale"]),
        batch=(2, 3),
    ),
    Family("own functions", {**SHARED, "temperature_scale": ()}, _masked, _own_functions),
    Family("Tsallis 1.5", SHARED, _masked, _tsallis(1.5)),
    Family("Tsallis 2", {**SHARED, "temperature_scale": ()}, _masked, _tsallis(2)),
    Family("Tsallis 1.3, Csiszár", SHARED, _masked, _tsallis(1.3, "csiszar")),
    Family(
        "Tsallis 2, Csiszár, a preference a query",
        {**OF_QUERIES, "temperature_scale": (2, 1, 1)},
        _discrete,
        _tsallis(2, "csiszar"),
        batch=(2, 3),
    ),
    Family(
        "Tsallis, an order a head",
        {**OF_QUERIES, "order_scale": (2, 3, 1), "temperature_scale": (QUERIES,)},
        _discrete,
        lambda p: Tsallis(1 + 0.7 * p["order_scale"], "csiszar", p["temperature_scale"]),
        batch=(2, 3),
    ),
    Family(
        "somebody's cumulant",
        {"mean": (DIM,), "variance_scale": (DIM,)},
        lambda p: toys.Cumulant(p["mean"], p["variance_scale"]),
    ),
    Family("Gaussian", {"mean": (DIM,), "root": (DIM, DIM)}, _gaussian),
    Family("Gaussian of queries", {"mean": (2, 1, DIM), "root": (QUERIES, DIM, DIM)}, _gaussian, batch=(2,)),
    Family("Gaussian, spherical", {"mean": (DIM,), "variance_scale": ()}, _gaussian),
    Family("Gaussian, diagonal", {"mean": (QUERIES, DIM), "variance_scale": (DIM,)}, _gaussian, batch=(2, 3)),
    Family(
        "Gaussian, low rank plus diagonal",
        {"mean": (DIM,), "factor": (QUERIES, DIM, 2), "variance_scale": (QUERIES, 1)},
        _gaussian,
    ),
    Family("mixture", {**MIXTURE, "variance_scale": (TEMPLATES, DIM)}, _mixture),
    Family(
        "mixture, weights a query",
        {"means": (2, 1, TEMPLATES, DIM), "log_weights": (QUERIES, TEMPLATES), "root": (TEMPLATES, DIM, DIM)},
        _mixture,
        batch=(2, 3),
    ),
    Family(
        "mixture, low rank plus spherical, masked",
        {**MIXTURE, "variance_scale": (TEMPLATES, 1), "factor": (TEMPLATES, DIM, 2)},
        lambda p: _mixture(p, mask=True),
    ),
    Family(
        "moments of a Gaussian on a line",
        {"mean": (QUERIES, 1), "variance_scale": (1,)},
        lambda p: Continuous1d("quadratic", Gaussian(p["mean"], variance=p["variance_scale"] / 4)),
        dim=2,
    ),
    Family(
        "moments of a Gaussian on a plane",
        {"mean": (2, 1, 2), "root": (2, 2)},
        lambda p: Continuous2d("quadratic", Gaussian(p["mean"], _square(p["root"]) / 16)),
        batch=(2,),
        dim=6,
    ),
    Family(
        "bumps on an interval",
        {"width_scale": (), "mean": (QUERIES, 1), "variance_scale": ()},
        lambda p: Continuous1d(
            _bumps(p["width_scale"]), Gaussian(p["mean"], variance=p["variance_scale"]), (-2, 3)
        ),
    ),
    Family(
        "bumps on a rectangle, a density in a closure",
        {"width_scale": (), "slope": (2,)},
        lambda p: Continuous2d(
            _bumps(p["width_scale"]),
            lambda x: x @ p["slope"].to(x),
            ((-1, 1), (0, 2)),
            dtype=p["slope"].dtype,
        ),
    ),
    Family(
        "Bernoulli, a coin a query",
        {"logits": (QUERIES, DIM)},
        lambda p: Bernoulli(p["logits"].sigmoid()),
        batch=(2,),
    ),
    Family("Poisson", {"rate_scale": (DIM,)}, lambda p: Poisson(p["rate_scale"])),
    Family(
        "Gamma, of queries",
        {"concentration_scale": (DIM,), "rate_scale": (2, QUERIES, DIM)},
        lambda p: Gamma(p["concentration_scale"], 3 * p["rate_scale"]),
        batch=(2,),
    ),
    Family(
        "Laplace",
        {"location": (QUERIES, DIM), "scale": (DIM,)},
        lambda p: Laplace(p["location"], p["scale"] / 2),
    ),
    Family(
        "Box",
        {"low": (DIM,), "width_scale": (QUERIES, 1)},
        lambda p: Box(p["low"], p["low"] + p["width_scale"]),
    ),
    Family(
        "asymmetric Laplace",
        {"location": (DIM,), "left_scale": (), "right_scale": (QUERIES, DIM)},
        lambda p: AsymmetricLaplace(p["location"], 4 * p["left_scale"], 3 * p["right_scale"]),
    ),
    Family(
        "truncated exponential",
        {"low": (DIM,), "width_scale": (), "theta": (QUERIES, DIM)},
        lambda p: TruncatedExponential(p["low"], p["low"] + p["width_scale"], 3 * p["theta"]),
    ),
    Family("exponential", {"mean_scale": (DIM,)}, lambda p: Exponential(p["mean_scale"])),
]
