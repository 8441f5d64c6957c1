"""``fenchel experiment``: arms of a task on one budget, over seeds; the paper's tables beside the paper's numbers."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fenchel.arguments import checked
from fenchel.cli.failure import Interrupted, say
from fenchel.cli.numbers import decimals
from fenchel.cli.options import DeviceName, Out, Precision, PrecisionName, Resume, TrainBatchSize
from fenchel.cli.speaking import first_process_speaks

if TYPE_CHECKING:
    from fenchel.experiments import ExperimentReport
    from fenchel.experiments.observer import Position
    from fenchel.experiments.plan import Run
    from fenchel.experiments.record import RunRecord
    from fenchel.train import TrainObserver

__all__ = ["EXAMPLE", "HELP", "NAME", "SUMMARY", "run"]

NAME = "experiment"
SUMMARY = "Train several arms on one budget, such as ViT and OT-ViT beside the paper's table."
_NAMES = (
    "table1, table2, ablation, pooling, translation, reading, pretraining, captions, or an experiment of the last "
    "three such as reading-trec"
)
HELP = (
    "Train several arms on the same examples in the same order, over seeds, and print a table with 95 % intervals, "
    "where there is one beside the paper's. EXPERIMENT is table1 (accuracy by learning rate), table2 (accuracy by data "
    "set), ablation (transport and extra templates, apart and together), pooling (sentences pooled by attention and by "
    "their mean), translation (preference, score and estimator, and no attention), reading (classifiers of sentences "
    "and of pairs), pretraining (what becomes of chosen words, objectives, translations) or captions (images learned "
    "by heart). The last three are several experiments, each in a folder of its name. The same command again goes on "
    "where it stopped; a finished run is never trained twice."
)
EXAMPLE = (
    "Example: fenchel experiment table2 --data fashion-mnist --budget smoke --out table2. Then look at table2/table.md "
    "and table2/curves.png."
)


@first_process_speaks()
def run(
    experiment: Annotated[
        str,
        typer.Argument(metavar="EXPERIMENT", help=f"{_NAMES}.".capitalize(), show_default=False),
    ],
    out: Out,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Data sets, as for fenchel train --data.  [default: the experiment's]",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option(metavar="NAME", help="How much each run sees: smoke, desk or, of images, paper.")
    ] = "smoke",
    arms: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Some of vit, ot-vit, ot-vit-shared, ot-vit-alone, vit-extra; other experiments have others, which an "
            "unknown name has listed.  [default: the experiment's]",
        ),
    ] = None,
    learning_rates: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Learning rates, such as 3e-3,3e-4.  [default: the experiment's]"),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="Runs an arm, with seeds from 0.")] = 3,
    train_images: Annotated[
        int | None,
        typer.Option(metavar="N", help="Train on N images, balanced by class.  [default: the budget's]"),
    ] = None,
    test_images: Annotated[
        int | None,
        typer.Option(metavar="N", help="Test on N images, balanced by class.  [default: the budget's]"),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(metavar="N", help="How often each example is seen.  [default: the budget's]")
    ] = None,
    batch_size: TrainBatchSize = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Another option of the training, for all runs, as fenchel train has it.",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Recipe of a training on images: paper or strong.  [default: paper]"
        ),
    ] = None,
    precision: PrecisionName = Precision.auto,
    device: DeviceName = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Threads of the processor.  [default: torch's choice]")
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N", help="Train only share I, from 0, of N shares of the runs.", show_default=False
        ),
    ] = None,
    records: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Take finished runs from the records in FOLDER, and record there those that finish.",
            show_default=False,
        ),
    ] = None,
    resume: Resume = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Train nothing; make the report on what DIR holds.")
    ] = False,
) -> None:
    """Wires the options to ``fenchel.experiments``."""
    rates = None if learning_rates is None else decimals(learning_rates, "--learning-rates")
    place: Path = checked("folder", out, name="out")
    given = {
        "train_images": train_images,
        "test_images": test_images,
        "epochs": epochs,
        "batch_size": batch_size,
        "recipe": recipe,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}

    from fenchel.cli.stopping import stopping_at_a_step
    from fenchel.cli.training import observer_of_training
    from fenchel.data.shard import Shard
    from fenchel.experiments import run_collection, run_experiment
    from fenchel.experiments.collection import is_collection

    if report_only:
        _show_all(_reported(experiment, place), place)
        return
    options |= _settings(experiment, settings or [])
    run_all = run_collection if is_collection(experiment) else run_experiment
    try:
        with stopping_at_a_step() as stop:
            report = run_all(
                experiment,
                place,
                data=_listed(data),
                budget=budget,
                arms=_listed(arms),
                learning_rates=rates,
                seeds=seeds,
                options={**options, "precision": precision.value},
                shard=None if shard is None else Shard.parse(shard),
                records=records,
                device=device,
                threads=threads,
                observer=_Narrator(observer_of_training(), _parts(experiment)),
                stop=stop,
            )
    except KeyboardInterrupt:
        again = shlex.join(["fenchel", *sys.argv[1:]])
        raise Interrupted(f"interrupted; what was done is saved in {place}. Go on with: {again}") from None
    if os.environ.get("RANK", "0") == "0":
        _show_all(report if isinstance(report, tuple) else (report,), place)


def _parts(experiment: str) -> tuple[str, ...]:
    """The experiments that a name stands for."""
    from fenchel.experiments import COLLECTIONS
    from fenchel.experiments.definition import chosen_experiment

    if experiment in COLLECTIONS:
        return COLLECTIONS[experiment].parts
    return (chosen_experiment(experiment).name,)


def _reported(experiment: str, place: Path) -> tuple[ExperimentReport, ...]:
    from fenchel.experiments import report_on, report_on_collection
    from fenchel.experiments.collection import is_collection

    if is_collection(experiment):
        return report_on_collection(experiment, place)
    return (report_on(experiment, place),)


def _settings(experiment: str, written: list[str]) -> dict[str, Any]:
    """Options that were set, as the tasks of the experiments have them."""
    from fenchel.experiments.definition import chosen_experiment
    from fenchel.train.settings import parsed_settings, settings_of

    given: dict[str, Any] = {}
    for part in _parts(experiment):
        given |= parsed_settings(written, settings_of(chosen_experiment(part).of.task.options_type))
    return given


def _show_all(reports: tuple[ExperimentReport, ...], place: Path) -> None:
    from fenchel.experiments import EXPERIMENTS

    alone = len(reports) == 1 and (place / "experiment.json").exists()
    for report in reports:
        _show(report, place if alone else place / EXPERIMENTS[report.plan.experiment].name)
    if not alone:
        typer.echo(f"All tables: {place / 'table.md'}")


class _Narrator:
    """Tells of every run in a line on standard error, and has its training shown."""

    def __init__(self, training: TrainObserver, parts: Sequence[str]) -> None:
        from fenchel.experiments import EXPERIMENTS

        self._training = training
        after = [of.after.experiment for name in parts if (of := EXPERIMENTS[name].of).after is not None]
        self._compared = [EXPERIMENTS[name].of for name in (*parts, *after)]

    def _measured(self, run: Run, record: RunRecord) -> str:
        """The headline of a run, by its name."""
        of = next((one for one in self._compared if one.arms.get(run.arm.name) == run.arm), self._compared[0])
        return f"test {of.headline.name.replace('_', ' ')} {record.headline:.4f}"

    def began(self, run: Run, position: Position) -> TrainObserver:
        say(f"{position}: {run}")
        return self._training

    def kept(self, run: Run, position: Position, record: RunRecord) -> None:
        say(f"{position}: {run}: finished before, {self._measured(run, record)}")

    def ended(self, run: Run, position: Position, record: RunRecord) -> None:
        say(f"{position}: {run}: {self._measured(run, record)} after {record.seconds:,.0f} s")

    def diverged(self, run: Run, position: Position, reason: str) -> None:
        say(f"warning: {position}: {run}: no result: {reason}")

    def left(self, run: Run, position: Position) -> None:
        say(f"{position}: {run}: left to the process that is training it")


def _show(report: ExperimentReport, folder: Path) -> None:
    from rich.console import Console

    from fenchel.experiments.table import terminal_table

    console = Console()
    console.print(terminal_table(report.results))
    for sentence in report.findings:
        console.print(sentence, markup=False, highlight=False)
    console.print(report.of.before, markup=False, highlight=False)
    for caveat in report.caveats:
        console.print(f"* {caveat}", markup=False, highlight=False)
    typer.echo(f"Table: {folder / 'table.md'}")
    if report.records:
        typer.echo(f"Curves: {folder / 'curves.png'}")


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
