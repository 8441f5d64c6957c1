"""Experiments that belong together, each with a task, data and controls of its own: run one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fenchel.arguments import checked, shown
from fenchel.errors import InputError
from fenchel.experiments.definition import EXPERIMENTS
from fenchel.experiments.report import TABLE, ExperimentReport
from fenchel.experiments.run import report_on, run_experiment
from fenchel.experiments.table import markdown
from fenchel.storage import guarded_writing, write_text

__all__ = ["COLLECTIONS", "Collection", "is_collection", "report_on_collection", "run_collection"]


@dataclass(frozen=True)
class Collection:
    """Experiments that are asked for under one name.

    Attributes:
        name: As users type it.
        title: What they ask together.
        parts: Names of the experiments, in the order in which they are run; each has the folder of its name.
    """

    name: str
    title: str
    parts: tuple[str, ...]


COLLECTIONS: dict[str, Collection] = {
    collection.name: collection
    for collection in (
        Collection(
            "reading",
            "Reading: classifiers of sentences and of pairs, against their controls",
            ("reading-trec", "reading-sst2", "reading-sick", "reading-cad-nli"),
        ),
        Collection(
            "pretraining",
            "Pretraining: corruption, objectives, and translations beside sentences",
            ("pretraining-blanks", "pretraining-pairs", "pretraining-trec"),
        ),
        Collection(
            "captions",
            "Captions: soft, hard and no attention on images that are learned by heart",
            ("captions-by-heart", "captions-held-out"),
        ),
    )
}
"""All collections by name."""


def is_collection(name: str) -> bool:
    """Whether a name is that of several experiments."""
    return isinstance(name, str) and name in COLLECTIONS


def run_collection(name: str, directory: str | Path, **given: Any) -> tuple[ExperimentReport, ...]:
    """Run the experiments of a collection, each in a folder of its name within another.

    Args:
        name: One of ``COLLECTIONS``.
        directory: The folder that holds theirs. ``table.md`` in it has the tables of all of them.
        **given: As ``run_experiment`` takes them. ``data`` and ``arms`` choose within those experiments that have them;
            one that has none of them is left out. ``records`` holds a folder for each experiment too.

    Returns:
        A report each.

    Raises:
        InputError: If there is no such collection, or none of its experiments has what was asked for.
        OutputError: If a folder cannot be written to.
    """
    place = Path(checked("folder", directory, name="directory"))
    for key, rule in (("data", "data_names"), ("arms", "arms"), ("records", "directory")):
        if key in given:
            given[key] = checked(rule, given[key], name=key)
    reports: list[ExperimentReport] = []
    for part in _parts(name):
        own = _of_part(part, given)
        if own is not None:
            reports.append(run_experiment(part, place / part, **own))
    if not reports:
        asked = ", ".join(str(given[key]) for key in ("data", "arms") if given.get(key) is not None)
        raise InputError(f"no experiment of {name!r} has what was asked for: {asked}.")
    _write(COLLECTIONS[name], place, reports)
    return tuple(reports)


def report_on_collection(name: str, directory: str | Path) -> tuple[ExperimentReport, ...]:
    """Make the reports of a collection again, of those experiments that its folder holds.

    Args:
        name: One of ``COLLECTIONS``.
        directory: See ``run_collection``.

    Raises:
        InputError: If the folder holds none of them.
    """
    place = Path(checked("folder", directory, name="directory"))
    there = [part for part in _parts(name) if (place / part).is_dir()]
    if not there:
        raise InputError(
            f"{place} holds none of {', '.join(_parts(name))}. Run fenchel experiment {name} --out {place} first."
        )
    reports = tuple(report_on(part, place / part) for part in there)
    _write(COLLECTIONS[name], place, reports)
    return reports


def _parts(name: str) -> tuple[str, ...]:
    if not isinstance(name, str) or name not in COLLECTIONS:
        raise InputError(f"collection is {shown(name)}; expected one of {', '.join(COLLECTIONS)}.")
    return COLLECTIONS[name].parts


def _of_part(part: str, given: dict[str, Any]) -> dict[str, Any] | None:
    """What is asked of an experiment; None where nothing of what was asked for is its own."""
    own, experiment = dict(given), EXPERIMENTS[part]
    for key, known in (("data", experiment.data), ("arms", tuple(experiment.of.arms))):
        if own.get(key) is not None:
            own[key] = [name for name in own[key] if name in known]
            if not own[key]:
                return None
    if own.get("records") is not None:
        own["records"] = Path(own["records"]) / part
    return own


def _write(collection: Collection, place: Path, reports: Iterable[ExperimentReport]) -> None:
    pages = [markdown(report.results).replace("# ", "## ", 1) for report in reports]
    with guarded_writing(place):
        write_text(place / TABLE, "\n".join([f"# {collection.title}\n", *pages]))
