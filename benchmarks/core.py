"""The solver, the ops and audits in process time on one thread: a table with targets, ``results/core.json``.

``python -m benchmarks.core layers sinks`` measures some parts, and keeps what the file has of the others.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.demo_encoder import demo, token_ids
from benchmarks.recording import RESULTS, record
from fenchel import Discrete, InferenceProblem, Tsallis, functional
from fenchel.auditing import audit
from fenchel.auditing.measure import sample_size
from fenchel.integrations.capture import AttentionCall, Capture

Row = tuple[str, float, float | None]
"""What was measured, its value, and the target, which is the most or, for numbers solved, the least."""


def least(run: Callable[[], Any], rounds: int = 5) -> tuple[float, Any]:
    """The least process time in seconds after one run to warm up, and what the last run returned."""
    result, taken = run(), []
    for _ in range(rounds):
        start = time.process_time()
        result = run()
        taken.append(time.process_time() - start)
    return min(taken), result


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype)


def causal(n: int) -> Tensor:
    """Log weights, (n, n)."""
    return torch.zeros(n, n).masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)


def layers() -> Iterator[Row]:
    """Every layer of the demo in key space, over one forward pass of the model."""
    model, tokenizer = demo()

    def solved(ids: Tensor, tol: float, preference: Tensor | None = None) -> tuple[float, float, float]:
        """Seconds of a forward pass, of all solves of the op, and of all as problems."""
        calls: list[AttentionCall] = []
        with Capture(model, space="key", consume=calls.append) as capture:
            capture.run({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        by_op = by_problem = 0.0
        for call in calls:
            q, k, scale = call.query, call.key, call.scaling
            by_op += least(
                lambda q=q, k=k, scale=scale: (
                    functional.infer(
                        q, k, scale=scale, log_preference=preference, estimator="exact", tol=tol
                    ).dual
                )
            )[0]
            problem = InferenceProblem(Discrete(k * scale, preference), q)
            by_problem += least(lambda problem=problem: problem.solve("exact", tol=tol), 3)[0]
        forward = least(lambda: model(input_ids=ids, attention_mask=torch.ones_like(ids)))[0]
        return forward, by_op, by_problem

    with torch.no_grad():
        for tokens, tol, target in ((128, 2e-4, 1.1), (128, 1e-5, 1.8), (512, 2e-4, 1.9)):
            forward, by_op, by_problem = solved(token_ids(tokenizer, tokens, 1), tol)
            name = f"solving the demo's layers / forward, {tokens} tokens, tol {tol:g}"
            yield name, by_op / forward, target
            yield f"{name}, as problems with float64 certificates", by_problem / forward, None
        ids = token_ids(tokenizer, 128, 8)
        _, plain, _ = solved(ids, 2e-4)
        padding = torch.zeros(8, 1, 1, 128)
        for i in range(8):
            padding[i, ..., 128 - 12 * i :] = -torch.inf if i else 0
        yield "8 texts of 128 tokens, padded / not", solved(ids, 2e-4, padding)[1] / plain, 1.3
        yield "8 texts of 128 tokens, causal / not", solved(ids, 2e-4, causal(128))[1] / plain, 1.3


def sinks() -> Iterator[Row]:
    """The first keys longer than the others, causal, 4 heads of 64, 256 tokens: milliseconds at 2e-4."""
    for many, targets in ((1, (35, 40, 50)), (3, (45, 50, 100))):
        for size, target in zip((5, 20, 60), targets, strict=True):
            torch.manual_seed(0)
            k, q = normal(1, 4, 256, 64) / 8, 2 * normal(1, 4, 256, 64)
            k[..., :many, :] *= size
            taken, _ = least(
                lambda q=q, k=k: (
                    functional.infer(
                        q, k, scale=1.0, log_preference=causal(256), estimator="exact", tol=2e-4
                    ).dual
                )
            )
            yield f"{many} of 256 keys {size} times as long, ms", 1e3 * taken, target


def grid() -> Iterator[Row]:
    """Of 16 problems with random templates, how many are solved to 1e-4."""
    targets = {(200, 64, 6.4e4): 16, (200, 64, 6.4e6): 14, (200, 64, 6.4e8): 12}
    for n in (5, 200):
        for k in (2, 16, 64):
            for alpha, scale in ((1.0, 10.0), (1e3, 1.0), (1e3, 10.0), (1e3, 100.0)):
                torch.manual_seed(0)
                t = normal(n, k, dtype=torch.float64) * scale
                z = normal(16, k, dtype=torch.float64) * scale
                problem = InferenceProblem(Discrete(t), z, alpha=alpha)
                result = problem.solve("exact", tol=1e-4, throw=False)
                size = alpha * scale**2 * k
                wanted = targets.get((n, k, size)) if alpha > 1 else None
                name = f"of 16 problems solved, n {n}, k {k}, alpha {alpha:g}, alpha ‖t‖² {size:.0e}"
                yield name, float(result.converged.sum()), wanted


def training() -> Iterator[Row]:
    """Exact and second order over first order, forward and backward, 8 heads of 64."""
    torch.manual_seed(0)
    for n in (256, 1024):
        q, k, v = (normal(1, 8, n, 64).requires_grad_() for _ in range(3))
        gradient = normal(1, 8, n, 64)
        for name, u, targets in (
            ("shared preference", normal(1, 8, 1, n), {"exact": 5.0}),
            ("preference a query", normal(1, 8, n, n), {"exact": 6.5, "second_order": 5.0}),
        ):

            def run(estimator: str, u: Tensor = u, given: Any = (q, k, v, gradient)) -> None:
                tol = 1e-4 if estimator == "exact" else None
                given[0].grad = given[1].grad = given[2].grad = None
                result = functional.attention(*given[:3], log_preference=u, estimator=estimator, tol=tol)
                result.backward(given[3])

            first, _ = least(lambda run=run: run("first_order"), 3)
            for estimator, target in targets.items():
                taken, _ = least(lambda run=run, estimator=estimator: run(estimator), 3)
                yield f"{estimator} / first order with backward, {n} tokens, {name}", taken / first, target


def certificate() -> Iterator[Row]:
    """First order with its certificate over first order, forward, 8 heads of 64."""
    torch.manual_seed(0)
    for n in (256, 1024):
        q, k, v = (normal(1, 8, n, 64) for _ in range(3))
        plain, _ = least(lambda q=q, k=k, v=v: functional.attention(q, k, v), 9)
        both, _ = least(lambda q=q, k=k, v=v: functional.infer(q, k, v).certified(), 9)
        yield f"attention with certificate / without, {n} tokens", both / plain, 1.8


def closeness() -> Iterator[Row]:
    """Exact problems under sparse closenesses over KL, 8 heads of 64, 256 tokens, to 1e-5."""
    torch.manual_seed(0)
    t, z = normal(8, 256, 64) / 8, normal(8, 256, 64)

    def taken(kind: Tsallis | None) -> float:
        problem = InferenceProblem(Discrete(t), z, closeness=kind)
        return least(lambda: problem.solve("exact", tol=1e-5), 3)[0]

    kl = taken(None)
    for order, target in ((2, 3.0), (1.5, 2.0)):
        yield f"exact problem under Tsallis({order}) / KL", taken(Tsallis(order)) / kl, target


def audits() -> Iterator[Row]:
    """A whole audit of 8,192 tokens in batches of 1,024 over the forward passes of the same batches."""
    model, tokenizer = demo()
    for tokens, by_size in ((128, (6.0, 3.6, 2.2)), (512, (18.0, 5.0, 2.2))):
        ids = token_ids(tokenizer, tokens, 8192 // tokens)
        batches = [
            {"input_ids": part, "attention_mask": torch.ones_like(part)} for part in ids.split(1024 // tokens)
        ]

        def forward(batches: list[dict[str, Tensor]] = batches) -> None:
            with torch.no_grad():
                for batch in batches:
                    model(**batch)

        alone, _ = least(forward)
        size = sample_size("auto", model, length=tokens)
        for (space, queries), target in zip(
            (("input", "all"), ("key", "all"), ("key", size)), by_size, strict=True
        ):
            options = {"space": space, "queries": queries}
            whole, _ = least(
                lambda batches=batches, options=options: audit(model, None, batches, **options), 2
            )
            yield f"audit / forward, {space} space, {tokens} tokens, queries {queries}", whole / alone, target


PARTS = (layers, sinks, grid, training, certificate, closeness, audits)


def main() -> None:
    torch.set_num_threads(1)
    chosen = sys.argv[1:] or [part.__name__ for part in PARTS]
    unknown = set(chosen) - {part.__name__ for part in PARTS}
    if unknown:
        sys.exit(f"{unknown.pop()} is no part; expected some of {', '.join(part.__name__ for part in PARTS)}")
    file = RESULTS / "core.json"
    result = json.loads(file.read_text())["parts"] if file.exists() else {}
    for part in PARTS:
        if part.__name__ in chosen:
            result[part.__name__] = []
            for name, value, target in part():
                print(f"{name}: {value:.3g}" + (f" (target {target:g})" if target else ""), flush=True)
                result[part.__name__].append({"what": name, "value": round(value, 3), "target": target})
    record("core", {"parts": result})


if __name__ == "__main__":
    main()
