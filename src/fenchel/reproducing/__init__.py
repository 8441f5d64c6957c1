"""The papers' figures of trained models by one command each: their numbers beside ours."""

from __future__ import annotations

from fenchel.reproducing.paper import FIGURES, PaperPanel
from fenchel.reproducing.reproduction import PanelResult, Reproduction, reproduce

__all__ = ["FIGURES", "PanelResult", "PaperPanel", "Reproduction", "reproduce"]
