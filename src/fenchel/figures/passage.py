"""A passage that the demo encoder reads where nobody gives another text."""

from __future__ import annotations

from typing import Final

__all__ = ["PASSAGE"]

PASSAGE: Final = (
    "The mill at the end of the valley has not ground any corn for thirty years, but its wheel still "
    "turns. Water does not ask what it is for. In spring, when the snow on the upper meadows melts, it "
    "turns so fast that the whole house hums.",
    "A map is a promise about a place. Whoever draws one decides which of the thousand things that are "
    "there will be left out, and whoever reads one agrees, without being asked, to overlook them too.",
    "When the teacher asked who had broken the window, nobody answered. Then the youngest of them, who "
    "had been at home that day with a fever, put up her hand, because somebody had to.",
    "To mend a net you need a needle, a gauge and patience. Find the hole, cut it to a clean edge, and "
    "begin at a corner where three strands meet; if you begin anywhere else you will end with a knot that "
    "belongs to nothing.",
    "What do we remember of a long journey? Seldom the sights for which we set out. We remember the smell "
    "of a waiting room, a stranger who shared his bread, and the one time that we turned back.",
    "The first frost came early and took the beans. The pumpkins, which had been planted late and were "
    "expected to fail, went on growing under their leaves as if nobody had told them.",
)
"""Six short documents, written for this package."""
