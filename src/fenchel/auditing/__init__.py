"""Audit a trained transformer: documents, batches, attention calls, measures, statistics, report."""

from __future__ import annotations

from fenchel.arguments import Kind
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.examples import HeadExample, TemplateWeight
from fenchel.auditing.heads import METRICS
from fenchel.auditing.merge import merge
from fenchel.auditing.run import audit
from fenchel.io.runs import Progress, Shard
from fenchel.io.runs import RunObserver as AuditObserver

__all__ = [
    "METRICS",
    "AuditObserver",
    "AuditReport",
    "HeadExample",
    "Kind",
    "Progress",
    "Shard",
    "TemplateWeight",
    "audit",
    "merge",
]
