"""What holds for every kind of attention: values, gradients, bounds, masks, layouts, side effects, compilation."""

import inspect
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import ConvergenceError, Exact, FirstOrder, ProblemError, SecondOrder, Tsallis, blocks
from fenchel import functional as F
from fenchel.functional import exact, relative, transport
from tests.compiling import compiled_afresh
from tests.functional.calls import ESTIMATORS, PREFERENCES, directional_derivatives, gradients
from tests.functional.ops import BUCKETS, INDEX, OPS, Op, infer, judged, leaves
from tests.side_effects import assert_unchanged, default_dtype

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)

ALPHAS: list[tuple[int, ...]] = [(), (4, 1), (2, 4, 5), (5,)]
every_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS)
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)


def among(*names: str) -> Any:
    return pytest.mark.parametrize("op", [OPS[name] for name in names], ids=names)


def that_take(*what: str) -> Any:
    return among(*(name for name, op in OPS.items() if set(what) <= set(op.takes)))


def detached(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.detach() for name, tensor in tensors.items()}


def assert_same(
    found: dict[str, Tensor], expected: dict[str, Tensor], rtol: float = 1e-7, atol: float = 1e-8
) -> None:
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("at", range(3))
@every_estimator
@every_op
def test_every_query_is_a_problem_of_the_core(op: Op, estimator: str, at: int) -> None:
    """Output, weights, dual point, certificate, gap, and the gradients of the output to everything."""
    number = 3 * list(OPS.values()).index(op) + at
    alpha = ALPHAS[number % 4] if op.queries == 5 else ()
    tensors = op.call(preference=PREFERENCES[number % 7], alpha=alpha, key_heads=(4, 2, 1)[at])
    found = infer(op, tensors, estimator)
    solved, weights, output = judged(op, tensors, estimator)
    torch.testing.assert_close(found.output, output, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found.weights, weights, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.dual, solved.dual.reshape(found.dual.shape), rtol=1e-7, atol=1e-8)
    bounds = found.certificate
    assert not any(bound.requires_grad for bound in bounds)
    assert all(bound.shape == found.dual.shape[:3] for bound in bounds)
    if estimator == "exact":
        assert float(bounds.gap.max()) < 1e-18
        with pytest.raises(ProblemError, match="estimator"):
            _ = found.gap
    else:
        for name, bound in bounds._asdict().items():
            expected = getattr(solved, name).reshape(bound.shape)
            torch.testing.assert_close(bound, expected.detach(), rtol=1e-5, atol=1e-9)
        torch.testing.assert_close(found.gap.detach(), bounds.gap, rtol=1e-5, atol=1e-10)
    assert_same(gradients(found.output, leaves(tensors)), gradients(output, leaves(tensors)))


@every_estimator
@every_op
def test_gradients_are_those_of_finite_differences(op: Op, estimator: str) -> None:
    """Of the output, and of the gap where there is one."""
    tensors = op.call(preference=(2, 4, 5, 7), alpha=(4, 1), key_heads=2, masked=0.0)
    kinks = op in (OPS["sparsemax"], OPS["entmax15"], OPS["relative, sparse"], OPS["orders of heads"])

    def function(**given: Any) -> Tensor:
        found = infer(op, given, estimator)
        return (
            found.output if estimator == "exact" else torch.cat([found.output, found.gap.unsqueeze(-1)], -1)
        )

    step = 3e-5 if kinks else 1e-5
    for name, (numeric, analytic) in directional_derivatives(function, tensors, step).items():
        assert analytic == pytest.approx(numeric, rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_estimator
@every_op
def test_bounds_of_narrow_types_are_of_numbers_as_given(op: Op, estimator: str, dtype: torch.dtype) -> None:
    numbers, rough = {"alpha": 0.6, "scale": 0.7}, {"tol": None} if estimator == "exact" else {}
    given = {name: x for name, x in detached(op.call(dtype=torch.float32)).items() if name not in numbers}
    of_closeness = ("temperatures", "orders", "gammas")
    tensors = {name: x if name in of_closeness else x.to(dtype) for name, x in given.items()}
    wide = {name: x.double() for name, x in tensors.items() if name not in of_closeness}
    narrow = {**tensors, **numbers}
    found, exact = infer(op, narrow, estimator, **rough), infer(op, {**narrow, **wide}, "exact")
    apart, bounds = (found.dual.double() - exact.dual).norm(dim=-1), found.certificate
    assert bool((apart <= bounds.dual_error * (1 + 1e-6)).all())
    assert found.output.dtype == found.weights.dtype == dtype


@every_estimator
@every_op
def test_asking_for_the_certificate_changes_neither_output_nor_gradients(op: Op, estimator: str) -> None:
    tensors = op.call(preference=(4, 1, 7))
    plain = infer(op, tensors, estimator)
    output, bounds = infer(op, tensors, estimator).certified()
    torch.testing.assert_close((output, *bounds), (plain.output, *plain.certificate), rtol=1e-9, atol=1e-11)
    wanted = leaves(tensors)
    assert_same(gradients(output, wanted), gradients(plain.output, wanted), rtol=1e-9, atol=1e-11)
    with torch.no_grad():
        again, _ = infer(op, tensors, estimator).certified()
    torch.testing.assert_close(again, output, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("as_mask", [True, False])
@every_estimator
@that_take("preference")
def test_masked_is_removed_and_nothing_left_is_zeros(op: Op, estimator: str, as_mask: bool) -> None:
    tensors = op.call()
    allowed = torch.ones(5, 7, dtype=torch.bool)
    allowed[:, [1, 4]] = allowed[2] = False
    mask = allowed if as_mask else torch.zeros(5, 7).double().masked_fill(~allowed, -torch.inf)
    found = infer(op, {**tensors, "log_preference": mask}, estimator)
    for part in (found.dual, found.output, found.weights, *found.certificate):
        assert bool((part[:, :, 2] == 0).all())
    assert bool((found.weights[..., [1, 4]] == 0).all())
    slopes = gradients(found.output, leaves(tensors))
    assert all(bool(slope.isfinite().all()) for slope in slopes.values())
    assert bool((slopes["query"][:, :, 2] == 0).all())
    of_keys = ("key", "value", *op.of_keys)
    assert all(float(slopes[name][:, :, [1, 4]].abs().max()) < 1e-14 for name in of_keys)
    if "removal" in op.takes:
        left, there = [0, 2, 3, 5, 6], [0, 1, 3, 4]
        kept = {**tensors, **{name: tensors[name][:, :, left] for name in of_keys}}
        if "table" in tensors:
            kept["index"] = op.options(tensors)["variant"].index[..., left]
        expected = infer(op, kept, estimator).output
        torch.testing.assert_close(found.output[:, :, there], expected[:, :, there], rtol=1e-8, atol=1e-9)


@every_estimator
@that_take("preference")
def test_finite_log_weights_that_underflow_are_a_mask(op: Op, estimator: str) -> None:
    tensors, allowed = detached(op.call()), torch.ones(5, 7, dtype=torch.bool).tril(2)
    expected = infer(op, {**tensors, "log_preference": allowed}, estimator)
    for least in (-1e9, torch.finfo(torch.float64).min):
        bias = torch.zeros(5, 7).double().masked_fill(~allowed, least)
        found = infer(op, {**tensors, "log_preference": bias}, estimator)
        torch.testing.assert_close(found.output, expected.output)
        torch.testing.assert_close(found.certificate, expected.certificate, rtol=1e-5, atol=1e-9)


@every_op
def test_a_number_says_what_a_tensor_of_it_says(op: Op) -> None:
    given = detached(op.call(preference=(5, 7)))
    numbers = {"scale": 0.7, "alpha": 1.3}
    asked = {name: torch.tensor(x, dtype=torch.float64, requires_grad=True) for name, x in numbers.items()}
    found, expected = (infer(op, {**given, **each}, "first_order") for each in (numbers, asked))
    torch.testing.assert_close(found.output, expected.output.detach())


@every_op
def test_blocks_do_not_show(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = op.call(preference=(2, 4, 5, 7), key_heads=2)

    def everything() -> list[Tensor]:
        found: list[Tensor] = []
        for estimator in ESTIMATORS:
            output = infer(op, tensors, estimator).output
            found += [output, *gradients(output, leaves(tensors)).values()]
            with torch.no_grad():
                found += infer(op, tensors, estimator).certificate
        return found

    whole = everything()
    monkeypatch.setattr(exact, "CACHE_BYTES", 2 * 7 * 8)
    monkeypatch.setattr(relative, "BLOCK_ENTRIES", 1)
    for module, name in ((blocks, "PART_BYTES"), (transport, "PART_BYTES")):
        monkeypatch.setattr(module, name, 1)
    monkeypatch.setattr(transport, "FACTOR_BYTES", 1)
    monkeypatch.setattr(blocks, "LEAST_QUERIES", 2)
    torch.testing.assert_close(everything(), whole, rtol=1e-7, atol=1e-8)


@every_estimator
@every_op
def test_half_precision_is_computed_in_single_and_autocast_is_a_cast(op: Op, estimator: str) -> None:
    dtype = (torch.bfloat16, torch.float16)[list(OPS.values()).index(op) % 2]  # in turn
    given = detached(op.call(dtype=torch.float32))
    # Gradients of numbers are sums of thousands of rounded terms, of any size beside their result.
    numbers = {
        name: given.pop(name)
        for name in ("alpha", "scale", "temperatures", "orders", "gammas")
        if name in given
    }
    numbers["alpha"] = torch.ones(())  # αz is rounded to the half type, and weights have kinks
    half = {name: x.to(dtype).requires_grad_() for name, x in given.items()}
    wide = {name: x.detach().float().requires_grad_() for name, x in half.items()}
    rough, eps = {"tol": None}, torch.finfo(dtype).eps
    found, expected = (infer(op, {**of, **numbers}, estimator, **rough).output for of in (half, wide))
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.float(), expected, rtol=0, atol=2 * eps * float(expected.detach().abs().max())
    )
    slow = gradients(expected, wide)
    for name, slope in gradients(found, half).items():
        assert slope.dtype == dtype
        size = max(1.0, float(slow[name].abs().max()))
        torch.testing.assert_close(slope.float(), slow[name], rtol=0, atol=4 * eps * size)
    cast = ("query", "key", "value", "variances", "atoms ", "atom values ", "table", "value table")
    with torch.autocast("cpu", dtype=dtype), torch.no_grad():
        found = infer(op, {**given, **numbers}, estimator, **rough).output
        assert found.dtype == dtype
    rounded = {name: x.to(dtype).float() if name in cast else x for name, x in given.items()}
    expected = infer(op, {**rounded, **numbers}, estimator, **rough).output
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=8 * eps * float(expected.abs().max()))


@pytest.mark.parametrize("name", ["mixture", "orders of heads", "relative"])
def test_a_compiled_training_step_of_exact_inference_is_that_of_eager(name: str) -> None:
    tensors = OPS[name].call(preference=(5, 7))
    tensors["alpha"], tensors["scale"] = (tensors[of].detach() for of in ("alpha", "scale"))
    wanted = leaves(tensors)

    def step(**given: Any) -> Tensor:
        return infer(OPS[name], {**tensors, **given}, "exact").output

    with compiled_afresh():
        found = torch.compile(step, backend="aot_eager")(**wanted)
        compiled = gradients(found, wanted)
    expected = step(**wanted)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
    assert_same(compiled, gradients(expected, wanted), rtol=1e-6)


@every_estimator
@every_op
def test_without_queries_and_without_a_batch(op: Op, estimator: str) -> None:
    tensors, by_index = detached(op.call()), op is OPS["relative by an index"]
    if op is not OPS["hashing"]:
        none = {name: x[:, :, :6] if "table" in name else x for name, x in tensors.items()}
        none |= {"query": tensors["query"][:, :, :0], "index": INDEX[:, :0] if by_index else None}
        assert infer(op, none, estimator).output.shape == (2, 4, 0, 2)
    if not by_index:
        batched = ("query", "key", "value", "variances", "atom values ")
        empty = {name: x[:0] if name in batched else x for name, x in tensors.items()}
        found = infer(op, {**empty, "buckets": BUCKETS[:0]}, estimator)
        assert found.output.shape == (0, 4, op.queries, 2)
        assert found.weights.shape[:3] == found.certificate.gap.shape == (0, 4, op.queries)


@every_estimator
@every_op
def test_results_do_not_depend_on_layout(op: Op, estimator: str) -> None:
    tensors = detached(op.call(preference=(2, 4, 5, 7)))
    found = []
    for strided in (True, False):
        given = {
            name: (x.mT.contiguous().mT if strided and x.dim() > 1 else x).clone(memory_format=torch.preserve_format)
            for name, x in tensors.items()
        }  # fmt: skip
        wanted = {name: x.requires_grad_() for name, x in given.items()}
        output = infer(op, wanted, estimator).output
        found.append({"output": output, **gradients(output, wanted)})
    assert_same(found[0], found[1])


@that_take("dropout")
def test_dropout_drops_weights_the_same_forwards_and_backwards(op: Op) -> None:
    tensors = op.call()
    torch.manual_seed(0)
    dropped = infer(op, tensors, "first_order", dropout_p=0.5).output
    # Linear in the values, so that the gradient tells which weights were dropped.
    values = [name for name in ("value", "value table") if name in tensors]
    slopes = torch.autograd.grad(dropped.sum(), [tensors[name] for name in values], retain_graph=True)
    again = sum((slope * tensors[name]).sum() for name, slope in zip(values, slopes, strict=True))
    torch.testing.assert_close(again, dropped.sum())
    kept = infer(op, detached(tensors), "first_order").output
    assert float((dropped - kept).detach().abs().max()) > 0.1
    few = {**detached(op.call()), "index": INDEX}
    many = {name: torch.cat(800 * [x]) if x.dim() > 2 and len(x) == 2 else x for name, x in few.items()}
    drawn = infer(op, many, "first_order", dropout_p=0.3).output.unflatten(0, (800, 2))
    torch.testing.assert_close(drawn.mean(0), infer(op, few, "first_order").output, rtol=0, atol=0.2)


def parts_of(found: F.Inference, estimator: str) -> tuple[Tensor, ...]:
    gap = () if estimator == "exact" else (found.gap,)
    return found.output, found.weights, found.dual, *found.certificate, *gap


@every_estimator
@every_op
def test_torchs_default_dtype_changes_nothing(op: Op, estimator: str) -> None:
    tensors = detached(op.call(dtype=torch.float32))
    expected = parts_of(infer(op, tensors, estimator, tol=1e-4), estimator)
    with default_dtype(torch.bfloat16):
        found = parts_of(infer(op, tensors, estimator, tol=1e-4), estimator)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@every_estimator
@every_op
def test_inputs_are_left_as_they_are(op: Op, estimator: str, dtype: torch.dtype) -> None:
    inputs = {name: x.detach().to(dtype) for name, x in op.call(preference=(2, 4, 5, 7)).items()}
    inputs = {name: x.requires_grad_() for name, x in inputs.items()}
    tol = 1e-2 if dtype.itemsize < 4 else 1e-4
    assert_unchanged(lambda: parts_of(infer(op, inputs, estimator, tol=tol), estimator), inputs)


@every_op
def test_what_does_not_arrive_is_an_error(op: Op) -> None:
    tensors = detached(op.call())
    tensors["query"] = 9 * tensors["query"]
    with pytest.raises(ConvergenceError, match=r"did not reach dual_error .* within 1 steps"):
        _ = infer(op, {**tensors, "alpha": 20.0}, "exact", max_steps=1).output


def test_no_value_means_no_output_and_each_part_is_computed_once() -> None:
    tensors = detached(OPS["softmax"].call())
    q, k, v = (tensors[name] for name in ("query", "key", "value"))
    found = F.infer(q, k)
    with pytest.raises(ProblemError, match="value"):
        _ = found.output
    assert found.weights is found.weights
    torch.testing.assert_close(found.certificate, F.infer(q, k, v).certificate)
    assert F.infer(q, k, variant=F.Mixture(torch.ones(1).double())).output.shape == q.shape


PARTS = {"": "output", "_with_certificate": "certified", "_weights": "weights"}
FUNCTIONS = {
    **{f"{of}attention{part}": of for of in ("", "relative_", "mixture_") for part in PARTS},
    **{"transport_attention": "transport_", "gap": "", "relative_gap": "relative_"},
}
OF_FUNCTIONS = {
    "": "sparsemax",
    "relative_": "relative by an index",
    "mixture_": "mixture",
    "transport_": "transport",
}


@pytest.mark.parametrize("solver", [FirstOrder(), SecondOrder(), Exact(tol=1e-9)], ids=lambda each: each.name)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_lines_over_one_inference(name: str, solver: Any) -> None:
    if name.endswith("gap") and solver.name == "exact":
        return
    op, function = OPS[OF_FUNCTIONS[FUNCTIONS[name]]], getattr(F, name)
    tensors = detached(op.call(preference=(5, 7), alpha=(4, 1)))
    options = {each: tensors[each] for each in ("log_preference", "alpha", "scale")} | {"estimator": solver}
    if op is OPS["sparsemax"]:
        options["closeness"] = op.closeness(tensors)
    renamed = {"relative": "table", "gamma": "gammas", "means": "key"}
    own = {"index": INDEX, "cost": "squared_euclidean"} | {
        new: tensors.get(old) for new, old in renamed.items()
    }
    taken = inspect.signature(function).parameters
    found = function(**{each: x for each, x in {**tensors, **own}.items() if each in taken} | options)
    whole = F.infer(
        *(tensors[each] for each in ("query", "key", "value")), **{**options, **op.options(tensors)}
    )
    part = "gap" if name.endswith("gap") else PARTS[name.partition("attention")[2]]
    expected = whole.certified() if part == "certified" else getattr(whole, part)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


EMPTY = [(0, 4, 3, 5, 8), (2, 0, 3, 5, 8), (2, 4, 0, 5, 8), (2, 4, 3, 5, 0), (2, 4, 3, 0, 8)]


@pytest.mark.parametrize("sizes", EMPTY, ids=str)
@every_estimator
@pytest.mark.parametrize("allowed", [None, "mask", "weights", "one number"])
def test_nothing_to_infer_is_what_torch_answers(
    sizes: tuple[int, ...], estimator: str, allowed: str | None
) -> None:
    batch, heads, m, n, d = sizes
    given = [torch.ones(batch, heads, k, w, requires_grad=True) for k, w in ((m, d), (n, d), (n, 6))]
    preferred = None
    if allowed == "mask":
        preferred = torch.ones(m, n, dtype=torch.bool)
    elif allowed is not None:
        preferred = torch.ones((m, n) if allowed == "weights" else (1, 1), requires_grad=True)
        given.append(preferred)
    torchs = None if preferred is None else preferred.expand(m, n)
    expected = torch.nn.functional.scaled_dot_product_attention(*given[:3], attn_mask=torchs)
    torch.testing.assert_close(
        F.reference.attention(*given[:3], log_preference=preferred, estimator=estimator), expected
    )
    table = F.Relative(torch.zeros(1, heads, max(m + n - 1, 0), d)) if n == 0 else None
    for closeness, variant in itertools.product((None, Tsallis(1.5)), {None, table}):
        options: dict[str, Any] = {"closeness": closeness, "variant": variant, "estimator": estimator}
        found = F.infer(*given[:3], log_preference=preferred, **options)
        torch.testing.assert_close(found.output, expected)
        torch.testing.assert_close(found.weights @ given[2], expected)
        ours, theirs = (
            torch.autograd.grad(x.sum(), given, materialize_grads=True, retain_graph=True)
            for x in (found.output, expected)
        )
        torch.testing.assert_close(ours, theirs)
        bounds = found.certificate if estimator == "exact" else (*found.certificate, found.gap)
        assert all(bound.shape == sizes[:3] and not bool(bound.any()) for bound in bounds)


@every_estimator
def test_shapes_without_values(estimator: str) -> None:
    given = [torch.ones(2, 4, n, 8, device="meta") for n in (3, 5, 5)]
    assert F.attention(*given, estimator=estimator).shape == (2, 4, 3, 8)
    with pytest.raises(ProblemError, match="query is on meta"):
        F.transport_attention(*given, gamma=1.0, estimator=estimator)


@pytest.mark.parametrize(("entry", "message"), [(torch.nan, "contains NaN"), (1e200, "are not finite")])
def test_second_order_refuses_keys_for_which_its_dual_points_are_not_finite(
    entry: float, message: str
) -> None:
    query, key = torch.randn(2, 1, 1, 3, 8, dtype=torch.float64)
    key[0, 0, 0] = entry
    with pytest.raises(ProblemError, match=message):
        F.attention(query, key, key, estimator="second_order")


def test_an_unknown_option_is_named() -> None:
    op = OPS["softmax"]
    with pytest.raises(ProblemError, match="attn_mask is not an option"):
        infer(op, op.call(preference=None), "first_order", attn_mask=torch.ones(5, 7))


@every_estimator
def test_each_query_of_relative_attention_has_its_own_order(estimator: str) -> None:
    tensors = OPS["relative by an index"].call(preference=None)
    query, key, value, table = (tensors[name] for name in ("query", "key", "value", "table"))
    order = 1 + torch.linspace(-2, 2, 40, dtype=torch.float64).view(2, 4, 5).sigmoid()

    def attended(part: slice, own: Tensor) -> Tensor:
        index, options = INDEX[:, part], {"closeness": Tsallis(own), "estimator": estimator}
        return F.relative_attention(query[:, :, part], key, value, table, index, **options)

    found = attended(slice(None), order)
    expected = torch.cat([attended(slice(i, i + 1), order[:, :, i : i + 1]) for i in range(5)], 2)
    torch.testing.assert_close(found, expected)
    with pytest.raises(ProblemError, match=r"order of Tsallis has shape \(3,\); .* = \(2, 4, 5\), such as"):
        attended(slice(None), torch.full((3,), 1.5))
