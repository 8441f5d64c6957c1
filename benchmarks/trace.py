"""Which files of the package a query passes through, forward and without gradient, in the order of first call."""  # noqa: A005

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import fenchel
from benchmarks.recording import record
from fenchel import Discrete, InferenceProblem
from fenchel.nn import MultiheadAttention

PACKAGE = str(Path(fenchel.__file__).parent)


def files_of(call: Callable[[], Any]) -> list[str]:
    """The files in which functions of the package are called; modules that are imported on the way do not count."""
    result: dict[str, None] = {}

    def look(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE) and frame.f_code.co_name != "<module>":
            result[name.removeprefix(PACKAGE + "/")] = None

    call()
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(result)


def main() -> None:
    torch.manual_seed(0)
    layer, x = MultiheadAttention(16, 2, estimator="exact").eval(), torch.randn(1, 9, 16)
    problem = InferenceProblem(Discrete(torch.randn(9, 4)), torch.randn(5, 4))
    with torch.no_grad():
        ways = {
            "layer": files_of(lambda: layer(x, x, x)),
            "problem": files_of(lambda: problem.solve("exact")),
        }
    record("trace", {name: {"files": len(files), "names": files} for name, files in ways.items()})


if __name__ == "__main__":
    main()
