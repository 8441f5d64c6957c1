"""Wrong calls of problems, preferences that are distributions, closenesses, solvers and readings of α."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import fenchel
from fenchel.closeness import sparse_weights
from fenchel.closeness.optimal_transport import GivenCost
from fenchel.preference import AsymmetricLaplace, TruncatedExponential
from fenchel.reliability import alpha_from_noise, noise_from_alpha, radius_of
from tests.wrong_calls.values import *

M, N, D = 3, 5, 8


def problem(**changes: Any) -> fenchel.InferenceProblem:
    return fenchel.InferenceProblem(
        **{"preference": fenchel.Discrete(torch.ones(N, D)), "evidence": torch.ones(M, D), **changes}
    )


def problems() -> Iterator[Target]:
    yield Target(
        fenchel.Discrete,
        {"templates": torch.ones(N, D)},
        templates={
            **without(tensors(N, D), "longer", "huge"),
            **{"one row": filled(1.0, D), "none": filled(1.0, 0, D)},
            **{"nan": filled(NAN, N, D), "infinite": filled(INF, N, D)},
        },
        log_weights={
            **tensors(N, optional=True),
            **{"nan": filled(NAN, N), "infinite": filled(INF, N), "none": filled(-INF, N)},
            "mask of none": lambda: torch.zeros(N, dtype=torch.bool),
            "one row of none": lambda: torch.stack([torch.zeros(N), torch.full((N,), -INF)]),
        },
    )
    yield Target(
        fenchel.InferenceProblem,
        {"preference": fenchel.Discrete(torch.ones(N, D)), "evidence": torch.ones(M, D)},
        preference=without(tensors(N, D), "huge"),
        evidence={
            **tensors(M, D),
            **{"no query": filled(1.0, 0, D), "one row": filled(1.0, D)},
            **{"nan": filled(NAN, M, D), "infinite": filled(INF, M, D)},
            "float64": filled(1.0, M, D, dtype=torch.float64),
        },
        alpha={
            **{**POSITIVE, "tensor": filled(1.0, M + 1), "zeros": filled(0.0, M), "nans": filled(NAN, M)},
            "huge": lambda: torch.tensor([1.0, NAN, 1.0]),
        },
        closeness=made(text="kf", kind=fenchel.KL, number=1),
    )
    rows = [fenchel.Discrete(torch.ones(N, D), torch.zeros(count, N)) for count in (M - 1, N)]
    yield once("log_weights", lambda: problem(preference=rows[0]))
    yield once("log_weights", lambda: problem(preference=rows[1], evidence=torch.ones(1, D)))
    for method in (problem().dual, problem().dual_gradient, problem().weights, problem().potential):
        yield Target(method, {"lam": torch.ones(M, D)}, lam=tensors(M, D))
    for method in (problem().primal, problem().mean):
        yield Target(method, {"weights": torch.full((M, N), 1 / N)}, weights=tensors(M, N))


def solvers() -> Iterator[Target]:
    options = {"tol": TOLERANCES, "max_steps": without(WHOLE, "zero"), "throw": FLAGS}
    own: dict[str, Mapping[str, Makers]] = {
        "first_order": {"tol": made(good=1e-6), "unknown": made(good=1)},
        "second_order": {"throw": made(good=True), "Tol": made(good=1e-6)},
        "exact": {**options, "coordinates": NAMES, "radius": made(good=0.1)},
        "gradient_ascent": {**options, "coordinates": made(good="auto")},
        "constrained": {**options, "radius": {**POSITIVE, "tensor": filled(1.0, 7)}},
    }
    for estimator, wrong in own.items():
        rightly = {"estimator": estimator, **({"radius": 1e3} if estimator == "constrained" else {})}
        yield Target(problem().solve, rightly, f"solve {estimator}", **wrong, memory_budget=WHOLE)
    moved = problem(closeness=fenchel.OptimalTransport("squared_euclidean", 1.0))
    yield Target(moved.solve, {"estimator": "exact"}, "solve of transport", estimator=NAMES, **options)
    hard, others = (
        problem(closeness=fenchel.Hard()),
        ("second_order", "exact", "gradient_ascent", "constrained"),
    )
    names = {**NAMES, **made(**{name: name for name in others})}
    yield Target(hard.solve, {"estimator": "first_order"}, "solve of hard", estimator=names)
    yield Target(alpha_from_noise, {"sigma": 1.0}, sigma=POSITIVE, eta=POSITIVE)
    yield Target(noise_from_alpha, {"alpha": 1.0}, alpha=POSITIVE, eta=POSITIVE)
    exact = problem().solve("exact")
    yield Target(radius_of, {"estimate": exact}, estimate=NAMES)


def closenesses() -> Iterator[Target]:
    yield Target(
        lambda **options: problem(closeness=fenchel.OptimalTransport(**options)),
        {"cost": "dot", "gamma": 1.0},
        "OptimalTransport",
        cost={**NAMES, **without(tensors(N, N), "huge", "text", "mapping", "None")},
        gamma={
            **{**POSITIVE, "nans": lambda: torch.tensor([1.0, NAN]), "tensor": filled(1.0, 3)},
            "too small in float32": lambda: torch.tensor(1e-46, dtype=torch.float64),
        },
        atoms={**without(tensors(2, D, optional=True), "huge"), "nan": filled(NAN, 2, D)},
        allowed={**tensors(1, N, optional=True), "none": lambda: torch.zeros(1, N, dtype=torch.bool)},
        warn=FLAGS,
    )

    right = 2 - torch.eye(3)
    for place, value in (((1, 2), -0.5), ((1, 2), NAN), ((1, 1), INF), ((1, 2), INF)):
        yield once(
            "cost", partial(GivenCost, right.index_put(tuple(map(torch.tensor, place)), torch.tensor(value)))
        )
    yield once("cost", partial(GivenCost, torch.zeros(2, 2, dtype=torch.int64)))
    orders = {
        **made(large=2.5, small=0.5, nan=NAN, text="sparsemax", flag=True),
        **{"holds": lambda: torch.tensor([1.5, 2.5]), "nans": lambda: torch.tensor([1.5, NAN])},
        "whole": lambda: torch.tensor([1, 2]),
    }
    temperatures = {**made(zero=0.0, negative=-1, infinite=INF), "zeros": lambda: torch.tensor([1.0, 0.0])}
    renyi = made(unknown="renyi")
    yield Target(fenchel.Tsallis, {"order": 1.5}, order=orders, relative=renyi, temperature=temperatures)
    yield once("order", lambda: problem(closeness=fenchel.Tsallis(torch.full((M + 1,), 1.5))))
    kl = fenchel.KL()
    functions = {"value": kl.value, "conjugate": kl.conjugate, "weights": kl.weights, "modulus": 1.0}
    yield Target(
        fenchel.Divergence,
        functions,
        value=made(number=3),
        curvature=made(text="none"),
        modulus={**made(zero=0.0), "holds": lambda: torch.tensor([1.0, -1.0])},
        check=made(number=1),
    )
    other = {"tensor": filled(1.0, 3)}
    checked = fenchel.check_closeness
    yield Target(checked, {"closeness": kl}, closeness=NAMES, points=made(zero=0), preference=other)
    yield Target(
        sparse_weights,
        {"potential": torch.ones(4, 6), "log_preference": None, "a": 0.5},
        potential={
            **made(list=[1.0, 2.0]),
            **{"whole": lambda: torch.tensor([1, 2]), "no dimension": filled(1.0)},
        },
        log_preference={"shape": filled(1.0, 5)},
        a={**made(large=1.5, nan=NAN), "negative": filled(-0.5), "shape": filled(0.5, 4, 6)},
    )


def distributions() -> Iterator[Target]:
    ones, eye = torch.ones(2), torch.eye(2)
    anywhere = {
        **made(text="1", flag=True, nan=NAN, infinite=INF),
        **{"whole": filled(1, 2, dtype=torch.int64), "shape": filled(1.0, 3), "holds": filled(NAN, 2)},
        **{"float64": filled(1.0, 2, dtype=torch.float64), "none": filled(1.0, 0)},
    }
    above = {**anywhere, **made(zero=0.0, negative=-1.0), "one": lambda: torch.tensor([1.0, 0.0])}
    alone = without(anywhere, "shape", "float64")
    means = {**alone, **made(list=[1.0, 2.0]), "no dimension": filled(1.0)}
    covariances = {
        **{"wide": lambda: torch.eye(3), "row": filled(1.0, 2), "nan": lambda: eye * NAN, **made(number=1.0)},
        **{"skew": lambda: eye + torch.tensor([[0, 0.5], [0.4, 0]]), "indefinite": lambda: 2 - eye},
        **{"one": lambda: torch.stack([eye, -eye]), "variance too": together(covariance=eye, variance=1.0)},
        **{"factor too": together(covariance=eye, factor=eye), "missing": lambda: None},
    }
    logarithms = {
        **{"less": lambda: torch.tensor([0.5, 0.2]).log(), "more": filled(0.0, 2), "shape": filled(0.0, 3)},
        **{"nan": lambda: torch.tensor([0.0, NAN]), **made(list=[0.5, 0.5])},
    }
    factors = {"long": filled(1.0, 3, 1), "row": filled(1.0, 2)}
    # What is wrong with covariances of mixtures is called covariances too.
    matrices = {
        **{"missing": together(variances=None), "small": together(variances=None, covariances=eye)},
        "indefinite": together(variances=None, covariances=torch.ones(2, 3, 3) - 2 * torch.eye(3)),
    }
    masks = {"none": together(log_weights=torch.full((2,), -INF)), "one row": together(log_weights=eye > 2)}
    negative = made(zero=0.0, negative=-1.0)
    place, scale, low, high = {"location": ones}, {"scale": ones}, {"low": 0 * ones}, {"high": ones}
    beside = {"location": anywhere, "left": above, "right": above}
    two = {**without(above, "shape"), **made(one=1.0, missing=None), "two": together(logits=ones)}
    logits = {name: together(probs=None, logits=make()) for name, make in means.items() if name != "list"}
    apart = together(mean=torch.ones(4, 2), variance=torch.ones(3, 2))
    variances = {**without(above, "zero", "one"), "one": lambda: torch.tensor([1.0, -2.0])}
    mixture: dict[str, Makers] = {
        **{"log_weights": logarithms, "components": masks, "covariances": matrices},
        "variances": {"one": lambda: torch.ones(2, 3) - 2 * torch.eye(3)[:2], "shape": filled(1.0, 3, 3)},
        "factors": {"shape": filled(1.0, 2, 2, 1)},
        "means": {"row": filled(1.0, 3), "none": filled(1.0, 0, 3)},
    }
    families: list[tuple[Any, dict[str, Any], Mapping[str, Makers]]] = [
        (fenchel.Poisson, {"rate": ones}, {"rate": {**alone, **negative}}),
        (fenchel.Gamma, {"concentration": ones, "rate": ones}, {"concentration": above, "rate": above}),
        (fenchel.Laplace, {**place, **scale}, {"location": anywhere, "scale": above}),
        (AsymmetricLaplace, {**place, "left": ones, "right": ones}, beside),
        (fenchel.Box, {**low, **high}, {"low": {**anywhere, **made(high=1.0)}, "high": above}),
        (
            TruncatedExponential,
            {**low, **high, "theta": ones},
            {"low": anywhere, "high": above, "theta": anywhere},
        ),
        (fenchel.Bernoulli, {"probs": ones / 2}, {"probs": two, "logits": logits}),
        (
            fenchel.Gaussian,
            {"mean": ones, "variance": 1.0},
            {"mean": {**means, "queries": apart}, "variance": variances},
        ),
        (fenchel.Gaussian, {"mean": ones, "covariance": eye}, {"covariance": covariances}),
        (fenchel.Gaussian, {"mean": ones, "factor": torch.ones(2, 1)}, {"factor": factors}),
        (fenchel.GaussianMixture, {"means": torch.ones(2, 3), "variances": 1.0}, mixture),
    ]

    yield once("dtype", partial(fenchel.Poisson(ones).to, torch.float16))
    for kind, rightly, wrongly in families:
        yield Target(kind, rightly, **wrongly)
    shapes = made(negative=-1, part=2.0, flag=True, text="3", inside=(2, -1))
    draw = fenchel.Gaussian(torch.zeros(4), variance=1.0).sample
    drawn = {"shape": shapes, "generator": {"number": together(shape=3, generator=3)}}
    yield Target(draw, {}, "Gaussian.sample", **drawn)


def bumps(places: Tensor) -> Tensor:
    return torch.exp(-20 * (places[:, :1] - torch.linspace(0, 1, 5)).square())


def densities() -> Iterator[Target]:
    line = fenchel.Gaussian(torch.zeros(1), variance=1.0)
    yield Target(
        fenchel.Continuous1d,
        {"basis": bumps, "interval": (0, 1)},
        basis={
            **made(text="cubic", number=3, row=lambda x: x.squeeze(-1), divided=lambda x: x / 0),
            **made(constant=lambda x: 3),
        },
        interval={
            **made(none=None, turned=(1, 0), endless=(0, INF), number=3),
            "quadratic": together(basis="quadratic", interval=None),
            "breaks": together(breaks=[0.5], interval=None),
            "points": together(points=[0.5], basis="quadratic", density=line, interval=None),
        },
        breaks=made(outside=[2.0]),
        points=made(outside=[1.5], nan=[NAN], number=0.5, many=[i / 100 for i in range(80)]),
        accuracy=made(zero=0),
        density={
            **made(number=2.0, wide=fenchel.Gaussian(torch.zeros(2), variance=1.0), column=lambda x: x),
            **made(nan=lambda x: x.squeeze(-1) * NAN),
        },
        dtype={**made(half=torch.float16), "of a density": together(density=line, dtype=torch.float32)},
    )
    plane = fenchel.Gaussian(torch.zeros(2), variance=1.0)
    yield Target(
        fenchel.Continuous2d,
        {"basis": bumps, "density": None, "interval": ((0, 1), (0, 1))},
        interval={
            **made(three=(0, 1, 2), empty=((0, 1), (1, 1))),
            "points": together(basis="quadratic", density=plane, interval=None, points=[(0, 0)]),
        },
        points=made(outside=[(0.5, 2.0)], short=[(0.5,)], number=0.5),
        numbers={"row": together(points=[0.5, 0.5])},
    )
    rectangle = fenchel.Continuous2d(bumps, None, ((0, 1), (0, 1)))
    yield once("places", lambda: rectangle.places)


def learned_out_of_range() -> Iterator[Target]:
    """Parameters of a closeness that were in their range when it was made."""

    def later(order: float = 1.5, temperature: float = 1.5) -> fenchel.InferenceProblem:
        parts = [nn.Parameter(torch.tensor(1.5)) for _ in range(2)]
        closeness = fenchel.Tsallis(parts[0], temperature=parts[1])
        with torch.no_grad():
            parts[0].fill_(order)
            parts[1].fill_(temperature)
        return problem(closeness=closeness)

    yield Target(later, {}, "Tsallis, later", order=made(large=2.25), temperature=made(negative=-1.0))


TARGETS = [*problems(), *solvers(), *closenesses(), *distributions(), *densities(), *learned_out_of_range()]
