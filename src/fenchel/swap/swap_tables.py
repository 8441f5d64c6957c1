"""What a swap found, in memory: the tables that every rendering of it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fenchel.errors import InputError
from fenchel.swap.finding import finding
from fenchel.swap.wording import wording

__all__ = ["SwapTables"]


@dataclass(frozen=True, repr=False)
class SwapTables:
    """What was swapped and what came of it.

    Attributes:
        manifest: The model, the text, the options and the versions.
        results: The tables, see ``fenchel.swap.results.tabulated``.
    """

    manifest: dict[str, Any]
    results: dict[str, Any]

    @property
    def arms(self) -> list[dict[str, Any]]:
        """A record for the model itself, every control and every swap."""
        return self.results["arms"]

    @property
    def layers(self) -> list[dict[str, Any]]:
        """A record for every layer and model-wide arm: how far its output moved."""
        return self.results["layers"]

    @property
    def finding(self) -> str:
        """What came out, in words that say no more than the intervals."""
        found = finding(self.results, wording(self.manifest))
        trained_with = self.manifest.get("trained_with")
        if trained_with is None:
            return found
        return (
            f"{found} The model was trained with its {str(trained_with).replace('_', ' ')} estimate; what is called "
            "the model here is the same weights under first order."
        )

    def __repr__(self) -> str:
        """One line: what was swapped, on how much, and the first of what came out."""
        units = ", ".join(f"{number:,} {unit}" for unit, number in self.results["units"].items())
        first, _, _ = f"{self.finding} ".partition(". ")
        said = f": {first}" if first.strip() else ""
        return f"<{type(self).__name__} of {self.manifest.get('model')}, {len(self.arms):,} arms on {units}{said}>"

    def arm(
        self, estimator: str, alpha: float = 1.0, *, layer: int | None = None, head: int | None = None
    ) -> dict[str, Any]:
        """The record of one arm.

        Args:
            estimator: ``model``, ``first_order``, ``second_order`` or ``exact``.
            alpha: Of the control.
            layer: Number of the only layer that was swapped.
            head: Number of the only head that was swapped.

        Raises:
            InputError: If there was no such arm.
        """
        for record in self.arms:
            if (record["estimator"], record["alpha"], record["layer"], record["head"]) == (
                estimator,
                alpha,
                layer,
                head,
            ):
                return record
        where = "" if layer is None else f" in layer {layer}" + ("" if head is None else f", head {head}")
        raise InputError(
            f"no arm {estimator!r} with alpha {alpha:g}{where} was run. See report.arms for those that were."
        )
