"""What readers have to know of numbers of any small model that is trained from nothing."""

from __future__ import annotations

from collections.abc import Sequence

from fenchel.experiments.plan import Plan
from fenchel.experiments.record import RunRecord, machines

__all__ = ["usual_caveats"]


def usual_caveats(
    plan: Plan,
    records: Sequence[RunRecord],
    *own: str,
    shared: Sequence[str] = ("epochs", "batch_size", "width"),
) -> tuple[str, ...]:
    """Sentences beneath a table.

    Args:
        plan: What was to be run.
        records: What has been.
        *own: What is to be known of this experiment, the weightiest first.
        shared: Options that all arms have, to be named.

    Returns:
        What data say of themselves, ``own``, what arms have in common, what intervals are of, and the machine.
    """
    setting = plan.setting
    said = [
        f"{data.name}: {data.summary.note.rstrip('.')}." for data in plan.descriptions if data.summary.note
    ]
    said += own
    named = ", ".join(
        f"{name.replace('_', ' ')} {_shown(setting[name])}" for name in shared if name in setting
    )
    said.append(
        f"All arms have the options of the training in common ({named}); none was tuned for any of them."
    )
    if plan.seeds > 1:
        said.append(
            "Intervals are Student's t over seeds (weights, order of examples, what is drawn); the data are the same "
            "in all of them, so they say nothing of other data."
        )
    if records:
        said.append(f"Trained on: {'; '.join(machines(records))}.")
    return tuple(said)


def _shown(value: object) -> str:
    return "all" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
