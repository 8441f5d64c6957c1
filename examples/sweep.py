"""Sweeps: arms of an example over seeds, compared with the first arm by differences that are paired by seed.

    python examples/sweep.py reading.py --out runs/sweep --seeds 3 \
        --arm soft "--attention soft" --arm mean "--attention mean" -- --data toy --epochs 5
    python examples/sweep.py --file sweep.yaml --out runs/sweep

An arm has a name and options of the example; what follows ``--`` is for all arms. The same command goes on with a sweep
that was interrupted: cells that have finished are not run again, and others go on from their checkpoints. A file has
``script``, ``arms`` (options by name), ``options`` and ``seeds``.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import yaml

from common import METRICS, OPTIONS, checkpoints, write
from fenchel.errors import InputError
from intervals import LEVEL, interval

PLAN, RESULTS, TABLE, FIGURE = "plan.json", "sweep.json", "sweep.md", "sweep.png"


@dataclass
class Cell:
    """One arm with one seed.

    Attributes:
        arm: Name of the arm.
        seed: The seed.
        folder: Of the run.
        command: That trains it, without --resume.
    """

    arm: str
    seed: int
    folder: Path
    command: list[str]

    def metrics(self) -> dict[str, Any] | None:
        """What the run wrote at its end; None if it has not finished."""
        file = self.folder / METRICS
        return json.loads(file.read_text()) if file.is_file() else None

    def run(self, jobs: int) -> str | None:
        """Train, from a checkpoint if there is one; return the last line of what it said if it failed."""
        name, log, started = f"{self.arm}, seed {self.seed}", self.folder / "log.txt", time.monotonic()
        if self.metrics() is not None:
            print(f"{name}: finished before", flush=True)
            return None
        more = ["--resume"] if checkpoints(self.folder) else []
        if not more and (self.folder / OPTIONS).is_file():
            more = ["--overwrite"]  # it was interrupted before its first checkpoint
        threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
        self.folder.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            environment = os.environ | {"OMP_NUM_THREADS": threads}
            code = subprocess.run(  # noqa: S603 - what the user asked for
                [*self.command, *more], stdout=file, stderr=subprocess.STDOUT, env=environment, check=False
            ).returncode
        result = self.metrics()
        if code == 0 and result is not None:
            said = ", ".join(f"{metric} {value:.4g}" for metric, value in result["test"].items())
            print(f"{name}: {said} ({time.monotonic() - started:.0f} s)", flush=True)
            return None
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        last = lines[-1].strip() if lines else "it said nothing"
        print(f"{name}: failed with exit code {code}: {last} (all of it: {log})", flush=True)
        return last


def planned(arguments: Sequence[str]) -> tuple[dict[str, Any], Any]:
    """The plan, and the other options, of the command line.

    Raises:
        InputError: If something is missing or is there twice.
    """
    given, shared = list(arguments), []
    if "--" in given:
        place = given.index("--")
        given, shared = given[:place], given[place + 1 :]
    arms: list[tuple[str, list[str]]] = []
    while "--arm" in given:  # by hand: argparse takes "--attention" for an option of its own
        place = given.index("--arm")
        if len(given) < place + 3:
            raise InputError('--arm needs a name and options, such as --arm hard "--attention hard".')
        arms.append((given[place + 1], shlex.split(given[place + 2])))
        del given[place : place + 3]
    epilog = '--arm NAME "OPTIONS": as often as needed'
    parser = ArgumentParser(prog="sweep.py", description=__doc__, epilog=epilog)
    parser.add_argument("script", nargs="?", help="the example, such as reading.py")
    parser.add_argument("--out", required=True, help="folder of the sweep")
    parser.add_argument("--seeds", type=int, help="how many, from 0; 3 if it is not given")
    parser.add_argument("--file", help="YAML or JSON with script, arms, options and seeds")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--metric", action="append", help="of the test, as often as needed; default: all")
    parser.add_argument("--caption", default="", help="first line of the table")
    asked = parser.parse_args(given)
    plan = read_plan(asked.file) if asked.file else {"arms": {}, "options": []}
    plan["script"] = asked.script or plan.get("script")
    plan["seeds"] = plan.get("seeds", 3) if asked.seeds is None else asked.seeds
    plan["options"] += shared
    for name, options in arms:
        if name in plan["arms"]:
            raise InputError(f"there are two arms {name}; give each a name of its own.")
        plan["arms"][name] = options
    if not plan["script"] or not plan["arms"]:
        raise InputError('there is nothing to run. Give a script and --arm NAME "OPTIONS", or --file FILE.')
    if wrong := [name for name in plan["arms"] if not re.fullmatch(r"[\w.-]*\w", name)]:
        raise InputError(f"an arm is called {wrong[0]!r}; expected letters, digits, dots, - and _.")
    if not isinstance(plan["seeds"], int) or min(plan["seeds"], asked.jobs) < 1:
        raise InputError(f"seeds is {plan['seeds']} and jobs {asked.jobs}; expected at least 1 of each.")
    return plan, asked


def read_plan(file: str) -> dict[str, Any]:
    """The plan of a YAML or JSON file; options are a text, a list or a mapping."""
    try:
        plan = yaml.safe_load(Path(file).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise InputError(f"{file} cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(plan, dict) or not isinstance(plan.get("arms"), dict):
        raise InputError(f"{file} has no arms; expected a mapping of their names to options.")
    if unknown := sorted(set(plan) - {"script", "arms", "options", "seeds"}):
        raise InputError(f"{file} has {unknown[0]}; expected script, arms, options and seeds.")
    arms = {str(name): words(options) for name, options in plan["arms"].items()}
    return plan | {"arms": arms, "options": words(plan.get("options"))}


def words(options: Any) -> list[str]:
    """Options as a command has them."""
    if isinstance(options, Mapping):
        return [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return shlex.split(options) if isinstance(options, str) else [str(word) for word in options or ()]


def cells_of(plan: Mapping[str, Any], folder: Path) -> list[Cell]:
    """The cells of a plan, seed by seed, once the folder is known to hold no other sweep.

    Raises:
        InputError: If it does, or the script is not there.
    """
    here = Path(__file__).parent
    script = next((path for path in (Path(plan["script"]), here / plan["script"]) if path.is_file()), None)
    if script is None:
        raise InputError(f"there is no {plan['script']}, neither here nor in {here}.")
    kept = {"script": script.name, "options": plan["options"], "arms": plan["arms"]}
    if (file := folder / PLAN).is_file():
        before = json.loads(file.read_text())
        kept["arms"] = before["arms"] | kept["arms"]  # others may be added
        pairs = {key: (before[key], kept[key]) for key in ("script", "options")}
        pairs |= {f"arm {arm}": (was, kept["arms"][arm]) for arm, was in before["arms"].items()}
        for name, (was, now) in pairs.items():
            if was != now:
                there = f"{folder} holds a sweep with {name} {was!r}"
                raise InputError(f"{there}, and now it is {now!r}. Give another --out.")
    folder.mkdir(parents=True, exist_ok=True)
    write(file, json.dumps(kept, indent=1) + "\n")
    result = []
    for seed in range(plan["seeds"]):
        for arm, options in plan["arms"].items():
            place = folder / arm / f"seed-{seed}"
            command = [sys.executable, str(script), "train", *plan["options"], *options]
            command += ["--seed", str(seed), "--out", str(place), "--quiet"]
            result.append(Cell(arm, seed, place, command))
    return result


def compared(cells: Sequence[Cell], names: Sequence[str] | None) -> dict[str, Any]:
    """Metrics of each arm by seed, their means, and their differences to the first arm.

    Raises:
        InputError: If a metric is not there.
    """
    runs = {(cell.arm, cell.seed): found for cell in cells if (found := cell.metrics()) is not None}
    arms, seeds = list(dict.fromkeys(cell.arm for cell in cells)), sorted({cell.seed for cell in cells})
    there = list(dict.fromkeys(name for found in runs.values() for name in found["test"]))
    if missing := [name for name in names or () if name not in there and runs]:
        raise InputError(f"there is no metric {missing[0]}; expected one of {', '.join(there)}.")
    result: dict[str, Any] = {"level": LEVEL, "first": arms[0], "seeds": seeds, "arms": {}}
    first: dict[str, dict[int, float]] = {}  # values of the first arm: by metric and seed
    for arm in arms:
        mine = {seed: runs[arm, seed] for seed in seeds if (arm, seed) in runs}
        row: dict[str, Any] = {"finished": list(mine), "metrics": {}}
        for name in ("parameters", "train_seconds"):
            row[name] = float(np.mean([found[name] for found in mine.values()])) if mine else None
        for name in names or there:
            by_seed = {seed: found["test"][name] for seed, found in mine.items() if name in found["test"]}
            if not by_seed:
                continue
            entry: dict[str, Any] = {"by_seed": by_seed, "mean": interval([*by_seed.values()])._asdict()}
            plain = first.get(name, {})
            if pairs := [value - plain[seed] for seed, value in by_seed.items() if seed in plain]:
                entry["difference"] = interval(pairs)._asdict()
            row["metrics"][name] = entry
        if arm == arms[0]:
            first = {name: entry["by_seed"] for name, entry in row["metrics"].items()}
        result["arms"][arm] = row
    return result


def shown(found: Mapping[str, Any] | None, sign: str = "") -> str:
    """A mean with its interval."""
    if found is None:
        return "–"
    half = "(one seed)" if found["half_width"] is None else f"± {found['half_width']:.4g}"
    return f"{found['mean']:{sign}.4g} {half}".replace("-", "−")


def table(result: Mapping[str, Any], caption: str) -> str:
    """The comparison in Markdown."""
    metrics = list(dict.fromkeys(name for row in result["arms"].values() for name in row["metrics"]))
    heads = ["Arm", "Seeds"] + [text for name in metrics for text in (name, f"minus {result['first']}")]
    lines = [
        *([caption, ""] if caption else []),
        f"| {' | '.join([*heads, 'Parameters', 'Training seconds'])} |",
    ]
    lines.append("|---|" + "---:|" * (len(heads) + 1))
    for arm, row in result["arms"].items():
        cells = [arm, f"{len(row['finished'])} of {len(result['seeds'])}"]
        for entry in (row["metrics"].get(name, {}) for name in metrics):
            cells += [shown(entry.get("mean")), shown(entry.get("difference"), "+")]
        for cost, digits in ((row["parameters"], 0), (row["train_seconds"], 1)):
            cells.append("–" if cost is None else f"{cost:,.{digits}f}")
        lines.append(f"| {' | '.join(cells)} |")
    about = f"± are half {LEVEL:.0%} intervals by Student's t over seeds; differences are paired by seed, each with an"
    lines += ["", f"{about} interval of its own: nothing is corrected for how many there are."]
    return "\n".join(lines) + "\n"


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the values of each seed with their means, and the differences to the first arm, of the first metric."""
    arms = list(result["arms"])
    name = next(iter(next(row["metrics"] for row in result["arms"].values() if row["metrics"])))
    figure, axes = plt.subplots(1, 2, figsize=(9, 1.5 + 0.4 * len(arms)), sharey=True, layout="constrained")
    for place, arm in enumerate(arms):
        entry = result["arms"][arm]["metrics"].get(name, {})
        for axis, kind in zip(axes, ("mean", "difference"), strict=True):
            if kind in entry:
                half = entry[kind]["half_width"] or 0.0
                axis.errorbar(entry[kind]["mean"], place, xerr=half, fmt="o", color="C0", capsize=3)
        values = list(entry.get("by_seed", {}).values())
        axes[0].plot(values, [place] * len(values), "|", color="0.5", markersize=12)
    axes[0].set(xlabel=f"test {name}", yticks=range(len(arms)), yticklabels=arms)
    axes[0].invert_yaxis()
    axes[1].axvline(0, color="0.5", linewidth=0.8)
    axes[1].set(xlabel=f"minus {result['first']}")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(options: Sequence[str]) -> int:
    """Run what has not finished, and compare; 1 if a cell failed."""
    plan, asked = planned(options)
    folder = Path(asked.out)
    cells = cells_of(plan, folder)
    with ThreadPoolExecutor(asked.jobs) as pool:
        lines = list(pool.map(lambda cell: cell.run(asked.jobs), cells))
    named = zip((f"{cell.arm}, seed {cell.seed}" for cell in cells), lines, strict=True)
    failed = {name: line for name, line in named if line is not None}
    result = compared(cells, asked.metric) | {"failed": failed}
    result |= {name: plan[name] for name in ("script", "options")} | {"options_of_arms": plan["arms"]}
    text = table(result, asked.caption)
    write(folder / RESULTS, json.dumps(result, indent=1) + "\n")
    write(folder / TABLE, text)
    if any(row["metrics"] for row in result["arms"].values()):
        draw(result, folder / FIGURE)
    print(f"\n{text}\n{folder / RESULTS}, {folder / TABLE}, {folder / FIGURE}")
    if failed:
        print(f"{len(failed)} of {len(cells)} cells failed: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except InputError as error:
        sys.exit(f"sweep.py: {error}")
