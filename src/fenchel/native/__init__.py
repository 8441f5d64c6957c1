"""Passes over rows of templates in native code, where there is a C compiler; the same in torch everywhere else.

A solver's pass over arrays (rows, n) is a dozen operations of torch, each of which goes through all of memory again. In
C a row stays in the nearest cache until all of them are done. :mod:`~fenchel.native.compiled` builds and loads what
``rows.c`` says; :mod:`~fenchel.native.kernels` calls it with tensors. Whoever has a native kernel has its twin in torch
beside it, which serves every other dtype, device and response, and every machine without a compiler.
``FENCHEL_NATIVE=0`` in the environment leaves everything to torch.
"""

from fenchel.native.compiled import loaded, status, switched
from fenchel.native.kernels import Points, serves

__all__ = ["Points", "loaded", "serves", "status", "switched"]
