"""Reports that look like those of real models: seeded, without a model."""

import math
import random
from typing import Any

import torch

from fenchel.arguments import Kind
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.examples import AttentionMatrix, HeadExample, Packing, Passage, TemplateWeight, packed
from fenchel.auditing.heads import METRICS, AttentionModule, HeadKey
from fenchel.auditing.statistics import AuditStatistics
from fenchel.auditing.swap_effects import HeadEffect, SwapEffects
from fenchel.auditing.weight_moves import KEY_CLASSES, MOVE_COLUMNS
from tests.auditing.small_audits import known_statistics

HOSTILE = "</script><img src=x onerror=alert(1)>"

TEXT = (
    "It is a truth universally acknowledged , that a single man in possession of a good fortune , must be in "
    "want of a wife . However little known the feelings or views of such a man may be on his first entering "
    "a neighbourhood"
)


def manifest(model: str = "demo", **changes: Any) -> dict[str, Any]:
    entries = {
        **{"schema": 1, "fenchel": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0", "python": "3.11.7"},
        **{"model": model, "revision": None, "model_class": "BertModel", "dtype": "float32", "device": "cpu"},
        **{"space": "input", "alpha": 1.0, "tol": 1e-4, "max_length": 128, "stride": 128, "batch_size": 8},
        **{"max_tokens": None, "layers": None, "heads": None, "documents": 24, "tokens": 1920, "seed": 0},
        "baseline": "auto",
        "twin": "not audited: it would take about 4 minutes",
        "texts": "pride-and-prejudice.txt",
        "text_sha256": "9b74c9897bac770ffc029102a200c5de9b74c9897bac770ffc029102a200c5de",
        "shard": "0/1",
        "convention": "Templates are the layer's inputs divided by the square root of the head width, "
        "t_i = x_i/√d′, and the evidence is z = Kᵀ(Q x_k + b_q).",
    }
    return {**entries, **changes}


def draw(
    rng: random.Random, heads: int, queries: int, *, layer: int, unbounded: bool, missed: int
) -> dict[str, torch.Tensor]:
    """Columns of one layer, (heads, queries), in which later layers deviate more."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    values = {}
    for number, name in enumerate(METRICS):
        center = torch.tensor(
            [[rng.uniform(0.03, 0.06 + 0.02 * (layer % 6)) * (1 + number)] for _ in range(heads)]
        )
        values[name] = center * torch.exp(0.4 * torch.randn(heads, queries, generator=generator))
    values["total_variation"].clamp_(max=0.95)
    if unbounded:
        values["certificate"][0, 0] = math.inf
    converged = torch.ones(heads, queries, dtype=torch.bool)
    converged[-1, :missed] = False
    steps = torch.randint(2, 6, (heads, queries), generator=generator)
    return {**values, "newton_steps": steps, "converged": converged}


def moved_columns(rng: random.Random, heads: int, queries: int) -> dict[str, torch.Tensor]:
    """What moves in a layer: from the first token to the rest, between the words of the vocabulary."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    moved = (0.2 * torch.rand(heads, 1, generator=generator)).expand(heads, queries)
    found = {name: torch.zeros(heads, queries) for name in MOVE_COLUMNS}
    found |= {f"attention_{name}": torch.full((heads, queries), 1 / len(KEY_CLASSES)) for name in KEY_CLASSES}
    found |= {"leaves_first": moved, "reaches_rest": moved, "leaves_weight": moved, "reaches_weight": moved}
    for name, token in (("leaves_token", 2), ("reaches_token", 9)):
        found[name] = torch.full((heads, queries), token)
    return found


def effects_of(report: AuditReport) -> SwapEffects:
    """What a swap of the report's model may have found."""
    heads = tuple(
        HeadEffect(
            **{name: record[name] for name in HeadKey._fields},  # pyright: ignore[reportArgumentType]
            deviations={name: record[f"{name}_mean"] for name in ("total_variation", "relative_deviation")},  # pyright: ignore[reportArgumentType]
            effect=0.01 * number,
            low=0.008 * number,
            high=0.012 * number,
            same_by_alpha=None,
            quality=None,
        )
        for number, record in enumerate(report.heads, 1)
    )
    return SwapEffects(heads, {"total_variation": 0.81, "relative_deviation": 0.34}, None, "")


def example(rng: random.Random, key: HeadKey, *, token: str | None = None, number: int = 0) -> HeadExample:
    words = TEXT.split()
    place = rng.randrange(8, len(words))
    places = sorted({0, place, *rng.sample(range(len(words)), 10)})
    raw = [[rng.expovariate(1.0) ** 2 for _ in places] for _ in range(2)]
    first, exact = ([weight / sum(row) for weight in row] for row in raw)
    templates = tuple(
        TemplateWeight(other + 1, token or ("[CLS]" if other == 0 else words[other].lower()), a, b)
        for other, a, b in zip(places, first, exact, strict=True)
    )
    pieces = tuple(f" {token or word}" for word in words)
    weights = torch.zeros(2, len(words))
    weights[:, places] = torch.tensor([first, exact])
    start = sum(len(piece) for piece in pieces[:place])
    return HeadExample(
        *key,
        total_variation=0.5 * sum(abs(a - b) for a, b in zip(first, exact, strict=True)) / (1 + number / 4),
        relative_deviation=rng.uniform(0.05, 0.2),
        document=3 + number,
        window=1,
        position=place + 1,
        token=token or words[place].lower(),
        templates=tuple(sorted(templates, key=lambda template: -max(template.first_order, template.exact))),
        context="".join(pieces)[1:],
        pattern=(("first", "rest", "punctuation")[number], "first", "rest"),
        context_token=(start, start + len(pieces[place]) - 1),
        passage=Passage(1, len(words), pieces, *(packed(side, Packing.FINE) for side in weights)),
    )


def matrix(rng: random.Random, key: HeadKey, *, token: str | None = None) -> AttentionMatrix:
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    pieces = tuple(f" {token or word}" for word in TEXT.split())
    weights = (3 * torch.randn(2, len(pieces), len(pieces), generator=generator)).softmax(-1)
    kept = list(range(12))
    return AttentionMatrix.of(
        key, (1, 1, len(pieces)), weights[0, :12], weights[1, :12], (kept, kept), (pieces, pieces)
    )


def sample_report(
    shape: dict[Kind, tuple[int, int]] | None = None,
    *,
    queries: int = 160,
    unbounded: bool = False,
    missed: int = 0,
    token: str | None = None,
    twin: bool = False,
    moved: bool = False,
    **changes: Any,
) -> AuditReport:
    """A report of ``shape[kind] = (layers, heads)``, on request with an untrained twin and with what moves."""
    rng = random.Random(0)  # noqa: S311
    report = AuditReport(manifest(**changes), AuditStatistics())
    sites: list[Any] = []
    twins: list[Any] = []
    for kind, (layers, heads) in (shape or {"encoder_self": (6, 12)}).items():
        for layer in range(1, layers + 1):
            of_first: dict[str, Any] = {"unbounded": unbounded, "missed": missed} if layer == 1 else {}
            usual: dict[str, Any] = {"layer": layer, "unbounded": False, "missed": 0}
            columns = draw(rng, heads, queries, **usual | of_first)
            if moved:
                columns |= moved_columns(rng, heads, queries)
            sites.append((kind, layer, range(1, heads + 1), columns))
            if twin:
                twins.append((kind, layer, range(1, heads + 1), draw(rng, heads, queries, **usual)))
            for head in range(1, heads + 1):
                key = HeadKey(kind, layer, head)
                some = [example(rng, key, token=token, number=number) for number in range(3)]
                report.far_queries[key] = tuple(sorted(some, key=lambda one: one.rank, reverse=True))
                report.matrices[key] = matrix(rng, key, token=token)
    words = {2: token or "[CLS]", 7: token or "a", 9: token or "fortune"} if moved else {}
    report.statistics = known_statistics(sites, words)
    report.twin = known_statistics(twins) if twin else None
    if moved:
        layers_of = enumerate(report.statistics.layers(), 1)
        report.modules |= {
            site: AttentionModule(*site, f"layer.{number}", number) for number, site in layers_of
        }
    return report
