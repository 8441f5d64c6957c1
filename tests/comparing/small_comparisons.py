"""Audits that can be compared, seeded and without a model, whose queries are known."""

from typing import Any

import torch

from fenchel.arguments import Kind
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.heads import METRICS, HeadKey
from fenchel.auditing.manifest import SCHEMA
from tests.auditing.report.samples import manifest
from tests.auditing.small_audits import known_statistics

SHAPE: dict[Kind, tuple[int, int]] = {"encoder_self": (2, 3), "cross": (1, 2)}
QUERIES, IN_A_DOCUMENT = 300, 5


def known_values(
    seed: int, shift: dict[HeadKey, float] | None = None, queries: int = QUERIES
) -> dict[HeadKey, dict[str, torch.Tensor]]:
    """Of each head and metric, a value a query; ``shift`` multiplies all of a head's."""
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for kind, (layers, heads) in SHAPE.items():
        for layer in range(1, layers + 1):
            for head in range(1, heads + 1):
                place = 0.02 * (layer + 2 * head) * (shift or {}).get(HeadKey(kind, layer, head), 1.0)
                found[HeadKey(kind, layer, head)] = {
                    metric: place * (number + 1) * torch.exp(0.3 * torch.randn(queries, generator=draw))
                    for number, metric in enumerate(METRICS)
                }
    return found


def known_audit(values: dict[HeadKey, dict[str, torch.Tensor]], **changes: Any) -> AuditReport:
    """The audit in which each head has these values."""
    sites: set[tuple[Kind, int]] = {(key.kind, key.layer) for key in values}
    columns = []
    for kind, layer in sorted(sites):
        heads = [key.head for key in values if key[:2] == (kind, layer)]
        own = [values[HeadKey(kind, layer, head)] for head in heads]
        columns.append(
            (kind, layer, heads, {name: torch.stack([one[name] for one in own]) for name in METRICS})
        )
    given = manifest(**{"schema": SCHEMA, "merged_from": None, **changes})
    return AuditReport(given, known_statistics(columns, in_a_document=IN_A_DOCUMENT))
