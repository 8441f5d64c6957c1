"""docs/figures.md: every figure is on it, its numbers are the recorded ones, and its block runs."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from fenchel.figures import FIGURES, FigureReport
from tests.pages import page, run_blocks
from website.figures import PICTURES, RECORDS

NAME = "docs/figures.md"


@cache
def recorded(name: str) -> FigureReport:
    return FigureReport.load(RECORDS / f"{name}.json")


def section(name: str) -> str:
    """What the page says of a figure, on one line."""
    return " ".join(page(NAME).split(f"\n## {name}\n")[1].split("\n## ")[0].split())


def test_every_figure_has_a_row_a_section_and_a_picture() -> None:
    text = page(NAME)
    for name, kind in FIGURES.items():
        made_of = {"none": "", "optional": "an audit, or the demo model", "required": "an audit"}[kind.audit]
        row = next(line for line in text.splitlines() if line.startswith(f"| [`{name}`](#{name}) |"))
        assert kind.summary in row
        assert made_of in row
        assert f"](images/figures/{name}.png)" in section(name)
    assert (
        {path.stem for path in PICTURES.iterdir()}
        == set(FIGURES)
        == {path.stem for path in RECORDS.iterdir()}
    )
    assert sum(path.stat().st_size for path in PICTURES.iterdir()) < 600_000


def listed(values: Any, last: str = " and ") -> str:
    some = list(values)
    return ", ".join(some[:-1]) + last + some[-1]


def test_figure3() -> None:
    panels = recorded("figure3").numbers["panels"]
    text = section("figure3")
    apart = [f"{one['apart']:.3f}" for one in panels]
    assert f"They are {listed(apart)} apart at α = 4, 2, 1 and 0.5" in text
    at_most = [f"{one['apart_at_most']:.3f}" for one in panels]
    assert f"certified are at most {listed(at_most)}." in text
    assert f"| {', '.join(apart)} apart |" in page("docs/paper.md")
    for one in at_most:
        assert f"at most {one} by the first-order certificate" in page("docs/paper.md")


def test_alpha() -> None:
    points = {point["alpha"]: point for point in recorded("alpha").numbers["points"]}
    quarter, one = (
        [f"{points[alpha][name]['median']:.2f}" for name in ("deviation", "error", "second_order_error")]
        for alpha in (0.25, 1.0)
    )
    text = section("alpha")
    said = (
        "At α = 1/4 the deviation is {} and the output is off by {} of the way that inference moves it, "
        "second order's by {}"
    )
    assert said.format(*quarter) in text
    assert f"at α = 1, {listed(one)}." in text
    for point in points.values():
        assert point["second_order_error"]["median"] < point["error"]["median"]


def test_covariance() -> None:
    numbers = recorded("covariance").numbers
    text = section("covariance")
    (kind,) = numbers["kinds"]

    def means(who: str, metric: str) -> list[float]:
        return [layer[who][metric]["mean"] for layer in kind["layers"]]

    ranges = {
        (who, metric): f"{min(means(who, metric)):.3f} to {max(means(who, metric)):.3f}"
        for who in ("model", "twin")
        for metric in ("relative_deviation", "total_variation")
    }
    assert (
        f"of {ranges['model', 'relative_deviation']} by layer in the model, of "
        f"{ranges['twin', 'relative_deviation']} in the twin"
    ) in text
    assert f"{ranges['model', 'total_variation']} against {ranges['twin', 'total_variation']}." in text
    off = {
        who: max(
            abs(a - b)
            for a, b in zip(means(who, "relative_deviation"), means(who, "predicted_deviation"), strict=True)
        )
        for who in ("model", "twin")
    }
    assert off["twin"] < 0.0001
    assert f"to within 0.0001 in the twin's layers and {off['model']:.3f} in the model's" in text
    assert f"({numbers['audit']['tokens']} tokens)" in text
    assert numbers["audit"]["not_converged"] == 0


def test_deviations() -> None:
    (kind,) = recorded("deviations").numbers["kinds"]
    text = section("deviations")
    metrics = [[layer["model"][name] for layer in kind["layers"]] for name in
               ("relative_deviation", "total_variation", "mean_error")]  # fmt: skip
    ranges = [
        f"{min(one['mean'] for one in layers):.{digits}f} to {max(one['mean'] for one in layers):.{digits}f}"
        for layers, digits in zip(metrics, (3, 3, 2), strict=True)
    ]
    said = "the deviation of λ is {} by layer, total variation {} and the error of the output {},"
    assert said.format(*ranges) in text
    ratios = [
        layer["model"]["certificate"]["median"] / layer["model"]["relative_deviation"]["median"]
        for layer in kind["layers"]
    ]
    assert f"its median is {min(ratios):.1f} to {max(ratios):.1f} times the median of what was solved" in text
    assert recorded("deviations").numbers["audit"]["texts"] == "examples/demo.txt"


def test_convergence() -> None:
    text = section("convergence")
    solvers = [problem["solvers"] for problem in recorded("convergence").numbers["problems"]]
    passes = [
        next(point["passes"] for point in one["gradient_ascent"] if point["median"] < 1e-12)
        for one in solvers
    ]
    assert f"has half of the queries at 1e-12 after {passes[0]} and {passes[1]} passes" in text
    easy, hard = (one["gradient_ascent"][-1] for one in solvers)
    assert easy["passes"] == hard["passes"] > 1000
    assert f"only known to within {easy['largest']:.1e} and {hard['largest']:.2f} after a thousand" in text


def test_kernel_regression() -> None:
    numbers = recorded("kernel-regression").numbers
    best, last = numbers["best"], numbers["errors"][-1]
    text = section("kernel-regression")
    assert (
        f"least at w = {best['w']:.3g} ({best['test']:.3f}) and {last['test']:.3f} at w = {last['w']:g}"
        in text
    )
    assert f"where the training error is {last['train']:.3f}" in text
    printed = min(record["softmax_of_kernel"] for record in numbers["errors"])
    assert f"its error is {printed:.2f} at best" in text


def test_encodings() -> None:
    share = recorded("encodings").numbers["relative_share"]
    assert f"{100 * share:.0f} % of the variance of its cosines is a function of j − i" in section(
        "encodings"
    )


def test_spotlight() -> None:
    numbers = recorded("spotlight").numbers
    uniform, spot, lens, _, attenuated = (belief["first_order"] for belief in numbers["beliefs"])
    text = section("spotlight")
    assert f"({numbers['match']['distractor']:.2f} against {numbers['match']['target']:.2f})" in text
    assert f"believed of the place: {uniform['distractor']:.2f} against {uniform['target']:.2f}." in text
    assert f"In the spotlight the target has {spot['target']:.2f};" in text
    assert f"a lens four times as wide leaves it {lens['target']:.2f}." in text
    assert f"if it is loud enough: {attenuated['distractor']:.2f}." in text


@pytest.mark.parametrize("name", ["figure3", "positions", "spotlight"])
def test_the_records_are_what_is_measured_now(name: str) -> None:
    from fenchel.figures import make_figure

    assert_near(make_figure(name).numbers, recorded(name).numbers)


def assert_near(one: Any, other: Any) -> None:
    """The same but for what the last digits of other machines do."""
    assert type(one) is type(other) or isinstance(one, int | float)
    if isinstance(one, dict):
        assert set(one) == set(other)
        for key in one:
            assert_near(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_near(a, b)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-9)
    else:
        assert one == other


def test_the_block_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_blocks(NAME)
    assert capsys.readouterr().out.startswith(f"{len(FIGURES)} [0.49884, 0.360907,")
    assert len(names["figure"].axes) == 4
