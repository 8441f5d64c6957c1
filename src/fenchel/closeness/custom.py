"""Closenesses defined by functions, and consistency checks of closenesses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.closeness.abstract import AbstractCloseness, Operator, checked_positive
from fenchel.errors import ProblemError
from fenchel.preference import Discrete
from fenchel.tensors import check_flags, check_type, checked_argument, values_are_known, values_can_be_read

Map = Callable[[Tensor, Tensor], Tensor]

# Number of random points of the check at first use.
POINTS = 8


class Divergence(AbstractCloseness):
    r"""A closeness defined by functions: D, its conjugate, and the conjugate's two derivatives.

    .. math:: D^*(f) = \sup_p \langle p, f\rangle - D(p, u), \qquad p(f) = \nabla D^*(f), \qquad C(f) = \nabla^2 D^*(f)

    The second argument of each is log u, normalised, (..., m or 1, n), -inf where masked: weights have to be 0 there.
    At their first use the functions are checked at random points by :func:`fenchel.check_closeness`, which raises an
    error with the point if they are inconsistent.

    Args:
        value: D for weights (..., m, n), shape (..., m).
        conjugate: :math:`D^*` for potentials (..., m, n), shape (..., m).
        weights: :math:`\nabla D^*`, shape (..., m, n).
        curvature: :math:`\nabla^2 D^*`: for a potential, a function that multiplies vectors (..., m, n). If None,
            ``weights`` are differentiated by autograd.
        modulus: σ > 0, the modulus of strong convexity of D in the 1-norm: D is at least
            :math:`\tfrac\sigma2\lVert p - q\rVert_1^2` above its tangent at q. A number, or a tensor that broadcasts to
            (..., m). Bounds depend on it.
        check: Whether to check the functions at their first use.

    Raises:
        ProblemError: If an argument is not a function, or the modulus is not above 0; when first used, if the functions
            are inconsistent.

    Example:
        Twice the Kullback-Leibler divergence, with the curvature by autograd:

        >>> from fenchel import KL, Discrete, InferenceProblem
        >>> hot = Divergence(
        ...     value=lambda p, log_u: 2 * KL().value(p, log_u),
        ...     conjugate=lambda f, log_u: 2 * KL().conjugate(f / 2, log_u),
        ...     weights=lambda f, log_u: KL().weights(f / 2, log_u),
        ...     modulus=2.0,
        ... )
        >>> u, z = Discrete(torch.eye(2, dtype=torch.float64)), torch.tensor([[2.0, 0.0]], dtype=torch.float64)
        >>> InferenceProblem(u, z, closeness=hot).solve("first_order").weights
        tensor([[0.7311, 0.2689]], dtype=torch.float64)
    """

    def __init__(
        self,
        value: Map,
        conjugate: Map,
        weights: Map,
        curvature: Callable[[Tensor, Tensor], Operator] | None = None,
        *,
        modulus: float | Tensor = 1.0,
        check: bool = True,
    ) -> None:
        expected = "a function of (weights or potential, log_preference), see help(fenchel.Divergence)"
        for name, function in (("value", value), ("conjugate", conjugate), ("weights", weights)):
            check_type(name, function, Callable, expected)
        check_type("curvature", curvature, Callable | None, f"{expected}, or None")
        check_flags(check=check)
        self._value, self._conjugate, self._weights, self._curvature = value, conjugate, weights, curvature
        self._modulus = checked_positive("modulus", modulus)
        # Shared by copies, to check the functions only once.
        self.unchecked = [check]

    @override
    def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        return self._value(weights, log_preference)

    @override
    def conjugate(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        return self._conjugate(potential, log_preference)

    @override
    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        weights = self._weights(potential, log_preference)
        # Results of another kind or shape are refused by check_closeness.
        known = isinstance(weights, Tensor) and values_are_known(weights) and values_are_known(log_preference)
        if known and weights.shape == potential.shape:
            masked = torch.isneginf(log_preference)
            if bool(masked.any()) and bool((masked & (weights.abs() > 0)).any()):
                raise ProblemError(
                    f"weights of {self!r} are not 0 for templates with log_u = -inf, which are masked; expected 0 "
                    "there: set f to -inf where log_u is"
                )
        return weights

    @override
    def curvature(self, potential: Tensor, log_preference: Tensor) -> Operator:
        if self._curvature is not None:
            return self._curvature(potential, log_preference)
        return super().curvature(potential, log_preference)

    @property
    @override
    def modulus(self) -> float | Tensor:
        return self._modulus

    def __repr__(self) -> str:
        return f"Divergence({getattr(self._value, '__name__', 'value')})"


# Scales of the potentials at which closenesses are checked.
SCALES = (0.1, 1.0, 10.0)

# Step of finite differences; they are used only if both one-sided differences agree.
STEP = 1e-5


@dataclass(frozen=True)
class ClosenessReport:
    """The result of :func:`check_closeness` if no check failed.

    Attributes:
        closeness: Representation of the closeness.
        points: Number of potentials.
        worst: The largest violation of each identity, by name; 0 for inequalities that held everywhere.
    """

    closeness: str
    points: int
    worst: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        listed = ", ".join(f"{name} {worst:.1e}" for name, worst in self.worst.items())
        return f"ClosenessReport({self.closeness} holds at {self.points} points; missed at most: {listed})"


def check_closeness(
    closeness: AbstractCloseness,
    preference: Discrete | None = None,
    *,
    points: int = 32,
    tol: float = 1e-6,
    seed: int = 0,
) -> ClosenessReport:
    r"""Check at random points that the functions of a closeness are consistent.

    Checked are the Fenchel-Young equality at p(f) and inequality elsewhere; that weights are in the simplex, the
    gradient of the conjugate (by finite differences), monotone, and invariant to a shift of all scores; that the
    curvature is their derivative, symmetric and positive; that the divergence is smallest at the weights of f = 0; and
    that the modulus is consistent with the weights.

    Args:
        closeness: D.
        preference: Templates and weights for the check, in float64; if None, six templates, one of them masked.
        points: Number of potentials, at three scales.
        tol: Tolerance of the identities, relative to the size of the potentials or 1.
        seed: Seed of the points.

    Returns:
        The largest violation of each identity.

    Raises:
        ProblemError: If a check fails; the message has the numbers and the point.

    Example:
        >>> from fenchel import KL
        >>> sorted(check_closeness(KL()).worst)[:3]
        ['curvature', 'equality', 'gradient']
    """
    expected = "one of fenchel.closeness, or a fenchel.Divergence"
    check_type("closeness", closeness, AbstractCloseness, expected)
    points = checked_argument("count", points, name="points")
    tol, seed = checked_argument("tol", tol), checked_argument("seed", seed)
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

    if preference is None:
        log_u = drawn(1, 6)
        log_u[0, 4] = -torch.inf
        preference = Discrete(drawn(6, 3), log_u)
    check_type("preference", preference, Discrete, "a fenchel.Discrete")
    preference, name = preference.to(torch.float64), repr(closeness)
    closeness = closeness.to(torch.float64)
    closeness = closeness.bind(preference)
    log_u = preference.log_weights.flatten(0, -2)[:1]
    lead = torch.broadcast_shapes((1,), *closeness.query_shapes().values())
    shape = (points, *lead, closeness.support(preference).shape[-2])
    scale = torch.tensor(SCALES, dtype=torch.float64, device="cpu").repeat(points)[:points]
    scale = scale.reshape(points, *[1] * len(lead)).to(log_u.device)
    worst: dict[str, float] = {}
    with torch.no_grad():
        identities = _identities(
            closeness, log_u, scale.unsqueeze(-1), lambda: drawn(*shape).to(log_u.device), name
        )
        for one in identities:
            missed = one.missed((tol + one.slack) * (1 + scale), name, log_u)
            worst[one.name] = max(worst.get(one.name, 0.0), missed)
    return ClosenessReport(name, points, worst)


def check_at_first_use(closeness: AbstractCloseness, preference: Callable[[], Discrete]) -> None:
    """Check a closeness that is not the package's where it is first used; once per class, or per :class:`Divergence`.

    Args:
        closeness: D.
        preference: Gives templates and weights for the check.

    Raises:
        ProblemError: If a check fails.
    """
    if not closeness.unchecked[0] or torch.compiler.is_compiling():
        return
    u = preference()
    if values_can_be_read(u.log_weights):
        check_closeness(closeness, u, points=POINTS)
        closeness.unchecked[0] = False


@dataclass(frozen=True)
class _Identity:
    """An equality that must hold at every potential.

    Attributes:
        name: Name of the identity in the report.
        message: Description of a violation.
        at: The points (..., N), by their names in messages.
        found: The computed value for each potential.
        expected: The value that it should have.
        slack: Tolerance in addition to that of the check.
    """

    name: str
    message: str
    at: dict[str, Tensor]
    found: Tensor
    expected: Tensor | float = 0.0
    slack: float = 0.0

    def missed(self, allowed: Tensor, closeness: str, log_u: Tensor) -> float:
        """The largest violation; raises an error with the point if it exceeds the allowed one."""
        expected = torch.as_tensor(self.expected, dtype=self.found.dtype, device=self.found.device)
        found, expected, allowed = torch.broadcast_tensors(self.found, expected, allowed)
        missed = torch.where(found == expected, 0, (found - expected).abs()).nan_to_num(nan=torch.inf)
        excess = missed / allowed
        if bool((excess > 1).any()):
            where = torch.unravel_index(excess.argmax(), excess.shape)
            numbers = ", ".join(f"{letter} = {_listed(points[where])}" for letter, points in self.at.items())
            raise ProblemError(
                f"{closeness} fails check_closeness: {self.message}: {float(found[where]):.6g} where "
                f"{float(expected[where]):.6g} is expected (allowed: {float(allowed[where]):.1g}), at "
                f"{numbers}, log_u = {_listed(log_u[0])}; correct the function, or raise tol if it is correct"
            )
        return float(missed.amax())


def _identities(
    d: AbstractCloseness, log_u: Tensor, scale: Tensor, drawn: Callable[[], Tensor], name: str
) -> Iterator[_Identity]:
    """The identities that a closeness must satisfy, at random potentials of given scales (points, ..., 1)."""
    f = scale * drawn()

    def shaped(method: str, value: Any, shape: torch.Size) -> Tensor:
        if not isinstance(value, Tensor) or value.shape != shape:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ProblemError(
                f"{name} fails check_closeness: {method} gave {got} for potentials {tuple(f.shape)}; expected shape "
                f"{tuple(shape)}"
            )
        return value

    p = shaped("weights", d.weights(f, log_u), f.shape)
    shaped("value", d.value(p, log_u), f.shape[:-1])
    conjugate = shaped("conjugate", d.conjugate(f, log_u), f.shape[:-1])
    yield _Identity("simplex", "weights are not above 0", {"f": f}, (-p).amax(-1).clamp(min=0))
    yield _Identity("simplex", "weights do not sum to 1", {"f": f}, p.sum(-1) - 1)
    v = drawn()
    up, down = (d.conjugate(f + sign * STEP * v, log_u) for sign in (1, -1))
    message = "weights are not the gradient of conjugate: along v its slope by finite differences"
    yield _Identity("gradient", message, {"f": f, "v": v}, (up - down) / (2 * STEP), (p * v).sum(-1), 1e-5)
    message = (
        "The Fenchel-Young equality D(p) + D*(f) = <p, f> fails at p = weights(f): value, conjugate and weights "
        "contradict each other"
    )
    yield _Identity("equality", message, {"f": f}, d.fenchel_young_gap(p, f, log_u))
    q = _other_weights(p, 2 * drawn(), log_u)
    message = "D(q) + D*(f) >= <q, f> fails: conjugate is too small, or value"
    yield _Identity("inequality", message, {"f": f, "q": q}, d.fenchel_young_gap(q, f, log_u).clamp(max=0))
    g = f + scale * drawn()
    moved = d.weights(g, log_u) - p
    along = (moved * (g - f)).sum(-1)
    yield _Identity("monotone", "<p(g) - p(f), g - f> >= 0 fails", {"f": f, "g": g}, along.clamp(max=0))
    message = "<p(g) - p(f), g - f> >= modulus |p(g) - p(f)|^2 fails: modulus is too large"
    least = torch.as_tensor(d.modulus, dtype=torch.float64, device=f.device) * moved.abs().sum(-1).square()
    yield _Identity("modulus", message, {"f": f, "g": g}, (along - least).clamp(max=0))
    lifted = (d.weights(f + 1, log_u) - p).abs().amax(-1)
    yield _Identity("shift", "weights change where all scores are shifted by 1", {"f": f}, lifted)
    lifted = d.conjugate(f + 1, log_u) - conjugate
    yield _Identity("shift", "conjugate(f + 1) is not conjugate(f) + 1", {"f": f}, lifted, 1)
    lower = (d.value(q, log_u) - d.value(d.rest(log_u).expand_as(p), log_u)).clamp(max=0)
    yield _Identity("least at rest", "value is lower at q than at weights(0)", {"f": f, "q": q}, lower)
    if not d.curved:
        return
    a, b = drawn(), drawn()
    product = d.curvature(f, log_u)
    of_a = shaped("curvature(f)", product(a), f.shape)
    one, other = (b * of_a).sum(-1), (a * product(b)).sum(-1)
    yield _Identity("symmetry", "curvature is not symmetric: <b, C a>", {"f": f, "a": a, "b": b}, one, other)
    squared = (a * of_a).sum(-1).clamp(max=0)
    yield _Identity("positivity", "curvature is not positive: <a, C a>", {"f": f, "a": a}, squared)
    up, down = ((d.weights(f + sign * STEP * a, log_u) - p) * sign / STEP for sign in (1, -1))
    # Weights may have kinks; points at which the two sides differ are skipped.
    smooth = (up - down).abs().amax(-1) <= 1e-3 * (1 + up.abs().amax(-1))
    missed = ((up + down) / 2 - of_a).abs().amax(-1).masked_fill(~smooth, 0)
    message = "curvature is not the derivative of weights: along a it differs by"
    yield _Identity("curvature", message, {"f": f, "a": a}, missed, slack=1e-3)


def _other_weights(p: Tensor, logits: Tensor, log_u: Tensor) -> Tensor:
    """Weights other than p, on the support of u."""
    outside = torch.zeros(p.shape[-1], dtype=torch.bool, device=p.device)
    outside[: log_u.shape[-1]] = torch.isneginf(log_u[0])
    drawn = logits.masked_fill(outside, -torch.inf).softmax(-1)
    return (drawn + p) / 2 if bool((p[..., outside] == 0).all()) else p.roll(1, 0)


def _listed(vector: Tensor) -> str:
    limit = 8
    numbers = ", ".join(f"{x:.4g}" for x in vector[:limit].tolist())
    return f"[{numbers}{', ...' if len(vector) > limit else ''}]"
