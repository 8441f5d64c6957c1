"""What `import fenchel` adds to `import torch`, in processes of its own, and what the first layer adds to that."""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import fenchel
from benchmarks.recording import record

TARGET_S = 0.2

# One process: torch first, then the package, then what most users ask for next. Wall time is what a user waits;
# processor time is what the same costs on a machine that others are using too.
TIMED = """
import json, time
marks = []
def mark(): marks.append((time.perf_counter(), time.process_time()))
mark()
import torch
mark()
import fenchel
mark()
import fenchel.nn
mark()
print(json.dumps([[b - a for a, b in zip(one, two)] for one, two in zip(marks, marks[1:])]))
"""

STEPS = ("torch", "fenchel", "fenchel.nn")


def timed(environment: dict[str, str]) -> dict[str, tuple[float, float]]:
    """Wall and processor seconds of each step in one fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", TIMED], env=environment, capture_output=True, text=True, check=True
    )
    return dict(zip(STEPS, json.loads(done.stdout), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        # Installed packages have their bytecode, so this one is compiled first, into a folder that goes away again.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        source = Path(str(fenchel.__file__)).parent
        environment["PYTHONPATH"] = os.pathsep.join([str(source.parent), environment.get("PYTHONPATH", "")])
        sys.pycache_prefix = folder
        compileall.compile_dir(source, quiet=2)
        timed(environment)
        taken = [timed(environment) for _ in range(rounds)]
    middle = {
        step: {
            "median_s": statistics.median(one[step][0] for one in taken),
            "min_s": min(one[step][0] for one in taken),
            "median_processor_s": statistics.median(one[step][1] for one in taken),
        }
        for step in STEPS
    }
    record(
        "import_time",
        {
            "rounds": rounds,
            "steps": middle,
            "adds_s": middle["fenchel"]["median_s"],
            "adds_processor_s": middle["fenchel"]["median_processor_s"],
            "adds_over_torch": middle["fenchel"]["median_processor_s"]
            / middle["torch"]["median_processor_s"],
            "target_s": TARGET_S,
        },
    )


if __name__ == "__main__":
    main()
