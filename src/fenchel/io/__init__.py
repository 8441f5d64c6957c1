"""Folders, files of state, texts and images in batches, and shares of a corpus."""

from __future__ import annotations

from fenchel.io.documents import Document, Documents, open_documents
from fenchel.io.windows import TokenWindows

__all__ = ["Document", "Documents", "TokenWindows", "open_documents"]
