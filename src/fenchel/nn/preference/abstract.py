"""What every preference is, log-weights as a tensor and as functions of indices; and products and powers of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor, nn

from fenchel.errors import ProblemError
from fenchel.nn.arguments import AttentionInputs, IndexFunction, check_pixels, combined, shown_arguments
from fenchel.tensors import check_flags, check_type, checked_argument


def on_grid(function: IndexFunction, inputs: AttentionInputs, *, one_head: bool = False) -> Tensor:
    """All values of a function of indices, (B, H, m, n) with size 1 for every index that it does not read.

    Args:
        function: Of indices (b, h, q, k) that broadcast.
        inputs: Gives the ranges of the indices.
        one_head: Evaluate at head 0 alone, for a function that is the same for every head.
    """
    ranges = (inputs.batch, 1 if one_head else inputs.heads, inputs.queries, inputs.keys)
    values = function(
        *(_axis(own, torch.arange(size, device=inputs.device)) for own, size in enumerate(ranges))
    )
    return values.reshape((1,) * (4 - values.dim()) + tuple(values.shape))


def on_diagonals(function: IndexFunction, inputs: AttentionInputs, *, one_head: bool = False) -> Tensor:
    """:func:`on_grid` for a function that reads neither b nor more of q and k than k - q: evaluated m + n - 1 times.

    Args:
        function: Of indices (b, h, q, k) that broadcast, and of k - q for negative k too.
        inputs: Gives the ranges of the indices.
        one_head: Evaluate at head 0 alone, for a function that is the same for every head.
    """
    m, n = inputs.queries, inputs.keys
    if m == 0 or n == 0:
        return on_grid(function, inputs, one_head=one_head)
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=inputs.device)
    heads = _axis(1, torch.arange(1 if one_head else inputs.heads, device=inputs.device))
    distances = _axis(3, torch.arange(1 - m, n, device=inputs.device))
    values = function(zero, heads, zero, distances).squeeze(2)
    # Row i is the window of n distances that begins at -i.
    return _skewed(values, m, n) if torch.compiler.is_compiling() else values.unfold(-1, n, 1).flip(-2)


def _skewed(values: Tensor, m: int, n: int) -> Tensor:
    """The same windows (..., m, n) of (..., m + n - 1) values, for sizes that may be symbols in a graph.

    Under one another and read as rows that are one shorter, copies of the values move by one from row to row. A
    compiler makes one expression of that, where eager makes an array twice as large as the result.
    """
    copies = torch.nn.functional.pad(values, (0, 1)).unsqueeze(-2).expand(*values.shape[:-1], m, -1)
    shifted = copies.flatten(-2)[..., m - 1 : m - 1 + m * (m + n - 1)]
    return shifted.unflatten(-1, (m, m + n - 1))[..., :n]


def _axis(own: int, indices: Tensor) -> Tensor:
    return indices.reshape([-1 if axis == own else 1 for axis in range(4)])


def cut(parameter: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Entries ``start`` to ``start + length`` of a parameter along a dimension.

    A view of all entries is contiguous and one of some is not, so that a graph that is exported for any length would be
    made for some only: there it is a copy.
    """
    if torch.compiler.is_exporting():
        return parameter.index_select(dim, torch.arange(start, start + length, device=parameter.device))
    return parameter.narrow(dim, start, length)


def table(parameter: Tensor) -> Tensor:
    """A parameter that a function of indices may read: at least float32, and a tensor of its own.

    A fused kernel refuses to read one tensor that needs a gradient twice, as the product of a preference with itself
    would, and it adds up gradients in the dtype of the table.
    """
    precise = parameter.to(torch.promote_types(parameter.dtype, torch.float32))
    return precise.clone() if precise is parameter and parameter.requires_grad else precise


ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function (score, b, h, q, k) -> score, as flex attention takes it."""


class AbstractPreference(nn.Module):
    r"""A belief u about the weights before any query meets a key.

    .. math:: p_i \propto u_i \exp\langle t_i, \lambda\rangle, \qquad \log (u \cdot u')_i = \log u_i + \log u'_i

    A family is written in one of two ways. With :meth:`log_weight` or :meth:`mask_mod` (or both) as functions of
    indices it can be used as a tensor and inside of a fused kernel. With :meth:`forward` alone, for what cannot be
    computed entry by entry, it can be used as a tensor only.

    Attributes:
        heads: How many heads the log-weights differ for, None if nothing is said; 1 if all heads share them, whose
            functions of indices are then asked for head 0 alone.
        depends_on_distance: Whether the functions of indices read neither b nor more of q and k than k - q; the tensor
            then costs m + n - 1 evaluations instead of m·n.

    Example:
        >>> from fenchel.nn.preference import Causal, Uniform
        >>> Causal() * Uniform() ** 0.5
        Causal()
    """

    heads: int | None = None
    depends_on_distance: bool = False
    is_composite: ClassVar[bool] = False
    """Whether it is written with an operator, and so needs brackets inside of another."""

    def forward(self, inputs: AttentionInputs) -> Tensor | None:
        """The log-weights, unnormalised.

        Args:
            inputs: What is known before any query meets a key.

        Returns:
            Float log-weights, -inf where forbidden, or a bool mask, True = attend; of four dimensions that broadcast to
            (B, H, m, n), with size 1 wherever they are constant. None if everything is as likely as everything else.

        Raises:
            ProblemError: If the inputs lack what this preference looks at, or have other heads or another device.
        """
        self.check(inputs)
        weight, mask = self.checked_log_weight(inputs), self.checked_mask(inputs)
        evaluated = on_diagonals if self.depends_on_distance else on_grid
        # A compiler compares places where it needs them; eager would make two arrays of all pairs first.
        masked = on_grid if torch.compiler.is_compiling() else evaluated
        one_head = self.heads == 1
        return combined(
            [
                None if weight is None else evaluated(weight, inputs, one_head=one_head).to(inputs.dtype),
                None if mask is None else masked(mask, inputs, one_head=one_head),
            ]
        )

    @property
    def lowers(self) -> bool:
        """Whether the log-weights are functions of indices, which a fused kernel needs."""
        own = type(self)
        return (
            own.log_weight is not AbstractPreference.log_weight
            or own.mask_mod is not AbstractPreference.mask_mod
        )

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The finite log-weights as a function of indices (b, h, q, k); None if this is only a mask.

        Raises:
            ProblemError: If there is no such function without a tensor of m·n entries.
        """
        self._require_lowering()
        return None

    def mask_mod(self, inputs: AttentionInputs) -> IndexFunction | None:
        """What may be attended to as a function of indices (b, h, q, k), True = attend; None if everything may.

        Raises:
            ProblemError: If there is no such function without a tensor of m·n entries.
        """
        self._require_lowering()
        return None

    def score_mod(self, inputs: AttentionInputs) -> ScoreMod | None:
        """What a fused kernel does to each score, (score, b, h, q, k) -> score; None if this is only a mask.

        Raises:
            ProblemError: As :meth:`log_weight` and :meth:`forward`.
        """
        self.check(inputs)
        weight = self.checked_log_weight(inputs)
        if weight is None:
            return None
        return lambda score, b, h, q, k: score + weight(b, h, q, k)

    def checked_log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """:meth:`log_weight`, refusing a mask, which would count as log-weights 1 and 0.

        Raises:
            ProblemError: As :meth:`log_weight`; when the function is called, if it returns a bool tensor.
        """
        advice = "log-weights, floating. What may be attended to belongs in mask_mod, True = attend"
        return self._checked("log_weight", self.log_weight(inputs), False, advice)

    def checked_mask(self, inputs: AttentionInputs) -> IndexFunction | None:
        """:meth:`mask_mod`, refusing log-weights, of which any but 0 would count as True.

        Raises:
            ProblemError: As :meth:`mask_mod`; when the function is called, if what it returns is not bool.
        """
        advice = "bool, True = attend. Log-weights belong in log_weight"
        return self._checked("mask_mod", self.mask_mod(inputs), True, advice)

    def _checked(
        self, method: str, function: IndexFunction | None, is_mask: bool, expected: str
    ) -> IndexFunction | None:
        if function is None:
            return None
        name, is_shared = type(self).__name__, self.heads == 1

        def checked(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            result = function(b, torch.zeros_like(h) if is_shared else h, q, k)
            if (result.dtype == torch.bool) is not is_mask:
                raise ProblemError(f"{name}.{method} gives {result.dtype}; expected {expected}.")
            return result

        return checked

    def check(self, inputs: AttentionInputs) -> None:
        """Hold the inputs against what this preference was built for.

        Raises:
            ProblemError: If it was built for other heads, or its parameters are on another device.
        """
        name = type(self).__name__
        check_type(f"inputs of {name}", inputs, AttentionInputs, "AttentionInputs")
        if self.heads not in (None, 1, inputs.heads):
            raise ProblemError(
                f"{name} was built for {self.heads} heads, but the layer has {inputs.heads}; "
                f"build it with heads={inputs.heads}, or heads=1 to share it."
            )
        for tensor in chain(self.parameters(), self.buffers()):
            if tensor.device != inputs.device:
                raise ProblemError(
                    f"{name} is on {tensor.device}, but the layer's inputs are on {inputs.device}; "
                    f"move it with .to({str(inputs.device)!r})."
                )

    def _require_lowering(self) -> None:
        name = type(self).__name__
        if not self.lowers and type(self).forward is AbstractPreference.forward:
            raise ProblemError(
                f"{name} says nothing yet: write its method log_weight(inputs) or mask_mod(inputs), which return a "
                "function of indices (b, h, q, k), or forward(inputs), which returns a tensor."
            )
        if not self.lowers:
            raise ProblemError(
                f"{name} cannot be put into a fused kernel: its log-weights are no function of "
                "single indices. Use its tensor, preference(inputs), instead."
            )

    def __mul__(self, other: AbstractPreference) -> AbstractPreference:
        if not isinstance(other, AbstractPreference):
            return NotImplemented
        parts = _dissolved((self, other))
        if len(parts) > 1:
            return Product(*parts)
        return parts[0] if parts else Uniform()

    def __pow__(self, weight: float) -> AbstractPreference:
        power = Tempered(self, weight)
        return Uniform() if isinstance(self, Uniform) else power

    def extra_repr(self) -> str:
        """What it was built with, where that is not the default."""
        return shown_arguments(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


class AbstractGridPreference(AbstractPreference):
    """A preference of the pixels of an image, which are given row by row.

    Attributes:
        grid: Rows and columns.
        padding: Rows and columns that the grid of the keys has more, on every side.
    """

    grid: tuple[int, int]
    padding: tuple[int, int] = (0, 0)

    def check(self, inputs: AttentionInputs) -> None:
        """Hold tokens against the grid too."""
        super().check(inputs)
        last = (inputs.query_offset or 0) + inputs.queries
        check_pixels(type(self).__name__, self.grid, inputs.keys, last, self.padding)


class Uniform(AbstractPreference):
    r"""Everything is as likely as everything else, :math:`\log u_i = 0`: plain dot-product attention.

    It is the identity of multiplication, and gives None instead of a tensor.

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

    Masks alone multiply to a mask. As functions of indices the factors are one function, so that a fused kernel reads
    the small tables of each factor and never a tensor of m·n entries.

    Args:
        factors: At least one; products among them are dissolved and :class:`Uniform` is left out.

    Raises:
        ProblemError: If there is no factor, or one is not a preference.

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
            check_type("factor of Product", factor, AbstractPreference, "one of fenchel.nn.preference")
        self.factors = nn.ModuleList(_dissolved(factors))

    def forward(self, inputs: AttentionInputs) -> Tensor | None:
        """The sum of the factors' log-weights, with -inf where a mask among them forbids."""
        parts = self._parts
        eager = not torch.compiler.is_compiling()
        if eager and len(parts) > 1 and all(part.depends_on_distance for part in parts):
            return self._on_diagonals(inputs)
        return combined([factor(inputs) for factor in parts])

    def _on_diagonals(self, inputs: AttentionInputs) -> Tensor:
        """The same, put together a distance and not a pair at a time."""
        self.check(inputs)
        functions = [
            (factor.checked_log_weight(inputs), factor.checked_mask(inputs), factor.heads == 1)
            for factor in self._parts
        ]

        def of_distance(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            terms: list[Tensor] = []
            for weight, mask, one_head in functions:
                own = h[:, :1] if one_head else h
                if weight is not None:
                    terms.append(weight(b, own, q, k).to(inputs.dtype))
                if mask is not None:
                    terms.append(mask(b, own, q, k))
            result = combined(terms)
            assert result is not None  # noqa: S101 -- a preference that lowers is a weight, a mask or both
            return result

        return on_diagonals(of_distance, inputs)

    @property
    def lowers(self) -> bool:
        """Whether every factor does."""
        return all(factor.lowers for factor in self._parts)

    def check(self, inputs: AttentionInputs) -> None:
        """Hold the inputs against every factor."""
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
    """One function of indices of several, of which those that are None are left out."""
    given = tuple(function for function in functions if function is not None)
    if len(given) < 2:
        return given[0] if given else None

    def joined(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        result = given[0](b, h, q, k)
        for function in given[1:]:
            result = operation(result, function(b, h, q, k))
        return result

    return joined


def _dissolved(factors: tuple[AbstractPreference, ...]) -> list[AbstractPreference]:
    parts = [part for f in factors for part in (f._parts if isinstance(f, Product) else [f])]
    return [part for part in parts if not isinstance(part, Uniform)]


class Tempered(AbstractPreference):
    r"""A preference to a power, :math:`\log u' = w \log u`; written ``a ** w``.

    w < 1 trusts it less and w > 1 more. Masks are masks at any w.

    Args:
        preference: u.
        weight: w > 0.
        learned: Whether w is learned, as exp of a parameter, so that it stays positive.

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
        expected = "one of fenchel.nn.preference"
        check_type("preference of Tempered", preference, AbstractPreference, expected)
        if isinstance(weight, Tensor):
            raise ProblemError(
                "weight is a tensor; expected a number above 0. For a power that is learned use Tempered(preference, "
                "start, learned=True)"
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
        """w·log u, with what is forbidden as it is."""
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
        """Hold the inputs against the preference and the learned weight."""
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
        """The preference's own."""
        return self.preference.mask_mod(inputs)

    def __repr__(self) -> str:
        if self.log_power is not None:
            return f"Tempered({self.preference!r}, {self.log_power.detach().exp().item():.4g}, learned=True)"
        inner = f"({self.preference!r})" if self.preference.is_composite else repr(self.preference)
        return f"{inner} ** {self.fixed_weight}"
