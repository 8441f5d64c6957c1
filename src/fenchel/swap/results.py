"""From what every unit gave under every arm to the tables of a swap, each number with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fenchel.errors import ModelError
from fenchel.swap.arms import Arm
from fenchel.swap.bootstrap import Bootstrap, Interval
from fenchel.swap.control import against_best_control
from fenchel.swap.differences import Differences, named
from fenchel.swap.metric import AbstractMetric, RankingAgreement, ScoreCorrelation, TokenMean

__all__ = ["Pairings", "tabulated"]

Record = dict[str, Any]


@dataclass(frozen=True)
class Pairings:
    """The pairs of sentences that similarities are worked out for.

    Attributes:
        ranked: (P, 2) numbers of sentences, whose ranking is compared with the model's own.
        scored: (N, 2) those that have scores, or None.
        scores: (N,) or None.
        by_sentence: Whether the ranked pairs are all or a sample of those of some sentences, so that sentences and not
            pairs are what can be resampled.
    """

    ranked: Tensor
    scored: Tensor | None
    scores: Tensor | None
    by_sentence: bool


def tabulated(
    arms: Sequence[Arm],
    measured: Mapping[str, Tensor],
    stacks: Mapping[str, int],
    pairings: Pairings | None,
    bootstrap: Bootstrap,
    *,
    unit: str = "windows",
) -> Record:
    """The tables.

    Args:
        arms: The arms, the model itself first.
        measured: What ``SwapRun`` added to the state; the first dimension are the units.
        stacks: Number of layers of each stack, the one of the output last.
        pairings: Pairs of sentences, None for language modelling and for examples.
        bootstrap: How intervals are made.
        unit: What is resampled where there are no pairs, in the plural.

    Returns:
        ``arms`` (a record each), ``layers`` (change of every layer's output under every model-wide arm),
        ``against_control`` (better or worse than the best control, where there is a loss or a score) and ``smoothing``
        (what the nearest control leaves of the change): JSON values only.
    """
    tables = _Tables(list(arms), measured, stacks, pairings, bootstrap, unit)
    return {
        "units": tables.units,
        "quality": tables.quality_name,
        "arms": tables.arms(),
        "layers": tables.layers(),
        "against_control": tables.against_control(),
        "smoothing": tables.smoothing(),
    }


class _Tables:
    def __init__(
        self,
        arms: list[Arm],
        measured: Mapping[str, Tensor],
        stacks: Mapping[str, int],
        pairings: Pairings | None,
        bootstrap: Bootstrap,
        unit: str,
    ) -> None:
        self._arms, self._measured, self._stacks = arms, measured, stacks
        self._bootstrap = bootstrap
        self._keys = [arm.key for arm in arms]
        self._controls = [arm for arm in arms if arm.is_model_wide_control]
        self._estimators = [arm for arm in arms if arm.is_model_wide_estimator]
        self.units = {unit if pairings is None else "sentences": len(measured["units"])}
        self._qualities: dict[str, AbstractMetric] = {}
        self._ranking: AbstractMetric | None = None
        if pairings is not None:
            self._similar(pairings)
        if (losses := measured.get("losses")) is not None:
            self._qualities["loss"] = TokenMean(self._columns(losses), measured["labels"])
        if (scores := measured.get("scores")) is not None:
            ones = torch.ones(len(scores), dtype=torch.float64)
            self._qualities["score"] = TokenMean(self._columns(scores), ones, lower_is_better=False)

    @property
    def quality_name(self) -> str | None:
        """The first of the qualities, by which arms are compared."""
        return next(iter(self._qualities), None)

    def _columns(self, values: Tensor) -> dict[str, Tensor]:
        return {key: values[:, index].double() for index, key in enumerate(self._keys)}

    def _similar(self, pairings: Pairings) -> None:
        embeddings = self._measured["embeddings"]

        def similarities(pairs: Tensor) -> dict[str, Tensor]:
            # An arm at a time: all of them at once would be several times the embeddings.
            return {
                key: (embeddings[pairs[:, 0], index].double() * embeddings[pairs[:, 1], index].double()).sum(
                    -1
                )
                for index, key in enumerate(self._keys)
            }

        ranked = similarities(pairings.ranked)
        own = ranked[self._keys[0]]
        if not bool((own != own[0]).any()):
            raise ModelError(
                f"the model finds all {len(own)} pairs of sentences equally similar ({float(own[0]):.4g}), so there is "
                "no ranking that could change. Use a model whose embeddings differ from sentence to sentence."
            )
        if pairings.by_sentence:
            self._ranking = RankingAgreement(ranked, self._keys[0], pairings.ranked, len(embeddings))
        else:
            self._ranking = ScoreCorrelation(ranked, ranked[self._keys[0]])
        if pairings.scored is not None and pairings.scores is not None:
            self.units["pairs"] = len(pairings.scored)
            self._qualities["score_correlation"] = ScoreCorrelation(
                similarities(pairings.scored), pairings.scores
            )

    def arms(self) -> list[Record]:
        changes = self._output_change()
        embedding = self._embedding_change()
        qualities = {
            name: Differences(metric, self._bootstrap, self._keys[0])
            for name, metric in self._qualities.items()
        }
        records = []
        for arm in self._arms:
            record: Record = {
                "where": arm.where,
                "estimator": arm.estimator or "model",
                "alpha": arm.alpha,
                "control": arm.is_control,
                "layer": arm.layer,
                "head": arm.head,
                "module": arm.name,
            }
            for name, quality in qualities.items():
                record |= quality.record(name, arm.key)
            record |= self._interval("hidden_change", changes, arm.key)
            if embedding is not None:
                record |= self._interval("embedding_change", embedding, arm.key)
                record["embedding_change_p95"] = float(torch.quantile(embedding.sums[arm.key], 0.95))
            if self._ranking is not None:
                # One head of many changes it by next to nothing; thousands of resamples each would take longest of all.
                with_interval = arm.where == "model" and arm.estimator is not None
                record |= self._interval("ranking_agreement", self._ranking, arm.key, with_interval)
            records.append(record)
        return records

    def layers(self) -> list[Record]:
        records, place = [], 0
        for stack_number, (stack, count) in enumerate(self._stacks.items()):
            tokens = self._measured["tokens"][:, stack_number]
            for layer in range(1, count + 1):
                metric = TokenMean(self._columns(self._measured["hidden"][:, :, place]), tokens)
                place += 1
                records += [
                    {
                        "stack": stack,
                        "layer": layer,
                        "estimator": arm.estimator,
                        "alpha": arm.alpha,
                        **self._interval("hidden_change", metric, arm.key),
                    }
                    for arm in [*self._controls, *self._estimators]
                ]
        return records

    def against_control(self) -> list[Record]:
        name = self.quality_name
        if name is None or not self._other_controls():
            return []
        records = []
        for arm in self._estimators:
            found = against_best_control(
                self._qualities[name], arm.key, self._other_controls(), self._bootstrap
            )
            records.append(
                {
                    "estimator": arm.estimator,
                    "measure": name,
                    "best_alpha": self._alpha(found.best),
                    "chosen_alphas": [self._alpha(key) for key in found.chosen],
                    **named("difference", found.compared),
                }
            )
        return records

    def smoothing(self) -> list[Record]:
        if not self._other_controls():
            return []
        records = []
        for number, arm in enumerate(self._estimators):
            apart = self._distances(number, arm)
            own = apart.pop(self._keys[0])
            if not float(own.sum()) > 0:
                continue
            metric = TokenMean(apart, own)
            found = against_best_control(metric, None, self._other_controls(), self._bootstrap)
            counts = self._measured["tokens"][:, -1] if self._embeddings is None else torch.ones_like(own)
            records.append(
                {
                    "estimator": arm.estimator,
                    "measure": "hidden_change" if self._embeddings is None else "embedding_change",
                    "distance_to_model": float(own.sum() / counts.sum()),
                    "distance_to_control": [
                        {"alpha": control.alpha, "distance": float(apart[control.key].sum() / counts.sum())}
                        for control in self._controls
                    ],
                    "nearest_alpha": self._alpha(found.best),
                    "chosen_alphas": [self._alpha(key) for key in found.chosen],
                    **named("share_left", found.compared),
                }
            )
        return records

    @property
    def _embeddings(self) -> Tensor | None:
        return self._measured.get("embeddings")

    def _other_controls(self) -> list[str]:
        """Without α = 1, which is the model itself."""
        return [arm.key for arm in self._controls if arm.alpha != 1]

    def _alpha(self, key: str) -> float:
        return next(arm.alpha for arm in self._controls if arm.key == key)

    def _output_change(self) -> TokenMean:
        return TokenMean(self._columns(self._measured["hidden"][:, :, -1]), self._measured["tokens"][:, -1])

    def _embedding_change(self) -> TokenMean | None:
        embeddings = self._embeddings
        if embeddings is None:
            return None
        sums = {key: _apart(embeddings[:, index], embeddings[:, 0]) for index, key in enumerate(self._keys)}
        return TokenMean(sums, torch.ones(len(embeddings), dtype=torch.float64))

    def _distances(self, number: int, arm: Arm) -> dict[str, Tensor]:
        """Distance a unit of an estimator's arm to the model and to each control."""
        others = [self._keys[0], *(control.key for control in self._controls)]
        embeddings = self._embeddings
        if embeddings is None:
            return {
                key: self._measured["distances"][:, number, place].double()
                for place, key in enumerate(others)
            }
        own = embeddings[:, self._keys.index(arm.key)]
        return {key: _apart(own, embeddings[:, self._keys.index(key)]) for key in others}

    def _interval(self, name: str, metric: AbstractMetric, arm: str, with_interval: bool = True) -> Record:
        if not with_interval or arm == self._keys[0]:
            return named(name, Interval(metric.of_all(arm)))
        return named(name, self._bootstrap.interval(lambda weights: metric(arm, weights), metric.units))


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """1 - cosine of vectors of length 1, without cancellation where they are close."""
    return (one.double() - other.double()).square().sum(-1) / 2
