"""What the files of an experiment hold: what is alike for all, and what the experiment that they name makes of it."""

from __future__ import annotations

from typing import Any

from fenchel.experiments.definition import EXPERIMENTS
from fenchel.storage.schema import Check, anything, listing, mapping, number, optional, record, text, whole

__all__ = ["plan_schema", "report_schema"]

_LEAST_ZERO = number(least=0)
_CURVE = listing(optional(number()))
_ALIKE = {
    "experiment": text(),
    "budget": text(),
    "setting": mapping(anything),
    "data": listing(text(), least=1),
    "arms": listing(text(), least=1),
    "learning_rates": listing(number(above=0), least=1),
    "seeds": whole(1),
}


def plan_schema(value: Any, where: str) -> None:
    """What ``Plan.to_json`` gives, as a check."""
    record({**_ALIKE, "experiment": text(among=EXPERIMENTS)}, {"descriptions": anything})(value, where)
    of = EXPERIMENTS[value["experiment"]].of
    description = record(
        {
            "name": text(),
            **dict.fromkeys((f"train_{of.task.unit}", f"test_{of.task.unit}"), whole(1)),
            "classes": optional(whole(1)),
            "note": text(),
            "digest": text(pattern="[0-9a-f]{64}", called="64 hexadecimal digits"),
        }
    )
    there = {"arms": listing(text(among=of.arms), least=1), "descriptions": listing(description)}
    record({**_ALIKE, **there})(value, where)


def report_schema(value: Any, where: str) -> None:
    """What ``ExperimentReport.to_json`` gives, as a check."""
    parts: dict[str, Check] = {"plan": plan_schema, "runs": listing(anything), "diverged": listing(text())}
    record(parts, others=True)(value, where)
    record({"runs": listing(_run_schema(value["plan"]["experiment"]))}, others=True)(value, where)


def _run_schema(experiment: str) -> Check:
    of = EXPERIMENTS[experiment].of
    metric = of.headline
    return record(
        {
            "data": text(),
            "learning_rate": number(above=0),
            "arm": text(among=of.arms),
            "seed": whole(),
            f"test_{metric.name}": number(least=metric.least, most=metric.most),
            "parameters": whole(),
            "seconds": _LEAST_ZERO,
            f"{of.task.unit}_per_second": _LEAST_ZERO,
            "machine": mapping(anything),
            "curves": record(dict.fromkeys(of.curves, _CURVE), dict.fromkeys(of.measured_besides, _CURVE)),
        }
    )
