"""What a translator believes about the words of the source before it looks at their states."""

from __future__ import annotations

from fenchel.nn.preference import (
    AbstractPreference,
    Additive,
    Context,
    GaussianWindow,
    KeyPadding,
    RelativePosition,
)

__all__ = ["PLACES", "PREFERENCES", "preference_of"]

PREFERENCES = ("uniform", "context", "relative", "gaussian")
"""Preferences by name."""

PLACES = ("scaled", "predicted")
"""Where a Gaussian's middle comes from."""


def preference_of(
    name: str, *, width: int, score: str, place: str, length_ratio: float, spread: float
) -> AbstractPreference:
    r"""The preference of a name, and no weight for padding.

    * ``uniform``: every word is as likely.
    * ``context``: a network that reads the whole sentence says how important each word is.
    * ``relative``: a learned weight for each distance from the target's place to the source's.
    * ``gaussian``: near the place that is aligned with the k-th word of the target, which is r·k with the training
      data's length ratio r (``scaled``), or is predicted from the query (``predicted``), since the target's length is
      not known while it is written.

    Args:
        name: One of these.
        width: Of queries and templates.
        score: With ``additive``, the score of Bahdanau is a factor.
        place: ``scaled`` or ``predicted``, for ``gaussian``.
        length_ratio: r, words of the source for each of the target.
        spread: σ of the Gaussian at the start, in words.

    Example:
        >>> preference_of("uniform", width=8, score="dot", place="scaled", length_ratio=1.0, spread=4.0)
        KeyPadding()
    """
    preference: AbstractPreference = KeyPadding()
    if name == "context":
        preference = preference * Context(heads=1, key_dim=width)
    elif name == "relative":
        preference = preference * RelativePosition(heads=1)
    elif name == "gaussian" and place == "scaled":
        preference = preference * GaussianWindow(heads=1, width=spread, pace=length_ratio)
    elif name == "gaussian":
        window = GaussianWindow(heads=1, width=spread, predict_location=True, query_dim=width)
        preference = preference * window
    if score == "additive":
        preference = preference * Additive(heads=1, query_dim=width, hidden=width)
    return preference
