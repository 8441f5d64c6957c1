"""What works with what: every kind of attention under the tools that stand around a layer, and the table of the docs.

``python -m tests.works_with`` runs every tool and writes the table of ``docs/works-with.md``, each row of which
``test_shown_pages.py`` compares with what happens. An outcome is ``yes``, ``refused`` (an error of ours says why),
``no`` (another error), or –.
"""

import copy
import io
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, func, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from fenchel import FenchelError
from fenchel import functional as F
from fenchel.nn import ContinuousAttention, MixtureAttention, MultiheadAttention, TransportAttention
from fenchel.nn.preference import ALiBi, Causal, RelativePosition

PAGE = Path(__file__).parent.parent / "docs" / "works-with.md"
EXCEPTIONS = ("refused", "no", "–")  # outcomes other than "yes": the columns of the table
MOST = "all but "  # before the subjects without an outcome
WIDTH, HEADS, BATCH, TOKENS = 12, 3, 2, 6


class SelfAttention(nn.Module):
    def __init__(self, layer: nn.Module, **options: Any) -> None:
        super().__init__()
        self.layer, self.options = layer, options

    def forward(self, x: Tensor) -> Tensor:
        output = self.layer(x, x, x, **self.options)
        return output if isinstance(output, Tensor) else output[0]


class Op(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.projection, self.function = nn.Linear(WIDTH, 3 * WIDTH), function

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.projection(x).chunk(3, -1)
        )
        return self.function(query, key, value).transpose(1, 2).flatten(2)


def layer(**options: Any) -> SelfAttention:
    return SelfAttention(MultiheadAttention(WIDTH, HEADS, batch_first=True, **options), need_weights=False)


def _relative(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    rows = 2 * key.shape[2] - 1
    table = torch.linspace(-1, 1, WIDTH // HEADS).to(key).expand(1, 1, rows, WIDTH // HEADS)
    return F.relative_attention(query, key, value, table)


def _hashing(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    buckets = (key.detach()[..., :1] > 0).long().transpose(-1, -2)
    return F.hashing_attention(query, key, value, buckets, chunk=2)


SUBJECTS: dict[str, Callable[[], nn.Module]] = {
    "first order": layer,
    "preference": lambda: layer(preference=Causal() * ALiBi(HEADS)),
    "learned preference": lambda: layer(preference=RelativePosition(HEADS, 16)),
    "entmax15": lambda: layer(closeness="entmax15"),
    "second order": lambda: layer(estimator="second_order"),
    "exact": lambda: layer(estimator="exact"),
    "mixture": lambda: SelfAttention(MixtureAttention(WIDTH, HEADS, batch_first=True), need_weights=False),
    "transport": lambda: SelfAttention(TransportAttention(WIDTH, HEADS)),
    "continuous": lambda: SelfAttention(ContinuousAttention(WIDTH, HEADS), need_density=False),
    "exact entmax15": lambda: layer(closeness="entmax15", estimator="exact"),
    "exact mixture": lambda: SelfAttention(
        MixtureAttention(WIDTH, HEADS, batch_first=True, estimator="exact"), need_weights=False
    ),
    "exact continuous": lambda: SelfAttention(
        ContinuousAttention(WIDTH, HEADS, estimator="exact"), need_density=False
    ),
    "relative": lambda: Op(_relative),
    "hashing": lambda: Op(_hashing),
}


def _tokens(batch: int = BATCH, count: int = TOKENS) -> Tensor:
    return torch.randn(batch, count, WIDTH, generator=torch.Generator().manual_seed(1))


def _gradients(module: nn.Module, output: Tensor) -> list[Tensor]:
    parameters = [p for p in module.parameters() if p.requires_grad]
    return list(torch.autograd.grad(output.square().sum(), parameters, materialize_grads=True))


def _check_training(module: nn.Module, other: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Value and gradients of another form of the same module, which has the same parameters."""
    expected, output = module(x), other(x)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(_gradients(module, output), _gradients(module, expected), rtol=1e-3, atol=1e-4)


def compiled(module: nn.Module) -> None:
    other = torch.compile(module, backend="eager", fullgraph=True, dynamic=True)
    for sizes in ((2, 6), (3, 8)):
        _check_training(module, other, _tokens(*sizes))


def exported(module: nn.Module) -> None:
    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", min=2, max=64)}
    program = torch.export.export(module.eval(), (_tokens(),), dynamic_shapes=(dims,), strict=False)
    for sizes in ((2, 6), (3, 9)):
        torch.testing.assert_close(
            program.module()(_tokens(*sizes)), module(_tokens(*sizes)), rtol=1e-4, atol=1e-5
        )


# Torch collects the operators of ONNX for every model, which takes longer than to export one of ours.
_collected = cache(lambda collect, **options: collect(**options))


def onnx(module: nn.Module) -> None:
    from onnx.reference import ReferenceEvaluator

    operators = import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
    known = patch.object(operators, "from_torchlib", partial(_collected, operators.from_torchlib))
    # As many steps as these few templates may need; all are alike, and each is part of the graph.
    with known, patch.object(import_module("fenchel.closeness.sparse_weights"), "STEPS_UNSEEN", 12):
        program = torch.onnx.export(module.eval(), (_tokens(),), dynamo=True, verbose=False)
    assert program is not None
    given = {program.model_proto.graph.input[0].name: _tokens().numpy()}
    (found,) = ReferenceEvaluator(program.model_proto).run(None, given)
    torch.testing.assert_close(torch.as_tensor(found), module(_tokens()), rtol=1e-3, atol=1e-4)


def traced(module: nn.Module) -> None:
    other: Any = torch.jit.trace(module, (_tokens(),))
    _check_training(module, other, _tokens())


def autocast(module: nn.Module) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        output = module(_tokens())
    torch.testing.assert_close(output.float(), module(_tokens()), rtol=0.1, atol=0.05)
    assert all(bool(g.isfinite().all()) for g in _gradients(module, output))


def half(module: nn.Module) -> None:
    expected = module(_tokens())
    module = module.to(torch.bfloat16)
    output = module(_tokens().bfloat16())
    torch.testing.assert_close(output.float(), expected, rtol=0.1, atol=0.05)
    assert all(bool(g.isfinite().all()) for g in _gradients(module, output))


@contextmanager
def _one_process() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def ddp(module: nn.Module) -> None:
    with _one_process():
        _check_steps(module, nn.parallel.DistributedDataParallel(copy.deepcopy(module)))


def fsdp(module: nn.Module) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    other = copy.deepcopy(module)
    with _one_process():
        fully_shard(other, mesh=init_device_mesh("cpu", (1,)))
        _check_steps(module, other)


def _check_steps(module: nn.Module, other: nn.Module) -> None:
    optimisers = [torch.optim.SGD(each.parameters(), 0.1) for each in (module, other)]
    for _ in range(2):
        losses = [each(_tokens()).square().mean() for each in (module, other)]
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-6)
        for loss, optimiser in zip(losses, optimisers, strict=True):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def checkpointed(module: nn.Module) -> None:
    _check_training(module, lambda x: checkpoint(module, x, use_reentrant=False), _tokens())


def func_grad(module: nn.Module) -> None:
    parameters = dict(module.named_parameters())
    found = func.grad(lambda p: func.functional_call(module, p, (_tokens(),)).square().sum())(parameters)
    torch.testing.assert_close(
        list(found.values()), _gradients(module, module(_tokens())), rtol=1e-3, atol=1e-4
    )


def vmapped(module: nn.Module) -> None:
    x = torch.stack([_tokens(), _tokens() + 1])
    found = func.vmap(module)(x)
    torch.testing.assert_close(found, torch.stack([module(part) for part in x]), rtol=1e-4, atol=1e-5)


def jvp(module: nn.Module) -> None:
    x, step = _tokens().double(), torch.ones(BATCH, TOKENS, WIDTH, dtype=torch.float64)
    module = module.double()
    with sdpa_kernel(SDPBackend.MATH):  # the one that torch can differentiate forwards
        slope = func.jvp(module, (x,), (step,))[1]
    difference = (module(x + 1e-5 * step) - module(x - 1e-5 * step)) / 2e-5
    torch.testing.assert_close(slope, difference, rtol=1e-4, atol=1e-6)


def nested(module: nn.Module) -> None:
    parts = [_tokens(1, count)[0] for count in (3, 6)]
    found = module(torch.nested.nested_tensor(parts, layout=torch.jagged))
    for output, part in zip(found.unbind(), parts, strict=True):
        torch.testing.assert_close(output, module(part.unsqueeze(0))[0], rtol=1e-4, atol=1e-5)


def saved(module: nn.Module) -> None:
    stored = io.BytesIO()
    torch.save(module.state_dict(), stored)
    stored.seek(0)
    other = copy.deepcopy(module)
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    other.load_state_dict(torch.load(stored, weights_only=True))
    torch.testing.assert_close(other(_tokens()), module(_tokens()))


TOOLS: dict[str, Callable[[nn.Module], None]] = {
    **{"compile": compiled, "export": exported, "ONNX": onnx, "`jit.trace`": traced, "autocast": autocast},
    **{"bfloat16": half, "DDP": ddp, "FSDP2": fsdp, "checkpoint": checkpointed, "`func.grad`": func_grad},
    **{"`vmap`": vmapped, "`jvp`": jvp, "nested": nested, "state dict": saved},
}


def outcome(subject: str, tool: str) -> str:
    """``yes`` where the results are right, else one of ``EXCEPTIONS``."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    module = SUBJECTS[subject]()
    if tool in ("nested", "`jit.trace`") and isinstance(module, Op):
        return "–"  # the ops take queries, keys and values of heads
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            TOOLS[tool](module)
    except Exception as error:
        refused = any(isinstance(cause, FenchelError) for cause in _causes(error))
        return "refused" if refused else "no"
    return "yes"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def cells(tool: str) -> tuple[str, ...]:
    """What the table says of a tool: the subjects with each outcome but ``yes``."""
    found = {subject: outcome(subject, tool) for subject in SUBJECTS}

    def listed(one: str) -> str:
        named, others = (
            ", ".join(subject for subject in found if (found[subject] == one) is wanted)
            for wanted in (True, False)
        )
        return (named if len(named) <= len(MOST + others) else MOST + others) or "–"

    return tuple(map(listed, EXCEPTIONS))


def recorded() -> dict[str, tuple[str, ...]]:
    """The cells of every tool in the table of the docs."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    return {tool: tuple(said) for tools, *said in rows for tool in tools.split(", ")}


def main() -> None:
    rows: dict[tuple[str, ...], list[str]] = {}
    for tool in TOOLS:
        rows.setdefault(cells(tool), []).append(tool)
    lines = ["| | Refused | Error of torch | Does not apply |", "|---|---|---|---|"]
    lines += [f"| {', '.join(tools)} | {' | '.join(said)} |" for said, tools in rows.items()]
    page = PAGE.read_text()
    PAGE.write_text(re.sub(r"^\|.*\|\n(?:\|.*\|\n)*", "\n".join(lines) + "\n", page, count=1, flags=re.M))


if __name__ == "__main__":
    main()
