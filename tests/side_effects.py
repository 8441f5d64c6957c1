"""Checks that a function leaves its inputs alone, and computes the same in other surroundings."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.normal import drawn


def in_memory(tensors: dict[str, Tensor]) -> dict[str, bytes]:
    return {
        name: part.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for name, part in tensors.items()
    }


def tensors_in(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    parts = result if isinstance(result, tuple) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


def assert_unchanged(call: Callable[[], Any], inputs: dict[str, Tensor]) -> None:
    """Check that neither a call nor its backward pass changes an input or an incoming gradient."""
    before = in_memory(inputs)
    outputs = [part for part in tensors_in(call()) if part.requires_grad]
    assert in_memory(inputs) == before, "by the call"
    if outputs:
        incoming = {str(i): torch.randn_like(part) for i, part in enumerate(outputs)}
        arrived = in_memory(incoming)
        torch.autograd.backward(outputs, list(incoming.values()))
        assert in_memory(inputs) == before, "by the backward pass"
        assert in_memory(incoming) == arrived, "of what the backward pass is given"


def assert_checkpointed(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], reentrant: tuple[bool, ...] = (False, True)
) -> None:
    """Compare value and gradients of a function to those under checkpointing of some kinds."""
    expected = function(*inputs)
    direction = drawn(*expected.shape, seed=5)
    slopes = torch.autograd.grad((expected * direction).sum(), inputs, materialize_grads=True)
    assert any(bool((slope != 0).any()) for slope in slopes)
    for kind in reentrant:
        # Inputs of layers in a stack are no leaves.
        output = checkpoint(function, *(part * 1.0 for part in inputs), use_reentrant=kind)
        assert isinstance(output, Tensor)
        torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
        # A reentrant checkpoint takes no torch.autograd.grad.
        for part in inputs:
            part.grad = None
        (output * direction).sum().backward()
        for part, slope in zip(inputs, slopes, strict=True):
            found = torch.zeros_like(slope) if part.grad is None else part.grad
            torch.testing.assert_close(found, slope, rtol=1e-10, atol=1e-12)


class Made(TorchDispatchMode):
    """Keeps every tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.tensors += tensors_in(tuple(found) if isinstance(found, list) else found)
        return found


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
