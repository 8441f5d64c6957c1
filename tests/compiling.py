"""Compiling in tests: from the sources, never from what an earlier version of them left in torch's caches."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def compiled_afresh() -> Iterator[None]:
    """A context in which nothing is compiled yet, and no graph comes from a file."""
    with warnings.catch_warnings():
        # Torch's compiler is built on parts of torch that torch has deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._inductor.compile_fx")
    inductor: Any = importlib.import_module("torch._inductor.config")
    functorch: Any = importlib.import_module("torch._functorch.config")
    torch._dynamo.reset()
    # Without vector instructions the C++ compiler, which most of the time goes to, is done sooner; a process that helps
    # to compile would have to load torch first.
    fresh = inductor.patch({"fx_graph_cache": False, "cpp.simdlen": 1, "compile_threads": 1})
    with fresh, functorch.patch(enable_autograd_cache=False):
        yield
