r"""Dual points λ of softmax attention, block by block, as custom operators with gradients.

The second-order one is :math:`\lambda = \alpha(I + \alpha\Sigma_u)^{-1} z`. If the queries of a head share preference
and α, one d × d matrix per head is inverted, in plain torch operations. Otherwise every query has its own covariance,
and conjugate gradients solve for λ: (I + αΣ)x takes two products with the templates, and Σ is never formed. On an
accelerator convergence is checked once per call, which synchronises it. The gradient is one more such solve, as for the
exact dual point (:mod:`fenchel.estimators.implicit`). No weights are stored, blocks have bounded working memory, and
broadcast tensors are not copied.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from fenchel.arguments import ESTIMATORS
from fenchel.blocks import CACHE_BYTES, Box, boxes, keep_freed_memory, part_of, rows_of
from fenchel.errors import ProblemError
from fenchel.estimators import ESTIMATORS as SOLVERS
from fenchel.estimators import Estimator, Exact, FirstOrder
from fenchel.estimators.exact_solver import check_reached, infer
from fenchel.estimators.implicit import (
    AbstractEquation,
    Expansion,
    StationaryPoint,
    row_gradients,
    second_derivative_of,
    second_order_point,
    with_one_hessian,
)
from fenchel.family import Block, TemplateFamily
from fenchel.functional.arguments import (
    AttentionArguments,
    check_finite,
    compute_dtype,
    normalised_log_weights,
    without_autocast,
)
from fenchel.tensors import checked_argument, is_transformed, log_weights, values_are_known

Found = TypeVar("Found")

Arguments = ParamSpec("Arguments")

# Largest fraction of used keys at which slicing out the unused ones is faster.
WORTH_CUTTING = 0.9

# Size of one (queries, n) array on an accelerator: enough work for a kernel, little of its memory.
KERNEL_BYTES = 2**26


def _used_keys(preference: Tensor) -> slice:
    """The keys from the first to the last that a query may use if slicing is faster; else all."""
    used = torch.isfinite(preference).flatten(0, -2).any(0).nonzero()
    first, last = int(used[0]), int(used[-1]) + 1
    return slice(first, last) if last - first <= WORTH_CUTTING * preference.shape[-1] else slice(None)


class Rowwise:
    """The queries of one call as blocks of rows that share templates: G = H / H_kv heads of queries per head of keys.

    Args:
        evidence: z, (B, H, m, d).
        templates: (B, H_kv, n, d).
        log_preference: Bool or floating, (B or 1, H or 1, m or 1, n), with at least one key to attend to in every row;
            or None.
        alpha: α, (B or 1, H or 1, m or 1, 1).
    """

    def __init__(
        self, evidence: Tensor, templates: Tensor, log_preference: Tensor | None, alpha: Tensor
    ) -> None:
        (batch, heads, queries, _), key_heads = evidence.shape, templates.shape[1]
        self._lead = batch, key_heads, heads // key_heads, queries
        # A preference that all queries share masks the same keys in every block.
        self._is_masked = (
            log_preference is not None and log_preference.shape[2] > 1 and values_are_known(evidence)
        )
        if log_preference is None:
            log_preference = templates.new_zeros(1, 1, 1, templates.shape[2])
        self._evidence, self._templates = evidence, templates
        self._log_preference, self._alpha = log_preference, alpha

    def blocks(self, array_bytes: int | None = None) -> Iterator[tuple[Box, slice, Block]]:
        """Every block: its box (b, h, G, r), its keys and its rows.

        Args:
            array_bytes: Size of an array (rows, n) of a block; None is the size of a cache.
        """
        keep_freed_memory()
        templates = self._templates
        # One cache per core, since each works on a part of the block.
        if array_bytes is None:
            on_cpu = templates.device.type == "cpu"
            array_bytes = torch.get_num_threads() * CACHE_BYTES if on_cpu else KERNEL_BYTES
        for box in boxes(self._lead, array_bytes // max(1, templates.shape[2] * templates.element_size())):
            evidence = self.take(self._evidence, box)
            preference = log_weights(self.take(self._log_preference, box), evidence.dtype)
            keys = _used_keys(preference) if self._is_masked else slice(None)
            family = TemplateFamily(
                templates[(*box[:2], keys)].flatten(0, 1), preference[..., keys].log_softmax(-1)
            )
            yield box, keys, Block(family, evidence, self.take(self._alpha, box))

    def _part(self, tensor: Tensor, box: Box) -> Tensor:
        """The part (b or 1, h or 1, G or 1, r or 1, c) of a tensor (B or 1, H or 1, m or 1, c), a view."""
        sizes = (1, 1) if tensor.shape[1] == 1 else self._lead[1:3]
        return part_of(tensor.unflatten(1, sizes), box)

    def take(self, tensor: Tensor, box: Box) -> Tensor:
        """Rows (g or 1, r or 1, c) of a tensor (B or 1, H or 1, m or 1, c)."""
        return rows_of(self._part(tensor, box), [span.stop - span.start for span in box], 2)

    def put(self, into: Tensor, box: Box, part: Tensor) -> None:
        """Write rows (g, r, c) into a tensor (B, H, m, c)."""
        target = self._part(into, box)
        target.copy_(part.reshape(target.shape))

    def add(self, into: Tensor, box: Box, part: Tensor) -> None:
        """Add rows (g, r, c) to a tensor (B or 1, H or 1, m or 1, c), summed where it is broadcast."""
        target, full = self._part(into, box), [span.stop - span.start for span in box]
        target.add_(part.reshape(*full, part.shape[-1]).sum_to_size(target.shape))


def with_one_sync(attempt: Callable[[list[Tensor] | None], Found], like: Tensor) -> Found:
    """Solve block by block; on an accelerator with a single synchronisation if all rows converge.

    Args:
        attempt: Called with a list, to which it appends one bool scalar per block: whether some row did not converge in
            a fixed number of iterations. Called with None, it reads values as needed.
        like: A tensor on the device.
    """
    if not values_are_known(like):
        unsure: list[Tensor] = []
        result = attempt(unsure)
        if not unsure or not bool(torch.stack(unsure).any()):
            return result
    return attempt(None)


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Save nothing for the backward pass."""


def with_gradient(
    operator: Any,
    backward: Callable[..., Any],
    remember: Callable[[Any, tuple[Any, ...], Any], None] = _save_nothing,
) -> Callable[..., Any]:
    """A function to call in place of a custom operator, with its gradient.

    The gradient is registered and becomes one node of a compiled graph. ``torch.func`` does not support registered
    gradients: inside its transforms the operator is an ``autograd.Function`` of the same two functions. ``torch.vmap``
    calls it once per example, so it is a convenience and not faster: calls already have dimensions of sequences, heads
    and queries.

    Args:
        operator: Made by ``torch.library.custom_op``.
        backward: (ctx, *gradients of the outputs) -> a gradient of every input, or None.
        remember: (ctx, inputs, output) saves what the gradient needs.
    """
    operator.register_autograd(backward, setup_context=remember)
    operator.register_vmap(_call_by_call(operator))

    class Differentiable(torch.autograd.Function):
        generate_vmap_rule = True
        forward = staticmethod(operator)
        setup_context = staticmethod(remember)  # pyright: ignore[reportAssignmentType]

    Differentiable.backward = staticmethod(backward)

    def call(*inputs: Any) -> Any:
        return Differentiable.apply(*inputs) if is_transformed() else operator(*inputs)

    return call


def _call_by_call(operator: Any) -> Callable[..., Any]:
    def mapped(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        result = [
            operator(
                *(x if dim is None else x.select(dim, index) for x, dim in zip(inputs, in_dims, strict=True))
            )
            for index in range(info.batch_size)
        ]
        if isinstance(result[0], Tensor):
            return torch.stack(result), 0
        return tuple(map(torch.stack, zip(*result, strict=True))), (0,) * len(result[0])

    return mapped


def with_row_gradients(
    operator: Any, name: str, equation: AbstractEquation, of: str
) -> Callable[..., Tensor]:
    """A custom operator with its shape for ``torch.compile`` and a gradient that is not differentiable itself.

    Args:
        operator: Made by ``torch.library.custom_op``; takes (evidence, templates, log_preference, alpha, *options) and
            returns dual points of the shape of the evidence, contiguous. The first option, if any, is the relative
            tolerance of the solve.
        name: Of the operator.
        equation: The equation that the dual points solve.
        of: Subject of the error about a second derivative.

    Returns:
        The function to call in place of the operator.
    """

    @torch.library.custom_op(f"{name}_backward", mutates_args=())
    def differentiated(
        gradient: Tensor,
        dual: Tensor,
        evidence: Tensor,
        templates: Tensor,
        log_preference: Tensor | None,
        alpha: Tensor,
        to_preference: bool,
        rtol: float = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with torch.no_grad(), without_autocast(evidence):
            rowwise = Rowwise(evidence, templates, log_preference, alpha)
            shape = log_preference.shape if log_preference is not None and to_preference else ()

            def attempt(unsure: list[Tensor] | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
                of_evidence, of_preference = evidence.new_empty(evidence.shape), templates.new_zeros(shape)
                of_templates, of_alpha = templates.new_zeros(templates.shape), alpha.new_zeros(alpha.shape)
                for box, keys, rows in rowwise.blocks():
                    some = rowwise.take(dual, box), rowwise.take(gradient, box)
                    result = row_gradients(equation, rows, *some, rtol=rtol, unsure=unsure)
                    to_evidence, to_templates, to_log_weights, to_alpha = result
                    rowwise.put(of_evidence, box, to_evidence)
                    rowwise.add(of_alpha, box, to_alpha)
                    into = of_templates[(*box[:2], keys)]
                    into.add_(to_templates.reshape(into.shape))
                    if shape:
                        rowwise.add(of_preference[..., keys], box, to_log_weights)
                return of_evidence, of_templates, of_preference, of_alpha

            return with_one_sync(attempt, evidence)

    @differentiated.register_fake
    def _(gradient, dual, evidence, templates, log_preference, alpha, to_preference, rtol=0.0):
        preference = templates.new_empty(log_preference.shape if to_preference else ())
        to_evidence, to_templates, to_alpha = (x.new_empty(x.shape) for x in (evidence, templates, alpha))
        return to_evidence, to_templates, preference, to_alpha

    operator.register_fake(lambda evidence, *others: evidence.new_empty(evidence.shape))
    differentiated_once = with_gradient(differentiated, second_derivative_of(of))

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output, *inputs[:4])
        ctx.options = inputs[4:]

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # Read once: under checkpointing saved tensors are recomputed when read, and then freed.
        saved, wanted = ctx.saved_tensors, ctx.needs_input_grad[2]
        log_preference = saved[3]
        # To the tolerance of the forward solve, if there is one.
        rtol = ctx.options[0] if ctx.options else 0.0
        to_evidence, to_templates, result, to_alpha = differentiated_once(gradient, *saved, wanted, rtol)
        to_preference = result.to(log_preference.dtype) if wanted else None
        return to_evidence, to_templates, to_preference, to_alpha, *(None,) * len(ctx.options)

    return with_gradient(operator, backward, remember)


def refuse_export(what: str, instead: str = "torch.compile") -> None:
    """Raise during ``torch.export`` of a computation that depends on values.

    Args:
        what: The computation, for the message.
        instead: What to use instead.

    Raises:
        ProblemError: If it is exporting.
    """
    if torch.compiler.is_exporting():
        raise ProblemError(f"{what} depends on values and cannot be exported; use {instead}")


COMPILER = "torch._dynamo"

# Reason in errors of the compiler.
UNTRACED = "steps depend on values: compile without fullgraph=True; torch.export is not supported"


def untraced(function: Callable[Arguments, Found]) -> Callable[Arguments, Found]:
    """`torch.compiler.disable` that costs nothing until something is compiled.

    torch's own decorator loads the whole compiler and sympy on import, which takes about as long as importing torch
    itself.

    Args:
        function: Never compiled, even when called by compiled code, and refused by ``torch.export``, since its steps
            depend on values.

    Returns:
        The same function.

    Example:
        >>> @untraced
        ... def halved(x: int) -> int:
        ...     return x // 2
        >>> halved(8)
        4
    """
    disabled: Callable[Arguments, Found] | None = None

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Found:
        nonlocal disabled
        refuse_export("this second-order or exact inference", "estimator='first_order', or torch.compile")
        if COMPILER not in sys.modules:
            return function(*args, **kwargs)
        # Once the compiler is loaded, functions called from here must not be compiled either.
        if disabled is None:
            disabled = cast("Callable[Arguments, Found]", torch.compiler.disable(function))
        return disabled(*args, **kwargs)

    # The compiler reads these before it traces a call of the function.
    call._torchdynamo_disable = True  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    call._torchdynamo_disable_msg = UNTRACED  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    call._torchdynamo_disable_recursive = True  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    return call


# Relative tolerance of the exact estimator.
DEFAULT_TOL = {torch.float32: 1e-5, torch.float64: 1e-10}

# Maximum number of steps of a query of the exact estimator.
DEFAULT_STEPS = 50


def estimator_object(
    estimator: str | Estimator, tol: float | None = None, max_steps: int | None = None
) -> Estimator:
    """An estimator of ops from its name and options (None for the default), or the given one.

    Raises:
        ProblemError: If ops have no such estimator, or an option is not one of ops or is invalid.
    """
    if not isinstance(estimator, Estimator):
        checked_argument("estimator", estimator)
        for name, value in (("tol", tol), ("max_steps", max_steps)):
            if value is not None:
                checked_argument(name, value)
        return Exact(tol=tol, max_steps=max_steps) if estimator == "exact" else SOLVERS[estimator]()
    if estimator.name not in ESTIMATORS:
        raise ProblemError(f"estimator is {estimator!r}; expected one of {', '.join(map(repr, ESTIMATORS))}")
    if tol is not None or max_steps not in (None, DEFAULT_STEPS):
        raise ProblemError(
            f"tol or max_steps is given together with estimator={estimator!r}, which has its own"
        )
    if estimator.memory_budget is not None or (isinstance(estimator, Exact) and not estimator.throw):
        raise ProblemError(
            f"estimator is {estimator!r}; expected one with tol and max_steps only: ops always raise if the tolerance "
            "is not met, and choose their own memory budget"
        )
    if isinstance(estimator, Exact):
        estimator_object(estimator.name, estimator.tol, estimator.max_steps)
    return estimator


def limits(solver: Exact, dtype: torch.dtype) -> tuple[float, int]:
    """Relative tolerance and largest number of steps of the exact estimator, with the defaults of ops."""
    tol = DEFAULT_TOL[dtype] if solver.tol is None else solver.tol
    return tol, DEFAULT_STEPS if solver.max_steps is None else solver.max_steps


def dual_point(call: AttentionArguments, solver: Estimator) -> Tensor:
    """λ, (B, H, m, d), in the dtype of the query; float32 for half types if it is solved for and α may exceed 1.

    Rounding λ to a half type moves scores by up to α‖z‖‖t‖/1000: at α = 1 as much as rounding the query.

    Args:
        call: Checked arguments.
        solver: First order, second order or exact.

    Raises:
        ConvergenceError: If the exact estimator does not converge for some query.
    """
    if isinstance(solver, FirstOrder) or call.has_no_evidence:
        if isinstance(call.alpha, Tensor):
            return (call.query * call.alpha).to(call.query.dtype)
        return call.query if call.alpha == 1.0 else call.query * call.alpha
    dtype = compute_dtype(call.query.dtype)
    if isinstance(solver, Exact):
        dual = _exact_with_gradients(*call.problem_in(dtype), *limits(solver, dtype))
    else:
        if call.problem_is_shared:
            wide = torch.float64 if dtype == torch.float32 and _loses_digits(call) else dtype
            evidence, templates, preference, alpha = call.problem_in(wide)
            dual = with_one_covariance(evidence, call.of_query_heads(templates), preference, alpha).to(dtype)
        else:
            dual = _second_order_with_gradients(*call.problem_in(dtype))
        check_second_order(dual, query=call.query, key=call.key)
    return dual if isinstance(call.alpha, Tensor) or call.alpha > 1 else dual.to(call.query.dtype)


def check_second_order(dual: Tensor, **arguments: Tensor) -> None:
    """Raise if dual points are not finite, where values are known: for NaN kernels of the CPU return zeros.

    Args:
        dual: λ.
        **arguments: What it was computed from, by name.
    """
    if values_are_known(dual) and not bool(torch.isfinite(dual).all()):
        check_finite(always=True, **arguments)
        raise ProblemError(
            "second-order dual points are not finite, since alpha times the covariance of the templates is too large; "
            "make alpha or the norms of the keys smaller"
        )


# Advice for queries that do not reach the tolerance.
REMEDY = "raise tol or max_steps, give the tensors in float64, or make {}"

# Size of an array (rows, n) of a block: mixing allocates one only if the preference differs by query.
BLOCK_BYTES = 2**24


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
        rowwise = Rowwise(evidence, templates, log_preference, alpha)
        dual, error = evidence.new_empty(evidence.shape), evidence.new_empty(*evidence.shape[:3], 1)
        for box, _, rows in rowwise.blocks(BLOCK_BYTES):
            result, reference = infer(rows, tol=tol, max_steps=max_steps)
            rowwise.put(dual, box, result.dual)
            rowwise.put(error, box, (result.error / reference).masked_fill(result.error == 0, 0))
        error = error.squeeze(-1)
        check_reached(
            ~(error <= tol), error, tol, max_steps, REMEDY.format("alpha or the norms of the keys smaller")
        )
        _check_range(dual, templates)
        return dual


def _check_range(dual: Tensor, templates: Tensor) -> None:
    """Raise if scores ⟨t, λ⟩ of dual points overflow the dtype."""
    if dual.numel() == 0:
        return
    largest = dual.abs().amax().double() * templates.abs().amax().double() * dual.shape[-1]
    if not float(largest) < torch.finfo(dual.dtype).max / 4:
        raise ProblemError(
            f"exact attention has scores of up to {float(largest):.1g}, which {str(dual.dtype).removeprefix('torch.')} "
            "cannot represent: give the tensors in float64, or make alpha, the query or the norms of the keys smaller"
        )


_exact_with_gradients = with_row_gradients(
    _exact, "fenchel::exact_dual_point", StationaryPoint(), "exact attention"
)


# α‖t‖² up to which float32 represents I + αΣ to about 1e-5 of its smallest eigenvalue.
HELD_BY_FLOAT32 = 200.0


def with_one_covariance(
    evidence: Tensor,
    templates: Tensor,
    preference: Tensor | None,
    alpha: Tensor,
    variances: Tensor | None = None,
) -> Tensor:
    """Second-order dual points (B, H, m, d) if all queries of a head share one preference and α.

    Args:
        evidence: z, (B, H, m, d).
        templates: (B, H, n, d).
        preference: (B or 1, H or 1, 1, n), or None.
        alpha: α, (B or 1, H or 1, 1, 1).
        variances: (B, H, n, d or 1), of templates that are means of Gaussians; None if they are points.
    """
    weights, within = normalised_log_weights(preference, templates).exp(), None
    if variances is not None:
        within = (weights @ variances).squeeze(-2).expand(*templates.shape[:2], templates.shape[-1])
    return with_one_hessian(templates, weights, alpha, evidence, solve=by_inverse, within=within)


def _loses_digits(call: AttentionArguments) -> bool:
    """Whether rounding αΣ to float32 may move I + αΣ, whose smallest eigenvalue is 1 or little more."""
    if not values_are_known(call.key):
        return True
    with torch.no_grad():
        longest = call.key.float().square().sum(-1).amax() * (call.scale**2)
        size = longest * (call.alpha.max() if isinstance(call.alpha, Tensor) else call.alpha)
        return not float(size) <= HELD_BY_FLOAT32


def by_inverse(matrix: Tensor, rows: Tensor) -> Tensor:
    """Rows times (I + A)⁻¹ for A symmetric and positive, inverted in float64, since an inverse loses digits.

    One small inverse per head and products with it are many times faster than triangular solves for every query.
    """
    identity = torch.eye(matrix.shape[-1], dtype=torch.float64, device=matrix.device)
    return rows @ torch.linalg.inv_ex(identity + matrix.double())[0].to(matrix.dtype)


@torch.library.custom_op("fenchel::second_order_dual_point", mutates_args=())
def _second_order(
    evidence: Tensor, templates: Tensor, log_preference: Tensor | None, alpha: Tensor
) -> Tensor:
    with torch.no_grad(), without_autocast(evidence):
        rowwise = Rowwise(evidence, templates, log_preference, alpha)

        def attempt(unsure: list[Tensor] | None) -> Tensor:
            dual = evidence.new_empty(evidence.shape)
            for box, _, rows in rowwise.blocks():
                rowwise.put(dual, box, second_order_point(rows, unsure))
            return dual

        return with_one_sync(attempt, evidence)


_second_order_with_gradients = with_row_gradients(
    _second_order,
    "fenchel::second_order_dual_point",
    Expansion(),
    "second-order attention with a preference a query",
)
