"""Reformer's reversible layers and axial positions (Kitaev et al., 2020): memory that does not grow with depth.

A layer has two streams, y₁ = x₁ + attention(x₂) and y₂ = x₂ + feedforward(y₁), so that x₂ = y₂ - feedforward(y₁) and
x₁ = y₁ - attention(x₂): the backward pass computes the inputs of each layer from its outputs, and keeps nothing else.
Axial positions put a vector of a row beside one of a column, for a table of rows x columns positions.

    python examples/reversible.py --out reversible.json

Printed for each depth are the megabytes that are kept for the backward pass at most, without and with recomputing, how
many times slower both passes are with it, and how far its gradients are apart, over the largest. Layers have no
dropout, which would have to be drawn again. Attention is an inference: ``--estimator exact`` is the exact one.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

import experiment
from fenchel.nn import MultiheadAttention
from fenchel.nn.preference import Causal
from task import choice, option

DEPTHS = (1, 2, 4, 8)
Parts = Sequence[tuple[nn.Module, nn.Module]]


@dataclass
class ReversibleOptions(experiment.ExperimentOptions):
    """Sizes of the layers and of what they read."""

    rows: int = option(16, "of positions")
    columns: int = option(32, "of positions; tokens are rows x columns")
    width: int = option(64, "of each stream")
    heads: int = option(4, "of attention")
    batch: int = option(2, "sequences")
    estimator: str = choice("of attention", "first_order", "second_order", "exact")


def streams(parts: Parts, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Both streams after the layers."""
    for attend, transform in parts:
        first = first + attend(second)
        second = second + transform(first)
    return first, second


class Recomputed(torch.autograd.Function):
    """The same, keeping the streams after the last layer alone."""

    @staticmethod
    def forward(ctx: Any, parts: Parts, first: Tensor, second: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        """The streams; the other arguments are parameters, in the order of the gradients."""
        ctx.parts = parts
        first, second = streams(parts, first, second)
        ctx.save_for_backward(first, second)
        return first, second

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """From the last layer to the first: its inputs, and the gradients of inputs and parameters."""
        first, second = ctx.saved_tensors
        of_first, of_second = gradients
        of_parameters: list[Tensor] = []
        for attend, transform in reversed(ctx.parts):
            out, of_input, of_transform = pulled_back(transform, first, of_second)
            second, of_first = second - out, of_first + of_input
            out, of_input, of_attend = pulled_back(attend, second, of_first)
            first, of_second = first - out, of_second + of_input
            of_parameters = [*of_attend, *of_transform, *of_parameters]
        return None, of_first, of_second, *of_parameters


def pulled_back(part: nn.Module, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
    """What a part makes of x, and the gradients of x and its parameters for one of that."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        out = part(x)
        of_input, *others = torch.autograd.grad(out, [x, *part.parameters()], gradient)
    return out.detach(), of_input, others


class Attend(nn.Module):
    """Causal attention to normalised states."""

    def __init__(self, o: ReversibleOptions) -> None:
        super().__init__()
        options: dict[str, Any] = {"preference": Causal(), "estimator": o.estimator, "batch_first": True}
        self.norm, self.attention = nn.LayerNorm(o.width), MultiheadAttention(o.width, o.heads, **options)

    def forward(self, x: Tensor) -> Tensor:
        """What is added to the other stream."""
        x = self.norm(x)
        return self.attention(x, x, x, need_weights=False)[0]


class AxialPositions(nn.Module):
    """A vector of each position, (rows * columns, width): half of it of the row, half of the column."""

    def __init__(self, rows: int, columns: int, width: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(rows, width // 2))
        self.columns = nn.Parameter(torch.randn(columns, width - width // 2))

    def forward(self) -> Tensor:
        """The table."""
        rows, columns = len(self.rows), len(self.columns)
        sides = self.rows.unsqueeze(1).expand(-1, columns, -1), self.columns.expand(rows, -1, -1)
        return torch.cat(sides, -1).flatten(0, 1)


class Layers(nn.Module):
    """Reversible layers on tokens with axial positions.

    Args:
        depth: How many.
        o: Their sizes.
    """

    def __init__(self, depth: int, o: ReversibleOptions) -> None:
        super().__init__()
        self.positions = AxialPositions(o.rows, o.columns, o.width)
        self.attend = nn.ModuleList(Attend(o) for _ in range(depth))
        self.transform = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(o.width),
                nn.Linear(o.width, 4 * o.width),
                nn.GELU(),
                nn.Linear(4 * o.width, o.width),
            )
            for _ in range(depth)
        )

    def forward(self, x: Tensor, *, recompute: bool = True) -> Tensor:
        """States (B, rows * columns, 2 * width) of tokens (B, rows * columns, width)."""
        parts: Parts = list(zip(self.attend, self.transform, strict=True))
        x = x + self.positions()
        if recompute:
            parameters = [one for pair in parts for part in pair for one in part.parameters()]
            return torch.cat(Recomputed.apply(parts, x, x, *parameters), -1)
        return torch.cat(streams(parts, x, x), -1)


class Kept:
    """Bytes of what is kept for a backward pass, parameters not counted: each storage once, while it is kept."""

    def __init__(self, model: nn.Module) -> None:
        self.own = {one.untyped_storage().data_ptr() for one in model.parameters()}
        self.uses: Counter[int] = Counter()
        self.now = self.most = 0

    def hooks(self) -> saved_tensors_hooks:
        """The context that counts."""
        return saved_tensors_hooks(lambda tensor: Saved(tensor, self), lambda saved: saved.tensor)


class Saved:
    """A tensor that is kept; it counts until it is let go."""

    def __init__(self, tensor: Tensor, kept: Kept) -> None:
        self.tensor, self.kept = tensor, kept
        self.place = tensor.untyped_storage().data_ptr()
        if self.place not in kept.own:
            kept.uses[self.place] += 1
            if kept.uses[self.place] == 1:
                kept.now += tensor.untyped_storage().nbytes()
                kept.most = max(kept.most, kept.now)

    def __del__(self) -> None:
        if self.place not in self.kept.own:
            self.kept.uses[self.place] -= 1
            if self.kept.uses[self.place] == 0:
                self.kept.now -= self.tensor.untyped_storage().nbytes()


def measured(model: Layers, x: Tensor, *, recompute: bool) -> tuple[float, float, list[Tensor]]:
    """Megabytes, seconds of the processor, and gradients of the parameters."""
    model.zero_grad()
    kept, start = Kept(model), time.process_time()
    with kept.hooks():
        model(x, recompute=recompute).square().mean().backward()
    seconds = time.process_time() - start
    return (
        kept.most / 2**20,
        seconds,
        [one.grad.clone() for one in model.parameters() if one.grad is not None],
    )


def study(o: ReversibleOptions) -> dict[str, Any]:
    """Each depth, with and without recomputing."""
    result: dict[str, Any] = {}
    for depth in DEPTHS:
        rows: list[dict[str, float]] = []
        for seed in range(o.seeds):
            torch.manual_seed(seed)
            model = Layers(depth, o)
            x = torch.randn(o.batch, o.rows * o.columns, o.width)
            measured(model, x[:1], recompute=True)  # what comes first takes longer
            (plain, seconds, expected), (little, more, gradients) = (
                measured(model, x, recompute=recompute) for recompute in (False, True)
            )
            pairs = zip(gradients, expected, strict=True)
            apart = max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)
            rows.append(
                {"plain MB": plain, "reversible MB": little, "times slower": more / seconds, "apart": apart}
            )
        result[str(depth)] = rows
    sizes = {"axial": (o.rows + o.columns) * o.width // 2, "table": o.rows * o.columns * o.width}
    return {"positions": sizes, "runs": result}


def printed(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines of Markdown."""
    yield from experiment.table(found)
    yield "Positions have {axial:,} parameters, a table of them {table:,}.".format(**found["positions"])


if __name__ == "__main__":
    experiment.main(ReversibleOptions, study, printed)
