"""Calls of every op and layer that looks at no value, and a mode that notes looks at values."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from fenchel.nn import ContinuousAttention, MixtureAttention, MultiheadAttention
from fenchel.nn.evidence import RelativeKeys, Rotary, TransformerXL
from fenchel.nn.preference import GridPosition, GridWindow, QuadraticGridPosition
from tests.functional.ops import OPS, infer, leaves
from tests.nn.preferences import EVERY, HEADS, WIDTH

B, N = 2, 6


@dataclass
class Run:
    """A call, and the tensors that it is differentiated in beside parameters."""

    call: Callable[[], Any]
    leaves: list[Tensor]

    def __call__(self) -> Any:
        return self.call()


def op(
    name: str = "softmax",
    estimator: str = "first_order",
    *,
    mask: Tensor | None = None,
    solving: dict[str, Any] | None = None,
    output_alone: bool = False,
    **call: Any,
) -> Run:
    """A call of an op, with its certificate and all else that is computed of it; a mask replaces its preference."""
    tensors = OPS[name].call(**call) | ({} if mask is None else {"log_preference": mask})
    if name == "relative by an index":
        tensors["index"] = torch.arange(35).reshape(5, 7) % 6

    def run() -> Any:
        found = infer(OPS[name], tensors, estimator, **(solving or {}))
        if output_alone:
            return found.output
        gap = () if estimator == "exact" else (found.gap,)
        return (*found.certified(), found.weights, found.dual, *gap)

    return Run(run, list(leaves(tensors).values()))


def layer(preference: Callable[[], Any] | None = None, **options: Any) -> Run:
    """A training step of multi-head attention."""
    made = None if preference is None else preference()
    built = MultiheadAttention(WIDTH, HEADS, batch_first=True, preference=made, **options)
    x, padding = torch.randn(B, N, WIDTH, requires_grad=True), torch.zeros(B, N, dtype=torch.bool)
    return Run(lambda: built(x, x, x, key_padding_mask=padding, need_weights=False)[0], [x])


def other_layer(kind: type[nn.Module], operands: int) -> Run:
    built, x = kind(WIDTH, HEADS), torch.randn(B, N, WIDTH, requires_grad=True)
    return Run(lambda: built(*[x] * operands), [x])


LOOKING = ("transport", "transport to atoms")
WITHOUT_LOOKS = [name for name in OPS if name not in LOOKING]
SECOND_ORDER = ("softmax", "relative", "relative by an index", "mixture", "mixture, spherical")

FIRST: dict[str, Callable[[], Run]] = {
    **{
        f"{name}, {shape}": lambda name=name, shape=shape: op(name, preference=shape)
        for name in WITHOUT_LOOKS
        for shape in (None, (5, 7))
    },
    **{
        f"{name}, second order, {shape}": lambda name=name, shape=shape: op(
            name, "second_order", preference=shape
        )
        for name in SECOND_ORDER
        for shape in (None, (4, 1, 7))
    },
    "mask": lambda: op(mask=torch.ones(5, 7, dtype=torch.bool).tril(2)),
    "weights of a mask": lambda: op(mask=torch.full((5, 7), -torch.inf).triu(3)),
    "grouped heads, their alpha": lambda: op(key_heads=2, alpha=(4, 1), preference=(5, 7)),
    "layer": layer,
    "layer, second order": lambda: layer(estimator="second_order", learn_alpha=True),
    "layer of mixtures": lambda: other_layer(MixtureAttention, 3),
    "continuous layer": lambda: other_layer(ContinuousAttention, 2),
    "rotary": lambda: layer(evidence=Rotary(WIDTH // HEADS)),
    "relative keys": lambda: layer(evidence=RelativeKeys(HEADS, WIDTH // HEADS, max_distance=2)),
    "Transformer-XL": lambda: layer(evidence=TransformerXL(HEADS, WIDTH // HEADS, width=8)),
    **{f"preference: {name}": lambda made=made: layer(made) for name, made in EVERY.items()},
    "preference: grid position": lambda: layer(lambda: GridPosition(HEADS, (2, 3))),
    "preference: grid window": lambda: layer(lambda: GridWindow((2, 3), reach=1)),
    "preference: quadratic grid": lambda: layer(lambda: QuadraticGridPosition((2, 3), HEADS, kernel=(1, 3))),
}


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
