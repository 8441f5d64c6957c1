"""What ops and layers make of their inputs: nothing, bytes before and after; and what exact ops refuse."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fenchel.nn
from fenchel import functional as F
from fenchel.closeness import sparse_weights
from tests.functional.ops import OPS, Op, infer
from tests.nn.test_conformance import KINDS, TOKENS, build, tokens

N, D = 9, 3
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ESTIMATORS = ("first_order", "second_order", "exact")
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)

Call = Callable[[], Any]


def tensors_in(found: Any) -> list[Tensor]:
    """All tensors of a result."""
    if isinstance(found, Tensor):
        return [found]
    parts = found if isinstance(found, tuple) else vars(found).values() if hasattr(found, "__dict__") else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


def in_memory(tensors: dict[str, Tensor]) -> dict[str, bytes]:
    """The bytes of each tensor."""
    return {
        name: part.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for name, part in tensors.items()
    }


def check_unchanged(call: Call, given: dict[str, Tensor]) -> None:
    """Call, and differentiate what can be; nothing that was given changes, nor does the gradient that comes in."""
    before = in_memory(given)
    found = [part for part in tensors_in(call()) if part.requires_grad]
    assert in_memory(given) == before, "by the call"
    if found:
        incoming = {str(i): torch.randn_like(part) for i, part in enumerate(found)}
        arrived = in_memory(incoming)
        torch.autograd.backward(found, list(incoming.values()))
        assert in_memory(given) == before, "by the backward pass"
        assert in_memory(incoming) == arrived, "of what the backward pass is given"


def parts_of(op: Op, given: dict[str, Tensor], estimator: str) -> tuple[Any, ...]:
    """All that a call of an op gives."""
    found = infer(op, given, estimator, tol=1e-2 if given["query"].dtype.itemsize < 4 else 1e-4)
    gap = () if estimator == "exact" else (found.gap,)
    return found.output, found.weights, found.dual, found.certificate, *gap


@every_dtype
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", OPS)
def test_no_op_changes_its_inputs(name: str, estimator: str, dtype: torch.dtype) -> None:
    given = {
        part: x.to(dtype).detach().requires_grad_()
        for part, x in OPS[name].call(preference=(2, 4, 5, 7)).items()
    }
    check_unchanged(lambda: parts_of(OPS[name], given, estimator), given)
    if (
        "groups" in OPS[name].takes and "index" not in name
    ):  # one query, which is not copied to be solved apart
        one = OPS[name].call(preference=(1, 1, 1, 7), batch=1, queries=1)
        given = {part: x.to(dtype).detach() * (0.01 if part == "query" else 1) for part, x in one.items()}
        given = {
            part: x[:1].requires_grad_() if x.dim() == 4 else x.requires_grad_() for part, x in given.items()
        }
        check_unchanged(lambda: parts_of(OPS[name], given, estimator), given)


def faint_call(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """One query at which rounding shows in float64, keys, and a preference that is sure of one of them."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.rand(3, generator=generator, dtype=torch.float64)
    query, key, log_preference = (
        torch.randn(1, 1, *shape, generator=generator, dtype=torch.float64)
        for shape in ((1, D), (N, D), (1, N))
    )
    size, length = 10 ** (-14 + 4 * exponents[0]), 10 ** (-2 + 1.5 * exponents[1])
    return size * query, length * key, 15 * exponents[2] * log_preference


def test_exact_attention_leaves_one_faint_query_as_it_is() -> None:
    """And answers it as it answers two of it."""
    for seed in range(40):
        query, key, log_preference = faint_call(seed)
        before = query.clone()
        options: dict[str, Any] = {"log_preference": log_preference, "estimator": "exact", "tol": 1e-4}
        alone, one = F.attention_with_certificate(query, key, key, **options)
        assert query.equal(before), seed
        options["log_preference"] = log_preference.expand(1, 1, 2, N)
        both, two = F.attention_with_certificate(query.expand(1, 1, 2, D), key, key, **options)
        apart = (alone - both).norm(dim=-1)
        assert bool((apart <= one.mean_error + two.mean_error).all()), seed


@pytest.mark.parametrize("name", OPS)
def test_exact_ops_take_a_query_whose_square_underflows(name: str) -> None:
    given = {part: x.detach() for part, x in OPS[name].call().items()}
    given["query"][1, 0, 2] *= 1e-160
    if "mixture" in name:
        with pytest.raises(fenchel.ConvergenceError):
            parts_of(OPS[name], given, "exact")
    else:
        parts_of(OPS[name], given, "exact")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_layer_changes_its_inputs_or_its_parameters(kind: str, estimator: str, dtype: torch.dtype) -> None:
    if (kind, estimator) == ("continuous", "second_order"):
        pytest.skip("whose dual point leaves the domain")
    layer = build(kind, estimator=estimator, tol=1e-3, learn_alpha=True, dtype=dtype)
    options = {"query_offset": 0} if kind == "softmax" else {}
    for queries, size in ((3, 1.0), (1, 1e-3)):
        given = {
            name: (scale * tokens()[:1, :length]).to(dtype).requires_grad_()
            for name, length, scale in (("query", queries, size), ("memory", TOKENS, 1.0))
        }
        others = (given["memory"],) * (1 if kind == "continuous" else 2)
        own = dict(layer.named_parameters()) | dict(layer.named_buffers())
        check_unchanged(
            lambda others=others, given=given: layer(given["query"], *others, **options), given | own
        )


@every_dtype
@pytest.mark.parametrize("csiszar", [False, True])
@pytest.mark.parametrize("a", [0.3, 0.5, 1.0])
def test_sparse_weights_change_neither_scores_nor_preference(
    a: float, csiszar: bool, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, believed = (
        (3 * torch.randn(4, 7, generator=generator)).to(dtype).requires_grad_() for _ in range(2)
    )
    given = {"scores": scores, "log_preference": believed}
    for preference in (None, believed):
        check_unchanged(
            lambda preference=preference: sparse_weights(scores, preference, a, csiszar=csiszar), given
        )
