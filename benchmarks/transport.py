"""Transport attention against the tensor form and POT, and its growth with the atoms."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ot
import torch
from torch import Tensor

from benchmarks.attention import ratios, resident
from benchmarks.recording import record
from fenchel import functional as F
from fenchel.errors import CostWarning

HEADS, QUERIES, TEMPLATES, ATOMS, DIM = 4, 64, 64, 512, 64
GAMMA = DIM**0.5
REPEATS = 10
TARGETS = {
    "log-domain tensor over ours, at least": 40.0,
    "POT over ours, at least": 10.0,
}


class Call:
    """Tensors of a call of transport attention."""

    def __init__(self, atoms: int, queries: int = QUERIES, keys: int = TEMPLATES) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(tokens: int) -> Tensor:
            return torch.randn(1, HEADS, tokens, DIM, generator=generator)

        self.query = normal(queries)
        self.key, self.value = normal(keys), normal(keys)
        self.atoms, self.atom_values = normal(atoms), normal(atoms)

    def ours(self) -> Tensor:
        with torch.no_grad():
            return F.transport_attention(
                self.query, self.key, self.value, atoms=self.atoms, atom_values=self.atom_values, gamma=GAMMA
            )

    def _logits(self) -> tuple[Tensor, Tensor]:
        """Exponents over (heads, queries, keys, templates), and all values."""
        everything = torch.cat([self.key, self.atoms], 2) / GAMMA
        values = torch.cat([self.value, self.atom_values], 2)
        return (self.query @ everything.mT).unsqueeze(3) + (self.key @ everything.mT).unsqueeze(2), values

    def log_domain(self) -> Tensor:
        """Formula (22) with nothing exponentiated before the end, so that nothing can underflow."""
        with torch.no_grad():
            logits, values = self._logits()
            shares = logits - logits.logsumexp(-1, keepdim=True) - math.log(TEMPLATES)
            return shares.logsumexp(3).exp() @ values

    def softmax(self) -> Tensor:
        """Formula (22) as the mean of softmaxes: the fastest way that makes the tensor."""
        with torch.no_grad():
            logits, values = self._logits()
            return logits.softmax(-1).mean(3) @ values

    def pot(self) -> Tensor:
        """The same weights by POT: entropic transport from u, whose other margin is free, a query at a time."""
        everything = torch.cat([self.key, self.atoms], 2).double()
        values = torch.cat([self.value, self.atom_values], 2)
        kernel = self.key.double() @ everything.mT
        weights = torch.empty(1, HEADS, self.query.shape[2], everything.shape[2])
        source = torch.full((self.key.shape[2],), 1 / self.key.shape[2], dtype=torch.float64).numpy()
        free = torch.full((everything.shape[2],), 1 / everything.shape[2], dtype=torch.float64).numpy()
        for head in range(HEADS):
            scores = self.query[0, head].double() @ everything[0, head].mT
            for query, score in enumerate(scores):
                cost = (-(kernel[0, head] + score)).numpy()
                # POT's entropy is relative to the product of the margins: with a uniform second margin, a constant.
                plan = ot.unbalanced.sinkhorn_stabilized_unbalanced(
                    source,
                    free,
                    cost - cost.min(),
                    GAMMA,
                    (float("inf"), 0.0),
                    reg_type="kl",
                    numItermax=1000,
                )
                weights[0, head, query] = torch.from_numpy(plan).sum(0)
        return weights @ values


def agreement(call: Call) -> dict[str, float]:
    """How far the three are from each other, so that the same thing is timed."""
    ours = call.ours()
    return {
        "log-domain tensor": float((call.log_domain() - ours).abs().max()),
        "softmax tensor": float((call.softmax() - ours).abs().max()),
        "POT": float((call.pot() - ours).abs().max()),
    }


def repeated(call: Callable[[], Any]) -> Callable[[], None]:
    """Some calls in a row: what came before leaves the cache to the first of them, and a layer is called often."""

    def run() -> None:
        for _ in range(REPEATS):
            call()

    return run


def speed(rounds: int) -> dict[str, Any]:
    call = Call(ATOMS)
    return {
        "agreement": agreement(call),
        "first order": ratios(
            {
                "fenchel": repeated(call.ours),
                "log-domain tensor": repeated(call.log_domain),
                "softmax tensor": repeated(call.softmax),
            },
            "fenchel",
            rounds,
        ),
        "first order, POT": ratios({"fenchel": repeated(call.ours), "POT": repeated(call.pot)}, "fenchel", 3),
        "calls a timing": REPEATS,
    }


def growth(rounds: int) -> dict[str, Any]:
    """Time of a forward and a backward pass for more and more atoms, in one run."""

    def both(atoms: int) -> Callable[[], None]:
        call = Call(atoms)
        leaves = [
            x.requires_grad_() for x in (call.query, call.key, call.value, call.atoms, call.atom_values)
        ]

        def run() -> None:
            q, k, v, a, av = leaves
            F.transport_attention(q, k, v, atoms=a, atom_values=av, gamma=GAMMA).sum().backward()

        return run

    counts = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000]
    return ratios({str(count): both(count) for count in counts}, "4000", max(3, rounds // 3))


def peak() -> None:
    """Print by how much this process grows over a forward and a backward pass with a vocabulary, in MB."""
    call = Call(32_000, 512, 512)
    leaves = [x.requires_grad_() for x in (call.query, call.key, call.value, call.atoms, call.atom_values)]
    for leaf in leaves:
        leaf.grad = torch.zeros_like(leaf)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    q, k, v, a, av = leaves
    F.transport_attention(q, k, v, atoms=a, atom_values=av, gamma=GAMMA).sum().backward()
    print(json.dumps({"growth_mb": resident("VmHWM") - before, "process_mb": resident("VmHWM")}))


def memory() -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.transport", "--peak"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peak", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", CostWarning)
    if arguments.peak:
        peak()
        return
    shape = {
        "heads": HEADS,
        "queries": QUERIES,
        "keys": TEMPLATES,
        "atoms": ATOMS,
        "dim": DIM,
        "gamma": GAMMA,
    }
    record(
        "transport",
        {
            "shape": shape,
            "targets": TARGETS,
            "speed": speed(arguments.rounds),
            "growth with atoms, forward and backward": growth(arguments.rounds),
            "32,000 atoms, 512 queries, 512 keys, 4 heads, forward and backward": memory(),
        },
    )


if __name__ == "__main__":
    main()
