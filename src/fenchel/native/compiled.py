"""The compiled library: built once with the system's C compiler, kept in the user's cache, loaded when first asked for.

Nothing is compiled on import, and nothing here raises: without a compiler, or where anything else is amiss, there is no
library, :func:`status` says why, and the same is computed by torch.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["HEADER", "SOURCES", "build", "loaded", "status", "switched"]

SOURCES = tuple(Path(__file__).with_name(name) for name in ("rows.c", "thresholds.c"))

HEADER = Path(__file__).with_name("passes.h")

SWITCH = "FENCHEL_NATIVE"
"""Environment variable; 0 computes by torch."""

FLAGS = ("-std=c11", "-O3", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
"""Strict arithmetic: what is added up in another order says so in the source."""

TARGETS = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ("-mcpu=native",), ())
"""Ways to ask for this machine's instructions; the first that the compiler knows is taken."""

THREADING = ("-fopenmp", "-fopenmp-simd")
"""With threads of torch's own OpenMP runtime, which is there already, where the two fit; else without threads."""

PATIENCE = 120
"""Seconds that a compiler may take."""

_lock = threading.Lock()
_found: tuple[ctypes.CDLL | None, str] | None = None
_off = False


class _UnavailableError(Exception):
    """There is no library; says why."""


def loaded() -> ctypes.CDLL | None:
    """The library, built where it is not there yet; None where it is switched off or cannot be had."""
    return None if _off else _looked_up()[0]


def status() -> str:
    """Whether passes are native, and why not where they are not; builds the library if need be."""
    return "off" if _off else _looked_up()[1]


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """Compute natively, where that is possible, or by torch alone."""
    global _off
    before, _off = _off, not on
    try:
        yield
    finally:
        _off = before


def _looked_up() -> tuple[ctypes.CDLL | None, str]:
    global _found
    with _lock:
        if _found is None:
            try:
                _found = _available(), "native"
            except _UnavailableError as error:
                _found = None, f"torch: {error}"
            except (OSError, subprocess.SubprocessError, UnicodeError) as error:
                _found = None, f"torch: {type(error).__name__}: {error}"
        return _found


def _available() -> ctypes.CDLL:
    if os.environ.get(SWITCH, "1") == "0":
        raise _UnavailableError(f"{SWITCH}=0")
    if sys.platform == "win32":
        raise _UnavailableError("not built on Windows")
    return build(_cache())


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(root) if root else Path.home() / ".cache") / "fenchel"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def build(folder: Path) -> ctypes.CDLL:
    """The library of this source, compiler and processor from a folder, or built into it.

    A file's name says what it was made of and what it holds, so that one that is damaged is never loaded; it is written
    beside its place and moved there whole, so that processes may build at the same time.
    """
    compiler, source = _compiler(), b"\0".join(part.read_bytes() for part in (HEADER, *SOURCES))
    target, identity = _target(compiler)
    for threading_flag in THREADING:
        flags = (*FLAGS, *target, threading_flag)
        made_of = hashlib.sha256(b"\0".join((source, " ".join(flags).encode(), identity))).hexdigest()
        for kept in sorted(folder.glob(f"rows-{made_of[:24]}-*.so")):
            if kept.stem.rpartition("-")[2] == _digest(kept):
                return _opened(kept)
            kept.unlink(missing_ok=True)
        try:
            return _opened(_compiled(compiler, flags, folder, f"rows-{made_of[:24]}"))
        except OSError:
            # The runtime that torch brought is another compiler's.
            if threading_flag == THREADING[-1]:
                raise
    raise AssertionError("unreachable")


def _compiler() -> list[str]:
    asked = os.environ.get("CC")
    for candidate in [asked] if asked else ["cc", "gcc", "clang"]:
        command = shlex.split(candidate)
        if command and (path := shutil.which(command[0])):
            return [path, *command[1:]]
    raise _UnavailableError(f"CC={asked} is no command" if asked else "there is no C compiler")


def _run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(  # noqa: S603 -- the user's own compiler, on our own file
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=PATIENCE
    )


def _target(compiler: list[str]) -> tuple[tuple[str, ...], bytes]:
    """Flags for this processor, and the macros that they define: the compiler's version and the instructions."""
    for target in TARGETS:
        done = _run([*compiler, *FLAGS, *target, "-dM", "-E", "-x", "c", os.devnull])
        if done.returncode == 0:
            return target, done.stdout
    raise _UnavailableError(f"{shlex.join(compiler)} does not compile C11")


def _compiled(compiler: list[str], flags: tuple[str, ...], folder: Path, name: str) -> Path:
    with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as scratch:
        compiled = {source: str(Path(scratch) / f"{source.stem}.o") for source in SOURCES}
        linked, found = Path(scratch) / "rows.so", ("-I", str(HEADER.parent))
        # Linked without the flag for threads, so that no second runtime for them is loaded beside torch's.
        steps = (
            *(
                [*compiler, *flags, *found, "-c", str(source), "-o", into]
                for source, into in compiled.items()
            ),
            [*compiler, "-shared", *compiled.values(), "-o", str(linked)],
        )
        for command in steps:
            done = _run(command)
            if done.returncode != 0:
                said = done.stderr.decode(errors="replace").strip().splitlines()
                raise _UnavailableError(f"{shlex.join(compiler)} failed: {said[0] if said else 'no message'}")
        place = folder / f"{name}-{_digest(linked)}.so"
        linked.replace(place)
    return place


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:24]


def _opened(path: Path) -> ctypes.CDLL:
    found = ctypes.CDLL(str(path))
    # A compiler that does not keep to strict arithmetic shows it here.
    given = [0.0, -1.0, -30.0, -1e9, -math.inf]
    narrow, wide = (ctypes.c_float * 5)(*given), (ctypes.c_double * 5)(*given)
    found.fenchel_exponentials(narrow, wide, ctypes.c_int64(5))
    for x, one, other in zip(given, narrow, wide, strict=True):
        expected = math.exp(x)
        if not (abs(one - expected) <= 1e-6 * expected and abs(other - expected) <= 1e-15 * expected):
            raise _UnavailableError("the compiled library computes wrong exponentials")
    return found
