"""What a model is to fill in: tokens that are chosen, and hidden, exchanged or left as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from fenchel.arguments import shown
from fenchel.data.randomness import seeded_generator
from fenchel.errors import InputError

__all__ = ["Corrupted", "Corruption", "Shares"]

_TOLERANCE = 1e-9


class Corrupted(NamedTuple):
    """Tokens after corruption.

    Attributes:
        tokens: Numbers, with those that were hidden or exchanged in their places.
        places: Which were chosen, in order.
    """

    tokens: list[int]
    places: list[int]


class Shares(NamedTuple):
    """What becomes of the tokens that are chosen; the three add up to 1.

    Attributes:
        mask: Share that is hidden, ``[MASK]`` in its place.
        same: Share that stays as it is.
        random: Share that is exchanged for any known token, each as likely.
    """

    mask: float
    same: float
    random: float

    @classmethod
    def of(cls, text: str) -> Shares:
        """Shares as they are written, in per cent: ``80/10/10``.

        Raises:
            InputError: If they are not three that add up to 100.

        Example:
            >>> Shares.of("80/0/20")
            Shares(mask=0.8, same=0.0, random=0.2)
        """
        try:
            parts = [float(part) / 100 for part in text.split("/")]
        except ValueError:
            parts = []
        # Whatever is no number, and what is not finite, fails a comparison.
        whole = len(parts) == 3 and all(0 <= part <= 1 for part in parts)
        if not whole or abs(sum(parts) - 1) > _TOLERANCE:
            raise InputError(
                f"shares is {shown(text)}; expected MASK/SAME/RND in per cent, which add up to 100, such as 80/10/10."
            )
        return cls(*parts)


@dataclass(frozen=True)
class Corruption:
    """Chooses every token that may be chosen with the same probability, and draws what becomes of it.

    What is drawn follows from the purpose, the numbers and the place alone: not from other rows, nor padding.

    Attributes:
        rate: How probable it is that a token is chosen.
        shares: What becomes of those that are.
        mask: The number of ``[MASK]``.
        known: The least number of a token that may be chosen and drawn; below it are special ones and the unknown.
        size: How many numbers there are.

    Example:
        >>> corruption = Corruption(0.5, Shares.of("100/0/0"), mask=4, known=5, size=9)
        >>> corruption.applied([2, 7, 1, 8, 6, 3], "test", 0, 12)
        Corrupted(tokens=[2, 7, 1, 8, 4, 3], places=[4])
    """

    rate: float
    shares: Shares
    mask: int
    known: int
    size: int

    def applied(self, tokens: Sequence[int], purpose: str, *numbers: int) -> Corrupted:
        """The tokens after corruption.

        Args:
            tokens: Numbers; those below ``known`` stay.
            purpose: For what is drawn.
            *numbers: What tells draws apart, such as the seed, the epoch and the passage.
        """
        generator = seeded_generator(purpose, *numbers)
        chosen, fate = torch.rand(2, len(tokens), generator=generator).tolist()
        others = torch.randint(self.known, self.size, (len(tokens),), generator=generator).tolist()
        found = list(tokens)
        places = [
            place
            for place, (token, draw) in enumerate(zip(tokens, chosen, strict=True))
            if token >= self.known and draw < self.rate
        ]
        for place in places:
            if fate[place] < self.shares.mask:
                found[place] = self.mask
            elif fate[place] >= self.shares.mask + self.shares.same:
                found[place] = others[place]
        return Corrupted(found, places)
