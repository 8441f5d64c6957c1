"""Every benchmark, one after the other; results go to ``benchmarks/results``."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = (
    "exact_solve",
    "core",
    "long_context",
    "audit_table",
    "scaling",
    "honesty",
    "bounds",
    "attention",
    "transport",
    "closeness",
    "sparse_weights",
    "hashing",
    "catalogue",
    "import_time",
    "trace",
)

for name in BENCHMARKS:
    print(f"--- {name}", flush=True)
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
