"""Folders, files of state, texts and images in batches, and shares of a corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fenchel.io.documents import Document as Document
    from fenchel.io.documents import Documents as Documents
    from fenchel.io.documents import open_documents as open_documents
    from fenchel.io.windows import TokenWindows as TokenWindows

__all__ = ["Document", "Documents", "TokenWindows", "open_documents"]


def __getattr__(name: str) -> Any:
    """Readers of texts are imported when they are first asked for, since they need torch and shares do not."""
    if name not in __all__:
        raise AttributeError(f"module 'fenchel.io' has no attribute {name!r}")
    from fenchel.io import documents, windows

    return getattr(windows if name == "TokenWindows" else documents, name)
