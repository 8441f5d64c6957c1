"""Where on the keys' axis the first query is, and where that cannot be known."""

from __future__ import annotations

from fenchel.errors import ProblemError

__all__ = ["first_query_position"]


def first_query_position(query_offset: int | None, queries: int, keys: int) -> int:
    """The position of the first query: the offset that was given, or 0 where there are no fewer queries than keys.

    Fewer queries than keys may follow the keys of a cache, or begin where the keys do, as between two sequences.

    Args:
        query_offset: What was given, or None.
        queries: m.
        keys: n.

    Raises:
        ProblemError: If nothing was given and there are fewer queries than keys.

    Example:
        >>> first_query_position(None, 5, 5), first_query_position(4, 1, 5)
        (0, 4)
    """
    if query_offset is not None:
        return query_offset
    if 0 < queries < keys:
        raise ProblemError(
            f"query_offset is not given, and of {queries} queries and {keys} keys the position of the first query is "
            f"not known; expected query_offset={keys - queries} (keys - queries) where keys come from a cache, or "
            "query_offset=0 where both begin at the same place, as between two sequences"
        )
    return 0
