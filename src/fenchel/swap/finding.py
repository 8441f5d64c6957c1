"""What a swap found, in sentences that say no more than the intervals do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fenchel.drawing import count, percent
from fenchel.swap.wording import Wording

__all__ = ["finding", "signed", "within"]

_NAMES = {"exact": "Exact inference", "second_order": "Second-order inference"}


def signed(value: float | None) -> str:
    """A difference with its sign, to about three digits.

    Example:
        >>> signed(0.00331), signed(-1.5), signed(None), signed(0.0)
        ('+0.0033', '−1.50', '–', '0')
    """
    if value is None:
        return "–"
    if value == 0:
        return "0"
    size = abs(value)
    digits = 2 if size >= 1 else 3 if size >= 0.1 else 4 if size >= 1e-3 else 6 if size >= 1e-5 else 0
    text = f"{size:.{digits}f}" if digits else f"{size:.0e}"
    return ("+" if value > 0 else "−") + text


def within(record: Mapping[str, Any], name: str) -> str:
    """An interval in brackets, such as ``[−0.001, +0.003]``.

    Example:
        >>> within({"x_low": -0.001, "x_high": 0.0031}, "x")
        '[−0.0010, +0.0031]'
    """
    return f"[{signed(record[f'{name}_low'])}, {signed(record[f'{name}_high'])}]"


def finding(results: Mapping[str, Any], words: Wording) -> str:
    """What came out for the exact estimator, or for the last one where exact was not asked for.

    Args:
        results: What ``tabulated`` returned.
        words: What its numbers are called.

    Returns:
        One to four sentences; empty if there is no estimator.
    """
    arms = [arm for arm in results["arms"] if arm["where"] == "model"]
    estimators = [arm for arm in arms if not arm["control"] and arm["estimator"] != "model"]
    if not estimators:
        return ""
    arm = next((arm for arm in estimators if arm["estimator"] == "exact"), estimators[-1])
    name = _NAMES.get(arm["estimator"], str(arm["estimator"]))
    quality = results["quality"]
    if quality is None:
        first = _moved(name, arm, words)
    else:
        compared = next((c for c in results["against_control"] if c["estimator"] == arm["estimator"]), None)
        controls = [other for other in arms if other["control"] and other["alpha"] != 1]
        first = _changed(name, arm, arms[0], quality, results["units"], compared, controls, words)
        first = " ".join([first, *_beside(name, arm, arms[0], quality, words)])
    smoothing = next((s for s in results["smoothing"] if s["estimator"] == arm["estimator"]), None)
    return " ".join(part for part in (first, _smoothed(smoothing, words)) if part)


def _level(value: float | None) -> str:
    """A value to four digits; a rank correlation has none where all similarities of an arm are equal."""
    return "undefined" if value is None else f"{value:.4f}"


def _changed(
    name: str,
    arm: Mapping[str, Any],
    model: Mapping[str, Any],
    quality: str,
    units: Mapping[str, int],
    compared: Mapping[str, Any] | None,
    controls: Sequence[Mapping[str, Any]],
    words: Wording,
) -> str:
    difference = arm[f"{quality}_difference"]
    better = -1 if quality == "loss" else 1
    head = f"{name} takes {words.sentences[quality]} from {_level(model[quality])} to {_level(arm[quality])}"
    unit = "pairs" if quality == "score_correlation" else next(iter(units))
    number = units[unit]
    low, high = arm[f"{quality}_difference_low"], arm[f"{quality}_difference_high"]
    if low is None or high is None:
        few = f"one {unit[:-1]} gives" if number == 1 else f"{count(number)} {unit} give"
        return f"{head}, by {signed(difference)}; {few} no interval, so this may be chance."
    head += (
        f", by {signed(difference)} {within(arm, f'{quality}_difference')} (95 % over {count(number)} {unit})"
    )
    if low <= 0 <= high:
        head += ", which cannot be told from no change"
    else:
        head += ", an improvement" if (difference > 0) == (better > 0) else ", for the worse"
    return f"{head}. {_controlled(arm, quality, better, compared, controls)}".strip()


def _beside(
    called: str, arm: Mapping[str, Any], model: Mapping[str, Any], quality: str, words: Wording
) -> Iterator[str]:
    """A sentence for every quality besides the first."""
    for name in words.sentences:
        if name == quality or arm.get(name) is None:
            continue
        spread = "" if arm[f"{name}_difference_low"] is None else f" {within(arm, f'{name}_difference')}"
        yield (
            f"{called} takes {words.sentences[name]} from {_level(model[name])} to {_level(arm[name])}, by "
            f"{signed(arm[f'{name}_difference'])}{spread}."
        )


def _controlled(
    arm: Mapping[str, Any],
    quality: str,
    better: int,
    compared: Mapping[str, Any] | None,
    controls: Sequence[Mapping[str, Any]],
) -> str:
    if compared is None:
        return "No control was run, so it may be smoothing."
    values = [control[quality] for control in controls if control[quality] is not None]
    spans, place = "", ""
    if len(values) > 1:
        spans = f"α alone spans {min(values):.4f} to {max(values):.4f}"
        inside = arm[quality] is not None and min(values) <= arm[quality] <= max(values)
        place = f", and this lies {'within' if inside else 'outside'}"
    elif values:
        spans = f"the control alone gives {values[0]:.4f}"
    low, high = compared["difference_low"], compared["difference_high"]
    if low is None or high is None:
        return f"There are too few units to choose a control on one half and compare on the other; {spans}."
    alphas = " and ".join(f"{alpha:g}" for alpha in sorted(set(compared["chosen_alphas"])))
    sentence = (
        f"Against the best control (first order at α = {alphas}, chosen on one half and compared on the other) it is "
        f"{signed(compared['difference'])} {within(compared, 'difference')}"
    )
    if low <= 0 <= high:
        sentence += ": no evidence of more than smoothing"
    elif (compared["difference"] > 0) == (better > 0):
        sentence += ": better than the best of them"
    else:
        sentence += ": α alone does better"
    return f"{sentence}; {spans}{place}."


def _moved(name: str, arm: Mapping[str, Any], words: Wording) -> str:
    if arm.get("embedding_change") is None:
        low, high = arm["hidden_change_low"], arm["hidden_change_high"]
        spread = "" if low is None else f" [{percent(low)}, {percent(high)}]"
        moved = f"{percent(arm['hidden_change'])}{spread}"
        return f"{name} changes the {words.output} by {moved} of their length on average."
    return (
        f"{name} moves the sentence embeddings by 1 − cosine = {arm['embedding_change']:.2g} on average (95 % of them "
        f"by at most {arm['embedding_change_p95']:.2g}) and keeps the ranking of similarities to a Spearman "
        f"correlation of {_level(arm['ranking_agreement'])}"
        + (
            f" [{arm['ranking_agreement_low']:.4f}, {arm['ranking_agreement_high']:.4f}]."
            if arm["ranking_agreement_low"] is not None
            else "; no interval can be given for so few sentences."
        )
    )


def _smoothed(smoothing: Mapping[str, Any] | None, words: Wording) -> str:
    if smoothing is None:
        return ""
    what = words.output if smoothing["measure"] == "hidden_change" else "embeddings"
    share = smoothing["share_left"]
    if share is None or smoothing["share_left_low"] is None:
        return f"The nearest control for its {what} is first order at α = {smoothing['nearest_alpha']:g}."
    alphas = " and ".join(f"{alpha:g}" for alpha in sorted(set(smoothing["chosen_alphas"])))
    left = (
        f"{percent(share)} [{percent(smoothing['share_left_low'])}, {percent(smoothing['share_left_high'])}]"
    )
    return (
        f"Of the change of its {what}, {left} is left between it and the nearest control (first order at α = {alphas}"
        "), so that part is not what one α for all heads gives."
    )
