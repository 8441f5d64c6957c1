"""How benchmarks time, and what they write down: every figure with the machine and the versions that made it."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(candidates: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, dict[str, float]]:
    """Time candidates in turn, round after round, so that a busy machine is busy for all of them."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        run()
    for _ in range(rounds):
        for name, run in candidates.items():
            times[name].append(seconds(run))
    return {
        name: {
            "median_s": statistics.median(taken),
            "min_s": min(taken),
            "max_s": max(taken),
            "rounds": rounds,
        }
        for name, taken in times.items()
    }


def record(name: str, result: Mapping[str, Any]) -> None:
    """Write ``results/NAME.json`` and show it."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"benchmark": name, "machine": machine(), **result}, indent=2)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    print(text)
