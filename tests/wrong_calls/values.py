"""Values that no argument of a kind may have, and what a target of wrong calls is."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fenchel import Constrained, Exact, GradientAscent
from fenchel.errors import FenchelError, ProblemError

Makers = Mapping[str, Callable[[], Any]]
"""How each value is made, by a name for it: tensors are made when the test runs."""

NAN, INF = float("nan"), float("inf")


class Together(dict[str, Any]):
    """Values of several arguments that are wrong together."""


class Target:
    """Something that can be called, how it is called rightly, and with what each argument makes that wrong.

    Args:
        call: What is called.
        rightly: The arguments that are taken.
        name: For the test's name.
        error: What is raised.
        wrongly: Makers of wrong values, by the argument that the message has to name.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        rightly: Mapping[str, Any],
        name: str = "",
        error: type[FenchelError] = ProblemError,
        /,
        **wrongly: Makers,
    ) -> None:
        self.call, self.rightly, self.error, self.wrongly = call, rightly, error, wrongly
        self.name = name or getattr(call, "__name__", type(call).__name__)


def once(argument: str, call: Callable[[], Any], error: type[FenchelError] = ProblemError) -> Target:
    """A call that is wrong as it stands, and the argument that the message has to name."""
    wrong: dict[str, Makers] = {argument: {"once": together(wrong=True)}}
    return Target(lambda wrong=False: wrong and call(), {}, argument, error, **wrong)


def filled(value: float, *shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
    return lambda: torch.full(shape, value, dtype=dtype)


def together(**values: Any) -> Callable[[], Together]:
    return lambda: Together(values)


def made(**values: Any) -> Makers:
    return {name: lambda value=value: value for name, value in values.items()}


def without(makers: Makers, *names: str) -> Makers:
    return {name: make for name, make in makers.items() if name not in names}


OBJECTS: Makers = made(
    ascent=GradientAscent(),
    constrained=Constrained(radius=0.1),
    throw=Exact(throw=False),
    budget=Exact(memory_budget=2**30),
)
"""Estimators that are none of attention."""


def _compressed() -> Tensor:
    return torch.ones(2, 2).to_sparse_csr()


def tensors(*shape: int, optional: bool = False) -> Makers:
    """What no dense tensor of float32 and of this shape is."""
    makers = {
        "list": lambda: torch.zeros(shape).tolist(),
        "array": lambda: np.zeros(shape, dtype="float32"),
        "text": lambda: "x",
        "number": lambda: 1.0,
        "mapping": dict,
        "module": lambda: nn.Linear(1, 1),
        "class": lambda: Tensor,
        "no dimension": lambda: torch.tensor(1.0),
        "nothing": lambda: torch.zeros(0),
        "int64": lambda: torch.zeros(shape, dtype=torch.int64),
        "complex": lambda: torch.zeros(shape, dtype=torch.complex64),
        "float8": lambda: torch.zeros(shape).to(torch.float8_e4m3fn),
        "sparse": lambda: torch.ones(shape).to_sparse(),
        "compressed": _compressed,
        "nested": lambda: torch.nested.nested_tensor([torch.zeros(2, 8), torch.zeros(3, 8)]),
        "meta": lambda: torch.zeros(shape, device="meta"),
        "longer": lambda: torch.zeros(*shape[:-1], shape[-1] + 1),
        "huge": lambda: torch.zeros(1).expand((10_000,) * len(shape)),
    }
    return makers if optional else {**makers, "None": lambda: None}


POSITIVE = {
    **made(text="x", nan=NAN, infinite=INF, zero=0.0, negative=-1, flag=True, list=[1.0], complex=1j),
    **made(too_large=1e39, too_small=1e-46, endless=10**400, mapping={}, None_=None),
    "array": lambda: np.ones(2),
    "class": lambda: float,
}
"""What is no number above 0 that float32 holds."""

TOLERANCES = without(POSITIVE, "too_small", "None_")
"""What is no tolerance."""

SHARES = made(negative=-0.1, one=1.0, nan=NAN, flag=True, text="0.5", None_=None, list=[0.1], complex=0.1j)
"""What is no probability below 1."""

WHOLE = {
    **made(text="3", half=1.5, real=1.0, zero=0, negative=-1, flag=True, huge=10**20, endless=10**5000),
    **made(nan=NAN, list=[1], complex=1j, None_=None),
    "tensor": lambda: torch.tensor([3, 4]),
}
"""What is no whole number from 1 that something could be as large as."""

FLAGS = {**made(text="no", number=2, None_=None, list=[]), "tensor": lambda: torch.tensor([True, False])}
"""What is neither True nor False."""

NAMES = {
    **made(
        unknown="x", case="Exact", empty="", number=3, list=["exact"], mapping={}, flag=True, bytes=b"exact"
    ),
    **made(set={"exact"}, None_=None),
    "tensor": lambda: torch.ones(2),
}
"""What is no name of an estimator or a cost."""
