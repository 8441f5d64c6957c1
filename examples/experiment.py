"""The command line of studies and comparisons, and the record that they write."""

import inspect
import json
import os
import shlex
import subprocess
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from transformers import HfArgumentParser

from fenchel.errors import FenchelError, InputError
from intervals import interval
from task import option

Runs = dict[str, list[dict[str, float]]]  # of each arm, the metrics of each seed


@dataclass
class ExperimentOptions:
    """Options of every comparison."""

    seeds: int = option(3, "of each arm: its weights, and what is drawn in training")
    processes: int = option(1, "in which arms and seeds are run side by side")
    out: str = option("", "file of the record, in JSON")


def repeated(
    run: Callable[[Any, str, int], dict[str, float]], arms: Sequence[str], o: ExperimentOptions
) -> Runs:
    """The metrics of each arm with each seed; ``run`` is a function of a module, called with options, arm and seed."""
    cells = [(o, arm, seed) for arm in arms for seed in range(o.seeds)]
    if o.processes == 1:
        result = [run(*cell) for cell in cells]
    else:
        with get_context("spawn").Pool(o.processes) as pool:
            result = pool.starmap(run, cells, chunksize=1)
    return {arm: result[o.seeds * number : o.seeds * (number + 1)] for number, arm in enumerate(arms)}


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """A row for each arm of ``runs``, with the mean of each metric over seeds and half its 95 % interval."""
    runs: Runs = found["runs"]
    columns = list(dict.fromkeys(name for arm in runs.values() for one in arm for name in one))
    yield f"| | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for arm, of_seeds in runs.items():
        cells = []
        for name in columns:
            mean = interval([one[name] for one in of_seeds if name in one]) if name in of_seeds[0] else None
            half = "" if mean is None or mean.half_width is None else f" ± {mean.half_width:.2g}"
            cells.append("–" if mean is None else f"{mean.mean:.4g}{half}")
        yield f"| {arm} | {' | '.join(cells)} |"


def main(
    kind: Any,
    study: Callable[[Any], dict[str, Any]],
    printed: Callable[[dict[str, Any]], Iterable[str]] = table,
) -> None:
    """Run a study, print its tables, and write its record.

    Args:
        kind: Its options, a dataclass with ``out``, the file of the record.
        study: Makes the results of options.
        printed: Lines of Markdown of the results.
    """
    script = Path(sys.argv[0]).name
    try:
        parser = HfArgumentParser(kind, prog=script)
        options, unknown = parser.parse_args_into_dataclasses(return_remaining_strings=True)
        if unknown:
            raise InputError(f"there is no option {unknown[0]}. {script} --help lists all.")
        check(options)
        result = study(options)
    except FenchelError as error:
        sys.exit(f"{script}: {error}")
    print("\n".join(printed(result)))
    if options.out:
        settings = {
            "command": shlex.join(["python", f"examples/{script}", *sys.argv[1:]]),
            "commit": commit(),
            "threads": torch.get_num_threads(),
            "cpu_seconds": round(cpu_seconds()),
            "options": asdict(options),
        }
        text, folder = json.dumps(settings | result, indent=1), os.environ.get("FENCHEL_DATA")
        Path(options.out).write_text((text.replace(folder, "$FENCHEL_DATA") if folder else text) + "\n")


def run_positional(run: Callable[..., None], text: str | None, **least: int) -> None:
    """Call a function with positional arguments of the command line, each of the type of its default or a text.

    Args:
        run: The function; a text with a default is a file to write.
        text: Description of the script for ``--help``.
        least: Smallest values of numbers, by name.
    """
    parser = ArgumentParser(description=text, formatter_class=RawDescriptionHelpFormatter)
    for name, one in inspect.signature(run).parameters.items():
        if one.default is one.empty:
            parser.add_argument(name)
            continue
        known = f"default {one.default}" if one.default else "file to write; none by default"
        known += f", at least {least[name]}" if name in least else ""
        parser.add_argument(name, nargs="?", type=type(one.default), default=one.default, help=known)
    given = vars(parser.parse_args())
    try:
        for name, value in given.items():
            if name in least and value < least[name]:
                raise InputError(f"{name} is {value}; expected at least {least[name]}. Give a larger {name}.")
            if parser.get_default(name) == "" and not Path(value).parent.is_dir():
                raise InputError(
                    f"{name} is {value}; expected a file in a folder. Make {Path(value).parent}."
                )
        run(**given)
    except FenchelError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def check(options: Any) -> None:
    """Refuse numbers that are too small, and a record that could not be written in the end.

    Raises:
        InputError: If a number is below 0, or 0 where that does not stand for something, as it does where it is the
            default; or the folder of the record is missing.
    """
    for one in fields(options):
        value, least = getattr(options, one.name), "0 or more" if one.default == 0 else "a number above 0"
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and (value < 0 or (value == 0 and one.default != 0)):
            raise InputError(f"{one.name} is {value}; expected {least}. Give a larger --{one.name}.")
    if not Path(options.out).parent.is_dir():
        raise InputError(f"there is no folder for --out {options.out}. Make {Path(options.out).parent}.")


def cpu_seconds() -> float:
    """Of this process and those that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def commit() -> str:
    """The commit that is checked out here; ``unknown`` outside of a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return result.stdout.strip() or "unknown"
