"""Bridges from other libraries' models to the inference problem that their attention stands for."""
