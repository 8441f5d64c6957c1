"""What every long command needs, whatever it computes: its folder, what it was asked, whom it tells, when it saves."""

from __future__ import annotations

from fenchel.runs.extras import require_packages

__all__ = ["require_packages"]
