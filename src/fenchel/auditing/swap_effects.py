"""Compare an audit with a swap of the same model: deviations of heads and the effects of exact inference in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fenchel.arguments import shown
from fenchel.auditing.heads import HeadKey, Modules, OfHead
from fenchel.bootstrap import rank_correlation
from fenchel.errors import InputError
from fenchel.io.runs import differences

_SAME = ("model", "revision", "text_sha256")
_DEVIATIONS = ("total_variation", "mean_error", "relative_deviation", "predicted_deviation")


@dataclass(frozen=True)
class HeadEffect(OfHead):
    """A head that inferred exactly alone.

    Attributes:
        deviations: Means over queries of ``total_variation``, ``mean_error``, ``relative_deviation`` and
            ``predicted_deviation`` in the audit.
        effect: Change of the model's hidden states, or of its outputs, when the head infers exactly.
        low: Lower end of its 95 % interval, if it has one.
        high: Upper end.
        same_by_alpha: The smallest and largest change under first order at other α; None without controls.
        quality: Change of the loss or of the correlation with scores with its interval (value, low, high); None where
            the swap had neither.
    """

    deviations: Mapping[str, float | None]
    effect: float
    low: float | None
    high: float | None
    same_by_alpha: tuple[float, float] | None
    quality: tuple[float | None, float | None, float | None] | None


@dataclass(frozen=True)
class SwapEffects:
    """Deviations and effects of heads.

    Attributes:
        heads: The heads that were audited and swapped alone, in the order of the audit.
        rank_correlation: Spearman's, of each deviation with the effect over these heads; None below three heads, or
            where all are equal.
        quality: Measure of ``HeadEffect.quality``: ``loss``, ``score_correlation`` or ``score``; None without one.
        note: Caveats; empty without any.
        changed: The outputs of which ``effect`` is the change.
    """

    heads: tuple[HeadEffect, ...]
    rank_correlation: Mapping[str, float | None]
    quality: str | None
    note: str
    changed: str = "hidden states"

    def to_json(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "heads": [asdict(head) for head in self.heads],
            "rank_correlation": dict(self.rank_correlation),
            "quality": self.quality,
            "note": self.note,
        }


def swap_effects(
    manifest: Mapping[str, Any], records: Sequence[Mapping[str, Any]], modules: Modules, swap: Any
) -> SwapEffects:
    """Compare the heads of an audit with those that a swap swapped alone.

    Args:
        manifest: Manifest of the audit.
        records: Heads of the audit.
        modules: Attention modules of its layers.
        swap: The swap, a ``fenchel.swap.SwapReport``.

    Returns:
        The heads in both.

    Raises:
        InputError: If model, text or reliability differ, or no head of the audit was swapped alone.
    """
    if not isinstance(getattr(swap, "manifest", None), Mapping) or not hasattr(swap, "conditions"):
        raise InputError(
            f"swap is {shown(swap)}; expected the result of fenchel.swap.swap, or "
            "fenchel.swap.SwapReport.load(folder)."
        )
    require_same(manifest, swap.manifest)
    exact = exact_heads(swap.conditions)
    conditions = [condition for condition in swap.conditions if condition["where"] == "head"]
    quality = next(
        (name for name in ("loss", "score_correlation", "score") if f"{name}_difference" in exact[0]), None
    )
    heads, swapped = [], set()
    for record in records:
        key = HeadKey(record["kind"], record["layer"], record["head"])
        own = [one for one in conditions if one["head"] == key.head and is_module(one, key, modules)]
        exactly = next((one for one in own if one["estimator"] == "exact"), None)
        if exactly is None:
            continue
        swapped.add((exactly["layer"], exactly["head"]))
        change = f"{quality}_difference"
        heads.append(
            HeadEffect(
                *key,
                deviations={name: record[f"{name}_mean"] for name in _DEVIATIONS},
                effect=exactly["hidden_change"],
                low=exactly.get("hidden_change_low"),
                high=exactly.get("hidden_change_high"),
                same_by_alpha=by_alpha(own, exactly),
                quality=(exactly[change], exactly.get(f"{change}_low"), exactly.get(f"{change}_high"))
                if quality
                else None,
            )
        )
    if not heads:
        raise InputError("no audited head was swapped alone. Swap heads of the layers that were audited.")
    notes, space = [], swap.manifest.get("space")
    if manifest.get("space") != space:
        notes.append(
            f"The audit takes its templates in {manifest.get('space')} space, and a swap uses {space} space: two "
            f"problems with the same first-order solution. Audit with --space {space} for deviations of the swapped "
            "problem."
        )
    if manifest.get("even_so"):
        notes.append(
            f"The audit is under {manifest.get('closeness') or 'softmax'}, but the model and the swap use another "
            "closeness: two problems with different solutions."
        )
    if len(swapped) < len(heads):
        notes.append("Layers share modules: the effect is that of the head in all layers of its module.")
    correlation = {
        name: rank_correlation([(head.deviations[name], head.effect) for head in heads])
        for name in _DEVIATIONS
    }
    changed = "outputs" if swap.manifest.get("task") == "examples" else "hidden states"
    return SwapEffects(tuple(heads), correlation, quality, " ".join(notes), changed)


def exact_heads(conditions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those conditions of a swap in which one head infers exactly alone.

    Raises:
        InputError: If there are none.
    """
    result = [record for record in conditions if record["where"] == "head" and record["estimator"] == "exact"]
    if not result:
        raise InputError(
            "the swap has no head with the exact estimator alone, whose effect is plotted against its deviation. Run "
            "fenchel swap again with --per-head and the estimator exact; effects of ablations are in its swap.html."
        )
    return result


def require_same(audit: Mapping[str, Any], swap: Mapping[str, Any]) -> None:
    """Raise unless a swap is of the model and the text of an audit.

    Args:
        audit: The manifest, or its entries that are known.
        swap: The manifest of the swap.

    Raises:
        InputError: If they differ.
    """
    known = [name for name in _SAME if name in audit]
    same = ({name: manifest.get(name) for name in known} for manifest in (audit, swap))
    differing = differences(*same, labels=("in the audit", "in the swap"))
    if (alpha := audit.get("alpha", 1.0)) != 1.0:
        differing.append(f"alpha: {alpha!r} in the audit, 1.0 in every swap")
    if differing:
        raise InputError(
            f"the swap and the audit differ in {'; '.join(differing)}. Swap the same model on the same file or texts."
        )


def is_module(record: Mapping[str, Any], key: HeadKey, modules: Modules) -> bool:
    """Whether the layer of a condition is that of a head.

    Modules have longer names in a model with a language-model head and shorter ones in an encoder alone; the additional
    prefix never contains the decoder.
    """
    module, other = modules.get((key.kind, key.layer)), record.get("module")
    if module is None or other is None:
        return False
    shorter, longer = sorted((module.name, str(other)), key=len)
    before = longer.removesuffix(shorter)
    return before == "" or (longer.endswith(f".{shorter}") and "decoder" not in before.split("."))


def by_alpha(records: Sequence[Mapping[str, Any]], place: Mapping[str, Any]) -> tuple[float, float] | None:
    """Smallest and largest change of the output under the controls of a layer or head; None without controls.

    Args:
        records: The records of a swap.
        place: A record of the same ``layer`` and ``head``.
    """
    changes = [
        record["hidden_change"]
        for record in records
        if record["control"] and (record["layer"], record["head"]) == (place["layer"], place["head"])
    ]
    changes = [change for change in changes if change is not None]
    return (min(changes), max(changes)) if changes else None
