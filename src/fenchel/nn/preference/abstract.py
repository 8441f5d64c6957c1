"""Base classes of preferences, evaluated as tensors or as functions of indices; their products and powers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import chain
from typing import Any, ClassVar, NoReturn, cast

import torch
from torch import Tensor, nn

from fenchel.arguments import shown
from fenchel.errors import ProblemError
from fenchel.functional.relative import of_pairs
from fenchel.nn.arguments import check_grid, check_pixels, check_sizes, shown_arguments
from fenchel.nn.calls import AttentionInputs, IndexFunction, combined, unchanged
from fenchel.tensors import (
    MASK,
    check_device,
    check_flags,
    check_tensor,
    check_type,
    checked_argument,
    without_causal_bias,
)


def on_grid(function: IndexFunction, inputs: AttentionInputs) -> Tensor:
    """All values of a function of indices, (B, H, m, n) with size 1 for every index that it does not depend on.

    Args:
        function: A function of indices (b, h, q, k) that broadcast.
        inputs: Gives the ranges of the indices.
    """
    sizes = (inputs.batch, inputs.heads, inputs.queries, inputs.keys)
    values = function(*(_axis(dim, torch.arange(n, device=inputs.device)) for dim, n in enumerate(sizes)))
    return values.reshape((1,) * (4 - values.dim()) + tuple(values.shape))


def on_diagonals(function: IndexFunction, inputs: AttentionInputs) -> Tensor:
    """:func:`on_grid` for a function of h and k - q only, evaluated m + n - 1 times.

    Args:
        function: A function of indices (b, h, q, k) that broadcast, also defined for negative k.
        inputs: Gives the ranges of the indices.
    """
    m, n = inputs.queries, inputs.keys
    if m == 0 or n == 0:
        return on_grid(function, inputs)
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=inputs.device)
    heads = _axis(1, torch.arange(inputs.heads, device=inputs.device))
    distances = _axis(3, torch.arange(1 - m, n, device=inputs.device))
    values = function(zero, heads, zero, distances).squeeze(2)
    if torch.compiler.is_compiling():
        # For symbolic sizes; a compiler fuses it, where eager mode would allocate twice as much as the result.
        return of_pairs(values.unsqueeze(-2).expand(*values.shape[:-1], m, -1), None, n)
    # Row i is the window of n distances that begins at -i.
    return values.unfold(-1, n, 1).flip(-2)


def _axis(dim: int, indices: Tensor) -> Tensor:
    """Indices along one of four dimensions."""
    return indices.reshape([-1 if axis == dim else 1 for axis in range(4)])


def cut(parameter: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Entries ``start`` to ``start + length`` of a parameter along a dimension.

    A view of all entries is contiguous and a view of some is not, which would restrict the lengths of an exported
    graph, so an export makes a copy.
    """
    if torch.compiler.is_exporting():
        return parameter.index_select(dim, torch.arange(start, start + length, device=parameter.device))
    return parameter.narrow(dim, start, length)


def table(parameter: Tensor) -> Tensor:
    """A copy of a parameter, at least float32, that a function of indices may read.

    A fused kernel cannot read one tensor that requires a gradient twice, as the product of a preference with itself
    would, and it accumulates gradients in the dtype of the table.
    """
    precise = parameter.to(torch.promote_types(parameter.dtype, torch.float32))
    return precise.clone() if precise is parameter and parameter.requires_grad else precise


ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function (score, b, h, q, k) -> score, as flex attention takes it."""


class AbstractPreference(nn.Module):
    r"""Base class of preferences u, the prior of the weights.

    .. math:: p_i \propto u_i \exp\langle t_i, \lambda\rangle, \qquad \log (u \cdot u')_i = \log u_i + \log u'_i

    A subclass implements :meth:`log_weight` or :meth:`mask_mod` (or both) as functions of indices, and can be used as a
    tensor and inside a fused kernel; or :meth:`forward`, for log-weights that cannot be computed entry by entry, and
    can be used as a tensor only.

    Args:
        **sizes: Arguments that are sizes, checked here; ``heads`` becomes the attribute.

    Attributes:
        heads: Number of heads that the preference is built for; None for any. With 1 all heads share the log-weights,
            and functions of indices are evaluated at head 0.
        depends_on_distance: Whether the functions of indices depend on h and k - q only; the tensor then costs m + n -
            1 evaluations instead of m·n.

    Example:
        >>> from fenchel.nn.preference import Causal, Uniform
        >>> Causal() * Uniform() ** 0.5
        Causal()
    """

    heads: int | None = None
    depends_on_distance: bool = False
    is_composite: ClassVar[bool] = False
    """Whether its representation has an operator, and needs brackets inside another."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        check_sizes(type(self).__name__, **sizes)
        if "heads" in sizes:  # without it there is nothing to show
            self.heads = sizes["heads"]

    def forward(self, inputs: AttentionInputs) -> Tensor | None:
        """The log-weights, unnormalised.

        Args:
            inputs: Sizes, positions and inputs of the layer.

        Returns:
            Float log-weights, -inf where forbidden, or a bool mask, True = attend; of four dimensions that broadcast to
            (B, H, m, n), with size 1 wherever they are constant. None if the preference is uniform.

        Raises:
            ProblemError: If a required input is None, or the number of heads or the device differs.
        """
        self.check(inputs)
        weight, mask = self.checked_log_weight(inputs), self.checked_mask(inputs)
        if weight is None and mask is None:
            return None

        def entries(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            log_u = None if weight is None else weight(b, h, q, k).to(inputs.dtype)
            allowed = None if mask is None else mask(b, h, q, k)
            return cast("Tensor", combined([log_u, allowed]))

        # A compiler compares positions as it needs them, at no cost.
        is_cheap = weight is None and torch.compiler.is_compiling()
        return (on_diagonals if self.depends_on_distance and not is_cheap else on_grid)(entries, inputs)

    @property
    def lowers(self) -> bool:
        """Whether the log-weights are functions of indices, which a fused kernel needs."""
        kind, base = type(self), AbstractPreference
        return kind.log_weight is not base.log_weight or kind.mask_mod is not base.mask_mod

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The finite log-weights as a function of indices (b, h, q, k); None if this is only a mask.

        Raises:
            ProblemError: If there is no such function without a tensor of m·n entries.
        """
        self._require_lowering()
        return None

    def mask_mod(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The mask as a function of indices (b, h, q, k), True = attend; None if no key is masked.

        Raises:
            ProblemError: If there is no such function without a tensor of m·n entries.
        """
        self._require_lowering()
        return None

    def score_mod(self, inputs: AttentionInputs) -> ScoreMod | None:
        """The function (score, b, h, q, k) -> score for a fused kernel; None if this is only a mask.

        Raises:
            ProblemError: As :meth:`log_weight` and :meth:`forward`.
        """
        self.check(inputs)
        weight = self.checked_log_weight(inputs)
        if weight is None:
            return None
        return lambda score, b, h, q, k: score + weight(b, h, q, k)

    def checked_log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """:meth:`log_weight` with checked results, in the dtype of the inputs or a wider one.

        Raises:
            ProblemError: As :meth:`log_weight`; when the function is called, if it returns a bool tensor or none.
        """
        advice = "floating-point log-weights. A mask belongs in mask_mod, True = attend"
        return self._checked("log_weight", self.log_weight(inputs), inputs.dtype, advice)

    def checked_mask(self, inputs: AttentionInputs) -> IndexFunction | None:
        """:meth:`mask_mod` with checked results: any log-weight other than 0 would count as True.

        Raises:
            ProblemError: As :meth:`mask_mod`; when the function is called, if its result is not a bool tensor.
        """
        advice = "bool, True = attend. Log-weights belong in log_weight"
        return self._checked("mask_mod", self.mask_mod(inputs), None, advice)

    def _checked(
        self, method: str, function: IndexFunction | None, dtype: torch.dtype | None, expected: str
    ) -> IndexFunction | None:
        """A function of indices with checked results: log-weights for a dtype, a mask for None."""
        if function is None:
            return None
        name, is_shared = type(self).__name__, self.heads == 1
        if not callable(function):
            raise ProblemError(
                f"{name}.{method} gives {shown(function)}; expected a function of indices (b, h, q, k); a tensor is "
                "returned by forward(inputs)"
            )

        def checked(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            result = function(b, h.new_zeros((1,) * h.dim()) if is_shared else h, q, k)
            got = result.dtype if isinstance(result, Tensor) else shown(result)
            if not isinstance(result, Tensor) or (result.dtype == torch.bool) is not (dtype is None):
                raise ProblemError(f"{name}.{method} gives {got}; expected a tensor of {expected}.")
            return result if dtype is None else result.to(torch.promote_types(result.dtype, dtype))

        return checked

    def check(self, inputs: AttentionInputs) -> None:
        """Raise unless the inputs match this preference.

        Raises:
            ProblemError: If it was built for another number of heads, or its parameters are on another device.
        """
        name = type(self).__name__
        check_type(f"inputs of {name}", inputs, AttentionInputs, "AttentionInputs")
        if self.heads not in (None, 1, inputs.heads):
            raise ProblemError(
                f"{name} was built for {self.heads} heads, but the layer has {inputs.heads}; "
                f"build it with heads={inputs.heads}, or heads=1 to share it."
            )
        for tensor in chain(self.parameters(), self.buffers()):
            check_device(f"a tensor of {name}", tensor, inputs.device, "the layer's inputs")

    def _require_lowering(self) -> None:
        name = type(self).__name__
        if not self.lowers and type(self).forward is AbstractPreference.forward:
            raise ProblemError(
                f"{name} has no log-weights: implement its method log_weight(inputs) or mask_mod(inputs), which return "
                "a function of indices (b, h, q, k), or forward(inputs), which returns a tensor."
            )
        if not self.lowers:
            raise ProblemError(
                f"{name} cannot be put into a fused kernel: its log-weights are not a function of single indices. Use "
                "its tensor, preference(inputs), instead."
            )

    def __add__(self, other: Any) -> NoReturn:
        raise ProblemError(
            "preferences are joined by +; expected *, which adds log-weights: Causal() * ALiBi(4)"
        )

    def __mul__(self, other: AbstractPreference) -> AbstractPreference:
        expected = "one of fenchel.nn.preference, as in Causal() * ALiBi(4)"
        check_preference("factor of a preference", other, expected)
        parts = _flattened((self, other))
        if len(parts) > 1:
            return Product(*parts)
        return parts[0] if parts else Uniform()

    __rmul__ = __mul__

    def __pow__(self, weight: float) -> AbstractPreference:
        power = Tempered(self, weight)
        return Uniform() if isinstance(self, Uniform) else power

    def extra_repr(self) -> str:
        """Arguments that differ from the default."""
        return shown_arguments(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


class AbstractGridPreference(AbstractPreference):
    """A preference over the pixels of an image, which are given row by row.

    Args:
        grid: Rows and columns.
        **sizes: As in :class:`AbstractPreference`.

    Attributes:
        grid: Rows and columns.
        padding: Number of rows and columns added to the grid of the keys on every side.
    """

    padding: tuple[int, int] = (0, 0)

    def __init__(self, grid: tuple[int, int], **sizes: int) -> None:
        super().__init__(**sizes)
        self.grid = check_grid(type(self).__name__, grid)

    def check(self, inputs: AttentionInputs) -> None:
        """Raise unless the tokens also fill the grid."""
        super().check(inputs)
        last = (inputs.query_offset or 0) + inputs.queries
        check_pixels(type(self).__name__, self.grid, inputs.keys, last, self.padding)

    def by_offset(
        self, inputs: AttentionInputs, function: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> IndexFunction:
        """A function of the head and of the key's offset from the query, in rows down and columns right.

        Args:
            inputs: Give the positions of the queries.
            function: A function of head, rows and columns; gives the value at indices (b, h, q, k).
        """
        (rows, columns), (up, left) = self.grid, self.padding
        # If the queries are all pixels, the first is at 0, also where padding adds keys.
        all_pixels = inputs.query_offset is None and inputs.queries == rows * columns
        position = unchanged if all_pixels else inputs.query_position()
        padded = columns + 2 * left

        def at_offset(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            pixel = position(q)
            return function(h, k // padded - pixel // columns - up, k % padded - pixel % columns - left)

        return at_offset


class Uniform(AbstractPreference):
    r"""The uniform preference, :math:`\log u_i = 0`: plain dot-product attention.

    The identity of multiplication; it returns None instead of a tensor.

    Reference:
        Vaswani et al. 2017, Attention is all you need, section 3.2.1.

    Example:
        >>> from fenchel.nn.preference import Causal
        >>> Uniform() * Causal()
        Causal()
    """

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """None: nothing is added to a score."""
        return None


class Product(AbstractPreference):
    r"""The product of preferences, :math:`\log u = \sum_r \log u^{(r)}`; written ``a * b``.

    A product of masks is a mask. In a fused kernel the factors become one function of indices, which reads the small
    tables of each factor and never a tensor of m·n entries.

    Args:
        factors: At least one; products among them are flattened and :class:`Uniform` is left out.

    Raises:
        ProblemError: If no factor is given, or one is not a preference.

    Example:
        >>> from fenchel.nn.preference import Causal, KeyPadding
        >>> Causal() * KeyPadding() ** 2.0
        Causal() * KeyPadding() ** 2.0
    """

    is_composite: ClassVar[bool] = True

    def __init__(self, *factors: AbstractPreference) -> None:
        super().__init__()
        if not factors:
            raise ProblemError("Product got no factors; give at least one preference, or use Uniform().")
        for factor in factors:
            check_preference("factor of Product", factor)
        self.factors = nn.ModuleList(_flattened(factors))
        self.depends_on_distance = all(factor.depends_on_distance for factor in self._parts)

    def forward(self, inputs: AttentionInputs) -> Tensor | None:
        """The sum of the factors' log-weights, with -inf where a mask is False."""
        if self.depends_on_distance and not torch.compiler.is_compiling():
            return super().forward(inputs)
        return combined([log_preference_of(factor, inputs) for factor in self._parts])

    @property
    def lowers(self) -> bool:
        """Whether every factor does."""
        return all(factor.lowers for factor in self._parts)

    def check(self, inputs: AttentionInputs) -> None:
        """Raise unless the inputs match every factor."""
        for factor in self._parts:
            factor.check(inputs)

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The sum of the factors' log-weights."""
        return _joined(torch.add, [factor.checked_log_weight(inputs) for factor in self._parts])

    def mask_mod(self, inputs: AttentionInputs) -> IndexFunction | None:
        """True where every factor's mask is."""
        return _joined(torch.logical_and, [factor.checked_mask(inputs) for factor in self._parts])

    @property
    def _parts(self) -> list[AbstractPreference]:
        return [factor for factor in self.factors if isinstance(factor, AbstractPreference)]

    def __repr__(self) -> str:
        return " * ".join(repr(factor) for factor in self.factors) or "Product()"


def _joined(
    operation: Callable[[Tensor, Tensor], Tensor], functions: Sequence[IndexFunction | None]
) -> IndexFunction | None:
    """The function of indices that combines the values of several, leaving out those that are None."""
    terms = tuple(function for function in functions if function is not None)
    if not terms:
        return None
    return lambda b, h, q, k: reduce(operation, (function(b, h, q, k) for function in terms))


def check_preference(name: str, preference: Any, expected: str = "one of fenchel.nn.preference") -> None:
    """Raise unless an argument is a preference whose ``super().__init__()`` was called.

    Raises:
        ProblemError: With the name of the argument, or the class of the preference.
    """
    check_type(name, preference, AbstractPreference, expected)
    if "_modules" not in vars(preference):
        kind = type(preference).__name__
        raise ProblemError(
            f"preference is a {kind} that is not set up; call super().__init__() in its __init__"
        )


def log_preference_of(preference: AbstractPreference, inputs: AttentionInputs) -> Tensor | None:
    """What a preference gives, which may also be a ``CausalBias``, as a tensor that fits the inputs; None if uniform.

    Raises:
        ProblemError: If it is of another kind or shape.
    """
    log_u = preference(inputs)
    if log_u is None:
        return None
    name, m, n = f"{type(preference).__name__}(inputs)", inputs.queries, inputs.keys
    log_u = without_causal_bias(name, log_u, m, n, inputs.device)
    form = "that broadcasts to (batch, heads, queries, keys)"
    check_tensor(name, log_u, form, dtypes=MASK, broadcast=(inputs.batch, inputs.heads, m, n))
    return log_u


def _flattened(factors: tuple[AbstractPreference, ...]) -> list[AbstractPreference]:
    parts = [part for f in factors for part in (f._parts if isinstance(f, Product) else [f])]
    return [part for part in parts if not isinstance(part, Uniform)]


class Tempered(AbstractPreference):
    r"""A preference to a power, :math:`\log u' = w \log u`; written ``a ** w``.

    w < 1 flattens it and w > 1 sharpens it. Masks are unchanged.

    Args:
        preference: u.
        weight: w > 0.
        learned: Whether w is learned, as the exponential of a parameter.

    Raises:
        ProblemError: If w is not a positive number.

    Example:
        >>> from fenchel.nn.preference import KeyPadding
        >>> Tempered(KeyPadding(), 0.5, learned=True)
        Tempered(KeyPadding(), 0.5, learned=True)
    """

    is_composite: ClassVar[bool] = True

    def __init__(self, preference: AbstractPreference, weight: float, learned: bool = False) -> None:
        super().__init__()
        check_preference("preference of Tempered", preference)
        if isinstance(weight, Tensor):
            raise ProblemError(
                "weight is a tensor; expected a number above 0. For a learned power use Tempered(preference, start, "
                "learned=True)"
            )
        checked_argument("positive", weight, name="weight")
        check_flags(learned=learned)
        self.preference = preference
        self.heads = preference.heads
        self.fixed_weight = float(weight)
        self.log_power = nn.Parameter(torch.tensor(math.log(weight))) if learned else None

    @property
    def weight(self) -> float | Tensor:
        """w: a number, or a 0-dimensional tensor if it is learned."""
        return self.fixed_weight if self.log_power is None else self.log_power.exp()

    def forward(self, inputs: AttentionInputs) -> Tensor | None:
        """w·log u, -inf where forbidden."""
        self.check(inputs)
        log_u = self.preference(inputs)
        if log_u is None or log_u.dtype == torch.bool:
            return log_u
        if self.log_power is None:
            return self.fixed_weight * log_u
        # The gradient to w of w·(-inf) would be 0·(-inf).
        allowed = log_u > -torch.inf
        return torch.where(allowed, self.weight * torch.where(allowed, log_u, 0.0), -torch.inf).to(
            log_u.dtype
        )

    @property
    def lowers(self) -> bool:
        """Whether the preference does."""
        return self.preference.lowers

    def check(self, inputs: AttentionInputs) -> None:
        """Raise unless the inputs match the preference and the learned weight."""
        self.preference.check(inputs)
        super().check(inputs)

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """w·log u."""
        inner = self.preference.checked_log_weight(inputs)
        if inner is None:
            return None
        if self.log_power is None:
            factor = self.fixed_weight
            return lambda b, h, q, k: factor * inner(b, h, q, k)
        # A fused kernel gives gradients to tables that it indexes, not to scalars.
        factors = self.log_power.exp().expand(inputs.heads).contiguous()
        return lambda b, h, q, k: factors[h] * inner(b, h, q, k)

    def mask_mod(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The mask of the preference."""
        return self.preference.mask_mod(inputs)

    def __repr__(self) -> str:
        if self.log_power is not None:
            return f"Tempered({self.preference!r}, {self.log_power.detach().exp().item():.4g}, learned=True)"
        inner = f"({self.preference!r})" if self.preference.is_composite else repr(self.preference)
        return f"{inner} ** {self.fixed_weight}"
