"""What every attention op answers: an inference, whose parts are made when they are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypedDict, TypeVar

from torch import Tensor

from fenchel.arguments import ESTIMATORS
from fenchel.errors import ProblemError
from fenchel.functional.arguments import check_estimator
from fenchel.functional.certificate import AttentionCertificate
from fenchel.solver import ESTIMATORS as SOLVERS
from fenchel.solver import Estimator, Exact

__all__ = [
    "DEFAULT_STEPS",
    "GapOptions",
    "Inference",
    "Options",
    "Variant",
    "estimator_object",
    "opened_estimator",
    "refuse_exact",
]

DEFAULT_STEPS = 50
"""Steps that a query may take in the exact estimator of ops."""

T = TypeVar("T")


class GapOptions(TypedDict, total=False):
    """Options of :func:`fenchel.functional.infer` that every answer of a closed form has; its defaults hold."""

    log_preference: Tensor | None
    alpha: float | Tensor
    scale: float | Tensor | None
    estimator: str | Estimator
    enable_gqa: bool


class Options(GapOptions, total=False):
    """The same with those of the exact estimator."""

    tol: float | None
    max_steps: int


class Inference(ABC):
    r"""One distribution a query, as :func:`fenchel.functional.infer` gives it.

    Arguments are checked at once; what is read is computed when it is first read, and kept. Gradients reach all that
    the call was given; the certificate has none. Parts share the graph of λ: make one loss of them, or retain the graph
    in all backward passes but the last. :meth:`certified` reads output and certificate together, which is cheaper.
    """

    def __init__(self, value: Tensor | None, options: dict[str, Any]) -> None:
        self._has_output = value is not None
        self._kept: dict[str, Any] = {}
        tol, max_steps = options.pop("tol", None), options.pop("max_steps", DEFAULT_STEPS)
        estimator, tol, max_steps = opened_estimator(options.pop("estimator", "first_order"), tol, max_steps)
        self._estimator = estimator
        self._solving: dict[str, Any] = {"estimator": estimator, "tol": tol, "max_steps": max_steps}

    @property
    def dual(self) -> Tensor:
        """λ of the estimator, (B, H, m, d): zero where a query has nothing to attend to."""
        return self._once("dual", self._make_dual)

    @property
    def _point(self) -> Tensor:
        """λ as it was found, in the form in which the call is computed."""
        return self._once("point", self._make_point)

    @property
    def output(self) -> Tensor:
        """The mean of the values, (B, H, m, d_v), after dropout.

        Raises:
            ProblemError: If no value was given.
        """
        if not self._has_output:
            raise ProblemError(
                "value is None, so that there is no output; expected value=, (B, H_kv, n, d_v)"
            )
        return self._once("output", self._make_output)

    @property
    def weights(self) -> Tensor:
        """P, before dropout, (B, H, m, n): zero in rows with nothing to attend to."""
        return self._once("weights", self._make_weights)

    @property
    def certificate(self) -> AttentionCertificate:
        """How far the answer is from the exact inference at most, with what rounding can hide."""
        return self._once("certificate", self._make_certificate)

    @property
    def gap(self) -> Tensor:
        """The duality gap of a closed-form answer, differentiable, (B, H, m).

        Raises:
            ProblemError: If the estimator is exact, whose gap is 0 to its tolerance.
        """
        return self._once("gap", self._make_gap)

    def certified(self) -> tuple[Tensor, AttentionCertificate]:
        """Output and certificate, of one pass over the keys where no gradient is wanted."""
        certificate = self.certificate
        return self.output, certificate

    # Not functools.cached_property, whose lock is nothing to trace in Python 3.11.
    def _once(self, name: str, make: Callable[[], T]) -> T:
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    @abstractmethod
    def _make_point(self) -> Tensor: ...

    def _make_dual(self) -> Tensor:
        return self._point

    @abstractmethod
    def _make_output(self) -> Tensor: ...

    @abstractmethod
    def _make_weights(self) -> Tensor: ...

    @abstractmethod
    def _make_certificate(self) -> AttentionCertificate: ...

    @abstractmethod
    def _make_gap(self) -> Tensor: ...


class Variant(ABC):
    """Attention of another kind, with the tensors that belong to it."""

    without: ClassVar[tuple[str, ...]] = ()
    """Options of :func:`fenchel.functional.infer` that there are none of."""

    @abstractmethod
    def inference(self, query: Tensor, key: Tensor, value: Tensor | None, **options: Any) -> Inference:
        """The call of this kind with the options of :func:`fenchel.functional.infer`, but those of ``without``."""


def opened_estimator(
    estimator: str | Estimator, tol: float | None, max_steps: int
) -> tuple[str, float | None, int]:
    """The name of an estimator and the options of the exact one, which an object brings itself.

    Raises:
        ProblemError: If the object is no estimator of ops, or has options that ops do not take.
    """
    if not isinstance(estimator, Estimator):
        return estimator, tol, max_steps
    if estimator.name not in ESTIMATORS:
        raise ProblemError(f"estimator is {estimator!r}; expected one of {', '.join(map(repr, ESTIMATORS))}")
    if tol is not None or max_steps != DEFAULT_STEPS:
        raise ProblemError(f"tol or max_steps is given beside estimator={estimator!r}, which has its own")
    given = estimator.options
    if not given.pop("throw", True) or given.keys() - {"tol", "max_steps"}:
        raise ProblemError(
            f"estimator is {estimator!r}; expected one with tol and max_steps alone: ops raise where the tolerance is "
            "not met, and choose their memory themselves"
        )
    return estimator.name, given.get("tol"), given.get("max_steps", DEFAULT_STEPS)


def estimator_object(
    estimator: str | Estimator, tol: float | None = None, max_steps: int | None = None
) -> Estimator:
    """The same as one object, whose options have been checked; one that is None is left open.

    Raises:
        ProblemError: If it is no estimator of ops, or an option cannot be used.
    """
    steps = DEFAULT_STEPS if max_steps is None else max_steps
    check_estimator(*opened_estimator(estimator, tol, steps))
    if isinstance(estimator, Estimator):
        return estimator
    return Exact(tol=tol, max_steps=max_steps) if estimator == "exact" else SOLVERS[estimator]()


def refuse_exact(estimator: str) -> None:
    """Refuse the gap of the exact estimator, naming what gives the number.

    Raises:
        ProblemError: If the estimator is ``"exact"``.
    """
    if estimator == "exact":
        raise ProblemError(
            "estimator is 'exact', whose gap is 0 up to its tolerance, with nothing to train; expected 'first_order' "
            "or 'second_order'; the certificate gives the number"
        )
