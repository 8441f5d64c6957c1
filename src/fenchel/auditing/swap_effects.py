"""An audit beside a swap of the same model: how far each head's attention is off, and what changes where it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fenchel.arguments import shown
from fenchel.auditing.heads import HeadKey, Modules, with_key
from fenchel.correlation import rank_correlation
from fenchel.errors import InputError

_SAME = ("model", "revision", "text_sha256")
_DEVIATIONS = ("total_variation", "mean_error", "relative_deviation", "predicted_deviation")


class SwapTable(Protocol):
    """What a swap found, such as ``fenchel.swap.SwapReport``."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The model, the text and the options."""
        ...

    @property
    def arms(self) -> Sequence[Mapping[str, Any]]:
        """A record for every control and every swap."""
        ...


@dataclass(frozen=True)
class HeadEffect:
    """One head that was swapped alone, exact for first order.

    Attributes:
        key: The head.
        deviations: Means over queries of ``total_variation``, ``mean_error``, ``relative_deviation`` and
            ``predicted_deviation`` in the audit.
        effect: Change of the model's hidden states, or of its outputs, when the head infers exactly.
        low: Lower end of its 95 % interval, if it has one.
        high: Upper end.
        same_by_alpha: The least and greatest change by which first order at other α changes them; None without control.
        quality: Change of the loss or of the correlation with scores with its interval (value, low, high); None where
            the swap had neither.
    """

    key: HeadKey
    deviations: Mapping[str, float | None]
    effect: float
    low: float | None
    high: float | None
    same_by_alpha: tuple[float, float] | None
    quality: tuple[float | None, float | None, float | None] | None

    def to_json(self) -> dict[str, Any]:
        """JSON values only."""
        return with_key(self)


@dataclass(frozen=True)
class SwapEffects:
    """Deviation against effect, head by head.

    Attributes:
        heads: The heads that were audited and swapped alone, in the order of the audit.
        rank_correlation: Spearman's, of each deviation with the effect over these heads; None below three heads, or
            where all are equal.
        quality: What ``HeadEffect.quality`` changes, ``loss``, ``score_correlation`` or ``score``; None where there is
            none.
        note: What has to be said beside them; empty where nothing.
        changed: What of the model changes.
    """

    heads: tuple[HeadEffect, ...]
    rank_correlation: Mapping[str, float | None]
    quality: str | None
    note: str
    changed: str = "hidden states"

    def to_json(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "heads": [head.to_json() for head in self.heads],
            "rank_correlation": dict(self.rank_correlation),
            "quality": self.quality,
            "note": self.note,
        }


def swap_effects(
    manifest: Mapping[str, Any], records: Sequence[Mapping[str, Any]], modules: Modules, swap: SwapTable
) -> SwapEffects:
    """Put the heads that a swap swapped alone beside their numbers in an audit.

    Args:
        manifest: The audit's.
        records: The audit's heads.
        modules: Names of the modules of the audit's layers.
        swap: The swap.

    Returns:
        The heads in both.

    Raises:
        InputError: If the swap is one of another model, text or reliability, or swapped no head of the audit alone.
    """
    if not isinstance(getattr(swap, "manifest", None), Mapping) or not hasattr(swap, "arms"):
        raise InputError(
            f"swap is {shown(swap)}; expected what fenchel.swap.swap returned, or fenchel.swap.SwapReport.load(folder)."
        )
    _require_same(manifest, swap.manifest)
    exact = exact_heads(swap)
    arms = [arm for arm in swap.arms if arm["where"] == "head"]
    quality = next(
        (name for name in ("loss", "score_correlation", "score") if f"{name}_difference" in exact[0]), None
    )
    heads = []
    for record in records:
        key = HeadKey(record["kind"], record["layer"], record["head"])
        own = [arm for arm in arms if arm["head"] == key.head and is_module(arm, key, modules)]
        arm = next((arm for arm in own if arm["estimator"] == "exact"), None)
        if arm is not None:
            heads.append(_effect(key, record, arm, [other for other in own if other["control"]], quality))
    if not heads:
        raise InputError(
            "no head is both in the audit and swapped alone in the swap. Swap heads of the layers that were audited."
        )
    note = ""
    if manifest.get("space") != swap.manifest.get("space"):
        note = (
            f"The audit takes its templates in {manifest.get('space')} space, and a swap infers in "
            f"{swap.manifest.get('space')} space: two problems with the same first-order answer. Audit with --space "
            f"{swap.manifest.get('space')} to have deviations of the problem that was swapped in."
        )
    if manifest.get("even_so"):
        note += (
            f"{' ' if note else ''}The audit is under {manifest.get('closeness') or 'softmax'}, although the model "
            "attends otherwise, and a swap infers as the model does: two problems with other answers."
        )
    correlation = {
        name: rank_correlation([(head.deviations[name], head.effect) for head in heads])
        for name in _DEVIATIONS
    }
    changed = "outputs" if swap.manifest.get("task") == "examples" else "hidden states"
    return SwapEffects(tuple(heads), correlation, quality, note, changed)


def exact_heads(swap: SwapTable) -> list[Mapping[str, Any]]:
    """The arms of a swap in which one head infers exactly alone.

    Raises:
        InputError: If there are none.
    """
    result = [arm for arm in swap.arms if arm["where"] == "head" and arm["estimator"] == "exact"]
    if not result:
        raise InputError(
            "the swap has no head that infers exactly alone, so there is no effect to put beside a head. Run fenchel "
            "swap again with --per-head and the estimator exact."
        )
    return result


def require_model(swap: SwapTable, model: str) -> None:
    """See that a swap is one of a model of a name.

    Raises:
        InputError: If it is not.
    """
    there = swap.manifest.get("model")
    if there != model:
        raise InputError(
            f"the swap is not one of what is to be audited: it is of {there!r}, and the audit of {model!r}. Swap the "
            "same model on the same text."
        )


def _require_same(audit: Mapping[str, Any], swap: Mapping[str, Any]) -> None:
    differing = [
        f"{name.replace('_', ' ')}: {audit.get(name)!r} in the audit, {swap.get(name)!r} in the swap"
        for name in _SAME
        if audit.get(name) != swap.get(name)
    ]
    if audit.get("alpha") != 1.0:
        differing.append(f"alpha: {audit.get('alpha')!r} in the audit, 1.0 in every swap")
    if differing:
        raise InputError(
            f"the swap and the audit differ in {'; '.join(differing)}. Swap the same model on the same text."
        )


def is_module(arm: Mapping[str, Any], key: HeadKey, modules: Modules) -> bool:
    """Whether an arm's layer is that of a head.

    Modules have longer names below a language-model head and shorter ones in an encoder that is run alone; what one
    name has before the other never is the decoder.
    """
    module, other = modules.get((key.kind, key.layer)), arm.get("module")
    if module is None or other is None:
        return False
    shorter, longer = sorted((module.name, str(other)), key=len)
    before = longer.removesuffix(shorter)
    return before == "" or (longer.endswith(f".{shorter}") and "decoder" not in before.split("."))


def _effect(
    key: HeadKey,
    record: Mapping[str, Any],
    arm: Mapping[str, Any],
    controls: Sequence[Mapping[str, Any]],
    quality: str | None,
) -> HeadEffect:
    same = [control["hidden_change"] for control in controls if control["hidden_change"] is not None]
    names = [f"{quality}_difference{end}" for end in ("", "_low", "_high")] if quality else []
    return HeadEffect(
        key=key,
        deviations={name: record[f"{name}_mean"] for name in _DEVIATIONS},
        effect=arm["hidden_change"],
        low=arm.get("hidden_change_low"),
        high=arm.get("hidden_change_high"),
        same_by_alpha=(min(same), max(same)) if same else None,
        quality=(arm[names[0]], arm.get(names[1]), arm.get(names[2])) if names else None,
    )
