"""Reproduce a figure of the papers: audit the model and its untrained twin, and set the papers' numbers beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fenchel.arguments import checked
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.heads import KINDS, Kind
from fenchel.auditing.run import audit
from fenchel.errors import ModelError
from fenchel.io.documents import open_documents
from fenchel.loading import RunModel
from fenchel.options import ReproduceOptions, takes
from fenchel.reproducing.paper import BERT, FIGURES, T5, PaperPanel
from fenchel.reproducing.reproduction import panel_result
from fenchel.reproducing.reproduction_report import ReproductionReport

__all__ = ["reproduce"]


@takes(ReproduceOptions)
def reproduce(
    figure: str,
    texts: Any,
    **options: Any,
) -> ReproductionReport:
    """Set a figure of the papers beside the same of a model: mean relative deviations by layer or by head.

    The model is audited as the papers say, in space ``input`` with α = 1, but each λ* is solved to a certificate. Its
    untrained twin reads the same text, since a small deviation alone does not tell a trained model from one that never
    learnt anything.

    Args:
        figure: ``figure4``, ``figure5`` or ``figures6-8``.
        texts: What to read, as for ``fenchel.audit``; the papers do not say what they read.
        **options: The options of :class:`fenchel.options.ReproduceOptions`.

    Returns:
        The papers' numbers and ours.

    Raises:
        InputError: If the figure is not one of them, or an option, the text or the folder cannot be used.
        ModelError: If the model cannot be loaded, or has none of the attention that the figure shows.
        OutputError: If the folder cannot be written to.
    """
    figure = checked("figure", figure)
    asked = ReproduceOptions.checked(**options)
    if isinstance(texts, str | Path):
        open_documents(texts, **asked.of_text)  # a mistake in it shows before a model is loaded
    name = FIGURES[figure][0].model if asked.model is None else str(asked.model)
    found = RunModel.of(name, None, device=asked.device, dtype=asked.dtype, revision=asked.revision)
    wanted = _panels(figure, name, _kinds(found))
    del found  # the audit of a named model loads it itself, and so knows the digest of its weights
    folder = asked.directory
    same = {**asked.model_dump(exclude={"model", "directory"}), "observer": asked.observer}
    done = audit(
        name,
        None,
        texts,
        space="input",
        baseline="twin",
        directory=None if folder is None else folder / "audit",
        **same,
    )
    report = _reproduced(figure, wanted, done)
    if folder is not None:
        report.save(folder)
    return report


def _kinds(found: RunModel) -> set[Kind]:
    """How a model attends, from one short sentence: before hours are spent on a figure that it has nothing for."""
    looked_at = audit(found.model, found.tokenizer, ["Attention is inference."], tol=1e-2)
    return {kind for kind, _ in looked_at.statistics.layers()}


def _panels(figure: str, name: str, kinds: set[Kind]) -> tuple[PaperPanel, ...]:
    """The panels that a model stands beside: of figure 4, an encoder beside BERT, what also decodes beside T5."""
    panels = FIGURES[figure]
    if figure == "figure4":
        theirs = BERT if kinds == {"encoder_self"} else T5
        panels = tuple(panel for panel in panels if panel.model == theirs)
    shown: set[Kind] = {panel.kind for panel in panels}
    if not kinds & shown:
        raise ModelError(
            f"{name} has {_words(kinds)} attention only, and {figure} shows {_words(shown)}. Give a model that has it."
        )
    return panels


def _words(kinds: set[Kind]) -> str:
    return " and ".join(kind.replace("_", " ") for kind in KINDS if kind in kinds)


def _reproduced(figure: str, panels: tuple[PaperPanel, ...], done: AuditReport) -> ReproductionReport:
    results = [(panel, panel_result(panel, done)) for panel in panels]
    heads = [*done.heads, *done.twin_heads]
    return ReproductionReport(
        figure=figure,
        panels=tuple(result for _, result in results if result is not None),
        missing=tuple(
            f"{panel.name} ({_words({panel.kind})})" for panel, result in results if result is None
        ),
        manifest=done.manifest,
        problems=sum(head["queries"] for head in heads),
        not_converged=sum(head["not_converged"] for head in heads),
    )
