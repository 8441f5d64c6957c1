"""Every measure of a layer against the definition, solved through the public problem."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fenchel
from fenchel import Discrete, InferenceProblem
from fenchel.auditing.example_search import both_weights
from fenchel.auditing.heads import METRICS
from fenchel.auditing.measure import OF_A_WINDOW, Measures
from fenchel.auditing.measure import measure as measure_as
from fenchel.auditing.solution import BlockSolution, layer_problem, solutions_of
from fenchel.auditing.weight_moves import TokenClasses
from fenchel.errors import CaptureError, ProblemError
from fenchel.integrations.capture import AttentionCall
from fenchel.integrations.sites import AttentionSite
from fenchel.run_options import AuditOptions

SITE = AttentionSite(name="layer.0", kind="encoder_self", layer=1, num_heads=4)


def call(
    preference: str = "padding",
    *,
    n: int = 9,
    heads: int = 4,
    key_heads: int = 4,
    d_h: int = 5,
    width: int = 7,
    scale: float = 1.0,
    scaling: float = 0.6,
    dtype: torch.dtype = torch.float64,
) -> AttentionCall:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)

    batch, m = 2, n
    inputs, weight, bias = normal(batch, n, width), normal(key_heads, d_h, width), normal(key_heads, d_h)
    weight = weight * width**-0.5 if scale > 1 else weight
    key = torch.einsum("bnw,hdw->bhnd", inputs, weight) + bias[:, None]
    counted = torch.ones(batch, m, dtype=torch.bool)
    counted[1, -2:] = False
    padding = torch.zeros(batch, 1, 1, n, dtype=torch.float64)
    padding[1, ..., -2:] = -torch.inf
    causal = torch.zeros(m, n, dtype=torch.float64).masked_fill(~torch.ones(m, n).tril().bool(), -torch.inf)
    log_preference = {
        "none": None,
        "padding": padding,
        "causal": causal[None, None],
        "causal padding": causal + padding,
        "bias": normal(1, heads, m, n),
        "bias padding": normal(1, heads, m, n) + padding,
    }[preference]
    if log_preference is not None:
        log_preference = log_preference.to(torch.promote_types(dtype, torch.float32))
    query = scale * normal(batch, heads, m, d_h)
    return AttentionCall(SITE, query, key, scaling, log_preference, counted, inputs, weight, bias)


def in_dtype(given: AttentionCall, dtype: torch.dtype) -> AttentionCall:
    """The same numbers in another dtype."""
    real = {
        name: value.to(dtype)
        for name, value in vars(given).items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    return replace(given, **real)


def measure(
    given: AttentionCall,
    *,
    heads: list[int] | None = None,
    tokens: TokenClasses | None = None,
    **solving: Any,
) -> Measures:
    """The measures of a call that is solved as the other arguments say."""
    return measure_as(given, AuditOptions(**solving), heads=heads, tokens=tokens)


def problem_of(
    call: AttentionCall, space: str, alpha: float | Tensor = 1.0, closeness: Any = None
) -> InferenceProblem:
    """The public problem of every query of every head."""
    repeats = call.query.shape[1] // call.key.shape[1]
    templates, z = call.key.repeat_interleave(repeats, 1), call.query
    if space == "input":
        assert call.inputs is not None
        assert call.key_weight is not None
        templates, z = call.inputs[:, None], z @ call.key_weight.repeat_interleave(repeats, 0)
    return InferenceProblem(Discrete(call.scaling * templates, call.log_preference), z, alpha, closeness)


def by_definition(problem: InferenceProblem, **options: Any) -> dict[str, Tensor]:
    """The definitions, for every query of every head, (batch, heads, m)."""
    first, second = problem.solve("first_order"), problem.solve("second_order")
    exact = problem.solve("exact", **{"tol": 1e-11, **options})
    start, size = problem.alpha_column * problem.evidence, exact.dual.norm(dim=-1)
    shift = (first.mean - problem.preference.mean()).norm(dim=-1)
    room = problem.evidence.norm(dim=-1) - shift
    return {
        "relative_deviation": (exact.dual - start).norm(dim=-1) / size,
        "second_order_deviation": (exact.dual - second.dual).norm(dim=-1) / size,
        "total_variation": (first.weights - exact.weights).abs().sum(-1) / 2,
        "mean_error": (first.mean - exact.mean).norm(dim=-1) / exact.mean.norm(dim=-1),
        "certificate": torch.where(room > 0, shift / room, torch.inf),
        "gap": problem.primal(first.weights) - problem.dual(start),
        "predicted_deviation": (second.dual - start).norm(dim=-1) / second.dual.norm(dim=-1),
    }


def worst_disagreement(call: AttentionCall, measures: Measures, space: str, alpha: float) -> float:
    """Largest relative disagreement over counted queries and metrics."""
    worst, rows = 0.0, call.counted[:, None].expand(call.query.shape[:3])
    for name, expected in by_definition(problem_of(call, space, alpha)).items():
        found, wanted = measures.values[name][rows].double(), expected[rows]
        apart = torch.where(found == wanted, 0, (found - wanted).abs() / wanted.abs().clamp(min=1e-6))
        worst = max(worst, float(apart.nan_to_num(nan=math.inf).max()))
    return worst


PREFERENCES = ["none", "padding", "causal", "causal padding", "bias", "bias padding"]


@pytest.mark.parametrize("space", ["input", "key"])
@pytest.mark.parametrize(
    ("preference", "n", "key_heads", "alpha", "memory_budget"),
    [
        *((name, 9, 4, 1.0, 2**29) for name in PREFERENCES),
        *(("causal padding", n, 4, 1.0, 2**29) for n in (3, 16)),
        ("bias padding", 9, 2, 0.5, 2**29),
        *((name, 12, 4, 1.0, 20_000) for name in ("bias padding", "causal")),
    ],
)
def test_measures_are_what_they_are_defined_to_be(
    space: str, preference: str, n: int, key_heads: int, alpha: float, memory_budget: int
) -> None:
    """Few templates go through the Gram matrix, many (n > 2d) through the templates, few bytes through blocks."""
    given = call(preference, n=n, key_heads=key_heads)
    measures = measure(given, space=space, alpha=alpha, tol=1e-9, memory_budget=memory_budget)
    assert worst_disagreement(given, measures, space, alpha) < 1e-5
    assert bool(measures.values["converged"].transpose(1, 2)[given.counted].all())


@pytest.mark.parametrize("space", ["input", "key"])
@pytest.mark.parametrize("preference", ["padding", "bias padding", "causal"])
@pytest.mark.parametrize("key_heads", [2, 4])
def test_selected_heads_and_float32_change_nothing_but_rounding(
    space: str, preference: str, key_heads: int
) -> None:
    given = call(preference, n=12, key_heads=key_heads)
    whole, some = (measure(given, space=space, tol=1e-9, heads=heads) for heads in (None, [2, 3]))
    rounded = measure(in_dtype(given, torch.float32), space=space, tol=1e-5)
    for name in METRICS:
        found, expected, near = (
            of_counted(given, one.values[name]).double() for one in (some, whole, rounded)
        )
        torch.testing.assert_close(found, expected[:, 1:3], rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(near, expected, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("memory_budget", [2**29, 20_000])
def test_the_farthest_queries_come_with_attention_and_the_exact_weights(memory_budget: int) -> None:
    given = call("bias padding", key_heads=2)
    farthest = measure(given, space="key", tol=1e-9, memory_budget=memory_budget)
    variation = farthest.values["total_variation"].masked_fill(~given.counted[:, None], -1)
    values, order = variation.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(
        farthest.positions, order[..., :OF_A_WINDOW].masked_fill(values[..., :OF_A_WINDOW] < 0, -1)
    )
    apart = (farthest.first_order - farthest.exact).abs().sum(-1) / 2
    torch.testing.assert_close(apart, values[..., :OF_A_WINDOW].clamp(min=0))
    assert given.log_preference is not None
    for place in range(OF_A_WINDOW):
        k = int(farthest.positions[0, 3, place])
        scores = given.query[0, 3, k] @ given.key[0, 1].T * given.scaling
        weights = (scores + given.log_preference[0, 3, k]).softmax(-1)
        torch.testing.assert_close(farthest.first_order[0, 3, place], weights)


@pytest.mark.parametrize(("space", "heads"), [("key", None), ("input", None), ("key", [2, 4])])
def test_a_few_queries_are_answered_as_all_of_them_are(space: str, heads: list[int] | None) -> None:
    given = call("bias padding", key_heads=2)
    chosen = heads or [1, 2, 3, 4]
    first, exact = both_weights(given, 1, chosen, [0, 1, 2], AuditOptions.checked(space=space, tol=1e-9))
    measures = measure(given, space=space, tol=1e-9, heads=heads)
    variation = (first - exact).abs().sum(-1) / 2
    torch.testing.assert_close(variation, measures.values["total_variation"][1, :, :3].float())


def test_where_nothing_is_counted_there_is_no_farthest_query_and_no_evidence_is_no_deviation() -> None:
    given = call("padding")
    farthest = measure(replace(given, counted=torch.zeros(2, 9, dtype=torch.bool)), space="input")
    assert bool((farthest.positions == -1).all())
    measures = measure(replace(given, query=torch.zeros_like(given.query)), space="input")
    for name in METRICS:
        assert float(measures.values[name].transpose(1, 2)[given.counted].abs().max()) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-12, 1e-17, 1e-30])
def test_heads_that_are_nearly_dead_are_measured_like_others(size: float, dtype: torch.dtype) -> None:
    """As queries go to 0 the deviation goes to ‖Σz‖/‖z‖, and so does its bound to ‖Σz‖/(‖z‖ - ‖Σz‖)."""
    given = call("padding")
    small = replace(given, query=1e-5 * given.query)
    tiny = in_dtype(replace(given, query=size * given.query), dtype)
    expected, found = measure(small, space="input", tol=1e-7), measure(tiny, space="input")
    counted = given.counted
    assert bool(found.values["converged"].transpose(1, 2)[counted].all())
    for name in ("relative_deviation", "predicted_deviation", "certificate"):
        truth, value = (m.values[name].double().transpose(1, 2)[counted] for m in (expected, found))
        torch.testing.assert_close(value, truth, rtol=1e-2, atol=0)


NOTHING = torch.zeros(2, 1, 9, 9, dtype=torch.float64)
NOTHING[1, :, -2:] = -torch.inf


def test_what_cannot_be_measured_names_the_layer() -> None:
    for changes, space, error, message in (
        (
            {"preference": NOTHING, "counted": torch.ones(2, 9, dtype=torch.bool)},
            "key",
            ProblemError,
            "a query that is not padding may attend to nothing",
        ),
        ({"query": torch.full((2, 4, 9, 5), torch.inf)}, "key", ProblemError, r"layer\.0: queries contain"),
        ({"inputs": None}, "input", CaptureError, "needs the inputs and the key map"),
    ):
        with pytest.raises(error, match=message):
            measure(replace(call("padding"), **changes), space=space)
        assert bool(
            torch.isfinite(
                measure(replace(call("padding"), preference=NOTHING), space="key").values["gap"]
            ).all()
        )


TEXT = "The bank of the river was steep, and nobody had crossed it since the bridge fell in the spring flood."


def test_the_covariance_alone_predicts_the_deviation_as_well_for_the_untrained_twin() -> None:
    """Fact 14: what the papers' number measures is there without training; what moves is not."""
    report = fenchel.audit(
        "demo", None, [" ".join([TEXT] * 6)], max_length=128, baseline="twin", space="input"
    )

    def layers(records: list[dict[str, Any]], metric: str) -> list[float]:
        return [
            float(np.mean([record[f"{metric}_mean"] for record in records if record["layer"] == layer]))
            for layer in range(1, 7)
        ]

    for records, closeness in ((report.heads, 0.5), (report.twin_heads, 0.01)):
        predicted, solved = layers(records, "predicted_deviation"), layers(records, "relative_deviation")
        assert predicted == pytest.approx(solved, rel=closeness)
        assert all(0.02 < deviation < 0.1 for deviation in solved)
    moved, untrained = (
        np.mean(layers(records, "total_variation")) for records in (report.heads, report.twin_heads)
    )
    assert moved > 10 * untrained


SIZES: dict[str, Any] = {"d_h": 16, "width": 24, "scale": 10.0, "scaling": 0.25, "dtype": torch.float32}


def dual_of(solution: BlockSolution) -> Tensor:
    """λ* of a block in the space of the templates, float64, (g, h, q, d)."""
    group, lam = solution.group, solution.found.dual.double()
    if group._basis is not None:
        queries = solution.block.queries.double()
        whole = queries if group._lift is None else queries @ group._lift[solution.block.where[1]]
        whole = whole.flatten(1, 2)
        outside = whole - whole @ group._basis @ group._basis.mT
        lam = lam @ group._basis.mT + group._solving.alpha * outside
    return lam.reshape(*solution.converged.shape, -1)


def exact_duals(given: AttentionCall, **solving: Any) -> tuple[Tensor, Tensor]:
    """λ* of every query, (batch, heads, m, d), and where it is certified, (batch, heads, m)."""
    with torch.no_grad():
        problem = layer_problem(given, solving["space"])
        shape = problem.queries.shape[:3]
        dual = problem.queries.new_zeros((*shape, problem.vectors.shape[-1]), dtype=torch.float64)
        converged = torch.zeros(shape, dtype=torch.bool)
        for solution in solutions_of(problem, problem.counted(given), AuditOptions(**solving)):
            dual[solution.block.where] = dual_of(solution)
            converged[solution.block.where] = solution.converged
    return dual.reshape(len(given.query), -1, *dual.shape[2:]), problem.by_head(converged)


def certified_errors(given: AttentionCall, space: str, alpha: float, dual: Tensor) -> Tensor:
    """α‖∇𝒟(λ)‖/‖λ‖ of the public problem, float64, (batch, heads, m)."""
    problem = problem_of(in_dtype(given, torch.float64), space, alpha)
    return alpha * problem.dual_gradient(dual).norm(dim=-1) / dual.norm(dim=-1)


def worst_claimed(given: AttentionCall, space: str, alpha: float, dual: Tensor, claimed: Tensor) -> float:
    """The largest certificate of a query that is said to be converged."""
    errors = certified_errors(given, space, alpha, dual).nan_to_num(nan=torch.inf)
    return float(errors[claimed].max()) if bool(claimed.any()) else 0.0


def of_counted(given: AttentionCall, values: Tensor) -> Tensor:
    return values.transpose(1, 2)[given.counted]


CASES = [
    *(
        ({"preference": name, "n": n}, 1e-6) for name in PREFERENCES for n in (20, 70)
    ),  # by the Gram matrix and not
    *(
        ({"n": 32, "dtype": dtype}, tol)
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)
        for tol in (1e-3, 2e-5, 1e-6, 1e-9, 1e-12)
    ),
]


@pytest.mark.parametrize("space", ["input", "key"])
@pytest.mark.parametrize(("sizes", "tol"), CASES)
def test_what_is_converged_is_certified_in_float64(space: str, sizes: dict[str, Any], tol: float) -> None:
    """Whatever the preference, the dtype and the tolerance."""
    given = call(**{"preference": "causal padding", **SIZES, **sizes})
    dual, converged = exact_duals(given, space=space, tol=tol)
    assert bool(of_counted(given, converged).all())
    # The definition, on templates that are not centred, has a rounding of its own.
    assert worst_claimed(given, space, 1.0, dual, converged) <= tol * (1 + 1e-6) + 1e-13
    torch.testing.assert_close(measure(given, space=space, tol=tol).values["converged"], converged)


def test_a_tolerance_below_float64_is_not_claimed() -> None:
    given = call("padding", n=12, **SIZES)
    measures = measure(given, space="input", tol=1e-18)
    assert not bool(measures.values["converged"].any())
    assert all(
        bool(torch.isfinite(of_counted(given, measures.values[name])).all()) for name in ("gap", "mean_error")
    )


@pytest.mark.parametrize("space", ["input", "key"])
@pytest.mark.parametrize("preference", ["none", "causal", "bias padding"])
def test_what_is_factorised_is_measured_at_its_point(space: str, preference: str) -> None:
    """With α this large attention's point is a vertex, and λ* is much shorter than αz."""
    narrow, alpha = call(preference, n=12, **SIZES), 1e4
    rounded = in_dtype(narrow, torch.float64)
    dual, converged = exact_duals(narrow, space=space, alpha=alpha, tol=1e-6)
    assert float(of_counted(narrow, converged).double().mean()) > 0.9
    assert worst_claimed(narrow, space, alpha, dual, converged) <= 1e-6 * (1 + 1e-3)
    measures = measure(narrow, space=space, alpha=alpha, tol=1e-6)
    some = ([0, 0, 1], [0, 3, 2], [1, 5, 7])
    assert bool(measures.values["converged"][some].all())
    for name, expected in by_definition(problem_of(rounded, space, alpha), tol=1e-7, throw=False).items():
        found = measures.values[name][some].double()
        torch.testing.assert_close(found, expected[some], rtol=2e-3, atol=1e-4, msg=name)


def test_a_step_limit_leaves_queries_that_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    given = call("none", n=32, **SIZES)
    steps = [measure(given, space="input", tol=tol).values["newton_steps"].sum() for tol in (0.5, 1e-6)]
    assert steps[0] < steps[1]
    monkeypatch.setattr("fenchel.auditing.solution.MOST_STEPS", 2)
    dual, converged = exact_duals(given, space="input", tol=1e-6)
    errors = certified_errors(given, "input", 1.0, dual)
    assert not bool(of_counted(given, converged).all())
    assert bool((errors[converged] <= 1e-6 * (1 + 1e-6)).all())
    assert bool((of_counted(given, errors)[~of_counted(given, converged)] > 1e-6).all())
    assert measure(given, space="input", tol=1e-6).values["newton_steps"].max() <= 2
