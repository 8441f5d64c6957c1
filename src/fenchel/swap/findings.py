"""What a swap found: its tables, sentences that say no more than the intervals, and a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fenchel.drawing import bracketed, count, percent, signed
from fenchel.run_options import ABLATIONS

ESTIMATORS = {
    "model": "model",
    "second_order": "second order",
    "exact": "exact",
    "zero": "no output",
    "mean": "mean output",
    "uniform": "equal weights",
    "preference": "preference alone",
}
"""What estimators and ablations are called in tables and figures."""

_SENTENCE_NAMES = {"exact": "Exact inference", "second_order": "Second-order inference"}


@dataclass(frozen=True)
class Wording:
    """Words for the numbers of a swap, which depend on what the model was asked to do.

    Attributes:
        qualities: What says whether an arm is better or worse, in words for axes, by its name in the records.
        sentences: The same in the middle of a sentence.
        tiles: The same as a heading of few words.
        output: What changes at the model's output.
        change: The same as a heading of few words.
        formula: How that change is measured.
        read: What the model read, after "the same weights".
        labels: What the source of it is called, by its name in the manifest.
        multiplied: Whether the control's α multiplies one that layers have of their own.
    """

    qualities: Mapping[str, str]
    sentences: Mapping[str, str]
    tiles: Mapping[str, str]
    labels: Mapping[str, str]
    output: str = "last hidden states"
    change: str = "hidden change"
    formula: str = "‖h′ − h‖ / ‖h‖ of a token at the output, on average"
    read: str = "read the same text"
    multiplied: bool = False


_CORRELATION = "Spearman's correlation with the scores"
_OF_TEXT = Wording(
    qualities={"loss": "loss per token, nats", "score_correlation": _CORRELATION},
    sentences={"loss": "the loss per token", "score_correlation": _CORRELATION},
    tiles={"loss": "Loss per token", "score_correlation": "Correlation with scores"},
    labels={"texts": "Text", "pairs": "Pairs"},
)


def wording(manifest: Mapping[str, Any]) -> Wording:
    """The words for a swap.

    Example:
        >>> wording({"task": "masked"}).qualities["loss"]
        'loss per token, nats'
        >>> wording({"task": "examples", "unit": "images", "measures": {"score": "accuracy"}}).tiles["score"]
        'Accuracy'
    """
    if manifest.get("task") != "examples":
        return _OF_TEXT
    names = manifest.get("measures", {})
    unit = manifest.get("unit", "examples")
    return Wording(
        qualities=names,
        sentences={name: f"the {words}" for name, words in names.items()},
        tiles={name: words[:1].upper() + words[1:] for name, words in names.items()},
        output="outputs",
        change="output change",
        formula="‖y′ − y‖ / ‖y‖ of an output, on average",
        read=f"read the same {unit}",
        multiplied=unit != "texts",
        labels={"texts": "Images" if manifest.get("reads") == "images" else "Inputs"},
    )


def within(record: Mapping[str, Any], name: str) -> str:
    """An interval in brackets, such as ``[−0.001, +0.003]``.

    Example:
        >>> within({"x_low": -0.001, "x_high": 0.0031}, "x")
        '[−0.0010, +0.0031]'
    """
    return bracketed(record[f"{name}_low"], record[f"{name}_high"])


def arm_name(record: Mapping[str, Any]) -> str:
    """What an arm is called in tables and figures.

    Example:
        >>> arm_name({"estimator": "first_order", "alpha": 0.8}), arm_name({"estimator": "exact", "alpha": 1.0})
        ('α = 0.8', 'exact')
    """
    if record["estimator"] == "first_order":
        return f"α = {record['alpha']:g}"
    return ESTIMATORS.get(record["estimator"], str(record["estimator"]))


def by_alpha(arms: Sequence[Mapping[str, Any]], place: Mapping[str, Any]) -> tuple[float, float] | None:
    """The least and the greatest change at the output that a control gives in the same layer or head, if it was run."""
    same = [
        arm["hidden_change"]
        for arm in arms
        if arm["control"] and (arm["layer"], arm["head"]) == (place["layer"], place["head"])
    ]
    return (min(same), max(same)) if same else None


def finding(results: Mapping[str, Any], words: Wording) -> str:
    """What came out for the exact estimator, or for the last one where exact was not asked for, and of ablations.

    Args:
        results: What ``tabulated`` returned.
        words: What its numbers are called.

    Returns:
        A few sentences; empty if there is neither an estimator nor an ablation.
    """
    removed = list(_removed(results, words))
    arms = [arm for arm in results["arms"] if arm["where"] == "model"]
    estimators = [arm for arm in arms if not arm["control"] and arm["estimator"] != "model"]
    if not estimators:
        return " ".join(removed)
    arm = next((arm for arm in estimators if arm["estimator"] == "exact"), estimators[-1])
    name = _SENTENCE_NAMES.get(arm["estimator"], str(arm["estimator"]))
    quality = results["quality"]
    if quality is None:
        first = _moved(name, arm, words)
    else:
        first = " ".join([_changed(name, arm, results, words), *_beside(name, arm, arms[0], quality, words)])
    smoothing = next((s for s in results["smoothing"] if s["estimator"] == arm["estimator"]), None)
    return " ".join(part for part in (first, _smoothed(smoothing, words), *removed) if part)


def _removed(results: Mapping[str, Any], words: Wording) -> Iterator[str]:
    """A sentence an ablation: of how many heads it says that they matter, and which most."""
    quality = results["quality"]
    for record in results.get("ranking", ()):
        if record["estimator"] not in ABLATIONS or not record["order"]:
            continue
        order, where = record["order"], record["where"]
        measure = words.sentences.get(record["measure"]) or (
            "the sentence embeddings" if record["measure"] == "embedding_change" else f"the {words.output}"
        )
        first = order[0]
        place = f"layer {first['layer']}" + (f", head {first['head']}" if where == "head" else "")
        told = [one for one in order if one["effect_low"] is not None]
        sure = sum(one["effect_low"] > 0 or one["effect_high"] < 0 for one in told)
        spread = within(first, "effect") if first["effect_low"] is not None else "without an interval"
        sentence = (
            f"With {ESTIMATORS[record['estimator']]} in place of one {where}, {measure} "
            f"{'is worst at' if quality else 'move most by'} {place}: {signed(first['effect'])} {spread}"
        )
        if told and quality:
            sentence += (
                f"; of {count(len(told))} {where}s, {count(sure) if sure else 'none'} "
                f"{'has' if sure == 1 else 'have'} a 95 % interval without 0 (by chance about {0.05 * len(told):.2g} "
                "would)"
            )
        yield f"{sentence}."


def _level(value: float | None) -> str:
    """A value to four digits; a rank correlation has none where all similarities of an arm are equal."""
    return "undefined" if value is None else f"{value:.4f}"


def _changed(name: str, arm: Mapping[str, Any], results: Mapping[str, Any], words: Wording) -> str:
    quality, units, model = results["quality"], results["units"], results["arms"][0]
    difference = arm[f"{quality}_difference"]
    head = f"{name} takes {words.sentences[quality]} from {_level(model[quality])} to {_level(arm[quality])}"
    named = "pairs" if quality == "score_correlation" else "documents"
    unit = named if named in units else next(iter(units))
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
        head += ", an improvement" if _is_better(quality, difference) else ", for the worse"
    return f"{head}. {_controlled(arm, results)}"


def _is_better(quality: str, difference: float) -> bool:
    return difference < 0 if quality == "loss" else difference > 0


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


def _controlled(arm: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    quality, arms = results["quality"], results["arms"]
    compared = next((c for c in results["against_control"] if c["estimator"] == arm["estimator"]), None)
    if compared is None:
        return "No control was run, so it may be smoothing."
    controls = [one for one in arms if one["where"] == "model" and one["control"] and one["alpha"] != 1]
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
    sentence = (
        f"Against the best control (first order at α = {_alphas(compared)}, chosen on one half and compared on the "
        f"other) it is {signed(compared['difference'])} {within(compared, 'difference')}"
    )
    if low <= 0 <= high:
        sentence += ": no evidence of more than smoothing"
    elif _is_better(quality, compared["difference"]):
        sentence += ": better than the best of them"
    else:
        sentence += ": α alone does better"
    return f"{sentence}; {spans}{place}."


def _alphas(record: Mapping[str, Any]) -> str:
    return " and ".join(f"{alpha:g}" for alpha in sorted(set(record["chosen_alphas"])))


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


def share_left_in_words(smoothing: Mapping[str, Any]) -> str:
    """What the interval of the share that the nearest control leaves of a change says, and no more.

    Example:
        >>> share_left_in_words({"share_left_low": 0.22, "share_left_high": 7.4})
        'whether any α comes nearer than the model itself cannot be told'
    """
    if smoothing["share_left_high"] < 1:
        return "that part is not what one α for all heads gives"
    if smoothing["share_left_low"] > 1:
        return "no α comes nearer than the model itself"
    return "whether any α comes nearer than the model itself cannot be told"


def _smoothed(smoothing: Mapping[str, Any] | None, words: Wording) -> str:
    if smoothing is None:
        return ""
    what = words.output if smoothing["measure"] == "hidden_change" else "embeddings"
    share = smoothing["share_left"]
    if share is None or smoothing["share_left_low"] is None:
        return f"The nearest control for its {what} is first order at α = {smoothing['nearest_alpha']:g}."
    left = (
        f"{percent(share)} [{percent(smoothing['share_left_low'])}, {percent(smoothing['share_left_high'])}]"
    )
    return (
        f"Of the change of its {what}, {left} is left between it and the nearest control (first order at α = "
        f"{_alphas(smoothing)}), so {share_left_in_words(smoothing)}."
    )
