"""Tables of a swap: paired effects of every condition with bootstrap intervals, on the same resamples of units.

To tell whether a change is more than smoothing, a condition is compared with the best of the controls, which are first
order at other α. The control is selected by the measure of the comparison, so selecting and comparing on the same units
would be biased: the units are split into two random halves, and the control for each half is selected on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fenchel.bootstrap import FEWEST, Bootstrap, Interval, correlation, midranks, spearman
from fenchel.errors import ModelError
from fenchel.swap.conditions import Condition
from fenchel.swap.observation import Task
from fenchel.swap.tasks import SentenceTask

Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Metric:
    """A statistic of a condition on weighted samples of units.

    Attributes:
        units: Number of units.
        of: Function of the key of a condition and (R, N) weights, the multiplicity of units in R samples, that returns
            (R,) float64.
        lower_is_better: Whether less is better.
        rounding: Bound on the rounding of a difference between conditions, which intervals of differences include.
    """

    units: int
    of: Callable[[str, Tensor], Tensor]
    lower_is_better: bool = False
    rounding: float = 0.0

    def of_all(self, condition: str) -> float:
        """The metric of a condition on all units."""
        return float(self.of(condition, torch.ones(1, self.units, dtype=torch.float64)))


def token_mean(sums: Mapping[str, Tensor], counts: Tensor, *, lower_is_better: bool = True) -> Metric:
    """Sum of a quantity over the units, divided by the sum of counts (tokens, for a loss).

    Args:
        sums: (N,) for each condition.
        counts: (N,), at least 0.
        lower_is_better: Whether less is better.
    """
    counts = counts.to(torch.float64)
    return Metric(
        len(counts),
        lambda condition, weights: weights @ sums[condition].to(torch.float64) / (weights @ counts),
        lower_is_better,
    )


def score_correlation(similarities: Mapping[str, Tensor], scores: Tensor) -> Metric:
    """Spearman's correlation of a condition's similarities with given scores; the unit is a pair.

    Args:
        similarities: (N,) for each condition.
        scores: (N,).
    """
    return Metric(len(scores), lambda condition, weights: spearman(similarities[condition], scores, weights))


def ranking_agreement(
    similarities: Mapping[str, Tensor], model: str, pairs: Tensor, sentences: int
) -> Metric:
    """Spearman's correlation of a condition's similarities of pairs with the model's own; the unit is a sentence.

    A sentence is in many pairs, so pairs are not resampled independently: the weight of a pair is the product of the
    weights of its sentences.

    Args:
        similarities: (P,) for each condition.
        model: Key of the model's own condition.
        pairs: (P, 2) numbers of the sentences.
        sentences: How many.
    """
    first, second = pairs.T

    def agreement(condition: str, weights: Tensor) -> Tensor:
        result = []
        # There are more pairs than sentences: use smaller blocks.
        for rows in weights.split(max(1, 4_000_000 // max(1, len(first)))):
            both = rows[:, first] * rows[:, second]
            own, other = (midranks(similarities[key], both) for key in (model, condition))
            result.append(correlation(own, other, both))
        return torch.cat(result)

    return Metric(sentences, agreement)


@dataclass(frozen=True)
class AgainstControl:
    """Comparison of a condition with the best control.

    Attributes:
        chosen: The control selected for each half on the other; empty where there are too few units to split.
        best: The best control on all units, for information.
        compared: The condition's metric minus that of the selected control, or the control's alone, with an interval:
            of all units if both halves select the same control, else the mean over the halves; None where there are
            too few units.
    """

    chosen: tuple[str, ...]
    best: str
    compared: Interval | None


def halves(units: int, seed: int) -> list[Tensor]:
    """Split the units into two random halves, each in order."""
    order = torch.randperm(units, generator=torch.Generator().manual_seed(seed))
    return [order[0::2].sort().values, order[1::2].sort().values]


def _best(metric: Metric, controls: Sequence[str], weights: Tensor) -> str:
    values = [float(metric.of(control, weights)) for control in controls]
    sign = 1 if metric.lower_is_better else -1
    # An undefined value (all similarities equal) is never the best.
    return min(
        zip(controls, values, strict=True),
        key=lambda pair: sign * pair[1] if pair[1] == pair[1] else float("inf"),
    )[0]


def against_best_control(
    metric: Metric, condition: str | None, controls: Sequence[str], bootstrap: Bootstrap
) -> AgainstControl:
    """Compare a condition with the best control, selected on one half of the units, compared on the other, both ways.

    Args:
        metric: The compared metric.
        condition: The condition; None for the metric of the selected controls itself.
        controls: The controls, at least one.
        bootstrap: Resamples each half separately; the selection is fixed, so the interval does not include its
            uncertainty.

    Returns:
        The comparison.
    """
    everything = torch.ones(1, metric.units, dtype=torch.float64)
    best = _best(metric, controls, everything)
    split = halves(metric.units, bootstrap.seed)
    if min(map(len, split)) < 2:
        return AgainstControl((), best, None)
    inside = [torch.zeros(metric.units, dtype=torch.float64).index_fill_(0, half, 1.0) for half in split]
    chosen = tuple(_best(metric, controls, other[None]) for other in reversed(inside))

    parts = list(zip(inside, chosen, strict=True))
    if len(set(chosen)) == 1:
        parts = [(everything.squeeze(0), chosen[0])]

    def difference(weights: Tensor) -> Tensor:
        result = []
        for members, control in parts:
            value = metric.of(control, weights * members)
            result.append(value if condition is None else metric.of(condition, weights * members) - value)
        return torch.stack(result).mean(0)

    compared = bootstrap.interval(difference, metric.units, split).widened(metric.rounding)
    return AgainstControl(chosen, best, compared)


def named(name: str, interval: Interval | None) -> Record:
    """Entries of a record for an estimate and its interval; None where they are unknown."""
    values = (None, None, None) if interval is None else interval.span
    # An undefined value (a ranking of equal similarities) is missing: JSON knows no NaN.
    return {
        key: None if value is None or value != value else float(value)
        for key, value in zip((name, f"{name}_low", f"{name}_high"), values, strict=True)
    }


def by_effect(conditions: Sequence[Record], quality: str | None) -> tuple[str, str, list[Record]]:
    """Order single heads or layers by their measured effect.

    Args:
        conditions: The records of a swap.
        quality: The loss or score of the comparison; None to use the change of the output.

    Returns:
        The measure, the name of the effect in a record, and the records, the most harmful first, or without a quality
        the largest change first; those without an effect last.
    """
    measure = name = "embedding_change" if "embedding_change" in conditions[0] else "hidden_change"
    if quality is not None:
        measure, name = quality, f"{quality}_difference"
    sign = -1 if quality in (None, "loss") else 1
    return (
        measure,
        name,
        sorted(conditions, key=lambda condition: (condition[name] is None, sign * (condition[name] or 0.0))),
    )


def ranking(conditions: Sequence[Record], quality: str | None) -> list[Record]:
    """Rank heads, or layers where no head was swapped alone, by their measured effect.

    Args:
        conditions: The records of a swap.
        quality: The loss or score of the comparison; None to use the change of the output.

    Returns:
        A record per estimator or ablation: ``estimator``, ``where`` (``head`` or ``layer``), ``measure`` and ``order``,
        that of :func:`by_effect`. Entries have ``layer``, ``head``, ``module`` and ``effect``, the difference from the
        model, with ``effect_low`` and ``effect_high``.
    """
    alone = [one for one in conditions if one["where"] != "model" and not one["control"]]
    where = "head" if any(condition["where"] == "head" for condition in alone) else "layer"
    measure, name, ordered = by_effect(conditions, quality)
    result = []
    for estimator in dict.fromkeys(condition["estimator"] for condition in alone):
        order = [
            {
                **{key: condition[key] for key in ("layer", "head", "module")},
                **{f"effect{end}": condition[f"{name}{end}"] for end in ("", "_low", "_high")},
            }
            for condition in ordered
            if condition["where"] == where and condition["estimator"] == estimator
        ]
        result.append({"estimator": estimator, "where": where, "measure": measure, "order": order})
    return result


class Tables:
    """The tables of a swap.

    Args:
        conditions: The conditions, the model itself first.
        measured: Measurements of ``SwapRun``, with units in the first dimension.
        stacks: Number of layers of each stack, that of the output last.
        task: The task, which names the rows of the measurements. Documents are resampled with all of their rows.
        bootstrap: Bootstrap of the intervals.
        eps: The machine epsilon of the model's dtype.
    """

    def __init__(
        self,
        conditions: Sequence[Condition],
        measured: Mapping[str, Tensor],
        stacks: Mapping[str, int],
        task: Task,
        bootstrap: Bootstrap,
        eps: float,
    ) -> None:
        self._conditions, self._stacks, self._bootstrap, self._eps = conditions, stacks, bootstrap, eps
        self._keys = [condition.key for condition in conditions]
        self._controls = [condition for condition in conditions if condition.is_model_wide_control]
        # Without α = 1, which is the model itself.
        self._others = {one.key: one.alpha for one in self._controls if one.alpha != 1}
        self._estimators = [condition for condition in conditions if condition.is_model_wide_estimator]
        self.units = {task.unit: len(measured["documents"])}
        self._measured = measured = self._by_document(measured)
        self._qualities: dict[str, Metric] = {}
        hidden = self._columns(measured["hidden"][:, :, -1])
        self._changes = {"hidden_change": token_mean(hidden, measured["tokens"][:, -1])}
        if isinstance(task, SentenceTask):
            self._compare_embeddings(task, measured["embeddings"])
        counts = measured["counts"]
        if (losses := measured.get("losses")) is not None:
            labels = measured.get("labels", counts)
            metric = token_mean(self._columns(losses), labels)
            # A loss rounded to eps is off by eps/√12 times itself in standard deviation, a difference of two by √2
            # times that: eps is more than two standard deviations, of a mean of n independent ones eps/√n.
            rounding = eps * abs(metric.of_all(self._keys[0])) / float(labels.sum()) ** 0.5
            self._qualities["loss"] = replace(metric, rounding=rounding)
        if (scores := measured.get("scores")) is not None:
            self._qualities["score"] = token_mean(self._columns(scores), counts, lower_is_better=False)
        # The first quality, by which conditions are compared.
        self.quality = next(iter(self._qualities), None)

    def results(self) -> Record:
        """Everything as JSON values.

        Returns:
            ``conditions`` (a record each), ``layers`` (change of a layer's output under every model-wide condition),
            ``against_control`` (better or worse than the best control, where there is a loss or a score), ``smoothing``
            (what the nearest control leaves of the change) and ``ranking`` (see there).
        """
        conditions = self.conditions()
        return {
            "units": self.units,
            "quality": self.quality,
            "conditions": conditions,
            "layers": self.layers(),
            "against_control": self.against_control(),
            "smoothing": self.smoothing(),
            "ranking": ranking(conditions, self.quality),
        }

    def _by_document(self, measured: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Measurements summed over the units of each document."""
        documents, of = measured["documents"].unique(return_inverse=True)
        ones = torch.ones(len(of), dtype=torch.float64)
        if len(documents) == len(of):
            return {**measured, "counts": ones}
        self.units["documents"] = len(documents)
        return {
            name: values.new_zeros((len(documents), *values.shape[1:]), dtype=torch.float64).index_add_(
                0, of, values.double()
            )
            for name, values in {**measured, "counts": ones}.items()
        }

    def _columns(self, values: Tensor) -> dict[str, Tensor]:
        return {key: values[:, index].double() for index, key in enumerate(self._keys)}

    def _compare_embeddings(self, task: SentenceTask, embeddings: Tensor) -> None:
        def similarities(pairs: Tensor) -> dict[str, Tensor]:
            # One condition at a time: all at once would need several times the memory of the embeddings.
            result = {}
            for index, key in enumerate(self._keys):
                first, second = (embeddings[side, index].double() for side in pairs.T)
                result[key] = (first * second).sum(-1)
            return result

        ranked = similarities(task.ranked)
        own = ranked[self._keys[0]]
        if not bool((own != own[0]).any()):
            raise ModelError(
                f"the model gives all {len(own)} pairs of sentences the same similarity ({float(own[0]):.4g}), so "
                "there is no ranking to compare. Use a model whose embeddings differ from sentence to sentence."
            )
        self._moved = {key: _apart(embeddings[:, i], embeddings[:, 0]) for i, key in enumerate(self._keys)}
        self._changes["embedding_change"] = token_mean(self._moved, torch.ones(len(embeddings)))
        self._changes["ranking_agreement"] = (
            ranking_agreement(ranked, self._keys[0], task.ranked, len(embeddings))
            if task.by_sentence
            else score_correlation(ranked, own)
        )
        if task.scored is not None and task.scores is not None:
            self.units["pairs"] = len(task.scored)
            scored = similarities(task.scored)
            self._qualities["score_correlation"] = score_correlation(scored, task.scores)

    def conditions(self) -> list[Record]:
        """A record per condition."""
        own = {name: self._samples(metric, self._keys[0]) for name, metric in self._qualities.items()}
        records = []
        for condition in self._conditions:
            record: Record = {
                "where": condition.where,
                "estimator": condition.estimator or "model",
                "alpha": condition.alpha,
                "control": condition.is_control,
                "layer": condition.layer,
                "head": condition.head,
                "module": condition.name,
            }
            if condition.together:
                record["together"] = [f"L{layer}H{head}" for layer, _, head in condition.together]
            for name, metric in self._qualities.items():
                record |= self._quality(name, metric, condition.key, own[name])
            for name, metric in self._changes.items():
                # A single head hardly changes a ranking, and resampling it is expensive.
                with_interval = name != "ranking_agreement" or condition.where == "model"
                record |= self._interval(name, metric, condition.key, with_interval)
                if name == "embedding_change":
                    record["embedding_change_p95"] = float(torch.quantile(self._moved[condition.key], 0.95))
            records.append(record)
        return records

    def _samples(self, metric: Metric, condition: str) -> Tensor:
        """The metric of a condition in every resample; of too few units there are none."""
        if metric.units < FEWEST:
            return torch.empty(0)
        units = torch.arange(metric.units)
        return self._bootstrap.samples(lambda weights: metric.of(condition, weights), [units], metric.units)

    def _quality(self, name: str, metric: Metric, condition: str, own: Tensor) -> Record:
        """A metric of a condition and its difference from the model's, on the same resamples."""
        value = metric.of_all(condition)
        difference = value - metric.of_all(self._keys[0])
        samples = own if condition == self._keys[0] else self._samples(metric, condition)
        apart = Bootstrap.around(difference, samples - own).widened(metric.rounding if difference else 0.0)
        return named(name, Bootstrap.around(value, samples)) | named(f"{name}_difference", apart)

    def layers(self) -> list[Record]:
        """A record for every layer and model-wide condition."""
        numbered = [
            (index, stack, layer)
            for index, (stack, count) in enumerate(self._stacks.items())
            for layer in range(1, count + 1)
        ]
        records = []
        for (index, stack, layer), hidden in zip(numbered, self._measured["hidden"].unbind(-1), strict=True):
            metric = token_mean(self._columns(hidden), self._measured["tokens"][:, index])
            for condition in [*self._controls, *self._estimators]:
                place = {
                    "stack": stack,
                    "layer": layer,
                    "estimator": condition.estimator,
                    "alpha": condition.alpha,
                }
                records.append(place | self._interval("hidden_change", metric, condition.key))
        return records

    def against_control(self) -> list[Record]:
        """A record for every model-wide estimator, where there is a quality and a control."""
        if self.quality is None or not self._others:
            return []
        records = []
        for condition in self._estimators:
            metric = self._qualities[self.quality]
            compared = self._against_best_control(metric, condition.key, "best_alpha", "difference")
            records.append({"estimator": condition.estimator, "measure": self.quality, **compared})
        return records

    def _against_best_control(
        self, metric: Metric, condition: str | None, best: str, compared: str
    ) -> Record:
        """Results of :func:`against_best_control` under these names."""
        result = against_best_control(metric, condition, list(self._others), self._bootstrap)
        return {
            best: self._others[result.best],
            "chosen_alphas": [self._others[key] for key in result.chosen],
            **named(compared, result.compared),
        }

    def smoothing(self) -> list[Record]:
        """A record for every model-wide estimator that changes more than rounding does, where there is a control."""
        embeddings, records = self._measured.get("embeddings"), []
        others = [self._keys[0], *(control.key for control in self._controls)]
        for number, condition in enumerate(self._estimators if self._others else ()):
            # Distances of each unit to the model and to each control, and their normalization.
            if embeddings is None:
                columns = self._measured["distances"][:, number].double().unbind(-1)
                measure, of = "hidden_change", float(self._measured["tokens"][:, -1].sum())
            else:
                apart = embeddings[:, self._keys.index(condition.key)]
                columns = [_apart(apart, embeddings[:, self._keys.index(key)]) for key in others]
                measure, of = "embedding_change", len(embeddings)
            own, *to_controls = columns
            # 1 - cosine of vectors of length 1 is half the square of their distance.
            rounding = self._eps if embeddings is None else self._eps**2 / 2
            if not float(own.sum()) / of > rounding:
                continue
            distances = dict(zip(others[1:], to_controls, strict=True))
            records.append(
                {
                    "estimator": condition.estimator,
                    "measure": measure,
                    "distance_to_model": float(own.sum()) / of,
                    "distance_to_control": [
                        {"alpha": control.alpha, "distance": float(distances[control.key].sum()) / of}
                        for control in self._controls
                    ],
                    **self._against_best_control(
                        token_mean(distances, own), None, "nearest_alpha", "share_left"
                    ),
                }
            )
        return records

    def _interval(self, name: str, metric: Metric, condition: str, with_interval: bool = True) -> Record:
        if not with_interval or condition == self._keys[0]:
            return named(name, Interval(metric.of_all(condition)))
        return named(
            name, self._bootstrap.interval(lambda weights: metric.of(condition, weights), metric.units)
        )


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """1 - cosine of vectors of length 1, without cancellation where they are close."""
    return (one.double() - other.double()).square().sum(-1) / 2
