"""The papers' figures of trained models by one command each: their numbers beside ours."""

from __future__ import annotations

from fenchel.reproducing.reproduction import FIGURES, PanelResult, PaperPanel, Reproduction, reproduce

__all__ = ["FIGURES", "PanelResult", "PaperPanel", "Reproduction", "reproduce"]
