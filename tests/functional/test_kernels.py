"""What the compiler leaves alone, what is paid for it before something is compiled, and which kernel is taken."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from fenchel import functional as F
from fenchel.functional.output import SLOW_IN_HALF_BELOW
from tests.functional.ops import OPS, infer


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


def test_first_order_relative_attention_never_writes_templates_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("templates were written out")

    monkeypatch.setattr("fenchel.functional.relative._by_query", refuse)
    call = OPS["relative"].call(preference=(5, 7))
    output, bounds = infer(OPS["relative"], call, "first_order").certified()
    assert (output.shape, bounds.gap.shape) == ((2, 4, 5, 2), (2, 4, 5))


@pytest.mark.parametrize(("keys", "wide"), [(SLOW_IN_HALF_BELOW, True), (SLOW_IN_HALF_BELOW + 1, False)])
def test_on_the_cpu_half_types_are_trained_in_float32_over_few_keys(keys: int, wide: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, keys, 16, generator=generator).bfloat16() for _ in range(3))
    rounded = F.attention(q.float(), k.float(), v.float()).bfloat16()
    trained = F.attention(q.requires_grad_(), k, v)
    assert torch.equal(trained, rounded) == wide
    with torch.no_grad():
        assert not torch.equal(F.attention(q, k, v), rounded)
