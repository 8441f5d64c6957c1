"""An image with the weights that a query's two answers give to its patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fenchel.auditing.packed import Packing, check_packed, packed
from fenchel.io.batches import PatchImages
from fenchel.io.schema import STRICT, Field, Mismatch, Place, Whole

__all__ = ["Picture"]

_Image = Annotated[str, Field(pattern=r"^data:image/(jpeg|png);base64,[A-Za-z0-9+/=]+\z")]


@dataclass(frozen=True)
class Picture:
    """The image that a query is of, and the weight of every position in 16 bits.

    Attributes:
        image: The image as the model saw it, small, a data URI.
        rows: Patches from top to bottom.
        columns: Patches from left to right.
        extra: Positions before the patches, such as that of a class token.
        first_order: Attention's weight on each position, as :func:`fenchel.auditing.packed.packed` writes it.
        exact: The exact weights, likewise.
    """

    __pydantic_config__ = STRICT

    image: _Image
    rows: Place
    columns: Place
    extra: Whole
    first_order: str
    exact: str

    @classmethod
    def of(cls, images: PatchImages | None, row: int, first_order: Tensor, exact: Tensor) -> Picture | None:
        """The picture of a query; None where positions are no patches.

        Args:
            images: The images of the batch.
            row: The query's.
            first_order: Attention's weights on all positions, (n,).
            exact: The exact ones.
        """
        grid = None if images is None else images.grid(len(first_order))
        if images is None or grid is None:
            return None
        weights = (packed(part, Packing.FINE) for part in (first_order, exact))
        return cls(images.thumbnail(row), grid.rows, grid.columns, grid.extra, *weights)

    def check(self) -> None:
        """See that there is a weight for every position.

        Raises:
            Mismatch: If there is not.
        """
        positions = self.extra + self.rows * self.columns
        if positions > 2**24:
            raise Mismatch("picture", positions, "at most 16,777,216 positions")
        for name, weights in (("first_order", self.first_order), ("exact", self.exact)):
            check_packed(weights, positions, f"picture.{name}", Packing.FINE)
