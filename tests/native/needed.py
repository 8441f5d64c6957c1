"""What tests of native kernels need: the library, or a reason to skip."""

from __future__ import annotations

import pytest

from fenchel.native import loaded, status

NATIVE = pytest.mark.skipif(loaded() is None, reason=f"no native kernels here ({status()})")
