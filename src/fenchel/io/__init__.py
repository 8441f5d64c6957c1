"""Folders, files of state, texts and images in batches, and shares of a corpus."""
