"""What the compiler leaves alone, what is paid for it before something is compiled, and which kernel is taken."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import functional as F
from fenchel.functional.output import SLOW_IN_HALF_BELOW
from fenchel.functional.rows import untraced
from tests.compiling import compiled_afresh


def as_it_is(x: Tensor, times: int = 2) -> Tensor:
    """Says whether it was traced: a value of x decides, and what runs inside of the compiler says so."""
    assert not torch.compiler.is_compiling()
    total = x
    for _ in range(int(x.sum())):
        total = total * times
    return total


def test_the_same_is_computed_and_called_by_the_same_name():
    wrapped = untraced(as_it_is)
    x = torch.ones(3, dtype=torch.float64)
    assert torch.equal(wrapped(x), as_it_is(x))
    assert torch.equal(wrapped(x, times=3), as_it_is(x, 3))
    assert (wrapped.__name__, wrapped.__doc__) == ("as_it_is", as_it_is.__doc__)


def test_compiled_code_calls_it_as_it_is():
    wrapped = untraced(as_it_is)
    x = torch.ones(3, dtype=torch.float64)
    with compiled_afresh():
        compiled = torch.compile(lambda x: wrapped(x + 1, times=3) * 2, backend="eager")
        assert torch.equal(compiled(x), as_it_is(x + 1, 3) * 2)
        assert torch.equal(compiled(2 * x), as_it_is(2 * x + 1, 3) * 2)


def test_a_whole_graph_cannot_hold_it_and_the_error_is_torchs_own():
    x = torch.ones(3, dtype=torch.float64)
    functions: list[Any] = [untraced(as_it_is), torch.compiler.disable(as_it_is)]
    for function in functions:
        with compiled_afresh(), pytest.raises(RuntimeError, match=r"`torch.compiler.disable\(\)`d function"):
            torch.compile(lambda x, f=function: f(x) * 2, backend="eager", fullgraph=True)(x)


def test_a_call_outside_of_the_compiler_does_not_load_it():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, torch\n"
            "from fenchel import functional as F\n"
            "x = torch.ones(1, 1, 3, 2, requires_grad=True)\n"
            "F.transport_attention(x, x, x, gamma=1.0, estimator='exact').sum().backward()\n"
            "print('torch._dynamo' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(("keys", "wide"), [(SLOW_IN_HALF_BELOW, True), (SLOW_IN_HALF_BELOW + 1, False)])
def test_on_the_cpu_half_types_are_trained_in_float32_over_few_keys(keys: int, wide: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, keys, 16, generator=generator).bfloat16() for _ in range(3))
    rounded = F.attention(q.float(), k.float(), v.float()).bfloat16()
    trained = F.attention(q.requires_grad_(), k, v)
    assert torch.equal(trained, rounded) == wide
    with torch.no_grad():
        assert not torch.equal(F.attention(q, k, v), rounded)
