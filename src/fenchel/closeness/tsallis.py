r"""Tsallis closenesses, between the Kullback-Leibler divergence and half a squared distance, with sparse weights.

:func:`fenchel.closeness.sparse_weights` is the map from scores to weights as one differentiable operation,
``sparse_weights(scores / temperature, log_preference, order - 1, csiszar=relative == "csiszar")``, with
``log_preference`` None where uniform; sparsemax is ``sparse_weights(scores, None, 1.0)`` and 1.5-entmax
``sparse_weights(scores, None, 0.5)``. Methods of :class:`Tsallis` take log u normalised over the last dimension and
potentials (..., m, n); ``order`` and ``temperature`` may be tensors that broadcast to (..., m), to which methods add a
last dimension. ``Tsallis(1)`` uses KL.

Proofs, with a = β - 1. Fact 12: with :math:`g(r) = (r^\beta - 1 - \beta(r - 1))/(\beta(\beta - 1))` the Bregman
divergence of :math:`\Omega(p) = \sum p_i^\beta/(\beta(\beta - 1))` is :math:`\sum u_i^\beta g(p_i/u_i)`; the Csiszár
form is :math:`\sum u_i g(p_i/u_i)`. As :math:`g'' = r^{\beta-2} > 0` and g(1) = g'(1) = 0, both are convex,
and 0 at p = u only. As β → 1, :math:`\ln_a r \to \log r` and :math:`u^a \to 1`, so both become
:math:`\sum p_i\log(p_i/u_i) - \sum(p_i - u_i)`, whose last sum is 0.

Weights: the maximiser of :math:`\langle p, f\rangle - \theta D(p, u)` over the simplex has
:math:`f_i - \theta\,\partial_i D = \theta\tau` where p_i > 0 and ≤ where p_i = 0, with
:math:`\partial_i D = (p_i^a - u_i^a)/a` (Bregman) or :math:`\ln_a(p_i/u_i)` (Csiszár). Solve for p.

Curvature: differentiating that equation gives :math:`dp_i = q_i(df_i - d\tau)/\theta`, and :math:`\sum dp_i = 0` makes
dτ the mean of df under q.

Modulus, Bregman: :math:`v^\top\nabla^2\Omega\,v = \sum v_i^2/p_i^{1-a} \ge (\sum\lvert v_i\rvert)^2/\sum p_i^{1-a}` by
Cauchy and Schwarz, and :math:`\sum p_i^{1-a} \le n^a` by concavity. Csiszár: :math:`\sum v_i^2/(u_i^a p_i^{1-a}) \ge
(\sum\lvert v_i\rvert)^2/\sum u_i^a p_i^{1-a}`, and :math:`\sum u_i^a p_i^{1-a} \le (\sum u_i)^a(\sum p_i)^{1-a} = 1` by
Hölder.

Names of closenesses, in command lines, manifests and configurations of models, are parsed here too.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.arguments import shown
from fenchel.closeness.abstract import KL, AbstractCloseness, checked_positive
from fenchel.closeness.sparse_weights import (
    DIRECT_FROM,
    LEAST_LOG_WEIGHT,
    LEAST_ORDER,
    MOST_STEPS,
    STEPS_UNSEEN,
    curvature_weights,
    deformed_log,
    log_of_positive,
    sparse_weights,
)
from fenchel.errors import FenchelError, InputError, ProblemError
from fenchel.preference import Discrete
from fenchel.tensors import (
    UNIT,
    check_device,
    check_entries,
    check_tensor,
    checked_argument,
    column,
    values_are_known,
)


class Tsallis(AbstractCloseness):
    r"""The Tsallis divergence of order β from the preference to the weights, times a temperature θ.

    With :math:`\ln_a r = (r^a - 1)/a` and :math:`a = \beta - 1`, both forms have the minimum 0 at u:

    .. math::
        \text{Bregman:}\quad & D = \tfrac{\theta}{\beta} \sum_i p_i \tfrac{p_i^a - u_i^a}{a} - u_i^a (p_i - u_i), \qquad
            p_i = [u_i^a + a(f_i/\theta - \tau)]_+^{1/a} \\
        \text{Csiszár:}\quad & D = \tfrac{\theta}{\beta} \sum_i p_i \ln_a\tfrac{p_i}{u_i} - (p_i - u_i), \qquad
            p_i = u_i\,[1 + a(f_i/\theta - \tau)]_+^{1/a}

    where τ is such that weights sum to one. With uniform u the Bregman form gives entmax of order β; order 2 is
    sparsemax. At order 1 both are :class:`~fenchel.KL`. Both have the curvature

    .. math:: \nabla^2 D^*(f) = \tfrac1\theta\Bigl(\operatorname{diag} q - \tfrac{qq^\top}{\sum_i q_i}\Bigr), \qquad
              q_i = p_i^{1-a} \;\text{or}\; u_i^a p_i^{1-a}

    A template with :math:`u_i = 0`, or below e⁻⁸⁷ (10⁻³⁸), which float32 cannot represent, is masked in both forms.

    Args:
        order: β in [1, 2]: a number, or a tensor that broadcasts to (..., m), with gradient.
        relative: ``"bregman"`` or ``"csiszar"``, the form of D.
        temperature: θ > 0: a number, or a tensor that broadcasts to (..., m).

    Raises:
        ProblemError: If the order is outside [1, 2] (where D is not strongly convex and no bound holds), the form is
            unknown, or a temperature is not positive.

    Reference:
        Section 7; Peters et al., Sparse Sequence-to-Sequence Models (2019).

    Example:
        >>> from fenchel import Discrete, InferenceProblem
        >>> u = Discrete(torch.eye(3, dtype=torch.float64))
        >>> z = torch.tensor([[1.0, 0.5, -1.0]], dtype=torch.float64)
        >>> InferenceProblem(u, z, closeness=Tsallis(2)).solve("first_order").weights     # sparsemax of z
        tensor([[0.7500, 0.2500, 0.0000]], dtype=torch.float64)
    """

    def __init__(
        self, order: float | Tensor, relative: str = "bregman", temperature: float | Tensor = 1.0
    ) -> None:
        self.order = _checked_order(order)
        self.relative = checked_argument("relative", relative)
        self.temperature = checked_positive("temperature", temperature)
        self.is_softmax = self._is_softmax and not self._has_temperature
        self._count: int | None = None

    rowwise = True
    numbers = ("order", "temperature")

    @property
    def _csiszar(self) -> bool:
        return self.relative == "csiszar"

    @property
    def _is_softmax(self) -> bool:
        return isinstance(self.order, float) and self.order == 1

    @property
    def _a(self) -> float | Tensor:
        """β - 1, with a last dimension of 1 if it is a tensor."""
        return column(self.order) - 1

    @property
    def _has_temperature(self) -> bool:
        return isinstance(self.temperature, Tensor) or self.temperature != 1

    def _cooled(self, numbers: Tensor) -> Tensor:
        """Numbers divided by the temperature."""
        return numbers / column(self.temperature) if self._has_temperature else numbers

    @override
    def bind(self, preference: Discrete) -> Self:
        templates = preference.templates
        # Checked again, since learned values may have left their range.
        _checked_order(self.order)
        checked_positive("temperature", self.temperature)
        for name in self.query_shapes():
            check_device(name, getattr(self, name), templates.device, "templates")
        converted = self.with_numbers(lambda x: x.to(templates.device, templates.dtype))
        return converted._changed(_count=templates.shape[-2])

    @override
    def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        if self._is_softmax:
            return self.temperature * KL().value(weights, log_preference)
        a, (masked, log_u, u) = self._a, _preference(log_preference)
        positive, log_p = log_of_positive(weights)
        if self._csiszar:
            above = deformed_log(torch.where(positive, log_p - log_u, 0), a)
            scale = 1.0
        else:
            above = deformed_difference(log_p, torch.where(masked, 0, log_u), a)
            scale = (a * log_u).exp()
        terms = weights * torch.where(positive, above, 0) - scale * (weights - u)
        terms = torch.where(masked, torch.where(positive, torch.inf, 0), terms)
        return self.temperature * terms.sum(-1) / self.order

    @override
    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        return self._weights_of(self._cooled(potential), log_preference)

    def _weights_of(self, scaled: Tensor, log_preference: Tensor) -> Tensor:
        if self._is_softmax:
            return KL().weights(scaled, log_preference)
        return sparse_weights(scaled, _normalised(log_preference), self._a, csiszar=self._csiszar)

    @override
    def rest(self, log_preference: Tensor) -> Tensor:
        return KL().rest(log_preference) if self._is_softmax else _preference(log_preference)[2]

    @override
    def near_displacement(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        scaled = self._cooled(potential)
        if self._is_softmax:
            return KL().near_displacement(scaled, log_preference)
        with torch.no_grad():
            result = small_displacement(scaled, _normalised(log_preference), self._a, csiszar=self._csiszar)
        if not torch.is_grad_enabled():
            return result
        # Values without cancellation, derivatives of the difference.
        live = self._weights_of(scaled, log_preference) - self.rest(log_preference)
        return live + (result - live).detach()

    @override
    def usable(self, log_preference: Tensor) -> Tensor:
        return log_preference.amax(-2, keepdim=True) >= LEAST_LOG_WEIGHT

    def rounding(
        self, mean_error: Tensor, largest_error: Tensor, count: int
    ) -> tuple[Tensor, float | Tensor]:
        r"""The bound from strong convexity for errors of the potential, plus roundings of each weight.

        Dividing by θ, multiplying and shifting potentials takes a few roundings, for which the error of the potential
        allows at least six. A weight is the power 1/a of a difference of numbers up to 1, whose roundings are
        multiplied by the slope q/a, and the q sum to at most :math:`n^a`; the Csiszár form has an additional factor u,
        and errors that are no larger. For small a (or tensors of orders with a small one) and tensors not on the CPU,
        weights are computed from logarithms, with an error of some roundings of log u. Errors of the threshold change
        the sum of the weights, all in one direction.
        """
        if self._is_softmax:
            return KL().rounding(mean_error / self.temperature, largest_error / self.temperature, count)
        a = torch.as_tensor(self.order, dtype=mean_error.dtype, device=mean_error.device) - 1
        by_logarithms = a.amin() < DIRECT_FROM
        if isinstance(self.order, Tensor) and not values_are_known(a):
            by_logarithms = torch.ones_like(by_logarithms)
        of_weights = (
            36
            + 12 * count**a / a.clamp(min=DIRECT_FROM)
            + torch.where(by_logarithms, -12 * LEAST_LOG_WEIGHT, 0.0)
        )
        of_potential = (3 if self._csiszar else 1.5) * largest_error / self.modulus
        return torch.zeros_like(mean_error), of_potential + of_weights * UNIT

    @override
    def curvature_weights(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        if self._is_softmax:
            return self._cooled(weights)
        return self._cooled(
            curvature_weights(weights, _normalised(log_preference), self._a, csiszar=self._csiszar)
        )

    @property
    def modulus(self) -> float | Tensor:
        r""":math:`\theta n^{1-\beta}` for the Bregman form, by :math:`\sum_i p_i^{1-a} \le n^a`; θ for Csiszár's."""
        if self._is_softmax or self._csiszar:
            return self.temperature
        if self._count is None:
            raise ProblemError(
                f"{self!r} is not bound to templates, on whose number its modulus depends; use it in an "
                "InferenceProblem, or call closeness.bind(preference) first"
            )
        return self.temperature * self._count ** (1 - self.order)

    def __repr__(self) -> str:
        def shown(number: float | Tensor) -> str:
            if not isinstance(number, Tensor):
                return f"{number:g}"
            return f"{float(number.detach()):g}" if number.numel() == 1 else f"<{tuple(number.shape)}>"

        relative = "" if self.relative == "bregman" else f", relative={self.relative!r}"
        temperature = f", temperature={shown(self.temperature)}" if self._has_temperature else ""
        return f"Tsallis({shown(self.order)}{relative}{temperature})"


def _normalised(log_preference: Tensor) -> Tensor:
    """Log u normalised in its dtype, since it may have been converted from another."""
    return log_preference.log_softmax(-1)


def _preference(log_preference: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where u is masked, log u (0 where masked) and u."""
    normalised = _normalised(log_preference)
    masked = normalised < LEAST_LOG_WEIGHT
    log_u = torch.where(masked, 0, normalised)
    return masked, log_u, torch.where(masked, 0, log_u.exp())


def _checked_order(order: Any) -> float | Tensor:
    why = "below 1 weights are unbounded, above 2 the divergence is not strongly convex and the bounds fail"
    if not isinstance(order, Tensor):
        try:
            return float(checked_argument("order", order))
        except ProblemError as error:
            raise ProblemError(f"{str(error).rstrip('.')}: {why}") from None
    check_tensor("order", order, "that broadcasts to (..., m), or a number")
    expected = f"entries from 1 to 2: {why}"
    remedy = "for a learned order, 1 + torch.sigmoid(...) stays inside"
    check_entries("order", order, lambda x: (x >= 1) & (x <= 2), expected, remedy)
    return order


def deformed_difference(log_p: Tensor, log_u: Tensor, a: Tensor | float) -> Tensor:
    r""":math:`(p^a - u^a)/a`, without cancellation where p is near u and without overflow where u is tiny."""
    # If u^a is small, its reciprocal may overflow, but p^a - u^a does not cancel.
    far = a * log_u < -1
    near = (a * log_u).exp() * deformed_log(torch.where(far, 0, log_p - log_u), a)
    return torch.where(far, deformed_log(log_p, a) - deformed_log(log_u, a), near)


def small_displacement(f: Tensor, log_u: Tensor, a: float | Tensor, *, csiszar: bool) -> Tensor:
    r"""The change of the weights due to a small potential, without cancellation, (..., n).

    .. math:: p_i - u_i = u_i\left([1 + a c_i(f_i - \tau)]_+^{1/a} - 1\right), \qquad \sum_i (p_i - u_i) = 0

    with :math:`c = u^{-a}` for the Bregman form and 1 for Csiszár's; by Newton's method on the sum, which is convex
    and decreasing in τ.

    Args:
        f: (..., n), finite.
        log_u: Broadcasts to (..., n).
        a: β - 1, a number or a tensor that broadcasts to (..., 1).
        csiszar: Whether the form is Csiszár's.
    """
    masked = log_u < LEAST_LOG_WEIGHT
    u = log_u.masked_fill(masked, -torch.inf).exp()
    a = a.clamp(min=LEAST_ORDER) if isinstance(a, Tensor) else max(a, LEAST_ORDER)
    ratio = 1.0 if csiszar else (log_u.clamp(min=LEAST_LOG_WEIGHT) * -a).exp()
    f = f.masked_fill(masked, 0)
    q = (u * ratio).expand_as(f)
    tau = (q * f).sum(-1, keepdim=True) / q.sum(-1, keepdim=True)
    low = f.masked_fill(masked, torch.inf).amin(-1, keepdim=True)
    high = f.masked_fill(masked, -torch.inf).amax(-1, keepdim=True)
    result, enough = f, 4 * torch.finfo(f.dtype).eps * torch.maximum(low.abs(), high.abs())
    known, slope, moved = values_are_known(f), q, tau
    for _ in range(MOST_STEPS if known else STEPS_UNSEEN):
        rise = (a * ratio * (f - tau)).clamp_(min=-1)
        logarithm = torch.log1p(rise) / a
        result = u * torch.expm1(logarithm)
        slope = (u * ratio * logarithm.exp() / (rise + 1)).masked_fill_((rise == -1) | masked, 0)
        step = result.sum(-1, keepdim=True) / slope.sum(-1, keepdim=True)
        following = torch.minimum(torch.maximum(tau + step, low), high)
        moved = following - tau
        if known and bool((moved.abs() <= enough).all()):
            break
        tau = following
    # The last step is too small to be added to τ.
    return result - slope * moved


# Aliases of names; None is the Kullback-Leibler divergence, the default of audits.
NAMES = {"sparsemax": "tsallis:2", "entmax15": "tsallis:1.5", "softmax": None, "kl": None}

_NAMED = (
    "tsallis:ORDER with an order above 1 and at most 2, such as tsallis:1.5, optionally followed by :csiszar "
    "or :temperature=T; or sparsemax, entmax15 or softmax"
)
# The name that ``name_of`` returns for a closeness with an order for each head.
ORDERS_OF_HEADS = "a separate order for each head"


def closeness_name(closeness: Any) -> str | None:
    """The canonical name of a closeness, as in manifests; None for the Kullback-Leibler divergence.

    Args:
        closeness: A name, a :class:`fenchel.Tsallis` of one order, :class:`fenchel.KL`, or None.

    Raises:
        InputError: If it is not a closeness with a name, or its order or temperature is invalid.

    Example:
        >>> closeness_name("entmax15"), closeness_name(Tsallis(1.25, "csiszar")), closeness_name("softmax")
        ('tsallis:1.5', 'tsallis:1.25:csiszar', None)
    """
    name = name_of(closeness_of(closeness, InputError))
    if name == ORDERS_OF_HEADS:
        raise InputError(f"closeness is {closeness!r}; expected {_NAMED}, one order for all heads.")
    return name


def closeness_of(closeness: Any, error: type[FenchelError] = ProblemError) -> AbstractCloseness | None:
    """The closeness that an argument gives, as an object or a name; None for None.

    Raises:
        FenchelError: Of the type ``error``, if it is neither, or there is no closeness with that name.

    Example:
        >>> closeness_of("entmax15"), closeness_of("softmax"), closeness_of(KL())
        (Tsallis(1.5), KL(), KL())
    """
    if closeness is None or isinstance(closeness, AbstractCloseness):
        return closeness
    try:
        name = NAMES.get(closeness, closeness)
        if name is None:
            return KL()
        kind, order, *parts = name.split(":")
        options = {key: value for key, _, value in (part.rpartition("=") for part in parts)}
        known = kind == "tsallis" and options.keys() <= {"", "temperature"} and len(options) == len(parts)
        if not known or not 1 < float(order) <= 2:
            raise ValueError
        return Tsallis(float(order), options.get("", "bregman"), float(options.get("temperature", 1)))
    except (AttributeError, TypeError, ValueError, ProblemError):
        objects = "one such as fenchel.Tsallis(1.5), or " if error is ProblemError else ""
        raise error(f"closeness is {shown(closeness)}; expected {objects}{_NAMED}.") from None


def name_of(closeness: AbstractCloseness | None) -> str | None:
    """The name of a closeness, or its repr if it has none; None for the Kullback-Leibler divergence."""
    if closeness is None or isinstance(closeness, KL):
        return None
    if not isinstance(closeness, Tsallis):
        return repr(closeness)
    order, temperature = (
        float(number.detach()) if isinstance(number, Tensor) and number.numel() == 1 else number
        for number in (closeness.order, closeness.temperature)
    )
    if isinstance(order, Tensor) or isinstance(temperature, Tensor):
        return ORDERS_OF_HEADS
    relative = ":csiszar" if closeness.relative == "csiszar" else ""
    return f"tsallis:{order:.12g}{relative}{f':temperature={temperature:.12g}' if temperature != 1 else ''}"
