"""The command line of the scripts that compare a few arms over seeds, and the record that they write."""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    """What every comparison can be told."""

    seeds: int = option(3, "of each arm: its weights, and what is drawn in training")
    out: str = option("", "file of the record, in JSON")

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
                raise InputError(f"{name} is {value}; expected a number above 0. Give a larger --{name}.")


def print_table(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """A row for each arm, with the mean of each metric over seeds and half the width of its 95 % interval."""
    columns = list(dict.fromkeys(name for found in runs.values() for one in found for name in one))
    print(f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for arm, found in runs.items():
        cells = []
        for name in columns:
            mean = interval([one[name] for one in found if name in one]) if name in found[0] else None
            half = "" if mean is None or mean.half_width is None else f" ± {mean.half_width:.2g}"
            cells.append("–" if mean is None else f"{mean.mean:.4g}{half}")
        print(f"| {arm} | {' | '.join(cells)} |")


def main(kind: type[ExperimentOptions], compare: Callable[[Any], dict[str, Any]]) -> None:
    """Run a comparison, print its table, and write its record.

    Args:
        kind: Of its options.
        compare: Called with the options; ``runs`` in its answer is what the table shows.
    """
    script, start = Path(sys.argv[0]).name, time.process_time()
    try:
        (options,) = HfArgumentParser(kind, prog=script).parse_args_into_dataclasses()  # pyright: ignore[reportArgumentType]
        found = compare(options)
    except FenchelError as error:
        sys.exit(f"{script}: {error}")
    print_table(found["runs"])
    if options.out:
        told = {
            "command": shlex.join(["python", f"examples/{script}", *sys.argv[1:]]),
            "commit": commit(),
            "threads": torch.get_num_threads(),
            "cpu_seconds": round(time.process_time() - start),
        }
        Path(options.out).write_text(json.dumps(told | found, indent=1) + "\n")


def commit() -> str:
    """The commit that is checked out here; ``unknown`` outside of a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return found.stdout.strip() or "unknown"
