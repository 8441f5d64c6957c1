"""What every preference is: log-weights as a tensor and as functions of indices, that multiply."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from fenchel.errors import ProblemError
from fenchel.nn.preference.dense import IndexFunction, combined, on_diagonals, on_grid
from fenchel.nn.preference.inputs import AttentionInputs

__all__ = ["AbstractPreference", "ScoreMod", "builds"]

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function (score, b, h, q, k) -> score, as flex attention takes it."""


class AbstractPreference(nn.Module):
    r"""A belief u about the weights before any query meets a key.

    .. math:: p_i \propto u_i \exp\langle t_i, \lambda\rangle, \qquad \log (u \cdot u')_i = \log u_i + \log u'_i

    A family is written in one of two ways. With :meth:`log_weight` or :meth:`mask_mod` (or both) as functions of
    indices it can be used as a tensor and inside of a fused kernel. With :meth:`forward` alone, for what cannot be
    computed entry by entry, it can be used as a tensor only.

    Attributes:
        heads: How many heads the log-weights differ for; 1 if all heads share them, None if nothing is said.
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

        def add_log_weight(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return score + weight(b, h, q, k)

        return add_log_weight

    def checked_log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """:meth:`log_weight`, refusing a mask, which would count as log-weights 1 and 0.

        Raises:
            ProblemError: As :meth:`log_weight`; when the function is called, if it returns a bool tensor.
        """
        weight, name = self.log_weight(inputs), type(self).__name__
        if weight is None:
            return None

        def floating(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            found = weight(b, h, q, k)
            if found.dtype == torch.bool:
                raise ProblemError(
                    f"{name}.log_weight gives bool; expected log-weights, floating. What may be attended to belongs "
                    "in mask_mod, True = attend."
                )
            return found

        return floating

    def checked_mask(self, inputs: AttentionInputs) -> IndexFunction | None:
        """:meth:`mask_mod`, refusing log-weights, of which any but 0 would count as True.

        Raises:
            ProblemError: As :meth:`mask_mod`; when the function is called, if what it returns is not bool.
        """
        mask, name = self.mask_mod(inputs), type(self).__name__
        if mask is None:
            return None

        def boolean(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            found = mask(b, h, q, k)
            if found.dtype != torch.bool:
                raise ProblemError(
                    f"{name}.mask_mod gives {found.dtype}; expected bool, True = attend. Log-weights belong in "
                    "log_weight."
                )
            return found

        return boolean

    def check(self, inputs: AttentionInputs) -> None:
        """Hold the inputs against what this preference was built for.

        Raises:
            ProblemError: If it was built for other heads, or its parameters are on another device.
        """
        name = type(self).__name__
        if not isinstance(inputs, AttentionInputs):
            raise ProblemError(f"inputs of {name} is a {type(inputs).__name__}; expected AttentionInputs")
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
        return _BUILDERS["*"](self, other)

    def __pow__(self, weight: float) -> AbstractPreference:
        return _BUILDERS["**"](self, weight)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


_Builder = TypeVar("_Builder", bound=Callable[..., AbstractPreference])
_BUILDERS: dict[str, Callable[..., AbstractPreference]] = {}


def builds(operator: Literal["*", "**"]) -> Callable[[_Builder], _Builder]:
    """Says what an operator between preferences builds: products and powers are preferences, and so stand above them.

    Args:
        operator: As it is written between its operands.

    Returns:
        A decorator of the function that is called with both operands.
    """

    def registered(builder: _Builder) -> _Builder:
        _BUILDERS[operator] = builder
        return builder

    return registered
