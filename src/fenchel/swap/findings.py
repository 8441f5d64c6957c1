"""Results of a swap in sentences supported by the intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fenchel.arguments import Kind
from fenchel.auditing.heads import HeadKey, head_name, layer_name
from fenchel.bootstrap import CONCLUSIVE, Interval
from fenchel.drawing import bracketed, count, percent, signed
from fenchel.run_options import ABLATIONS

# Names of estimators and ablations in tables and figures.
ESTIMATORS = {
    "model": "model",
    "second_order": "second order",
    "exact": "exact",
    "zero": "no output",
    "mean": "mean output",
    "uniform": "equal weights",
    "preference": "preference alone",
}

_SENTENCE_NAMES = {"exact": "Exact inference", "second_order": "Second-order inference"}


@dataclass(frozen=True)
class Wording:
    """Names of the measures of a swap, which depend on its task.

    Attributes:
        qualities: Labels of the losses and scores, by their names in the records.
        sentences: Their names within a sentence.
        tiles: Their names as short headings.
        output: Name of the outputs of the model.
        change: Short heading of their change.
        formula: Formula of that change.
        read: The input of the model, after "the same weights".
        labels: Names of its source, by entry of the manifest.
        multiplied: Whether the α of controls multiplies that of layers.
        layers: Kind and number within that kind of every layer, as in audits; empty where all are of one kind.
        eps: The machine epsilon of the model's dtype; a smaller relative change of outputs is rounding.
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
    layers: Mapping[int, tuple[Kind, int]] = field(default_factory=dict)
    eps: float = 0.0


_CORRELATION = "Spearman's correlation with the scores"
_OF_TEXT = Wording(
    qualities={"loss": "loss per token, nats", "score_correlation": _CORRELATION},
    sentences={"loss": "the loss per token", "score_correlation": _CORRELATION},
    tiles={"loss": "Loss per token", "score_correlation": "Correlation with scores"},
    labels={"texts": "Text", "pairs": "Pairs"},
)


def wording(manifest: Mapping[str, Any]) -> Wording:
    """The names of the measures of a swap.

    Example:
        >>> wording({"task": "masked"}).qualities["loss"]
        'loss per token, nats'
        >>> wording({"task": "examples", "unit": "images", "measures": {"score": "accuracy"}}).tiles["score"]
        'Accuracy'
    """
    layers = {one["number"]: (one["kind"], one["layer"]) for one in manifest.get("modules", ())}
    eps = torch.finfo(getattr(torch, manifest.get("dtype", "float64"))).eps
    if manifest.get("task") != "examples":
        return replace(_OF_TEXT, layers=layers, eps=eps)
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
        layers=layers,
        eps=eps,
    )


def place_name(record: Mapping[str, Any], words: Wording) -> str:
    """Name of a layer or head that was swapped alone, as audits name it; with the layer's number if that differs.

    Example:
        >>> place_name({"layer": 6, "head": 2}, wording({}))
        'Layer 6, head 2'
        >>> place_name({"layer": 6, "head": 2}, replace(wording({}), layers={6: ("cross", 2)}))
        'Cross-attention, layer 2, head 2 (--layers 6)'
    """
    number, head = record["layer"], record["head"]
    several = number in words.layers
    kind, layer = words.layers.get(number, ("encoder_self", number))
    name = layer_name(kind, layer, several_kinds=several)
    if head is not None:
        name = head_name(HeadKey(kind, layer, head), several_kinds=several)
    return f"{name} (--layers {number})" if several else name


def interval_of(record: Mapping[str, Any], name: str) -> Interval:
    """The interval of a measure in a record of a swap.

    Example:
        >>> interval_of({"x": 0.001, "x_low": -0.001, "x_high": 0.0031}, "x")
        Interval(estimate=0.001, low=-0.001, high=0.0031)
    """
    return Interval(record[name], record[f"{name}_low"], record[f"{name}_high"])


def resampled(results: Mapping[str, Any], measure: str) -> tuple[str, int]:
    """Name, in the plural, and number of the units that the intervals of a measure resample.

    Example:
        >>> resampled({"units": {"windows": 40, "documents": 12}}, "loss")
        ('documents', 12)
    """
    units, usual = results["units"], "pairs" if measure == "score_correlation" else "documents"
    unit = usual if usual in units else next(iter(units))
    return unit, units[unit]


def too_few(results: Mapping[str, Any], measure: str) -> str:
    """Statement that there are too few units for a conclusion from the intervals of a measure; empty if there are not.

    Example:
        >>> too_few({"units": {"windows": 5}}, "loss"), too_few({"units": {"windows": 10}}, "loss")
        ('too few windows for a conclusion', '')
    """
    unit, number = resampled(results, measure)
    return f"too few {unit} for a conclusion" if number < CONCLUSIVE else ""


def within(interval: Interval) -> str:
    """An interval of a difference in brackets, after a space; empty without one.

    Example:
        >>> within(Interval(0.001, -0.001, 0.0031)), within(Interval(0.001))
        (' [−0.0010, +0.0031]', '')
    """
    return "" if interval.low is None else f" {bracketed(interval.low, interval.high)}"


def condition_name(record: Mapping[str, Any]) -> str:
    """Name of a condition in tables and figures.

    Example:
        >>> condition_name({"estimator": "first_order", "alpha": 0.8})
        'α = 0.8'
    """
    if record["estimator"] == "first_order":
        return f"α = {record['alpha']:g}"
    name = ESTIMATORS.get(record["estimator"], str(record["estimator"]))
    return f"{name}, {len(record['together'])} heads" if "together" in record else name


def main_condition(results: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The whole model under the exact estimator, or the last one if exact was not requested; None without any."""
    whole = [
        record
        for record in results["conditions"]
        if record["where"] == "model" and not record["control"] and "together" not in record
    ]
    return next(
        (record for record in whole if record["estimator"] == "exact"), whole[-1] if len(whole) > 1 else None
    )


def finding(results: Mapping[str, Any], words: Wording) -> str:
    """Results of the exact estimator, or of the last one if exact was not requested, and of ablations.

    Args:
        results: The tables of a swap.
        words: Names of its measures.

    Returns:
        A few sentences, a line for the estimator and one per ablation; empty if there are neither.
    """
    removed = [*_removed(results, words), *_removed_together(results, words)]
    if (record := main_condition(results)) is None:
        return "\n".join(removed)
    name = _SENTENCE_NAMES.get(record["estimator"], str(record["estimator"]))
    smoothing = next((s for s in results["smoothing"] if s["estimator"] == record["estimator"]), None)
    if (quality := results["quality"]) is None:
        measured = [_moved(name, record, words)]
    else:
        others = (other for other in words.sentences if other != quality and record.get(other) is not None)
        measured = [_changed(name, record, results, words)]
        measured += (f"{_taken(name, other, record, results, words)}." for other in others)
    smoothed = [] if smoothing is None else [_smoothed(smoothing, results, words)]
    return "\n".join([" ".join([*measured, *smoothed]), *removed])


def _removed(results: Mapping[str, Any], words: Wording) -> Iterator[str]:
    """A sentence per ablation, with the extreme heads and the number of significant effects; and a warning."""
    quality = results["quality"]
    ranked = [one for one in results.get("ranking", ()) if one["estimator"] in ABLATIONS]
    for record in ranked:
        order, where = [one for one in record["order"] if one["effect"] is not None], record["where"]
        if not order:
            continue
        measure = words.sentences.get(record["measure"]) or (
            "the sentence embeddings" if record["measure"] == "embedding_change" else f"the {words.output}"
        )
        effects = [interval_of(one, "effect") for one in order]
        worst, best = worst_and_best(quality)
        most, least = (f"is {worst}", best) if quality else ("change most", "least")
        sentence = (
            f"With {ESTIMATORS[record['estimator']]} in place of one {where}, {measure} {most} for "
            f"{_effect_at(order[0], words)}"
        )
        if len(order) > 1:
            sentence += f", and {least} for {_effect_at(order[-1], words)}"
        known = sum(effect.low is not None for effect in effects)
        sure = sum(effect.direction != 0 for effect in effects)
        few = too_few(results, quality) if quality else ""
        if known > 1 and quality and not few:
            which = f"{directions(effects, measure)}; " if sure else ""
            sentence += (
                f"; of {count(known)} {where}s, {count(sure) if sure else 'none'} {'has' if sure == 1 else 'have'} a "
                f"95 % interval that excludes 0 ({which}about {0.05 * known:.2g} expected by "
                "chance)"
            )
        yield f"{sentence}; {few}." if few else f"{sentence}."
    if any(len(record["order"]) > 1 for record in ranked):
        singles = f"Effects of single {ranked[0]['where']}s do not add up"
        yield f"{singles}: before removing several, measure them together (--together)."


def _removed_together(results: Mapping[str, Any], words: Wording) -> Iterator[str]:
    """A sentence per ablation of several heads at once."""
    for record in results["conditions"]:
        if "together" not in record:
            continue
        name = f"{ESTIMATORS[record['estimator']].capitalize()} in {', '.join(record['together'])} together"
        if (quality := results["quality"]) is None:
            yield _moved(name, record, words)
        else:
            few = too_few(results, quality)
            yield f"{_taken(name, quality, record, results, words)}{f': {few}' if few else ''}."


def worst_and_best(quality: str | None) -> tuple[str, str]:
    """Words for the most and the least harmful value of a loss or score.

    Example:
        >>> worst_and_best("loss"), worst_and_best("accuracy")
        (('highest', 'lowest'), ('lowest', 'highest'))
    """
    return ("highest", "lowest") if quality == "loss" else ("lowest", "highest")


def _effect_at(record: Mapping[str, Any], words: Wording) -> str:
    """The place of an ablation and its effect, in a sentence."""
    place, effect = place_name(record, words), interval_of(record, "effect")
    return (
        f"{place[0].lower()}{place[1:]}: {signed(effect.estimate)}{within(effect) or ' without an interval'}"
    )


def directions(effects: Sequence[Interval], measure: str) -> str:
    """The number of effects whose intervals are above 0, and below.

    Example:
        >>> directions([Interval(0.2, 0.1, 0.3), Interval(0.1, -0.1, 0.3), Interval(0.4, 0.3, 0.5)], "the loss")
        '2 raise and 0 lower the loss'
    """
    above, below = (sum(effect.direction == sign for effect in effects) for sign in (1, -1))
    return f"{count(above)} raise{'s' * (above == 1)} and {count(below)} lower{'s' * (below == 1)} {measure}"


def _level(value: float | None) -> str:
    """A value to four digits; a rank correlation is undefined if all similarities of a condition are equal.

    Example:
        >>> _level(-0.09812), _level(None)
        ('−0.0981', 'undefined')
    """
    return "undefined" if value is None else f"{value:.4f}".replace("-", "−")


def _taken(
    name: str, quality: str, record: Mapping[str, Any], results: Mapping[str, Any], words: Wording
) -> str:
    """The values of a loss or score in the model and in a condition, and their difference with its interval."""
    model, difference = results["conditions"][0], interval_of(record, f"{quality}_difference")
    return (
        f"{name} changes {words.sentences[quality]} from {_level(model[quality])} to {_level(record[quality])}, by "
        f"{signed(difference.estimate)}{within(difference)}"
    )


def _changed(name: str, record: Mapping[str, Any], results: Mapping[str, Any], words: Wording) -> str:
    quality = results["quality"]
    unit, number = resampled(results, quality)
    taken = _taken(name, quality, record, results, words)
    difference = interval_of(record, f"{quality}_difference")
    if difference.low is None:
        few = f"one {unit[:-1]} gives" if number == 1 else f"{count(number)} {unit} give"
        return f"{taken}; {few} no interval, so this may be chance."
    taken = f"{taken} (95 % over {count(number)} {unit})"
    if few := too_few(results, quality):
        return f"{taken}: {few}."
    verdicts = (", an improvement", ", not distinguishable from no change", ", for the worse")
    verdict = _verdict(difference, quality, verdicts)
    return f"{taken}{verdict}. {_against_controls(record, results)}"


def _verdict(difference: Interval, quality: str, words: tuple[str, str, str]) -> str:
    """Select the words for better, undecided or worse by the interval of a difference."""
    return words[1 + difference.direction * (1 if quality == "loss" else -1)]


def _against_controls(record: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    quality, records = results["quality"], results["conditions"]
    compared = next((c for c in results["against_control"] if c["estimator"] == record["estimator"]), None)
    if compared is None:
        return "Without a control, this may be smoothing."
    controls = [one for one in records if one["where"] == "model" and one["control"] and one["alpha"] != 1]
    values = [control[quality] for control in controls if control[quality] is not None]
    spans, place = "", ""
    if len(values) > 1:
        spans = f"first order with other α gives {_level(min(values))} to {_level(max(values))}"
        inside = record[quality] is not None and min(values) <= record[quality] <= max(values)
        place = f", a range that {'includes' if inside else 'excludes'} this value"
    elif values:
        spans = f"the control gives {_level(values[0])}"
    difference = interval_of(compared, "difference")
    if difference.low is None:
        return f"There are too few units to choose a control on one half and compare on the other; {spans}."
    several = len(controls) > 1
    chosen = ", chosen on one half and compared on the other" if several else ""
    control = "best control" if several else "control"
    verdicts = (f"better than the {control}", "no evidence of more than smoothing", "the control is better")
    return (
        f"Against the {control} (first order at α = {_alphas(compared)}{chosen}) it is "
        f"{signed(difference.estimate)}{within(difference)}: {_verdict(difference, quality, verdicts)}; {spans}{place}."
    )


def _alphas(record: Mapping[str, Any]) -> str:
    return " and ".join(f"{alpha:g}" for alpha in sorted(set(record["chosen_alphas"])))


def _moved(name: str, record: Mapping[str, Any], words: Wording) -> str:
    if record.get("embedding_change") is None:
        change = interval_of(record, "hidden_change")
        rounding = ", no more than rounding" if change.estimate <= words.eps else ""
        return f"{name} changes the {words.output} by {_share(change)} of their norm on average{rounding}."
    kept = interval_of(record, "ranking_agreement")
    spread = "; too few sentences for an interval"
    if kept.low is not None:
        spread = f" [{_level(kept.low)}, {_level(kept.high)}]"
    return (
        f"{name} changes the sentence embeddings by 1 − cosine = {record['embedding_change']:.2g} on average (95 % of "
        f"them by at most {record['embedding_change_p95']:.2g}); relative to the model, the ranking of similarities "
        f"has a Spearman correlation of {_level(kept.estimate)}{spread}."
    )


def _share(interval: Interval) -> str:
    """A share with its interval, if any."""
    spread = "" if interval.low is None else f" [{percent(interval.low)}, {percent(interval.high)}]"
    return f"{percent(interval.estimate)}{spread}"


def share_left_in_words(smoothing: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """The conclusion from the interval of the share of a change not explained by the nearest control.

    Example:
        >>> smoothing = {"measure": "hidden_change", "share_left_low": 0.22, "share_left_high": 7.4}
        >>> share_left_in_words(smoothing, {"units": {"texts": 20}})
        'it is undetermined whether any α of the control is nearer than the model itself'
    """
    if few := too_few(results, smoothing["measure"]):
        return few
    if smoothing["share_left_high"] < 1:
        return "no α of the control reproduces that part"
    if smoothing["share_left_low"] > 1:
        return "no α of the control is nearer than the model itself"
    return "it is undetermined whether any α of the control is nearer than the model itself"


def _smoothed(smoothing: Mapping[str, Any], results: Mapping[str, Any], words: Wording) -> str:
    what = words.output if smoothing["measure"] == "hidden_change" else "embeddings"
    left = interval_of(smoothing, "share_left")
    if left.low is None:
        return f"The nearest control for its {what} is first order at α = {smoothing['nearest_alpha']:g}."
    return (
        f"The nearest control (first order at α = {_alphas(smoothing)}) leaves {_share(left)} of the change of its "
        f"{what} unexplained: {share_left_in_words(smoothing, results)}."
    )
