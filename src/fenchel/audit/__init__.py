"""Audit a trained transformer: documents, batches, attention calls, measures, statistics, report."""

from __future__ import annotations

from fenchel.audit.heads import KINDS, METRICS, HeadKey, Kind
from fenchel.audit.merge import merge
from fenchel.audit.progress import AuditObserver, Progress
from fenchel.audit.record import AuditReport, HeadExample, TemplateWeight
from fenchel.audit.run import audit, shard_directory
from fenchel.audit.shard import Shard
from fenchel.audit.statistics import AuditStatistics

__all__ = [
    "KINDS",
    "METRICS",
    "AuditObserver",
    "AuditReport",
    "AuditStatistics",
    "HeadExample",
    "HeadKey",
    "Kind",
    "Progress",
    "Shard",
    "TemplateWeight",
    "audit",
    "merge",
    "shard_directory",
]
