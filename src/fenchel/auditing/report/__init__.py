"""Rendering of an :class:`~fenchel.auditing.AuditReport`: an HTML page, tables for terminals and notebooks."""

from __future__ import annotations

from fenchel.auditing.report.findings import headline, summary_sentence, terminal_table
from fenchel.auditing.report.html import notebook_html, render_html

__all__ = ["headline", "notebook_html", "render_html", "summary_sentence", "terminal_table"]
