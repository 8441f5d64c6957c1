"""Whether the functions of a closeness belong together, at random points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fenchel.arguments.tensor import checked_argument
from fenchel.closeness.abstract import AbstractCloseness
from fenchel.errors import ProblemError
from fenchel.preference import Discrete

__all__ = ["ClosenessReport", "check_closeness"]

SCALES = (0.1, 1.0, 10.0)
"""Sizes of the potentials that are tried."""

STEP = 1e-5
"""Of finite differences, of which those to both sides have to agree before they are believed."""


@dataclass(frozen=True)
class ClosenessReport:
    """What :func:`check_closeness` found where nothing failed.

    Attributes:
        closeness: What was tried, in words.
        points: At how many potentials.
        worst: By how much each identity was missed at most, by its name; an inequality that held everywhere has 0.
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
    r"""Try a closeness at random points, and show the first at which it contradicts itself.

    Fenchel and Young's equality at p(f) and inequality elsewhere; weights that are in the simplex, the gradient of the
    conjugate (by finite differences), monotone, and the same where all scores are shifted; a curvature that is their
    derivative, symmetric and positive; a divergence that is least at rest; a modulus that is no larger than what
    weights show.

    Args:
        closeness: D.
        preference: The templates and weights to try it with, in float64; where None six templates, one masked.
        points: Potentials to try, at three scales.
        tol: What an identity may be missed by, relative to the size of the potentials or 1.
        seed: Of the points.

    Returns:
        By how much each identity was missed.

    Raises:
        ProblemError: Naming what fails, with the numbers and the point.

    Example:
        >>> from fenchel import KL
        >>> sorted(check_closeness(KL()).worst)[:3]
        ['curvature', 'equality', 'gradient']
    """
    if not isinstance(closeness, AbstractCloseness):
        raise ProblemError(
            f"closeness is a {type(closeness).__name__}; expected one of fenchel.closeness, or a fenchel.Divergence"
        )
    points = checked_argument("count", points, name="points")
    tol, seed = checked_argument("tol", tol), checked_argument("seed", seed)
    generator = torch.Generator().manual_seed(seed)
    if preference is None:
        log_u = torch.randn(1, 6, generator=generator, dtype=torch.float64)
        log_u[0, 4] = -torch.inf
        preference = Discrete(torch.randn(6, 3, generator=generator, dtype=torch.float64), log_u)
    elif not isinstance(preference, Discrete):
        raise ProblemError(f"preference is a {type(preference).__name__}; expected a fenchel.Discrete")
    with torch.no_grad():
        return _Trial(closeness, preference, points, tol, generator).run()


class _Trial:
    """Random points of one closeness with one preference."""

    def __init__(
        self,
        closeness: AbstractCloseness,
        preference: Discrete,
        points: int,
        tol: float,
        generator: torch.Generator,
    ) -> None:
        self._name = repr(closeness)
        bound = type(closeness).bind
        preference = preference.to(torch.float64)
        # Trying is what some do when they are bound.
        self._closeness = closeness.to(torch.float64)
        if bound is not AbstractCloseness.bind and not getattr(closeness, "_unchecked", None):
            self._closeness = self._closeness.bind(preference)
        self._log_u = preference.log_weights[..., :1, :].reshape(-1, preference.log_weights.shape[-1])[:1]
        shapes = self._closeness.query_shapes().values()
        lead = torch.broadcast_shapes(*shapes) if shapes else (1,)
        self._count = self._closeness.support(preference).shape[-2]
        self._shape = (points, *lead)
        self._points, self._tol, self._generator = points, tol, generator
        self._device = preference.device
        self._log_u = self._log_u.to(self._device)
        self._worst: dict[str, float] = {}
        scales = torch.tensor(SCALES, dtype=torch.float64).repeat(points)[:points]
        self._scale = scales.reshape(points, *(1,) * len(lead), 1).to(self._device)
        self.potential = self._scale * self._normal()

    def _normal(self) -> Tensor:
        drawn = torch.randn(*self._shape, self._count, generator=self._generator, dtype=torch.float64)
        return drawn.to(self._device)

    def run(self) -> ClosenessReport:
        f, d, log_u, n = self.potential, self._closeness, self._log_u, self._count
        p = self._shaped("weights", d.weights(f, log_u), (*self._shape, n))
        self._shaped("value", d.value(p, log_u), self._shape)
        conjugate = self._shaped("conjugate", d.conjugate(f, log_u), self._shape)
        self._within("simplex", "weights are not above 0", (-p).amax(-1).clamp(min=0), 0)
        self._within("simplex", "weights do not sum to 1", p.sum(-1) - 1, 0)
        self._gradient(f, p)
        self._within(
            "equality",
            "Fenchel and Young's equality D(p) + D*(f) = <p, f> fails at p = weights(f): value, conjugate and weights "
            "contradict each other",
            d.fenchel_young_gap(p, f, log_u),
            0,
        )
        others = self._others(p)
        below = d.fenchel_young_gap(others, f, log_u).clamp(max=0)
        self._within(
            "inequality", "D(q) + D*(f) >= <q, f> fails: conjugate is too small, or value", below, 0, q=others
        )
        self._monotone(f, p)
        moved = d.weights(f + 1, log_u) - p
        self._within("shift", "weights change where all scores are shifted by 1", moved.abs().amax(-1), 0)
        lifted = d.conjugate(f + 1, log_u) - conjugate
        self._within("shift", "conjugate(f + 1) is not conjugate(f) + 1", lifted, 1)
        rest = d.rest(log_u).expand_as(p)
        lower = (d.value(others, log_u) - d.value(rest, log_u)).clamp(max=0)
        self._within("least at rest", "value is lower at q than at weights(0)", lower, 0, q=others)
        if d.curved:
            self._curvature(f, p)
        return ClosenessReport(self._name, self._points, self._worst)

    def _others(self, p: Tensor) -> Tensor:
        """Other weights, on the support of u."""
        allowed = torch.ones(self._count, dtype=torch.bool, device=self._device)
        allowed[: self._log_u.shape[-1]] = self._log_u[0] > -torch.inf
        drawn = (2 * self._normal()).masked_fill(~allowed, -torch.inf).softmax(-1)
        return (drawn + p) / 2 if bool((p[..., ~allowed] == 0).all()) else p.roll(1, 0)

    def _gradient(self, f: Tensor, p: Tensor) -> None:
        d, log_u, v = self._closeness, self._log_u, self._normal()
        up, down = (d.conjugate(f + sign * STEP * v, log_u) for sign in (1, -1))
        self._within(
            "gradient",
            "weights are not the gradient of conjugate: along v its slope by finite differences",
            (up - down) / (2 * STEP),
            (p * v).sum(-1),
            slack=1e-5,
            v=v,
        )

    def _monotone(self, f: Tensor, p: Tensor) -> None:
        d, log_u = self._closeness, self._log_u
        g = f + self._scale * self._normal()
        moved = d.weights(g, log_u) - p
        along = (moved * (g - f)).sum(-1)
        self._within("monotone", "<p(g) - p(f), g - f> >= 0 fails", along.clamp(max=0), 0, g=g)
        least = torch.as_tensor(d.modulus, dtype=torch.float64, device=self._device)
        short = (along - least * moved.abs().sum(-1).square()).clamp(max=0)
        self._within(
            "modulus",
            "<p(g) - p(f), g - f> >= modulus |p(g) - p(f)|^2 fails: modulus is too large",
            short,
            0,
            g=g,
        )

    def _curvature(self, f: Tensor, p: Tensor) -> None:
        d, log_u, a, b = self._closeness, self._log_u, self._normal(), self._normal()
        product: Callable[[Tensor], Tensor] = d.curvature(f, log_u)
        of_a = self._shaped("curvature(f)", product(a), (*self._shape, self._count))
        self._within(
            "symmetry",
            "curvature is not symmetric: <b, C a>",
            (b * of_a).sum(-1),
            (a * product(b)).sum(-1),
            a=a,
            b=b,
        )
        self._within(
            "positivity", "curvature is not positive: <a, C a>", (a * of_a).sum(-1).clamp(max=0), 0, a=a
        )
        up, down = ((d.weights(f + sign * STEP * a, log_u) - p) * sign / STEP for sign in (1, -1))
        # Weights may have kinks; where both sides agree there is none.
        smooth = (up - down).abs().amax(-1) <= 1e-3 * (1 + up.abs().amax(-1))
        missed = ((up + down) / 2 - of_a).abs().amax(-1).masked_fill(~smooth, 0)
        self._within(
            "curvature",
            "curvature is not the derivative of weights: along a it misses it by",
            missed,
            0,
            slack=1e-3,
            a=a,
        )

    def _shaped(self, name: str, found: Tensor, shape: tuple[int, ...]) -> Tensor:
        if not isinstance(found, Tensor) or tuple(found.shape) != tuple(shape):
            got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise ProblemError(
                f"{self._name} fails check_closeness: {name} gave {got} for potentials {tuple(self.potential.shape)}; "
                f"expected shape {tuple(shape)}"
            )
        return found

    def _within(
        self,
        name: str,
        message: str,
        found: Tensor,
        wanted: Tensor | float,
        slack: float = 0.0,
        **shown: Tensor,
    ) -> None:
        """Raise where two numbers a point differ, with the point; else remember by how much."""
        allowed = (self._tol + slack) * (
            1 + self._scale.reshape(self._points, *(1,) * (len(self._shape) - 1))
        )
        wanted = torch.as_tensor(wanted, dtype=found.dtype, device=found.device).expand_as(found)
        missed = torch.where(found == wanted, 0, (found - wanted).abs()).nan_to_num(nan=torch.inf)
        excess = missed / allowed
        if bool((excess > 1).any()):
            where = torch.unravel_index(excess.argmax(), excess.shape)
            at = {"f": self.potential, **shown}
            numbers = ", ".join(f"{letter} = {_listed(tensor[where])}" for letter, tensor in at.items())
            raise ProblemError(
                f"{self._name} fails check_closeness: {message}: {float(found[where]):.6g} where "
                f"{float(wanted[where]):.6g} is expected (allowed: {float(allowed.expand_as(excess)[where]):.1g}), at "
                f"{numbers}, log_u = {_listed(self._log_u[0])}; mend the function, or where it is right raise tol"
            )
        self._worst[name] = max(self._worst.get(name, 0.0), float(missed.amax()))


def _listed(vector: Tensor) -> str:
    most = 8
    numbers = ", ".join(f"{x:.4g}" for x in vector[:most].tolist())
    return f"[{numbers}{', ...' if len(vector) > most else ''}]"
