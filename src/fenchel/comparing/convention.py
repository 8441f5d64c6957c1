"""What two audits must have in common to be compared, and what else they differ in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fenchel.auditing.heads import HeadKey
from fenchel.auditing.manifest import KEYS
from fenchel.errors import InputError
from fenchel.io.folder import differences

__all__ = ["CONVENTIONS", "refuse_other_convention", "refuse_other_heads", "what_differs"]

CONVENTIONS = ("schema", "fenchel", "space", "closeness", "alpha", "tol", "convention")
"""What decides what a number of an audit means: versions of files and package, problem, tolerance."""

_UNSAID = {"closeness": "softmax"}
"""What a convention is that a manifest has only where it is another."""

_ADVICE = "Audit one of them again with the options of the other."


def refuse_other_convention(
    names: tuple[str, str], manifests: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> None:
    """Refuse two audits whose numbers mean different things.

    Args:
        names: What the user calls them.
        manifests: Their manifests.

    Raises:
        InputError: With every convention in which they differ, and both values.
    """
    first, second = (
        {key: manifest.get(key, _UNSAID.get(key)) for key in CONVENTIONS} for manifest in manifests
    )
    # What is taken for a template follows from the space, and for attention from the closeness, in a word each.
    but = {"convention"} if any(first[name] != second[name] for name in ("space", "closeness")) else set()
    differing = differences(first, second, but=but, said=(f"in {names[0]}", f"in {names[1]}"))
    if differing:
        raise InputError(
            f"{names[0]} and {names[1]} cannot be compared, their numbers mean different things: "
            f"{'; '.join(differing)}. {_ADVICE}"
        )


def refuse_other_heads(names: tuple[str, str], heads: tuple[Sequence[HeadKey], Sequence[HeadKey]]) -> None:
    """Refuse two audits of other heads, since heads are compared by their place.

    Args:
        names: What the user calls them.
        heads: The heads of each.

    Raises:
        InputError: With the first layer in which they differ.
    """
    first, second = (_by_layer(keys) for keys in heads)
    for site in sorted({*first, *second}):
        ours, theirs = first.get(site), second.get(site)
        if ours != theirs:
            kind, layer = site
            raise InputError(
                f"{names[0]} and {names[1]} cannot be compared, they have other heads: {kind} layer {layer} has "
                f"{_said(ours)} in {names[0]} and {_said(theirs)} in {names[1]}. Compare models of one shape, and "
                "audit the same --layers and --heads of both."
            )


def what_differs(manifests: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The entries in which manifests differ although they can be compared: model, text, options, versions.

    Args:
        manifests: Of two audits or more.

    Returns:
        By name, the value of each.

    Example:
        >>> what_differs([{"model": "a", "seed": 0}, {"model": "b", "seed": 0}])
        {'model': ['a', 'b']}
    """
    names = [*KEYS, *sorted({name for manifest in manifests for name in manifest} - set(KEYS))]
    values = {name: [manifest.get(name) for manifest in manifests] for name in names}
    return {name: found for name, found in values.items() if any(value != found[0] for value in found[1:])}


def _by_layer(keys: Sequence[HeadKey]) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for key in keys:
        found.setdefault((key.kind, key.layer), []).append(key.head)
    return found


def _said(heads: list[int] | None) -> str:
    if heads is None:
        return "none"
    if heads == list(range(1, len(heads) + 1)):
        return f"heads 1 to {len(heads)}" if len(heads) > 1 else "head 1"
    return f"heads {', '.join(map(str, heads))}"
