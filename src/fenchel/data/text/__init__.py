"""Texts: reading them, turning them into tokens, cutting them into windows that a model takes."""

from __future__ import annotations

from fenchel.data.text.documents import Document, Documents, open_documents
from fenchel.data.text.windows import TokenWindows

__all__ = ["Document", "Documents", "TokenWindows", "open_documents"]
