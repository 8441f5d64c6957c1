"""The exact dual point of every query, with the gradient of the implicit function theorem."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.errors import ConvergenceError, ProblemError
from fenchel.functional.arguments import AttentionArguments
from fenchel.functional.precision import compute_dtype, without_autocast
from fenchel.functional.row_gradients import implicit_gradients, with_row_gradients
from fenchel.functional.rowwise import Rowwise
from fenchel.solver.driver import infer
from fenchel.solver.family import TemplateFamily
from fenchel.solver.options import check_evidence

__all__ = ["exact_dual_point"]

BLOCK_BYTES = 2**24
"""Size of an array (rows, n) of a block: mixing makes none but that of a preference a query."""

DEFAULT_TOL = {torch.float32: 1e-5, torch.float64: 1e-10}


def exact_dual_point(given: AttentionArguments, tol: float | None, max_steps: int) -> Tensor:
    """λ* of every query, (B, H, m, d), in float32 for half types.

    Args:
        given: Checked arguments.
        tol: Relative accuracy of λ*; None is 1e-5, and 1e-10 in float64.
        max_steps: Steps that a query may take.

    Raises:
        ConvergenceError: If a query does not get there.
    """
    dtype = compute_dtype(given.query.dtype)
    tol = DEFAULT_TOL[dtype] if tol is None else tol
    with without_autocast(given.query):
        return _exact_with_gradients(*given.problem_in(dtype), tol, max_steps)


@torch.library.custom_op("fenchel::exact_dual_point", mutates_args=())
def _exact(
    evidence: Tensor,
    templates: Tensor,
    log_preference: Tensor | None,
    alpha: Tensor,
    tol: float,
    max_steps: int,
) -> Tensor:
    with torch.no_grad(), without_autocast(evidence):
        check_evidence(evidence, alpha, of_op=True)
        rowwise = Rowwise(evidence, templates, log_preference, alpha)
        dual, error = evidence.new_empty(evidence.shape), evidence.new_empty(*evidence.shape[:3], 1)
        for block, rows in rowwise.blocks(BLOCK_BYTES):
            found = infer(TemplateFamily(rows), rows.evidence, rows.alpha, tol=tol, max_steps=max_steps)
            rowwise.put(dual, block, found.dual)
            rowwise.put(error, block, (found.error / found.reference).masked_fill(found.error == 0, 0))
        _check(error.squeeze(-1), tol, max_steps)
        _check_range(dual, templates)
        return dual


def _check(error: Tensor, tol: float, max_steps: int) -> None:
    missed = ~(error <= tol)
    if bool(missed.any()):
        worst = tuple(
            int(i) for i in torch.unravel_index(error.nan_to_num(nan=torch.inf).argmax(), error.shape)
        )
        raise ConvergenceError(
            f"{int(missed.sum())} of {missed.numel()} queries did not reach dual_error <= {tol:g} ||dual|| within "
            f"{max_steps} steps (worst at (batch, head, query) {worst}: {float(error[worst]):.2e}). Raise tol or "
            "max_steps, give the tensors in float64, or make alpha or the norms of the keys smaller"
        )


def _check_range(dual: Tensor, templates: Tensor) -> None:
    """Weights are a softmax of scores <t, λ>, which the dtype has to hold."""
    if dual.numel() == 0:
        return
    largest = dual.abs().amax().double() * templates.abs().amax().double() * dual.shape[-1]
    if not float(largest) < torch.finfo(dual.dtype).max / 4:
        raise ProblemError(
            f"exact attention has scores of up to {float(largest):.1g}, which {str(dual.dtype).removeprefix('torch.')} "
            "does not hold: give the tensors in float64, or make alpha, the query or the norms of the keys smaller"
        )


_exact_with_gradients = with_row_gradients(
    _exact, "fenchel::exact_dual_point", implicit_gradients, "exact attention"
)
