"""An entry of the catalogue: a mechanism, its inferences, its example, and how estimators differ on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from inspect import signature
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fenchel.arguments import ESTIMATORS, checked, shown
from fenchel.catalogue.parts import AbstractFiniteParts, AbstractParts
from fenchel.closeness import AbstractCloseness
from fenchel.closeness.tsallis import closeness_of
from fenchel.errors import InputError
from fenchel.tensors import check_type

P = TypeVar("P", bound=AbstractParts)


class Inferrer:
    """Computes the inferences of a mechanism by one estimator and records them.

    Args:
        estimator: Of all inferences.
        closeness: Of those without their own; None is KL.
    """

    def __init__(self, estimator: str = "first_order", closeness: AbstractCloseness | None = None) -> None:
        self.estimator, self.closeness = estimator, closeness
        self.asked: list[AbstractParts] = []

    def __call__(self, parts: AbstractParts) -> Tensor:
        """The mean of the values, (B, H, m, d_v)."""
        return self._recorded(parts).output(self.estimator)

    def weights(self, parts: AbstractFiniteParts) -> Tensor:
        """The weights, (B, H, m, n), for a mechanism that needs more than a mean of values."""
        return self._recorded(parts).weights(self.estimator)

    def _recorded(self, parts: P) -> P:
        parts = parts.under(self.closeness)
        self.asked.append(parts)
        return parts


@dataclass(frozen=True)
class EntryResult:
    """The result of running an entry.

    Attributes:
        output: The output, with the shape that the mechanism has.
        estimator: The estimator of its inferences.
        inferences: The inferences in order of execution, each a :class:`Parts` or another :class:`AbstractParts`; empty
            if there are none.
    """

    output: Tensor
    estimator: str
    inferences: tuple[Any, ...]

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """The weights of each inference, (B, H, m, n), except those under a Gaussian preference."""
        finite = (parts for parts in self.inferences if isinstance(parts, AbstractFiniteParts))
        return tuple(parts.weights(self.estimator) for parts in finite)

    @property
    def gap(self) -> float:
        """The largest duality gap of any query of any inference; the weights are within √(gap/2) of the exact ones."""
        gaps = [parts.certificate(self.estimator).gap.max() for parts in self.inferences]
        return float(torch.stack(gaps).max()) if gaps else 0.0


class Verdict(StrEnum):
    """One inference, a composition of several, or none.

    Attributes:
        ONE: One inference per query and head, nearly always solved at first order (14). Apart from linear maps and
            residuals the output is the mean of the values; other estimators solve the same problem more accurately, and
            other closenesses a different problem.
        COMPOSITION: Several inferences: parallel, nested, added, gated or iterated.
        NOT_ONE: The coefficients of the values are not a distribution and have no other reading as one; the entry says
            why, and runs only as published.
    """

    ONE = "one inference"
    COMPOSITION = "a composition"
    NOT_ONE = "not one"


@dataclass(frozen=True)
class Paper:
    """The source of a mechanism.

    Attributes:
        authors: Authors as in a citation, such as ``"Press et al."``.
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
    """Inputs whose tokens can be permuted together, and the effect on the output.

    Attributes:
        tokens: The dimension of the tokens, for each of these inputs.
        output: The dimension of the output permuted with them; None if the output is invariant.
    """

    tokens: Mapping[str, int]
    output: int | None = -2


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One mechanism; fields without a value are those of scaled dot-product attention.

    Attributes:
        name: Argument of ``fenchel catalogue``.
        title: Common name.
        family: Its heading.
        paper: Its source.
        formula: One equation per line.
        templates: t_j in words or symbols; likewise ``preference`` (u), ``evidence`` (z), ``values`` (v) and
            ``closeness`` (D). ``"–"`` if there is none.
        meaning: The preference and the evidence in a sentence or two.
        verdict: Whether it is an inference.
        because: Why it is a composition or not an inference; otherwise a remark.
        exact_differs: Whether exact inference differs from the published mechanism.
        exact_because: Why it does not, or what the difference means; a sentence.
        written: The mechanism as a function of ``infer`` and its inputs, with each inference computed by
            ``infer(Parts(...))``.
        example: Function that draws small inputs from a generator, in a dtype.
        symmetries: Permutations of tokens that it is equivariant or invariant to; none if it uses positions.
        estimators: Supported estimators. The first is the published mechanism: ``"first_order"``, unless a paper solves
            its problem exactly; without inference it is the only one, and only a name.
        takes_closeness: Whether its closeness can be replaced.
        layer: Arguments of an equivalent :class:`fenchel.nn.MultiheadAttention`, such as ``preference`` and
            ``evidence``, as code; empty if there is none.
    """

    name: str
    title: str
    family: str
    paper: Paper
    formula: str
    templates: str = "k_j/√d"
    preference: str = "uniform"
    evidence: str = "q_i"
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
            seed: Seed of the random numbers.
            dtype: Of the tensors.
        """
        return self.example(torch.Generator().manual_seed(checked("seed", seed)), dtype)

    def run(
        self,
        estimator: str | None = None,
        *,
        closeness: AbstractCloseness | str | None = None,
        seed: int = 0,
        **inputs: Any,
    ) -> EntryResult:
        """Compute the mechanism, with an estimator and a closeness for its inferences.

        Args:
            estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``; None is the published mechanism, nearly
                always first order.
            closeness: Replaces KL; an object, or a name such as ``"tsallis:1.5"``.
            seed: Seed of the example's inputs.
            **inputs: Inputs that replace those of the example, by name.

        Returns:
            The output and its inferences.

        Raises:
            InputError: If the estimator, the closeness or an input is not supported.

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
        arguments = inputs if set(inputs) == set(known) else {**self.inputs(seed), **inputs}
        infer = Inferrer(estimator, closeness_of(closeness))
        output = self.written(infer, **arguments)
        return EntryResult(output, estimator, tuple(infer.asked))

    def check(self, estimator: str, closeness: AbstractCloseness | str | None = None) -> None:
        """Check that the mechanism supports an estimator and a closeness.

        Raises:
            InputError: If not; the message names it and the supported ones.
        """
        if checked("estimator", estimator) not in self.estimators:
            raise InputError(
                f"{self.name} does not support estimator {estimator!r}; expected {' or '.join(self.estimators)}: "
                f"{self.because or self.exact_because}"
            )
        closeness_of(closeness, InputError)
        if closeness is not None and not self.takes_closeness:
            own = (
                "no closeness"
                if self.verdict is Verdict.NOT_ONE
                else f"only its own closeness ({self.closeness})"
            )
            raise InputError(f"{self.name} supports {own}, but got {shown(closeness)}: omit closeness.")


class Difference(NamedTuple):
    """The difference between an estimate and exact inference.

    Attributes:
        estimator: Name of the estimator.
        gap: Largest duality gap of any query, a bound on its suboptimality.
        total_variation: Largest total variation between an inferred distribution and the exact one of the same problem.
        output: Distance of the mechanism's output from that with exact inference, over the latter's norm. In a
            composition the problems of later inferences also differ.
    """

    estimator: str
    gap: float
    total_variation: float
    output: float


def difference(
    entry: Entry,
    estimator: str = "first_order",
    *,
    closeness: AbstractCloseness | str | None = None,
    seed: int = 0,
) -> Difference:
    """Compare an estimator with exact inference on an entry's example, in float64.

    Args:
        entry: A mechanism that supports the exact estimator.
        estimator: The estimator to compare.
        closeness: Replaces KL.
        seed: Of the example.

    Raises:
        InputError: If the mechanism does not support the estimator or the closeness, or is not an inference.

    Example:
        >>> from fenchel.catalogue import entry
        >>> difference(entry("scaled-dot"), "exact").total_variation < 1e-8
        True
    """
    check_type("entry", entry, Entry, "an Entry, such as fenchel.catalogue.entry('alibi')", error=InputError)
    estimate = entry.run(estimator, closeness=closeness, seed=seed)
    exact = entry.run("exact", closeness=closeness, seed=seed)
    variations = [parts.total_variation(estimator).max() for parts in estimate.inferences]
    result, optimum = estimate.output.detach(), exact.output.detach()
    norm = optimum.norm().clamp_min(torch.finfo(optimum.dtype).tiny)
    return Difference(
        estimator,
        estimate.gap,
        float(torch.stack(variations).max().detach()) if variations else 0.0,
        float((result - optimum).norm() / norm),
    )
