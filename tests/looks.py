"""A mode that notes what waits for the values of a tensor, as an accelerator would have to."""

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

__all__ = ["READS", "Looks"]

aten: Any = torch.ops.aten

SHAPED = {
    aten.nonzero, aten.equal, aten.masked_select, aten._unique2, aten.unique_dim, aten.unique_consecutive,
    aten.bincount, aten._linalg_check_errors, aten._local_scalar_dense,
}  # fmt: skip
"""Operations that wait for values wherever these are."""

BY_INDEX = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
READS = ("__bool__", "__float__", "__int__", "__index__", "item", "tolist", "numpy", "cpu")


class Looks(TorchDispatchMode):
    """Notes what waits for values: reads of elements, and shapes that depend on elements."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet, kwargs = func.overloadpacket, kwargs or {}
        masked = packet in BY_INDEX and any(x is not None and x.dtype == torch.bool for x in args[1])
        repeats = func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None
        if packet in SHAPED or masked or repeats:
            self.note(str(func))
        return func(*args, **kwargs)

    def note(self, what: str) -> None:
        own = [f for f in traceback.extract_stack() if "/fenchel/" in f.filename]
        self.found.append(
            f"{what} at {own[-1].filename.rsplit('/fenchel/')[-1]}:{own[-1].lineno}" if own else what
        )

    def noted(self, name: str) -> Callable[..., Any]:
        """A method of tensors that reads: within operators not every read reaches a mode."""
        method = getattr(Tensor, name)

        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            before, seen = len(self.found), _get_current_dispatch_mode() is self
            value = method(tensor, *args, **kwargs)
            if seen:
                del self.found[before:]
                self.note(name)
            return value

        return read
