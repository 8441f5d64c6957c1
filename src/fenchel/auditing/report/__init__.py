"""What an audit looks like: a page for the browser, tables for terminal and notebook.

Everything here reads an :class:`~fenchel.auditing.AuditReport` and computes nothing about attention: it
only arranges numbers that the audit has measured.
"""

from __future__ import annotations

from fenchel.auditing.report.findings import headline, notebook_html, summary_sentence, terminal_table
from fenchel.auditing.report.html import render_html

__all__ = [
    "headline",
    "notebook_html",
    "render_html",
    "summary_sentence",
    "terminal_table",
]
