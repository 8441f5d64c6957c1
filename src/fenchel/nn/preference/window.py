"""Nothing from far away."""

from __future__ import annotations

from torch import Tensor

from fenchel.arguments import checked
from fenchel.errors import ProblemError
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.dense import IndexFunction
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.sizes import check_sizes

__all__ = ["Window"]


class Window(AbstractPreference):
    r"""A query sees the keys around it: :math:`u_j = 0` unless :math:`-\text{before} \le j - i \le \text{after}`.

    i is the query's position on the keys' axis.

    Args:
        before: How many keys before its own position a query sees; None for all of them.
        after: How many keys after its own position a query sees; None for all of them.
        dilation: See only every so manieth of them: j - i has to be divisible by it.

    Raises:
        ProblemError: If a size is negative or not whole, or nothing is restricted.

    Reference:
        Beltagy et al. 2020, Longformer, section 3.1 (sliding and dilated sliding window).

    Example:
        >>> import torch
        >>> from fenchel.nn.preference import AttentionInputs
        >>> inputs = AttentionInputs(1, 1, 3, 3, torch.device("cpu"), torch.float32)
        >>> Window(1, 0)(inputs)
        tensor([[[[ True, False, False],
                  [ True,  True, False],
                  [False,  True,  True]]]])
    """

    depends_on_distance = True

    def __init__(self, before: int | None, after: int | None, dilation: int = 1) -> None:
        super().__init__()
        check_sizes("Window", dilation=dilation)
        for name, size in (("before", before), ("after", after)):
            checked("reach", size, name=f"{name} of Window", error=ProblemError)
        if before is None and after is None and dilation == 1:
            raise ProblemError(
                "Window got before=None and after=None, which restricts nothing; use Uniform()."
            )
        self.before, self.after, self.dilation = before, after, dilation

    def mask_mod(self, inputs: AttentionInputs) -> IndexFunction | None:
        """True where key k is in the window of query q."""
        position, before, after, dilation = inputs.query_position(), self.before, self.after, self.dilation

        def is_near(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            distance = k - position(q)
            near = distance == distance if before is None else distance >= -before
            if after is not None:
                near = near & (distance <= after)
            if dilation > 1:
                near = near & (distance % dilation == 0)
            return near

        return is_near

    def extra_repr(self) -> str:
        """The window."""
        dilation = f", dilation={self.dilation}" if self.dilation > 1 else ""
        return f"before={self.before}, after={self.after}{dilation}"
