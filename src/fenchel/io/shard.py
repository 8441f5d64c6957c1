"""One worker's share of a corpus that several workers share."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

from fenchel.arguments import shown
from fenchel.errors import InputError

__all__ = ["Shard"]


@dataclass(frozen=True)
class Shard:
    """Share ``index`` (from 0) of a corpus in ``count`` parts, dealt out document by document.

    Raises:
        InputError: If there is no such share.

    Example:
        >>> shard = Shard.parse("1/4")
        >>> [document for document in range(10) if shard.takes(document)]
        [1, 5, 9]
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"shard {self} asks for {self.count} shards; there must be at least 1.")
        if not 0 <= self.index < self.count:
            raise InputError(
                f"shard {self} does not exist: shards go from 0/{self.count} to "
                f"{self.count - 1}/{self.count}."
            )

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Reads ``i/n``.

        Args:
            text: Two whole numbers with a slash between them.

        Returns:
            The shard.

        Raises:
            InputError: If the text is anything else, or there is no such shard.
        """
        index, _, count = text.partition("/")
        try:
            return cls(int(index), int(count))
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"shard {text!r} is not of the form i/n, such as 0/4 for the first of four."
            ) from None

    @classmethod
    def of(cls, shard: Shard | str | Sequence[int]) -> Shard:
        """A shard from itself, from ``"i/n"`` or from ``(i, n)``.

        Raises:
            InputError: If it is none of these, or there is no such shard.

        Example:
            >>> Shard.of((1, 4)) == Shard.of("1/4") == Shard(1, 4)
            True
        """
        if isinstance(shard, Shard):
            return shard
        if isinstance(shard, str):
            return cls.parse(shard)
        if isinstance(shard, Sequence) and len(shard) == 2:
            numbers = [n for n in shard if isinstance(n, Integral) and not isinstance(n, bool)]
            if len(numbers) == 2:
                return cls(*map(int, numbers))
        raise InputError(
            f"shard is {shown(shard)}; expected two whole numbers (i, n), such as (0, 4) for the first of four."
        )

    @classmethod
    def from_environment(cls) -> Shard:
        """The shard that ``torchrun`` and its like give to this process in RANK and WORLD_SIZE.

        Returns:
            The shard, or the only one where WORLD_SIZE is not set.

        Raises:
            InputError: If the variables do not hold a shard.
        """
        count, index = os.environ.get("WORLD_SIZE", "1"), os.environ.get("RANK")
        if count == "1":
            return cls()
        if index is None:
            raise InputError(
                f"WORLD_SIZE is {count} but RANK is not set. Set both, or neither, or give the shard."
            )
        return cls.parse(f"{index}/{count}")

    def takes(self, document: int) -> bool:
        """Whether the document with this index (from 0) is in this shard."""
        return document % self.count == self.index

    def share(self, total: int | None) -> float:
        """This shard's part of a total that all shards reach together; infinite where there is none."""
        if total is None:
            return math.inf
        return total // self.count + (self.index < total % self.count)
