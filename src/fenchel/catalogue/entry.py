"""An entry of the catalogue: the mechanism, its inference, its example, and how far estimators are apart on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from inspect import signature
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.catalogue.parts import AbstractFiniteParts, AbstractParts
from fenchel.closeness import AbstractCloseness
from fenchel.closeness.tsallis import closeness_name, closeness_named
from fenchel.errors import InputError

P = TypeVar("P", bound=AbstractParts)


class Inferrer:
    """Answers the inferences of a mechanism, all in one way, and keeps what was asked.

    Args:
        estimator: Of all inferences.
        closeness: Of those that leave theirs open; None is Kullback and Leibler's.
    """

    def __init__(self, estimator: str = "first_order", closeness: AbstractCloseness | None = None) -> None:
        self.estimator, self.closeness = estimator, closeness
        self.asked: list[AbstractParts] = []

    def __call__(self, parts: AbstractParts) -> Tensor:
        """The mean of the values, (B, H, m, d_v)."""
        return self._kept(parts).answer(self.estimator)

    def weights(self, parts: AbstractFiniteParts) -> Tensor:
        """The weights, (B, H, m, n), for a mechanism that uses them otherwise than for a mean of values."""
        return self._kept(parts).weights(self.estimator)

    def _kept(self, parts: P) -> P:
        parts = parts.under(self.closeness)
        self.asked.append(parts)
        return parts


@dataclass(frozen=True)
class Answer:
    """What came of running an entry.

    Attributes:
        output: As the mechanism shapes it.
        estimator: By which its inferences were answered.
        inferences: In the order in which they were made, each a :class:`Parts` or of another kind of
            :class:`AbstractParts`; none where the mechanism makes none.
    """

    output: Tensor
    estimator: str
    inferences: tuple[Any, ...]

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """The weights of each inference that has some, (B, H, m, n): all but those under a Gaussian preference."""
        finite = (parts for parts in self.inferences if isinstance(parts, AbstractFiniteParts))
        return tuple(parts.weights(self.estimator) for parts in finite)

    @property
    def gap(self) -> float:
        """The largest duality gap of any query of any inference; the weights are within √(gap/2) of the exact ones."""
        gaps = [parts.certificate(self.estimator).gap.max() for parts in self.inferences]
        return float(torch.stack(gaps).max()) if gaps else 0.0


class Verdict(StrEnum):
    """One inference, several put together, or none.

    Attributes:
        ONE: One inference a query and head, whose distribution is nearly always the first-order answer (14), and the
            output is a mean of values under it, linear maps and residuals aside; other estimators and closenesses
            answer the same question better, or another way.
        COMPOSITION: Several inferences side by side, or whose answers are questions of others, or are added, gated or
            iterated.
        NOT_ONE: What it multiplies values with is no distribution, and is not read as one otherwise; the entry says
            why, and runs as published alone.
    """

    ONE = "one inference"
    COMPOSITION = "a composition"
    NOT_ONE = "not one"


ESTIMATORS = ("first_order", "second_order", "exact")


@dataclass(frozen=True)
class Paper:
    """Where a mechanism comes from.

    Attributes:
        authors: As one cites them, such as ``"Press et al."``.
        year: Of publication.
        title: Of the paper or book.
        where: Section or equation in it.
    """

    authors: str
    year: int
    title: str
    where: str = ""

    def __str__(self) -> str:
        place = f", {self.where}" if self.where else ""
        return f"{self.authors} {self.year}, {self.title}{place}"


@dataclass(frozen=True)
class Symmetry:
    """Inputs whose tokens may be put in another order together, and what becomes of the output then.

    Attributes:
        tokens: The dimension in which each such input has its tokens.
        output: The dimension of the output that is put in the same order; None where nothing changes.
    """

    tokens: Mapping[str, int]
    output: int | None = -2


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One mechanism.

    Attributes:
        name: As ``fenchel catalogue`` takes it.
        title: As people call it.
        family: Heading under which it stands.
        paper: Where it comes from.
        formula: What it computes, a line an equation.
        templates: t_j in words or signs; likewise ``preference`` (u), ``evidence`` (z), ``values`` (v) and
            ``closeness`` (D). ``"–"`` where there is none.
        meaning: What is believed and what is asked, in a sentence or two.
        verdict: Whether it is an inference.
        because: Why it is a composition, or none; what to know of it where it is one.
        exact_differs: Whether exact inference gives another answer than what is published.
        exact_because: Why it does not, or what the difference means; a sentence.
        written: The mechanism as a function of ``infer`` and of inputs, which hands each inference to
            ``infer(Parts(...))`` and gets its answer.
        example: Inputs of a small case, drawn from a generator, in its dtype.
        symmetries: In what orders of tokens it does not look; none where it has positions.
        estimators: Those that it takes. The first is the mechanism as published, which is ``"first_order"`` but where
            a paper solves its problem; the only one, and a name alone, where nothing is inferred.
        takes_closeness: Whether another closeness may be put in the place of its own.
        layer: Arguments that make a :class:`fenchel.nn.MultiheadAttention` of it, such as ``preference`` and
            ``evidence``, as code; none where it is no such layer.
    """

    name: str
    title: str
    family: str
    paper: Paper
    formula: str
    templates: str
    preference: str
    evidence: str
    values: str = "v_j"
    closeness: str = "KL"
    meaning: str
    verdict: Verdict = Verdict.ONE
    because: str = ""
    exact_differs: bool = True
    exact_because: str = ""
    written: Callable[..., Tensor]
    example: Callable[[torch.Generator, torch.dtype], dict[str, Any]]
    symmetries: tuple[Symmetry, ...] = ()
    estimators: tuple[str, ...] = ESTIMATORS
    takes_closeness: bool = True
    layer: Mapping[str, str] = field(default_factory=dict)

    def inputs(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
        """The inputs of its example.

        Args:
            seed: Of what is drawn.
            dtype: Of the tensors.
        """
        return self.example(torch.Generator().manual_seed(seed), dtype)

    def run(
        self,
        estimator: str | None = None,
        *,
        closeness: AbstractCloseness | str | None = None,
        seed: int = 0,
        **inputs: Any,
    ) -> Answer:
        """Compute the mechanism, each inference in it by an estimator and under a closeness.

        Args:
            estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``; None is the mechanism as published, which
                is first order in nearly all.
            closeness: In the place of Kullback and Leibler's, or its name, such as ``"tsallis:1.5"``.
            seed: Of the example's inputs.
            **inputs: In the place of those of the example, by name.

        Returns:
            The output, and the inferences that were made for it.

        Raises:
            InputError: If it has no such estimator, closeness or input.

        Example:
            >>> from fenchel.catalogue import entry
            >>> attention = entry("scaled-dot")
            >>> published, exact = attention.run(), attention.run("exact")
            >>> published.output.shape, bool(published.gap > exact.gap)
            (torch.Size([1, 2, 5, 3]), True)
        """
        estimator = self.estimators[0] if estimator is None else estimator
        self.check(estimator, closeness)
        known = list(signature(self.written).parameters)[1:]
        if unknown := sorted(set(inputs) - set(known)):
            raise InputError(
                f"{self.name} got the input {unknown[0]}; expected one of {', '.join(known) or 'none: it has none'}."
            )
        given = inputs if set(inputs) == set(known) else {**self.inputs(seed), **inputs}
        name = closeness_name(closeness) if isinstance(closeness, str) else closeness
        asked = closeness_named(name) if isinstance(name, str) else name
        infer = Inferrer(estimator, asked)
        output = self.written(infer, **given)
        return Answer(output, estimator, tuple(infer.asked))

    def check(self, estimator: str, closeness: AbstractCloseness | str | None = None) -> None:
        """Refuse an estimator or a closeness that the mechanism does not take.

        Raises:
            InputError: Naming it, and those that it takes.
        """
        if estimator not in ESTIMATORS:
            raise InputError(f"estimator is {shown(estimator)}; expected one of {', '.join(ESTIMATORS)}.")
        if estimator not in self.estimators and self.verdict is Verdict.NOT_ONE:
            raise InputError(
                f"{self.name} takes no estimator {estimator!r}, since it makes no inference: leave estimator out, and "
                "it runs as published."
            )
        if estimator not in self.estimators:
            raise InputError(
                f"{self.name} takes no estimator {estimator!r}; expected {' or '.join(self.estimators)}: "
                f"{self.because or self.exact_because}"
            )
        if isinstance(closeness, str):
            closeness_name(closeness)
        if closeness is not None and self.verdict is Verdict.NOT_ONE:
            raise InputError(
                f"{self.name} makes no inference that a closeness could be of, and got {shown(closeness)}: leave "
                "closeness out."
            )
        if closeness is not None and not self.takes_closeness:
            raise InputError(
                f"{self.name} takes no other closeness than its own ({self.closeness}), and got "
                f"{shown(closeness)}: leave closeness out."
            )


class Difference(NamedTuple):
    """An estimate beside the exact answer.

    Attributes:
        estimator: Whose estimate.
        gap: Largest duality gap of any query, which bounds how far it is from the optimum.
        total_variation: Largest that any inferred distribution is from the exact one of the same question, from 0 to 1.
        output: Distance of the mechanism's output from that with exact inference, over the latter's norm. In a
            composition it includes what later inferences are asked differently.
    """

    estimator: str
    gap: float
    total_variation: float
    output: float

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return self._asdict()


def difference(
    entry: Entry,
    estimator: str = "first_order",
    *,
    closeness: AbstractCloseness | str | None = None,
    seed: int = 0,
) -> Difference:
    """Compare an estimator with exact inference on an entry's example, in float64.

    Args:
        entry: A mechanism that takes the exact estimator.
        estimator: To compare.
        closeness: In the place of Kullback and Leibler's.
        seed: Of the example.

    Raises:
        InputError: If the mechanism takes no such estimator or closeness, or is not made of inferences.

    Example:
        >>> from fenchel.catalogue import entry
        >>> difference(entry("scaled-dot"), "exact").total_variation < 1e-8
        True
    """
    estimate = entry.run(estimator, closeness=closeness, seed=seed)
    exact = entry.run("exact", closeness=closeness, seed=seed)
    apart = [parts.total_variation(estimator).max() for parts in estimate.inferences]
    result, optimum = estimate.output.detach(), exact.output.detach()
    norm = optimum.norm().clamp_min(torch.finfo(optimum.dtype).tiny)
    return Difference(
        estimator,
        estimate.gap,
        float(torch.stack(apart).max().detach()) if apart else 0.0,
        float((result - optimum).norm() / norm),
    )
