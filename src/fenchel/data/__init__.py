"""What models read: texts cut into windows, images, and inputs that are ready, in batches and shares."""

from __future__ import annotations

__all__: list[str] = []
