"""The text of every token of a window, so that together they are the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["text_pieces"]

_INCOMPLETE = "\ufffd"


def text_pieces(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """What each token adds to the text that the tokens before it spell.

    A token that begins a word begins with a space, one that goes on with a word does not. A character that several
    tokens spell together is the last one's; the others add nothing.

    Args:
        tokenizer: What decodes ids.
        ids: The tokens, without padding.

    Returns:
        A text a token, the first without a space before it; special tokens are spelled out.
    """
    pieces: list[str] = []
    known = start = (
        0  # tokens from ``known`` on are not spelled yet; those from ``start`` on are decoded with them
    )
    for end in range(1, len(ids) + 1):
        before = str(tokenizer.decode(list(ids[start:known]))) if known > start else ""
        spelled = str(tokenizer.decode(list(ids[start:end])))
        if (
            spelled.endswith(_INCOMPLETE) and end < len(ids) and end - known < 4
        ):  # no character has more bytes
            pieces.append("")
            continue
        added = (
            spelled[len(before) :] if spelled.startswith(before) else f" {_alone(tokenizer, ids[end - 1])}"
        )
        pieces.append(added.lstrip() if not any(pieces) else added)
        start, known = known, end
    return tuple(pieces)


def _alone(tokenizer: Any, token: int) -> str:
    # Some decoders tidy up what stands before: " do not" becomes " don't".
    return str(tokenizer.decode([token])).strip()
